"""Where a netspy spider's settings come from.

From the weakest to the strongest: netspy's defaults, Scrapy's project, ``setting.py`` in the
working folder (or the file that NETSPY_SETTING names), ``NETSPY_<KEY>`` variables,
``custom_settings``, ``__custom_setting__``, keywords of the constructor, the command line.
"""

from __future__ import annotations

import json
import os
import runpy
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.settings import default_settings

from netspy_scrapy import downloader
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.settings import SETTINGS, UNSUPPORTED, user_set

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy.settings import BaseSettings

#: Over Scrapy's defaults, which a runner writes into a crawler's settings once more, and under
#: everything that somebody set.
FACADE_PRIORITY = 5

ADDON = "netspy_scrapy.Addon"
_ADDON_ORDER = 500
_CONSOLE = "netspy_scrapy.pipelines.console.ConsolePipeline"
_OLD_PREFIX = "netspy.pipelines."
_PREFIX = "netspy_scrapy.pipelines."
_FIRST_PIPELINE = 300
_ENVIRONMENT_PREFIX = "NETSPY_"
_FILE_VARIABLE = "NETSPY_SETTING"

#: netspy's behaviour where Scrapy's own default differs.
_SCRAPY_DEFAULTS: dict[str, Any] = {
    "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
    "DEFAULT_REQUEST_HEADERS": {"Accept": "*/*"},
    "DOWNLOAD_DELAY": 0.0,
    "DOWNLOAD_VERIFY_CERTIFICATES": True,
    "DOWNLOAD_WARNSIZE": 0,
    "LOG_LEVEL": "INFO",
    "METAREFRESH_ENABLED": False,
    "NETSPY_RETRY_CALLBACK_ERRORS": True,
    "REDIRECT_PRIORITY_ADJUST": 0,
    "RETRY_PRIORITY_ADJUST": 0,
    "TELNETCONSOLE_ENABLED": False,
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
    "SCHEDULER_START_MEMORY_QUEUE": None,
    "SCHEDULER_START_DISK_QUEUE": None,
    "URLLENGTH_LIMIT": 0,
}

#: loguru's levels that logging does not know.
_LOG_LEVELS = {"SUCCESS": "INFO", "TRACE": "DEBUG"}

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def configure(cls: type[Any], settings: BaseSettings) -> None:
    """Write the settings of the spider class *cls* into *settings*."""
    for name, setting in SETTINGS.items():
        if setting.default is not None and name not in _SCRAPY_DEFAULTS:
            settings.set(name, setting.default, FACADE_PRIORITY)
    for name, value in _SCRAPY_DEFAULTS.items():
        settings.set(name, value, FACADE_PRIORITY)
    settings.setdict(translated(file_settings()), "project")
    settings.setdict(translated(environment_settings(os.environ)), "project")
    settings.setdict(translated(cls.custom_settings or {}), "spider")
    settings.setdict(translated(cls.__custom_setting__ or {}), "spider")
    downloader.choose_loop(settings, FACADE_PRIORITY)
    if not user_set(settings, "ITEM_PIPELINES"):
        settings.set("ITEM_PIPELINES", {_CONSOLE: _FIRST_PIPELINE}, FACADE_PRIORITY)
    addons = dict(settings.getdict("ADDONS"))
    if not any(_is_addon(one) for one in addons):
        priority = max(settings.getpriority("ADDONS") or 0, FACADE_PRIORITY)
        settings.set("ADDONS", {**addons, ADDON: _ADDON_ORDER}, priority)


def translated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* with what netspy writes otherwise than Scrapy in Scrapy's form."""
    values = dict(values)
    if "ITEM_PIPELINES" in values:
        values["ITEM_PIPELINES"] = pipelines(values["ITEM_PIPELINES"])
    middlewares = values.get("DOWNLOADER_MIDDLEWARES")
    if isinstance(middlewares, (list, tuple)):
        if middlewares:
            raise ConfigError(
                "DOWNLOADER_MIDDLEWARES",
                middlewares,
                "a dict of Scrapy downloader middlewares with their order; "
                "netspy's own middlewares are another interface",
            )
        del values["DOWNLOADER_MIDDLEWARES"]
    if isinstance(values.get("LOG_LEVEL"), str):
        level = values["LOG_LEVEL"].upper()
        values["LOG_LEVEL"] = _LOG_LEVELS.get(level, level)
    return values


def pipelines(value: Any) -> dict[Any, Any]:
    """Return ITEM_PIPELINES as Scrapy's dict; netspy's own sinks become ours of the same name."""
    if isinstance(value, (list, tuple)):
        return {_ours(one): _FIRST_PIPELINE + 10 * place for place, one in enumerate(value)}
    if not hasattr(value, "items"):
        raise ConfigError(
            "ITEM_PIPELINES", value, "a list of pipelines, or a dict with their order"
        )
    return {_ours(one): order for one, order in value.items()}


def environment_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that ``NETSPY_<KEY>`` variables give, by the type of the default."""
    found = {}
    for variable, text in environment.items():
        if not variable.startswith(_ENVIRONMENT_PREFIX) or variable == _FILE_VARIABLE:
            continue
        name = variable if variable in SETTINGS else variable[len(_ENVIRONMENT_PREFIX) :]
        if name in SETTINGS:
            default = SETTINGS[name].default
            if name == "SPIDER_THREAD_COUNT":
                default = 4
        elif hasattr(default_settings, name):
            default = getattr(default_settings, name)
        elif name in UNSUPPORTED:
            default = None
        else:
            continue
        found[name] = _parsed(variable, text, default)
    return found


def _parsed(variable: str, text: str, default: Any) -> Any:
    word = text.strip().lower()
    if isinstance(default, bool):
        if word in _TRUE | _FALSE:
            return word in _TRUE
        raise ConfigError(variable, text, "true or false")
    try:
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text)
        if isinstance(default, (list, dict)):
            return json.loads(text)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}.get(type(default), "JSON")
        raise ConfigError(variable, text, kind) from None
    return text


def file_settings() -> dict[str, Any]:
    """Return what ``setting.py``, or the file that NETSPY_SETTING names, sets."""
    path = setting_file()
    if path is None:
        return {}
    try:
        values = runpy.run_path(str(path))
    except Exception as exc:
        raise ConfigError(_FILE_VARIABLE, str(path), "a file that runs") from exc
    return {name: value for name, value in values.items() if name.isupper() and name[0] != "_"}


@lru_cache(maxsize=1)
def _values_of(path: Path | None, changed: float) -> dict[str, Any]:
    del path, changed  # what they are decides whether the file is read again
    return file_settings()


def setting_file() -> Path | None:
    """Return the setting file of netspy's that counts here, or None.

    Raises :exc:`~netspy_scrapy.exceptions.ConfigError` if NETSPY_SETTING names none.
    """
    named = os.environ.get(_FILE_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise ConfigError(_FILE_VARIABLE, named, "the path of a file that exists")
        return path
    if Path("setting.py").is_file():
        return Path("setting.py")
    # In a Scrapy project a settings.py in the working folder is Scrapy's.
    if Path("settings.py").is_file() and not os.environ.get("SCRAPY_SETTINGS_MODULE"):
        return Path("settings.py")
    return None


def _ours(pipeline: Any) -> Any:
    if isinstance(pipeline, str) and pipeline.startswith(_OLD_PREFIX):
        return _PREFIX + pipeline[len(_OLD_PREFIX) :]
    return pipeline


def _is_addon(one: Any) -> bool:
    path = one if isinstance(one, str) else f"{one.__module__}.{one.__qualname__}"
    return path in {ADDON, "netspy_scrapy.addon.Addon"}


class Setting:
    """``mw.setting``: what netspy's setting file, variables and defaults say, to be read.

    A spider has its own settings too: ``self.settings``.
    """

    def __getattr__(self, name: str) -> Any:
        if name in (environment := environment_settings(os.environ)):
            return environment[name]
        path = setting_file()
        values = _values_of(path.resolve() if path else None, path.stat().st_mtime if path else 0.0)
        if name in values:
            return values[name]
        if name in SETTINGS:
            return SETTINGS[name].default
        raise AttributeError(f"netspy_scrapy has no setting {name!r}")
