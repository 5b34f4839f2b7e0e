"""NETSPY_DOWNLOADER: whether aiohttp fetches pages, or Scrapy's usual handler."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy.settings import default_settings
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name
from scrapy.utils.reactor import is_reactor_installed

from netspy_scrapy import _scrapy
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.settings import read_choice, user_set

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.settings import BaseSettings

SETTING = "NETSPY_DOWNLOADER"
HANDLER = "netspy_scrapy._scrapy.aiohttp_handler.AiohttpDownloadHandler"
UVLOOP = "uvloop.Loop"

_CHOICES = ("auto", "http11", "aiohttp")
_SCHEMES = ("http", "https")


def is_aiohttp(settings: BaseSettings) -> bool:
    """Tell whether aiohttp is to fetch pages: asked for, or there ("auto").

    Raises :exc:`~netspy_scrapy.exceptions.ConfigError` if it is asked for and is not there. Where
    nobody has set NETSPY_DOWNLOADER, Scrapy's choice stays.
    """
    if settings.getpriority(SETTING) is None:
        return False
    choice = read_choice(settings, SETTING, _CHOICES)
    if choice == "http11":
        return False
    lacking = missing()
    if lacking and choice == "aiohttp":
        raise ConfigError(SETTING, choice, lacking)
    if choice == "auto" and any(_is_taken(settings, scheme) for scheme in _SCHEMES):
        return False
    return not lacking


def missing() -> str | None:
    """Return what keeps aiohttp from being used, or None."""
    if not _scrapy.HAS_AIOHTTP_HANDLER:
        return (
            f'"http11" with Scrapy {scrapy.__version__}: its handler for aiohttp comes with '
            "Scrapy 2.19"
        )
    if find_spec("aiohttp") is None:
        return "aiohttp to be installed (pip install 'netspy-scrapy[fast]'), or \"http11\""
    try:
        load_object(HANDLER)
    except (ImportError, AttributeError, NameError) as exc:
        # Both are private to Scrapy, or young: another version may have them otherwise.
        return (
            f'"http11" with Scrapy {scrapy.__version__} and the aiohttp that is installed, in '
            f"which something is missing: {exc}"
        )
    return None


def install(settings: BaseSettings) -> Iterator[str]:
    """Put the handler of NETSPY_DOWNLOADER in its place; yield what is worth a warning.

    Handlers that the user chose himself stay.
    """
    if not is_aiohttp(settings):
        return
    handlers = settings.getdict("DOWNLOAD_HANDLERS")
    for scheme in _SCHEMES:
        if _is_taken(settings, scheme):
            yield (
                f"DOWNLOAD_HANDLERS has a handler of its own for {scheme}: NETSPY_DOWNLOADER = "
                f"{settings[SETTING]!r} does nothing for it"
            )
        else:
            handlers[scheme] = HANDLER
    priority = settings.getpriority("DOWNLOAD_HANDLERS") or 0
    settings.set("DOWNLOAD_HANDLERS", handlers, priority)


def shown(settings: BaseSettings) -> str:
    """Return what fetches pages, as the doctor says it."""
    handlers = settings.getwithbase("DOWNLOAD_HANDLERS")
    names = {scheme: _name(handlers.get(scheme)) for scheme in _SCHEMES}
    if len(set(names.values())) == 1:
        return names["https"]
    return ", ".join(f"{scheme}: {name}" for scheme, name in names.items())


def choose_loop(settings: BaseSettings, priority: str | int) -> None:
    """Let the loop that is yet to be made be uvloop's, if that is installed and nobody chose one.

    Beside aiohttp, and only if that was asked for by name: a process that forks after a run of
    uvloop's loses the child to a fault in it, which nobody should meet unasked. Where the loop is
    there by now, it stays what it is, whatever was chosen here before.
    """
    if user_set(settings, "ASYNCIO_EVENT_LOOP"):
        return
    if is_reactor_installed():
        settings.set("ASYNCIO_EVENT_LOOP", None, priority)
    elif (
        settings.getbool("TWISTED_REACTOR_ENABLED", True)
        and settings[SETTING] == "aiohttp"
        and find_spec("uvloop") is not None
        and is_aiohttp(settings)
    ):
        settings.set("ASYNCIO_EVENT_LOOP", UVLOOP, priority)


def _name(handler: Any) -> str:
    if handler is None:
        return "nothing"
    path = handler if isinstance(handler, str) else global_object_name(handler)
    if path == HANDLER:
        return "aiohttp"
    return "http11" if path.endswith(".HTTP11DownloadHandler") else path


def _is_taken(settings: BaseSettings, scheme: str) -> bool:
    """Tell whether the user has given *scheme* a handler, or none."""
    if scheme in settings.getdict("DOWNLOAD_HANDLERS"):
        return True
    base = settings.getdict("DOWNLOAD_HANDLERS_BASE")
    return bool(base.get(scheme) != default_settings.DOWNLOAD_HANDLERS_BASE[scheme])
