"""What becomes of a project's settings when one of its spiders is crawled; nothing is started."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.statscollectors import DummyStatsCollector
from scrapy.utils.conf import build_component_list
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from netspy_scrapy import downloader
from netspy_scrapy.addon import Addon
from netspy_scrapy.commands.page import is_secret
from netspy_scrapy.commands.sites import Start, delay_text
from netspy_scrapy.downloadermiddlewares.robots import RobotsMiddleware
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.pipelines.csv import CsvPipeline
from netspy_scrapy.pipelines.sqlite import SqlitePipeline
from netspy_scrapy.settings import (
    SETTINGS,
    DedupSettings,
    DumpSettings,
    LimitsSettings,
    PaceSettings,
    PolitenessSettings,
    RetrySettings,
    RobotsSettings,
    SinkSettings,
    StatusSettings,
    deciding,
    read_bool,
    read_int,
    read_number,
    read_text,
    user_set,
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
    from scrapy.settings import BaseSettings, Settings

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
#: Settings that are shown with what is written there.
_PATHS = ("SQLITE_PATH", "CSV_OUTPUT_DIR", "FAILED_ITEM_PATH", "FAILED_REQUEST_PATH")
_LONGEST_VALUE = 60
_KIB = 1024


class Part(NamedTuple):
    """A component, or a setting, that the add-on puts in its place."""

    name: str
    place: str
    purpose: str


class Output(NamedTuple):
    """Where rows, or lines of a dump, go."""

    name: str
    where: str
    setting: str
    fault: str = ""
    """Why nothing can be written there; empty: it can."""


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
        found.policy = [
            (label, value, name, self._set_by(name)) for label, value, name in self._policy()
        ]
        found.draws_agent = self._draws_agent()
        chain = _chain(self._after, "DOWNLOADER_MIDDLEWARES")
        found.judges_robots = global_object_name(RobotsMiddleware) in chain
        found.parts = [*self._components(), *self._single(), *self._values()]
        outputs = [*self._pipelines(), *self._feeds(), *self._dumps()]
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
        self._found.other_addons = [_path(one) for one in paths if not _is_addon(one)]
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

    # Policy --------------------------------------------------------------------------------------
    def _policy(self) -> Iterator[tuple[str, str, str]]:
        """Yield feature, effective value and the setting that decides."""
        shown = set(_PATHS)
        for label, value, name in [
            *self._policy_of_pages(), *self._policy_of_domains(), *self._policy_of_crawl(),
            *self._policy_of_items(),
        ]:  # fmt: skip
            decides = deciding(self._before, name) if name in SETTINGS else name
            shown |= {name, decides}
            yield label, value, decides
        for name in SETTINGS:
            if name not in shown and user_set(self._before, name):
                yield "also set", _brief(self._after[name]), name

    def _policy_of_pages(self) -> Iterator[tuple[str, str, str]]:
        settings = self._after
        status = StatusSettings.from_settings(settings)
        retry = RetrySettings.from_settings(settings)
        if not status.check:
            yield "statuses", "every answer is accepted", "CHECK_STATUS_CODE"
        elif not retry.enabled:
            yield "fetched again", "nothing", "RETRY_ENABLED"
        else:
            yield "fetched again", _codes(status.retry_codes), "RETRY_STATUS_CODES"
        if status.allow_all:
            yield "also accepted", "every status", "HTTPERROR_ALLOW_ALL"
        else:
            yield "also accepted", _codes(status.allowed_codes), "ACCEPT_STATUS_CODES"
        yield "retries of a page", str(retry.times), "SPIDER_MAX_RETRY_TIMES"
        if retry.backoff:
            yield "wait before a retry", f"{retry.backoff:g} s, doubled each time", "RETRY_BACKOFF"
        else:
            wait = f"{retry.interval:g} s" if retry.interval else "none"
            yield "wait before a retry", wait, "SPIDER_RETRY_INTERVAL"
        after = (
            f"{retry.retry_after_max:g} s" if retry.retry_after_max else "the header is not read"
        )
        yield "longest Retry-After", after, "RETRY_AFTER_MAX"
        again = "page is fetched again" if retry.callback_errors else "page is not fetched again"
        yield "a callback raised", again, "NETSPY_RETRY_CALLBACK_ERRORS"

    def _policy_of_domains(self) -> Iterator[tuple[str, str, str]]:
        settings = self._after
        polite = PolitenessSettings.from_settings(settings)
        robots = RobotsSettings.from_settings(settings)
        pace = polite.pace
        yield "delay of a domain", delay_text(pace.delay, pace.jitter), "DOWNLOAD_DELAY"
        if settings.getbool("AUTOTHROTTLE_ENABLED"):
            yield "", "AutoThrottle changes it", "AUTOTHROTTLE_ENABLED"
        yield (
            "in flight, one domain", str(pace.concurrency or "no limit"),
            "CONCURRENT_REQUESTS_PER_DOMAIN",
        )  # fmt: skip
        total = str(read_int(settings, "CONCURRENT_REQUESTS", minimum=1))
        yield "in flight, in all", total, "SPIDER_THREAD_COUNT"
        if polite.policies:
            names = ", ".join(settings.getdict("NETSPY_DOMAIN_POLICIES"))
            yield "others for", names, "NETSPY_DOMAIN_POLICIES"
        if polite.slots:
            yield "others for", ", ".join(polite.slots), "DOWNLOAD_SLOTS"
        yield "robots.txt", "obeyed" if robots.obey else "not obeyed", "ROBOTS_OBEY"
        if robots.obey or polite.policies.any_obeys_robots:
            group = robots.user_agent or "that of the User-Agent"
            yield "robots.txt group", group, "ROBOTS_USER_AGENT"
            yield "robots.txt unreadable", robots.on_error, "NETSPY_ROBOTS_ON_ERROR"
        circuit = "none"
        if pace.failure_threshold:
            circuit = f"{pace.failure_threshold} failures: {pace.cooldown:g} s of rest"
        yield "circuit of a domain", circuit, "CIRCUIT_FAILURE_THRESHOLD"

    def _policy_of_crawl(self) -> Iterator[tuple[str, str, str]]:
        settings = self._after
        yield "fetched by", downloader.shown(settings), "NETSPY_DOWNLOADER"
        timeout = read_number(settings, "DOWNLOAD_TIMEOUT", unit="seconds")
        yield "longest download", f"{timeout:g} s", "REQUEST_TIMEOUT"
        limits = LimitsSettings.from_settings(settings)
        yield "largest body", _size(limits.max_size), "MAX_RESPONSE_SIZE"
        yield "types received", ", ".join(limits.types) or "all", "ALLOWED_CONTENT_TYPES"
        yield "all bodies at once", _size(limits.max_inflight), "NETSPY_MAX_INFLIGHT_BYTES"
        runtime = deciding(self._before, "SPIDER_MAX_RUNTIME")
        seconds = read_number(settings, runtime, unit="seconds")
        yield "longest crawl", f"{seconds:g} s" if seconds else "no limit", "SPIDER_MAX_RUNTIME"
        queued = PaceSettings.from_settings(settings).max_queued
        yield (
            "start() waits", f"while {queued:,} are queued" if queued else "never",
            "NETSPY_START_MAX_QUEUED",
        )  # fmt: skip
        if settings["JOBDIR"]:
            yield "queued at a stop", f"kept in {settings['JOBDIR']}", "JOBDIR"
        else:
            dumped = DumpSettings.from_settings(settings).unfinished
            yield "queued at a stop", "dumped" if dumped else "lost", "DUMP_UNFINISHED_ON_EXIT"
        dedup = DedupSettings.from_settings(settings)
        if self._before.getpriority("DEDUP_FILTER") is None or user_set(
            self._before, "DUPEFILTER_CLASS"
        ):
            name = _short(_path(settings["DUPEFILTER_CLASS"]))
            yield "request filter", name, "DUPEFILTER_CLASS"
        else:
            kind = {"memory": "memory (bloom filter)", "lite": "lite (exact set)"}
            yield "request filter", kind.get(dedup.kind, dedup.kind), "DEDUP_FILTER"
        if self._is_facade:
            shared = read_bool(settings, "USE_SESSION")
            yield "cookies", "shared" if shared else "each request has its own", "USE_SESSION"
            if self._draws_agent():
                yield "User-Agent", "a browser's, drawn", "RANDOM_USER_AGENT"

    def _policy_of_items(self) -> Iterator[tuple[str, str, str]]:
        dedup = DedupSettings.from_settings(self._after)
        sinks = SinkSettings.from_settings(self._after)
        yield "item filter", "on" if dedup.items else "off", "ITEM_FILTER_ENABLE"
        batch = f"{sinks.batch_size:,} rows or {sinks.flush_interval:g} s"
        yield "batch of a sink", batch, "ITEM_MAX_CACHED_COUNT"

    # What is replaced ----------------------------------------------------------------------------
    def _components(self) -> Iterator[Part]:
        for name in _CHAINS:
            before, after = _chain(self._before, name), _chain(self._after, name)
            gone = {order: path for path, order in before.items() if path not in after}
            for path, order in sorted(after.items(), key=lambda pair: pair[1]):
                if path not in before:
                    yield _part(path, f"{name} {order}", gone.get(order))

    def _single(self) -> Iterator[Part]:
        for name in _SINGLE:
            before, after = _path(self._before[name]), _path(self._after[name])
            if before == after:
                yield Part(_short(after), name, f"Stays as it was ({self._set_by(name)}).")
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
                    added = [_path(one) for one in after if one not in before]
                    yield Part("setting", name, f"{', '.join(added)} added.")
                else:
                    yield Part("setting", name, f"{_brief(after)}, was {_brief(before)}.")

    # Where rows go -------------------------------------------------------------------------------
    def _pipelines(self) -> Iterator[Output]:
        name = "ITEM_PIPELINES"
        chain = _chain(self._after, name)
        for path in sorted(chain, key=lambda one: chain[one]):
            cls = load_object(path)
            label = _short(path)
            if not isinstance(cls, type) or not issubclass(cls, BasePipeline):
                yield Output(label, path, name)
            elif issubclass(cls, SqlitePipeline):
                yield self._path_output(label, "SQLITE_PATH")
            elif issubclass(cls, CsvPipeline):
                yield self._path_output(label, "CSV_OUTPUT_DIR", is_folder=True)
            else:
                yield Output(label, self._settings_of(label) or _doc(cls) or path, name)

    def _settings_of(self, name: str) -> str:
        """Return the settings of a sink, by its name: ``MYSQL_...`` of MysqlPipeline."""
        stem = f"{name.removesuffix('Pipeline').upper()}_"
        names = sorted(
            one
            for one in self._after
            if isinstance(one, str) and one.startswith(stem) and user_set(self._after, one)
        )
        return ", ".join(
            f"{one} = {'***' if is_secret(one) else _brief(self._after[one])}" for one in names
        )

    def _feeds(self) -> Iterator[Output]:
        for uri in self._after.getdict("FEEDS"):
            yield Output("feed", str(uri), "FEEDS")

    def _dumps(self) -> Iterator[Output]:
        yield self._path_output("rows not stored", "FAILED_ITEM_PATH")
        yield self._path_output("requests that failed", "FAILED_REQUEST_PATH")

    def _path_output(self, name: str, setting: str, *, is_folder: bool = False) -> Output:
        try:
            given = read_text(self._after, setting)
        except ConfigError as exc:
            return Output(name, "nowhere: the setting cannot be used", setting, str(exc))
        if given == ":memory:":
            return Output(name, f"{given} (gone after the crawl)", setting)
        path = Path(os.path.realpath(given))
        why = _folder_fault(path) if is_folder else _file_fault(path)
        if why:
            fault = f"{setting} = {given!r} cannot be written: {why}"
            return Output(name, f"{_shown(path)} (not writable)", setting, fault)
        state = "exists" if path.exists() else "new"
        return Output(name, f"{_shown(path)} ({state}, writable)", setting)

    # User-Agent ----------------------------------------------------------------------------------
    def _draws_agent(self) -> bool:
        settings = self._after
        return (
            self._is_facade
            and read_bool(settings, "RANDOM_USER_AGENT")
            and (user_set(settings, "RANDOM_USER_AGENT") or not user_set(settings, "USER_AGENT"))
        )


# Texts -----------------------------------------------------------------------------------------
def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _codes(codes: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(codes))) or "none"


def _size(size: int) -> str:
    if not size:
        return "no limit"
    number, units = float(size), ["bytes", "KiB", "MiB", "GiB"]
    while number >= _KIB and len(units) > 1:
        number /= _KIB
        del units[0]
    return f"{number:.4g} {units[0]}"


# Components ------------------------------------------------------------------------------------
def _is_addon(one: Any) -> bool:
    cls = load_object(one)
    return isinstance(cls, type) and issubclass(cls, Addon)


def _path(one: Any) -> str:
    """Return the import path of a component, however it is given."""
    try:
        return global_object_name(load_object(one))
    except (AttributeError, ImportError, NameError, TypeError, ValueError):
        return str(one)


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _part(path: str, place: str, instead: str | None) -> Part:
    purpose = _doc(load_object(path))
    if instead is not None:
        old = f"Scrapy's {_short(instead)}" if instead.startswith("scrapy.") else instead
        purpose = f"In place of {old}. {purpose.replace(f', in the place of {old}', '')}"
    return Part(_short(path), place, purpose)


def _chain(settings: BaseSettings, name: str) -> dict[str, float]:
    """Return the components that are on, with their order."""
    chain: dict[str, Any] = {}
    for source in (f"{name}_BASE", name):
        for one, order in settings.getdict(source).items():
            chain[_path(one)] = order
    return {path: order for path, order in chain.items() if order is not None}


def _doc(cls: Any) -> str:
    """Return the first sentence of a class's own docstring."""
    doc = inspect.cleandoc(vars(cls).get("__doc__") or "") if isinstance(cls, type) else ""
    return doc.partition("\n")[0].replace("`", "")


# Files -----------------------------------------------------------------------------------------
def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _file_fault(path: Path) -> str:
    """Return why a file cannot be written, or nothing; touches nothing."""
    if not os.path.lexists(path):
        return _folder_fault(path.parent)
    if not path.is_file():
        return f"{_shown(path)} is no file"
    return "" if os.access(path, os.W_OK) else "permission denied"


def _folder_fault(path: Path) -> str:
    """Return why a file cannot be made in a folder, which may be missing, or nothing."""
    while not os.path.lexists(path):
        path = path.parent
    if not path.is_dir():
        return f"{_shown(path)} is no folder"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"nothing can be made in {_shown(path)}"
    return ""
