"""What the settings of a spider come to: a row a feature, with the setting that decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netspy_scrapy.commands.components import brief, path_of, short_name
from netspy_scrapy.commands.sites import delay_text
from netspy_scrapy.redis.options import RedisSettings
from netspy_scrapy.redis.scheduler import RedisScheduler
from netspy_scrapy.settings import (
    SETTINGS,
    CacheSettings,
    DedupSettings,
    DumpSettings,
    IncrementalSettings,
    LimitsSettings,
    PaceSettings,
    PolitenessSettings,
    RetrySettings,
    RobotsSettings,
    SinkSettings,
    StatusSettings,
    deciding,
    is_kind_of,
    read_bool,
    read_int,
    read_number,
    user_set,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.settings import BaseSettings

#: Settings that are shown with what is written there.
_PATHS = (
    "SQLITE_PATH", "CSV_OUTPUT_DIR", "FAILED_ITEM_PATH", "FAILED_REQUEST_PATH", "NETSPY_REPORT",
)  # fmt: skip
_KIB = 1024


class Policy:
    """The effective policy: *settings* as the crawl has them, *before* as the add-on found them."""

    def __init__(self, settings: BaseSettings, before: BaseSettings, *, is_facade: bool) -> None:
        self._settings = settings
        self._before = before
        self._is_facade = is_facade

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield feature, effective value and the setting that decides."""
        shown = set(_PATHS)
        for label, value, name in [
            *self._policy_of_pages(), *self._policy_of_domains(), *self._policy_of_crawl(),
            *self._policy_of_memory(), *self._policy_of_items(),
        ]:  # fmt: skip
            decides = deciding(self._before, name) if name in SETTINGS else name
            shown |= {name, decides}
            yield label, value, decides
        for name in SETTINGS:
            if name not in shown and user_set(self._before, name):
                yield "also set", brief(self._settings[name]), name

    def _policy_of_pages(self) -> Iterator[tuple[str, str, str]]:
        settings = self._settings
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
        settings = self._settings
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
        settings = self._settings
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
            name = short_name(path_of(settings["DUPEFILTER_CLASS"]))
            yield "request filter", name, "DUPEFILTER_CLASS"
        else:
            kind = {"memory": "memory (bloom filter)", "lite": "lite (exact set)"}
            yield "request filter", kind.get(dedup.kind, dedup.kind), "DEDUP_FILTER"
        if self._is_facade:
            shared = read_bool(settings, "USE_SESSION")
            yield "cookies", "shared" if shared else "each request has its own", "USE_SESSION"
            if self.draws_agent():
                yield "User-Agent", "a browser's, drawn", "RANDOM_USER_AGENT"

    def _policy_of_memory(self) -> Iterator[tuple[str, str, str]]:
        """Yield what comes from earlier runs and from other processes."""
        settings = self._settings
        cache = CacheSettings.from_settings(settings)
        kept = f"for {cache.expire:g} s" if cache.expire else "for ever"
        used = f"{cache.path}, {kept}" if cache.enabled else "off"
        if not cache.enabled and settings.getbool("HTTPCACHE_ENABLED"):
            used = "Scrapy's HTTP cache"
        yield "response cache", used, "RESPONSE_CACHE_ENABLE"
        pages = IncrementalSettings.from_settings(settings)
        where = "Redis" if pages.store == "redis" else pages.path
        yield (
            "pages of earlier runs", f"asked for changes ({where})" if pages.enabled else "off",
            "NETSPY_INCREMENTAL",
        )  # fmt: skip
        if pages.enabled:
            yield "a page that is unchanged", pages.on_304, "NETSPY_INCREMENTAL_ON_304"
        if is_kind_of(settings["SCHEDULER"], RedisScheduler):
            redis = RedisSettings.from_settings(settings)
            yield "queue", "in Redis, shared by nodes", redis.source
            together = read_bool(settings, "GLOBAL_THROTTLE")
            yield (
                "delays",
                "shared by nodes" if together else "each node its own",
                "GLOBAL_THROTTLE",
            )

    def _policy_of_items(self) -> Iterator[tuple[str, str, str]]:
        dedup = DedupSettings.from_settings(self._settings)
        sinks = SinkSettings.from_settings(self._settings)
        yield "item filter", "on" if dedup.items else "off", "ITEM_FILTER_ENABLE"
        batch = f"{sinks.batch_size:,} rows or {sinks.flush_interval:g} s"
        yield "batch of a sink", batch, "ITEM_MAX_CACHED_COUNT"

    def draws_agent(self) -> bool:
        """Tell whether each request gets a browser's User-Agent."""
        settings = self._settings
        return (
            self._is_facade
            and read_bool(settings, "RANDOM_USER_AGENT")
            and (user_set(settings, "RANDOM_USER_AGENT") or not user_set(settings, "USER_AGENT"))
        )


# Texts ---------------------------------------------------------------------------------------
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
