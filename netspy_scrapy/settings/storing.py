"""Settings of what is kept: rows, dumps, filters, the response cache, what is known of pages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.incremental.policy import MODES, Policy
from netspy_scrapy.settings.reading import (
    deciding,
    read,
    read_bool,
    read_choice,
    read_int,
    read_names,
    read_number,
    read_text,
)

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

_SHARED_FILTERS = ("redis", "redis-set")


@dataclass(frozen=True)
class DedupSettings:
    """The filters of requests and of items."""

    kind: str
    capacity: int
    error_rate: float
    max_layers: int
    items: bool
    """Whether items are filtered (ITEM_FILTER_ENABLE)."""
    run: str
    """The run that filters in Redis live for; empty: the spider's, for ever."""

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> DedupSettings:
        """Read the filters of a crawl."""
        kind = str(read(settings, "DEDUP_FILTER"))
        if kind not in ("memory", "lite", *_SHARED_FILTERS):
            raise ConfigError("DEDUP_FILTER", kind, '"memory", "lite", "redis" or "redis-set"')
        rate = read_number(settings, "DEDUP_ERROR_RATE", unit="false positives in one")
        if not 0 < rate < 1:
            raise ConfigError(
                "DEDUP_ERROR_RATE", read(settings, "DEDUP_ERROR_RATE"), "a share between 0 and 1"
            )
        # Only netspy spiders filter items unasked: they write the default into the settings.
        filtered = settings.getpriority("ITEM_FILTER_ENABLE") is not None
        return cls(
            kind=kind,
            capacity=read_int(settings, "DEDUP_INITIAL_CAPACITY", minimum=1),
            error_rate=rate,
            max_layers=read_int(settings, "DEDUP_MAX_LAYERS", minimum=1),
            items=filtered and read_bool(settings, "ITEM_FILTER_ENABLE"),
            run=_run(settings, needed=kind in _SHARED_FILTERS),
        )

    @property
    def shared(self) -> bool:
        """Whether what was seen is in Redis."""
        return self.kind in _SHARED_FILTERS

    def of_run(self, run: str) -> DedupSettings:
        """Return the same filter in Redis, for the processes of one run."""
        return replace(self, kind="redis-set" if self.kind == "lite" else "redis", run=run)


def _run(settings: BaseSettings, *, needed: bool) -> str:
    """Return the run that DEDUP_SCOPE and RUN_ID mean; empty: none."""
    scope, run = str(read(settings, "DEDUP_SCOPE")), str(read(settings, "RUN_ID") or "")
    if scope not in ("auto", "run", "spider"):
        raise ConfigError("DEDUP_SCOPE", scope, '"auto", "run" or "spider"')
    if needed and scope == "run" and not run:
        raise ConfigError("DEDUP_SCOPE", scope, '"auto" or "spider", as RUN_ID is not set')
    return "" if scope == "spider" else run


@dataclass(frozen=True)
class SinkSettings:
    """Batches of the sinks."""

    batch_size: int
    flush_interval: float
    max_bytes: int
    wait: float
    """Seconds that rows wait at least for a server that is away."""
    default_table: str

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> SinkSettings:
        """Read what all sinks share."""
        return cls(
            batch_size=read_int(settings, "ITEM_MAX_CACHED_COUNT", minimum=1),
            flush_interval=read_number(settings, "BUFFER_FLUSH_INTERVAL", unit="seconds"),
            max_bytes=read_int(settings, "NETSPY_BUFFER_MAX_BYTES"),
            wait=read_number(settings, "NETSPY_SINK_WAIT", unit="seconds"),
            default_table=read_text(settings, "ITEM_DEFAULT_TABLE"),
        )


@dataclass(frozen=True)
class DumpSettings:
    """Where what could not be stored or fetched is written."""

    item_path: str
    request_path: str
    unfinished: bool

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> DumpSettings:
        """Read the dump files of a crawl."""
        return cls(
            item_path=read_text(settings, "FAILED_ITEM_PATH"),
            request_path=read_text(settings, "FAILED_REQUEST_PATH"),
            unfinished=read_bool(settings, "DUMP_UNFINISHED_ON_EXIT"),
        )


@dataclass(frozen=True)
class IncrementalSettings:
    """Whether and how only what changed is fetched."""

    enabled: bool
    store: str
    path: str
    on_304: str
    min_age: float
    policy: Policy
    headers: tuple[bytes, ...]

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> IncrementalSettings:
        """Read how unchanged pages are treated."""
        return cls(
            enabled=read_bool(settings, "NETSPY_INCREMENTAL"),
            store=read_choice(settings, "NETSPY_INCREMENTAL_STORE", ("sqlite", "redis")),
            path=read_text(settings, "NETSPY_INCREMENTAL_PATH"),
            on_304=read_choice(settings, "NETSPY_INCREMENTAL_ON_304", MODES),
            min_age=read_number(settings, "NETSPY_INCREMENTAL_MIN_AGE", unit="seconds"),
            policy=Policy(
                compare_body=read_bool(settings, "NETSPY_INCREMENTAL_COMPARE_BODY"),
                dynamic_after=read_int(settings, "NETSPY_INCREMENTAL_DYNAMIC_AFTER"),
            ),
            headers=tuple(
                sorted(
                    one.title().encode()
                    for one in read_names(settings, "NETSPY_INCREMENTAL_HEADERS", what="headers")
                )
            ),
        )


@dataclass(frozen=True)
class CacheSettings:
    """The development cache."""

    enabled: bool
    """Whether ours is on; HTTPCACHE_ENABLED alone leaves Scrapy's as it is."""
    path: str
    expire: float

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> CacheSettings:
        """Read what is cached, and where."""
        ours = deciding(settings, "RESPONSE_CACHE_ENABLE") == "RESPONSE_CACHE_ENABLE"
        return cls(
            enabled=ours and read_bool(settings, "RESPONSE_CACHE_ENABLE"),
            path=read_text(settings, "RESPONSE_CACHE_PATH"),
            expire=read_number(settings, "RESPONSE_CACHE_EXPIRE", unit="seconds"),
        )
