"""What becomes of a project's settings when one of its spiders is crawled; nothing is started."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.statscollectors import DummyStatsCollector
from scrapy.utils.conf import build_component_list
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from netspy_scrapy.addon import Addon
from netspy_scrapy.commands.components import (
    brief,
    chain_of,
    first_sentence,
    path_of,
    short_name,
)
from netspy_scrapy.commands.outputs import Outputs
from netspy_scrapy.commands.policy import Policy
from netspy_scrapy.commands.sites import Start
from netspy_scrapy.downloadermiddlewares.robots import RobotsMiddleware
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.settings import (
    SETTINGS,
)
from netspy_scrapy.spiders.air import AirSpider
from netspy_scrapy.spiders.setup import (
    ADDON,
    FACADE_PRIORITY,
    environment_settings,
    file_settings,
    setting_file,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from scrapy import Spider
    from scrapy.settings import Settings

_ADDON_ORDER = 500
_ADDON_PRIORITY = SETTINGS_PRIORITIES["addon"]
_PRIORITIES = {
    0: "Scrapy default",
    FACADE_PRIORITY: "netspy default",
    SETTINGS_PRIORITIES["command"]: "command",
    _ADDON_PRIORITY: "another add-on",
    SETTINGS_PRIORITIES["project"]: "project",
    SETTINGS_PRIORITIES["spider"]: "spider",
    SETTINGS_PRIORITIES["cmdline"]: "command line",
}
_CHAINS = ("DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "EXTENSIONS", "ITEM_PIPELINES")
_SINGLE = ("SCHEDULER", "SCHEDULER_PRIORITY_QUEUE", "DUPEFILTER_CLASS")
#: Spider attributes that Scrapy takes for settings.
_ATTRIBUTES = {
    "download_delay": "DOWNLOAD_DELAY",
    "max_concurrent_requests": "CONCURRENT_REQUESTS_PER_DOMAIN",
}


class Part(NamedTuple):
    """A component, or a setting, that the add-on puts in its place."""

    name: str
    place: str
    purpose: str


@dataclass
class Diagnosis:
    """What one spider would run with."""

    spider: type[Spider]
    settings: Settings
    """As the crawl would have them."""
    start: Start
    error: str = ""
    """Why it cannot be run; then nothing else is known."""
    crawler: Crawler | None = None
    is_on: bool = True
    """Whether the add-on is in ADDONS."""
    switched_on_by: str = ""
    other_addons: list[str] = field(default_factory=list)
    policy: list[tuple[str, str, str, str]] = field(default_factory=list)
    """Feature, effective value, setting that decides, who set it."""
    parts: list[Part] = field(default_factory=list)
    draws_agent: bool = False
    """Whether each request gets a browser's User-Agent."""
    judges_robots: bool = False
    """Whether RobotsMiddleware is in its place."""
    outputs: list[tuple[str, str, str, str]] = field(default_factory=list)
    """Sink or dump, where it writes, setting that decides, who set it."""
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The spider's name."""
        return self.spider.name or self.spider.__name__


def diagnose(spider: type[Spider], project: Settings, urls: Sequence[str]) -> Diagnosis:
    """Find out what *spider* would run with, and whether that can work."""
    found = Diagnosis(spider, project, Start.of(spider, urls))
    try:
        _Examination(found, project).run()
    except ConfigError as exc:
        found.error = str(exc)
    except Exception as exc:  # noqa: BLE001 - the project's own code runs in here
        found.error = f"the settings cannot be read: {type(exc).__name__}: {exc}"
    return found


class _Examination:
    """Applies spider and add-ons to the settings, as Scrapy does, and notes what comes of it."""

    def __init__(self, found: Diagnosis, project: Settings) -> None:
        self._found = found
        self._crawler = found.crawler = Crawler(found.spider, project)
        self._crawler.stats = DummyStatsCollector(self._crawler)
        self._after = found.settings = self._crawler.settings
        self._before = self._after.copy()
        """As they were when the add-on came."""
        self._is_facade = issubclass(found.spider, AirSpider)

    def run(self) -> None:
        """Fill in the diagnosis."""
        self._switch_on()
        self._apply_addons()
        self._apply_attributes()
        found = self._found
        policy = Policy(self._after, self._before, is_facade=self._is_facade)
        found.policy = [
            (label, value, name, self._set_by(name)) for label, value, name in policy.rows()
        ]
        found.draws_agent = policy.draws_agent()
        chain = chain_of(self._after, "DOWNLOADER_MIDDLEWARES")
        found.judges_robots = global_object_name(RobotsMiddleware) in chain
        found.parts = [*self._components(), *self._single(), *self._values()]
        outputs = Outputs(self._after).find()
        found.outputs = [
            (out.name, out.where, out.setting, self._set_by(out.setting)) for out in outputs
        ]
        found.warnings += [out.fault for out in outputs if out.fault]
        found.warnings += found.start.faults

    # Add-ons -------------------------------------------------------------------------------------
    def _switch_on(self) -> None:
        settings = self._after
        paths = build_component_list(settings["ADDONS"])
        self._found.is_on = any(map(_is_addon, paths))
        self._found.other_addons = [path_of(one) for one in paths if not _is_addon(one)]
        self._found.switched_on_by = self._set_by("ADDONS")
        if not self._found.is_on:
            addons = {**settings.getdict("ADDONS"), ADDON: _ADDON_ORDER}
            priority = max(settings.getpriority("ADDONS") or 0, _ADDON_PRIORITY)
            settings.set("ADDONS", addons, priority)

    def _apply_addons(self) -> None:
        for path in build_component_list(self._after["ADDONS"]):
            try:
                addon: Any = build_from_crawler(load_object(path), self._crawler)
                if isinstance(addon, Addon):
                    self._before = self._after.copy()
                if hasattr(addon, "update_settings"):
                    addon.update_settings(self._after)
            except NotConfigured:
                continue
            self._crawler.addons.addons.append(addon)
            if isinstance(addon, Addon):
                self._found.warnings += getattr(addon, "notes", getattr(addon, "_notes", ()))

    def _apply_attributes(self) -> None:
        for attribute, name in _ATTRIBUTES.items():
            if hasattr(self._found.spider, attribute):
                value = getattr(self._found.spider, attribute)
                self._before.set(name, value, "spider")
                self._after.set(name, value, "spider")

    # Who set what --------------------------------------------------------------------------------
    def _set_by(self, name: str) -> str:
        priority = self._before.getpriority(name)
        if priority is None:
            return "netspy default" if name in SETTINGS else "Scrapy default"
        if self._is_facade and priority == SETTINGS_PRIORITIES["project"]:
            if name in self._from_environment:
                return "environment"
            path, names = self._from_file
            if name in names:
                return path
        return _PRIORITIES.get(priority, f"priority {priority}")

    @cached_property
    def _from_environment(self) -> Collection[str]:
        return environment_settings(os.environ)

    @cached_property
    def _from_file(self) -> tuple[str, Collection[str]]:
        path = setting_file()
        return ("", ()) if path is None else (path.name, file_settings())

    # What is replaced ----------------------------------------------------------------------------
    def _components(self) -> Iterator[Part]:
        for name in _CHAINS:
            before, after = chain_of(self._before, name), chain_of(self._after, name)
            gone = {order: path for path, order in before.items() if path not in after}
            for path, order in sorted(after.items(), key=lambda pair: pair[1]):
                if path not in before:
                    yield _part(path, f"{name} {order}", gone.get(order))

    def _single(self) -> Iterator[Part]:
        for name in _SINGLE:
            before, after = path_of(self._before[name]), path_of(self._after[name])
            if before == after:
                yield Part(short_name(after), name, f"Stays as it was ({self._set_by(name)}).")
            else:
                yield _part(after, name, before)

    def _values(self) -> Iterator[Part]:
        for name in sorted(one for one in self._after if isinstance(one, str)):
            if name in _SINGLE or (self._after.getpriority(name) or 0) < _ADDON_PRIORITY:
                continue
            before, after = self._before.get(name), self._after[name]
            # Others may have been copied to something that is not equal.
            if isinstance(after, (bool, int, float, str, list)) and before != after:
                if isinstance(before, list) and isinstance(after, list):
                    added = [path_of(one) for one in after if one not in before]
                    yield Part("setting", name, f"{', '.join(added)} added.")
                else:
                    yield Part("setting", name, f"{brief(after)}, was {brief(before)}.")


def _is_addon(one: Any) -> bool:
    cls = load_object(one)
    return isinstance(cls, type) and issubclass(cls, Addon)


def _part(path: str, place: str, instead: str | None) -> Part:
    purpose = first_sentence(load_object(path))
    if instead is not None:
        old = f"Scrapy's {short_name(instead)}" if instead.startswith("scrapy.") else instead
        purpose = f"In place of {old}. {purpose.replace(f', in the place of {old}', '')}"
    return Part(short_name(path), place, purpose)
