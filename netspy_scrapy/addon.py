"""The add-on: the one place that knows which component goes where."""

from __future__ import annotations

import inspect
import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.pipelines.media import MediaPipeline
from scrapy.settings import SETTINGS_PRIORITIES, default_settings
from scrapy.spidermiddlewares.httperror import HttpErrorMiddleware
from scrapy.utils.misc import load_object

from netspy_scrapy import downloader
from netspy_scrapy._scrapy.quick import HeardLogFormatter
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.dedup.request_filter import RequestFilter
from netspy_scrapy.downloadermiddlewares.cache import ResponseCacheMiddleware
from netspy_scrapy.downloadermiddlewares.compression import CompressionMiddleware
from netspy_scrapy.downloadermiddlewares.facade import FacadeMiddleware
from netspy_scrapy.downloadermiddlewares.incremental import IncrementalMiddleware
from netspy_scrapy.downloadermiddlewares.limits import LimitsMiddleware
from netspy_scrapy.downloadermiddlewares.receiving import ReceivingMiddleware
from netspy_scrapy.downloadermiddlewares.robots import RobotsMiddleware
from netspy_scrapy.downloadermiddlewares.status import StatusPolicyMiddleware
from netspy_scrapy.dumps.files import DumpFile
from netspy_scrapy.exceptions import ConfigError, HookError
from netspy_scrapy.extensions.callbacks import BlockedLoop, CallbackThreads
from netspy_scrapy.extensions.exit_status import ExitStatus
from netspy_scrapy.extensions.progress import Progress
from netspy_scrapy.extensions.prometheus import PrometheusEndpoint, client
from netspy_scrapy.extensions.report import RunReport
from netspy_scrapy.extensions.runtime import Runtime
from netspy_scrapy.extensions.summary import RunSummary
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.pipelines.intake import IntakePipeline
from netspy_scrapy.redis.connection import driver
from netspy_scrapy.redis.options import RedisSettings
from netspy_scrapy.redis.request_filter import RedisRequestFilter
from netspy_scrapy.redis.scheduler import RedisScheduler
from netspy_scrapy.redis.settings import QueueSettings
from netspy_scrapy.render import RenderFingerprinter, Rendering, launch_options
from netspy_scrapy.report.file import ReportFile
from netspy_scrapy.scheduling.queue import ReadyQueue
from netspy_scrapy.scheduling.scheduler import Scheduler
from netspy_scrapy.settings import (
    SETTINGS,
    UNSUPPORTED,
    WEBDRIVER_KEYS,
    CacheSettings,
    DedupSettings,
    DumpSettings,
    IncrementalSettings,
    LimitsSettings,
    PaceSettings,
    PolitenessSettings,
    RenderSettings,
    RetrySettings,
    RobotsSettings,
    RuntimeSettings,
    SinkSettings,
    StatusSettings,
    WatchSettings,
    deciding,
    is_kind_of,
    read_bool,
    read_codes,
    read_int,
    read_number,
    user_set,
)
from netspy_scrapy.spidermiddlewares.children import KeepChildrenMiddleware
from netspy_scrapy.spidermiddlewares.outcome import OutcomeMiddleware
from netspy_scrapy.spidermiddlewares.replay import ReplayMiddleware
from netspy_scrapy.spidermiddlewares.shared_start import SharedStartMiddleware
from netspy_scrapy.spidermiddlewares.start import StartPaceMiddleware
from netspy_scrapy.spiders.air import AirSpider
from netspy_scrapy.spiders.setup import pipelines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"

#: Next to the engine: it judges the answer that all others have left.
_LIMITS_ORDER = 40
#: Before Scrapy's own middlewares, which fill in headers and cookies.
_FACADE_ORDER = 50
_ROBOTS_ORDER = 100
_RETRY_ORDER = 550
#: After headers and authorization are set, before cookies; answers come to it unpacked, after
#: redirects and before retries.
_INCREMENTAL_ORDER = 560
#: Next to the spider, before other spider middlewares change what it yields.
_CHILDREN_ORDER = 1000
#: Next to the downloader: what others do to requests is done, and to answers not yet.
_CACHE_ORDER = 900
_COMPRESSION_ORDER = 590
#: Next to the downloader, behind caches alone.
_RECEIVING_ORDER = 880
#: Next to the engine: it decides before other spider middlewares see an answer.
_OUTCOME_ORDER = 50
#: Next to the engine: it sees what all others made of start().
_START_ORDER = 10
#: Around all others: what they add to start() is the business of one node too.
_SHARED_START_ORDER = 5
#: Before StartSpiderMiddleware: they are not what the spider starts with.
_REPLAY_ORDER = 20
_SUMMARY_ORDER = 0
#: Before the others: its line is gone when they have something to say at the end.
_PROGRESS_ORDER = -1
_RUNTIME_ORDER = 0
_CALLBACKS_ORDER = 0
_INTAKE_ORDER = 1

#: Tasks that Scrapy starts for each response; 100 of them cost a third of the pages per second.
_CONCURRENT_ITEMS = 4

#: How alike two names are (difflib) that one is taken for a slip of the other.
_NEAR = 0.77

#: Our own sinks, by the name in path and class.
_SINKS = ("Console", "Csv", "Elasticsearch", "Kafka", "Mongo", "Mysql", "Postgres", "Sqlite")

#: Settings whose value Scrapy's own component needs under Scrapy's name.
_MIRRORED = ("SPIDER_MAX_RETRY_TIMES", "REQUEST_TIMEOUT", "SPIDER_THREAD_COUNT", "ROBOTS_OBEY",
             "ROBOTS_USER_AGENT")  # fmt: skip


class Addon:
    """Installs netspy's rules in a Scrapy project: ``ADDONS = {"netspy_scrapy.Addon": 500}``.

    What the project, the spider or the command line set stays; what thereby does not work, and
    settings that contradict each other, are named in one warning at the start. Settings that
    cannot be used raise :class:`~netspy_scrapy.exceptions.ConfigError`.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.notes: list[str] = []
        """What :meth:`update_settings` found worth a warning."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the add-on."""
        return cls(crawler)

    def update_settings(self, settings: BaseSettings) -> None:
        """Put the components in their places."""
        self._note_names(settings)
        self._note_contradictions(settings)
        self._check(settings)
        self._note_unwritable(settings)
        self._mirror(settings)
        self._install_middlewares(settings)
        self._install_downloader(settings)
        self._install_incremental(settings)
        self._install_scheduler(settings)
        self._install_pipelines(settings)
        self._install_extensions(settings)
        for note in self.notes:
            logger.warning(note, extra={"crawler": self._crawler})

    # Components ----------------------------------------------------------------------------------
    def _install_middlewares(self, settings: BaseSettings) -> None:
        name = "DOWNLOADER_MIDDLEWARES"
        if not _replace(settings, name, RetryMiddleware, StatusPolicyMiddleware, _RETRY_ORDER):
            self.notes.append(
                "RetryMiddleware is switched off in DOWNLOADER_MIDDLEWARES: StatusPolicyMiddleware "
                "is not installed, so RETRY_STATUS_CODES, Retry-After and RETRY_BACKOFF do nothing"
            )
        robots = RobotsSettings.from_settings(settings)
        policies = PolitenessSettings.from_settings(settings).policies
        if (robots.obey or policies.any_obeys_robots) and not _replace(
            settings, name, RobotsTxtMiddleware, RobotsMiddleware, _ROBOTS_ORDER
        ):
            self.notes.append(
                "RobotsTxtMiddleware is switched off in DOWNLOADER_MIDDLEWARES: robots.txt is not "
                "obeyed although ROBOTS_OBEY asks for it"
            )
        if issubclass(self._crawler.spidercls, AirSpider):
            _add(settings, name, FacadeMiddleware, _FACADE_ORDER)
        if LimitsSettings.are_wanted(settings):
            _add(settings, name, LimitsMiddleware, _LIMITS_ORDER)
            _add(settings, name, ReceivingMiddleware, _RECEIVING_ORDER)
            _replace(
                settings, name, HttpCompressionMiddleware, CompressionMiddleware, _COMPRESSION_ORDER
            )
        if CacheSettings.from_settings(settings).enabled:
            _add(settings, name, ResponseCacheMiddleware, _CACHE_ORDER)
        name = "SPIDER_MIDDLEWARES"
        if not _replace(settings, name, HttpErrorMiddleware, OutcomeMiddleware, _OUTCOME_ORDER):
            self.notes.append(
                "HttpErrorMiddleware is switched off in SPIDER_MIDDLEWARES: OutcomeMiddleware is "
                "not installed, so every answer reaches the callback and failures are not dumped"
            )
        _add(settings, name, StartPaceMiddleware, _START_ORDER)
        shares_itself = getattr(self._crawler.spidercls, "netspy_shares_start", False)
        if read_bool(settings, "NETSPY_SHARED_START") and not shares_itself:
            _add(settings, name, SharedStartMiddleware, _SHARED_START_ORDER)
        ordered = CrawlContext.of(self._crawler).replay_order is not None
        if ordered or read_bool(settings, "RETRY_FAILED_ON_START"):
            _add(settings, name, ReplayMiddleware, _REPLAY_ORDER)

    def _install_downloader(self, settings: BaseSettings) -> None:
        self.notes += downloader.install(settings)
        downloader.choose_loop(settings, "addon")

    def _install_incremental(self, settings: BaseSettings) -> None:
        incremental = IncrementalSettings.from_settings(settings)
        if not incremental.enabled:
            return
        if incremental.store == "redis":
            RedisSettings.from_settings(settings)
            driver("NETSPY_INCREMENTAL_STORE", incremental.store)
        _add(settings, "DOWNLOADER_MIDDLEWARES", IncrementalMiddleware, _INCREMENTAL_ORDER)
        _add(settings, "SPIDER_MIDDLEWARES", KeepChildrenMiddleware, _CHILDREN_ORDER)

    def _install_scheduler(self, settings: BaseSettings) -> None:
        if user_set(settings, "SCHEDULER"):
            if is_kind_of(settings["SCHEDULER"], Scheduler):
                self._install_queue(settings)
            else:
                ours = "netspy_scrapy.redis.scheduler.RedisScheduler"
                self.notes.append(
                    f"SCHEDULER is {_name(settings['SCHEDULER'])}, which loses the requests that a "
                    f"killed node had taken: set SCHEDULER = {ours!r}, and DUPEFILTER_CLASS = "
                    "'netspy_scrapy.redis.request_filter.RedisRequestFilter' or not at all"
                    if _name(settings["SCHEDULER"]).startswith("scrapy_redis.")
                    else f"SCHEDULER is {_name(settings['SCHEDULER'])}: requests that have to wait "
                    "(Retry-After, backoff, netspy_delay) wait in a download slot, and what is "
                    "queued at a stop is not dumped"
                )
        else:
            settings.set("SCHEDULER", Scheduler, "addon")
            self._install_queue(settings)
        if user_set(settings, "DUPEFILTER_CLASS"):
            if user_set(settings, "DEDUP_FILTER"):
                self.notes.append(
                    f"DUPEFILTER_CLASS is {_name(settings['DUPEFILTER_CLASS'])}: DEDUP_FILTER does "
                    "nothing"
                )
        elif is_kind_of(settings["SCHEDULER"], RedisScheduler):
            settings.set("DUPEFILTER_CLASS", RedisRequestFilter, "addon")
        elif settings.getpriority("DEDUP_FILTER") is not None:
            settings.set("DUPEFILTER_CLASS", RequestFilter, "addon")

    def _install_queue(self, settings: BaseSettings) -> None:
        if user_set(settings, "SCHEDULER_PRIORITY_QUEUE"):
            queue = settings["SCHEDULER_PRIORITY_QUEUE"]
            if not is_kind_of(queue, ReadyQueue):
                self.notes.append(
                    f"SCHEDULER_PRIORITY_QUEUE is {_name(queue)}: domains do not rest "
                    "(Retry-After, backoff, circuit), and one that waits holds download slots"
                )
        else:
            settings.set("SCHEDULER_PRIORITY_QUEUE", ReadyQueue, "addon")

    def _install_pipelines(self, settings: BaseSettings) -> None:
        priority = settings.getpriority("ITEM_PIPELINES") or 0
        chosen = pipelines(settings.getdict("ITEM_PIPELINES"))
        settings.set("ITEM_PIPELINES", chosen, priority)
        classes = [_pipeline(one) for one, order in chosen.items() if order is not None]
        for one in classes:
            if hasattr(one, "save_items") and not hasattr(one, "process_item"):
                # Scrapy would load it, call nothing of it, and every row would be gone.
                raise ConfigError(
                    "ITEM_PIPELINES", _name(one), "a subclass of netspy_scrapy.BasePipeline, since "
                    "it has save_items and no process_item",
                )  # fmt: skip
        if issubclass(self._crawler.spidercls, AirSpider) and not any(
            isinstance(one, type) and issubclass(one, BasePipeline) for one in classes
        ):
            # Nothing else would look at item.pipelines.
            _add(settings, "ITEM_PIPELINES", IntakePipeline, _INTAKE_ORDER)
        if not user_set(settings, "CONCURRENT_ITEMS") and not any(map(_may_wait, classes)):
            settings.set("CONCURRENT_ITEMS", _CONCURRENT_ITEMS, "addon")

    def _install_extensions(self, settings: BaseSettings) -> None:
        if not user_set(settings, "LOG_FORMATTER"):
            settings.set("LOG_FORMATTER", HeardLogFormatter, "addon")
        if settings.getbool("RUN_SUMMARY_ENABLE", True):
            _add(settings, "EXTENSIONS", RunSummary, _SUMMARY_ORDER)
        name = CrawlContext.of(self._crawler).spider_name
        if ReportFile.from_settings(settings, name) is not None:
            _add(settings, "EXTENSIONS", RunReport, _SUMMARY_ORDER)
        _add(settings, "EXTENSIONS", Runtime, _RUNTIME_ORDER)
        _add(settings, "EXTENSIONS", ExitStatus, _SUMMARY_ORDER)
        watch = WatchSettings.from_settings(settings)
        if watch.progress:
            _add(settings, "EXTENSIONS", Progress, _PROGRESS_ORDER)
        if watch.prometheus_port:
            client(watch.prometheus_port)
            _add(settings, "EXTENSIONS", PrometheusEndpoint, _SUMMARY_ORDER)
        self._install_rendering(settings)
        if read_int(settings, "NETSPY_CALLBACK_THREADS"):
            _add(settings, "EXTENSIONS", CallbackThreads, _CALLBACKS_ORDER)
        if read_number(settings, "NETSPY_BLOCK_WARNING", unit="seconds"):
            _add(settings, "EXTENSIONS", BlockedLoop, _CALLBACKS_ORDER)

    # Values --------------------------------------------------------------------------------------
    def _check(self, settings: BaseSettings) -> None:
        """Raise ConfigError for a value that cannot be used, before anything starts."""
        reactor = settings["TWISTED_REACTOR"]
        if settings.getbool("TWISTED_REACTOR_ENABLED", True) and reactor not in {
            None, "", _ASYNCIO_REACTOR
        }:  # fmt: skip
            raise ConfigError("TWISTED_REACTOR", reactor, f"{_ASYNCIO_REACTOR} (the default)")
        for feature in (
            StatusSettings, RetrySettings, DedupSettings, SinkSettings, DumpSettings, PaceSettings,
            PolitenessSettings, RobotsSettings, RuntimeSettings, LimitsSettings, CacheSettings,
            IncrementalSettings, WatchSettings,
        ):  # fmt: skip
            feature.from_settings(settings)
        dedup = DedupSettings.from_settings(settings)
        if dedup.items and dedup.shared:
            RedisSettings.from_settings(settings)
            driver("DEDUP_FILTER", dedup.kind)
        if is_kind_of(settings["SCHEDULER"], RedisScheduler):
            QueueSettings.from_settings(settings)
            RedisSettings.from_settings(settings)
            driver("SCHEDULER", _name(settings["SCHEDULER"]))
        elif read_bool(settings, "NETSPY_SHARED_START"):
            raise ConfigError(
                "NETSPY_SHARED_START", True, "False where SCHEDULER is no RedisScheduler"
            )
        if user_set(settings, "SPIDER_THREAD_COUNT"):
            read_int(settings, "SPIDER_THREAD_COUNT", minimum=1)
        if settings.getpriority("REQUEST_TIMEOUT") is not None:
            read_number(settings, "REQUEST_TIMEOUT", unit="seconds")

    def _mirror(self, settings: BaseSettings) -> None:
        """Write values that are ours under the name that Scrapy's component reads."""
        for name in _MIRRORED:
            theirs = SETTINGS[name].scrapy
            assert theirs is not None
            if deciding(settings, name) == name and settings.getpriority(name) is not None:
                priority = max(settings.getpriority(theirs) or 0, SETTINGS_PRIORITIES["addon"])
                settings.set(theirs, settings[name], priority)
        if user_set(settings, "RESPONSE_CACHE_ENABLE") and user_set(settings, "HTTPCACHE_ENABLED"):
            # Ours counts: no answer is to be kept, or served, by the other one too.
            settings.set("HTTPCACHE_ENABLED", False, settings.getpriority("HTTPCACHE_ENABLED") or 0)
        if deciding(settings, "MAX_RESPONSE_SIZE") == "MAX_RESPONSE_SIZE":
            self._raise_maxsize(settings)
        if user_set(settings, "SPIDER_MAX_RUNTIME") and user_set(settings, "CLOSESPIDER_TIMEOUT"):
            # Ours counts, and ends the crawl with a reason of its own.
            settings.set("CLOSESPIDER_TIMEOUT", 0, settings.getpriority("CLOSESPIDER_TIMEOUT") or 0)
        exceptions = list(settings.getlist("RETRY_EXCEPTIONS"))
        if HookError not in exceptions and issubclass(self._crawler.spidercls, AirSpider):
            priority = max(
                settings.getpriority("RETRY_EXCEPTIONS") or 0, SETTINGS_PRIORITIES["addon"]
            )
            settings.set("RETRY_EXCEPTIONS", [*exceptions, HookError], priority)

    def _install_rendering(self, settings: BaseSettings) -> None:
        """Let pages be rendered; the browser itself starts with the first of them."""
        RenderSettings.from_settings(settings)
        webdriver = settings.get("WEBDRIVER") or {}
        for name, value in launch_options(webdriver).items():
            if not user_set(settings, name):
                settings.set(name, value, "addon")
        idle = sorted(webdriver.keys() - WEBDRIVER_KEYS)
        if idle:
            self.notes.append(f"WEBDRIVER: {', '.join(idle)} do nothing here")
        _add(settings, "EXTENSIONS", Rendering, _RUNTIME_ORDER)
        if user_set(settings, "REQUEST_FINGERPRINTER_CLASS"):
            return
        settings.set("REQUEST_FINGERPRINTER_CLASS", RenderFingerprinter, "addon")

    def _raise_maxsize(self, settings: BaseSettings) -> None:
        """See that Scrapy's limit, which holds for media too, is not below ours for pages."""
        ours, theirs = (
            read_int(settings, name) for name in ("MAX_RESPONSE_SIZE", "DOWNLOAD_MAXSIZE")
        )
        if theirs and (not ours or ours > theirs):
            priority = settings.getpriority("DOWNLOAD_MAXSIZE") or 0
            settings.set("DOWNLOAD_MAXSIZE", ours, max(priority, SETTINGS_PRIORITIES["addon"]))

    # What is worth a warning ---------------------------------------------------------------------
    def _note_contradictions(self, settings: BaseSettings) -> None:
        for name, setting in SETTINGS.items():
            theirs = setting.scrapy
            if theirs is None or not (user_set(settings, name) and user_set(settings, theirs)):
                continue
            if name == "DEDUP_FILTER" or _same(settings, name, theirs):
                continue
            self.notes.append(
                f"{name} = {settings[name]!r} and {theirs} = {settings[theirs]!r} contradict each "
                f"other: {name} counts"
            )
        # The Downloader says itself that it is deprecated; asking for it here would say so twice.
        if user_set(settings, "CONCURRENT_REQUESTS_PER_IP"):
            self.notes.append(
                "CONCURRENT_REQUESTS_PER_IP does nothing here: limits are kept by domain "
                "(CONCURRENT_REQUESTS_PER_DOMAIN); for domains of one server give their requests "
                'the same meta["download_slot"]'
            )
        never = sorted(
            code
            for code in _codes(settings, "RETRY_STATUS_CODES")
            if 200 <= code < 400  # noqa: PLR2004
        )
        if user_set(settings, "RETRY_STATUS_CODES") and never:
            self.notes.append(
                f"RETRY_STATUS_CODES lists {', '.join(map(str, never))}: 2xx and 3xx are never "
                "retried"
            )

    def _note_unwritable(self, settings: BaseSettings) -> None:
        for name in ("FAILED_ITEM_PATH", "FAILED_REQUEST_PATH"):
            why = DumpFile(settings.get(name, SETTINGS[name].default)).check_writable()
            if why:
                self.notes.append(f"{name}: {why}; what fails for good will be lost")

    def _note_names(self, settings: BaseSettings) -> None:
        known = SETTINGS.keys() | UNSUPPORTED
        for name in settings:
            if not isinstance(name, str) or not user_set(settings, name):
                continue
            if name in UNSUPPORTED:
                self.notes.append(f"{name} is a setting of netspy that does nothing here")
            elif name not in known and name not in vars(default_settings):
                kin = [one for one in known if one.partition("_")[0] == name.partition("_")[0]]
                near = get_close_matches(name, kin, n=1, cutoff=_NEAR)
                if near:
                    self.notes.append(
                        f"{name} is no setting of netspy_scrapy or Scrapy: did you mean {near[0]}?"
                    )


def _add(settings: BaseSettings, name: str, cls: type, order: int) -> None:
    settings.setdefault_in_component_priority_dict(name, cls, order)


def _replace(settings: BaseSettings, name: str, old: type, new: type, order: int) -> bool:
    """Put *new* where *old* is in a component list; False: the project switched *old* off."""
    chosen = settings.getdict(name)
    base = settings.getdict(f"{name}_BASE")
    places = [place for one, place in [*base.items(), *chosen.items()] if _is_ours(one, old)]
    if places and places[-1] is None:
        return False
    # Below Scrapy 2.19 an entry is switched off only under the very key that it has.
    kept = {one: place for one, place in chosen.items() if not _is_ours(one, old)}
    off = {one: None for one in [*base, *chosen] if _is_ours(one, old)}
    place = places[-1] if places else order
    settings.set(name, {**kept, **off, new: place}, settings.getpriority(name) or 0)
    return True


def _pipeline(one: Any) -> Any:
    try:
        return load_object(one)
    except (ImportError, NameError, ValueError) as exc:
        known = [f"netspy_scrapy.pipelines.{name.lower()}.{name}Pipeline" for name in _SINKS]
        near = get_close_matches(str(one), known, n=1)
        hint = f" (did you mean {near[0]}?)" if near and near[0] != one else ""
        allowed = f"the path of a class that can be imported{hint}; {exc}"
        raise ConfigError("ITEM_PIPELINES", one, allowed) from exc


def _is_ours(one: Any, cls: type) -> bool:
    try:
        return load_object(one) is cls
    except (ImportError, NameError, ValueError):
        return False


def _name(one: Any) -> str:
    return one if isinstance(one, str) else f"{one.__module__}.{one.__qualname__}"


def _may_wait(pipeline: Any) -> bool:
    """Tell whether a pipeline awaits per item, so that few tasks at once would slow it down."""
    if isinstance(pipeline, type) and issubclass(pipeline, MediaPipeline):
        return True
    process = getattr(pipeline, "process_item", None)
    return inspect.iscoroutinefunction(process) or inspect.isasyncgenfunction(process)


def _same(settings: BaseSettings, name: str, theirs: str) -> bool:
    if name.endswith("_CODES"):
        return _codes(settings, name) == _codes(settings, theirs)
    ours, other = settings[name], settings[theirs]
    return bool(ours == other or str(ours) == str(other))


def _codes(settings: BaseSettings, name: str) -> Iterable[int]:
    return read_codes(settings, name)
