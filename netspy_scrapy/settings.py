"""The settings of this package: read once, validated, frozen.

Each feature has one dataclass with a ``from_settings`` that reads what it needs and raises
:class:`~netspy_scrapy.exceptions.ConfigError` for a value that cannot be used.

Many settings have a counterpart of Scrapy's (``SPIDER_MAX_RETRY_TIMES`` and ``RETRY_TIMES``).
Of such a pair ours counts if the user set it, else Scrapy's if the user set that, else the
default: netspy's for netspy spiders (which write it at a low priority), Scrapy's otherwise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object

from netspy_scrapy.domains import Pace
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.incremental.policy import MODES, Policy
from netspy_scrapy.policies import DomainPolicies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Spider
    from scrapy.settings import BaseSettings

_ADDON_PRIORITY = SETTINGS_PRIORITIES["addon"]
_SPIDER_PRIORITY = SETTINGS_PRIORITIES["spider"]
_SHARED_FILTERS = ("redis", "redis-set")
# A password may hold a slash or an @ that should have been escaped.
_USER_INFO = re.compile(r"(?<=://).*@")


class Setting(NamedTuple):
    """A row of the settings reference."""

    default: Any
    meaning: str
    scrapy: str | None = None
    """The setting of Scrapy's that it is paired with."""


#: Every setting of this package, with the default that netspy spiders get.
SETTINGS: dict[str, Setting] = {
    # Which answers reach the callback
    "CHECK_STATUS_CODE": Setting(True, "False: every answer reaches the callback"),
    "RETRY_STATUS_CODES": Setting(
        [429, 500, 502, 503, 504], "statuses that are fetched again", "RETRY_HTTP_CODES"
    ),
    "ACCEPT_STATUS_CODES": Setting(
        [], "statuses that reach the callback, and are never retried", "HTTPERROR_ALLOWED_CODES"
    ),
    # Retries
    "SPIDER_MAX_RETRY_TIMES": Setting(3, "retries after the first attempt", "RETRY_TIMES"),
    "SPIDER_RETRY_INTERVAL": Setting(0.0, "seconds before a retry, without backoff"),
    "RETRY_BACKOFF": Setting(
        0.0, "seconds; the n-th retry waits base x 2^(n-1) x uniform(0.5, 1); 0: no backoff"
    ),
    "RETRY_AFTER_MAX": Setting(
        60.0,
        "seconds; cap of Retry-After and of the backoff; a longer Retry-After fails at once; "
        "0: the header is not read",
    ),
    "ANTIBOT_DETECT": Setting(
        True, "a challenge page with status 200 is no page: it is fetched again, then a failure"
    ),
    "NETSPY_RETRY_CALLBACK_ERRORS": Setting(
        False, "retry a page whose callback raised (netspy spiders always do)"
    ),
    # The request filter
    "DEDUP_FILTER": Setting(
        "memory",
        'filter of requests and items: "memory" (bloom), "lite" (exact), or for items in Redis '
        '"redis" (bloom), "redis-set" (exact)',
        "DUPEFILTER_CLASS",
    ),
    "DEDUP_INITIAL_CAPACITY": Setting(1_000_000, "fingerprints the first bloom layer holds"),
    "DEDUP_ERROR_RATE": Setting(1e-6, "share of false positives of the bloom filter"),
    "DEDUP_MAX_LAYERS": Setting(4, "layers the bloom filter may grow to"),
    "DEDUP_SCOPE": Setting("auto", '"spider", "run" or "auto": how long a filter in Redis lives'),
    "RUN_ID": Setting("", "name of a run: what processes that work on it together give alike"),
    # Redis
    "REDIS_URL": Setting("redis://localhost:6379/0", "server and database"),
    "REDIS_HOST": Setting(None, "the same in parts, where REDIS_URL is not set: host"),
    "REDIS_PORT": Setting(None, "port"),
    "REDIS_DB": Setting(None, "database"),
    "REDIS_USERNAME": Setting(None, "user"),
    "REDIS_PASSWORD": Setting(None, "password"),
    "REDIS_ENCODING": Setting(None, "encoding of keys; unset: UTF-8"),
    "REDIS_PARAMS": Setting({}, "further arguments of the client, as in scrapy-redis"),
    "REDIS_KEY_PREFIX": Setting("netspy", "what every key of ours begins with"),
    # Several nodes
    "GLOBAL_THROTTLE": Setting(
        False, "delays and rests of a domain are kept by all nodes together, by Redis"
    ),
    "SPIDER_TASK_LEASE": Setting(
        600.0, "seconds until a task of a node that is not heard of goes to another; 0: never"
    ),
    "COLLECTOR_TASK_COUNT": Setting(32, "tasks that a node takes at once"),
    "NETSPY_MAX_UNACKNOWLEDGED": Setting(
        40, "pages of a node that are under way or not yet stored: what a kill fetches twice"
    ),
    "NETSPY_MAX_DELIVERIES": Setting(5, "times that a task is handed out before it is given up"),
    "SPIDER_KEEP_ALIVE": Setting(False, "stay when all is done, and wait for more"),
    # Concurrency and time
    "SPIDER_THREAD_COUNT": Setting(
        None, "upper bound of requests in flight; unset: Scrapy's default", "CONCURRENT_REQUESTS"
    ),
    "REQUEST_TIMEOUT": Setting(22.0, "seconds a download may take", "DOWNLOAD_TIMEOUT"),
    "SPIDER_MAX_RUNTIME": Setting(
        0.0, "seconds after which the crawl is closed; 0: never", "CLOSESPIDER_TIMEOUT"
    ),
    "NETSPY_STOP_TIMEOUT": Setting(
        8.0, "seconds that downloads may take after a stop before they are cut off; 0: any time"
    ),
    "WEBDRIVER": Setting({}, "how a browser fetches pages that are to be rendered"),
    "NETSPY_RENDER_PAGES": Setting(8, "pages that a browser has open at once"),
    "NETSPY_CALLBACK_THREADS": Setting(
        0, "threads in which sync callbacks run; 0: on the event loop, as ever"
    ),
    "NETSPY_BLOCK_WARNING": Setting(
        1.0, "seconds for which code may block the event loop before it is named; 0: never"
    ),
    "ROBOTS_OBEY": Setting(False, "obey robots.txt", "ROBOTSTXT_OBEY"),
    "ROBOTS_USER_AGENT": Setting("*", "the robots.txt group that counts", "ROBOTSTXT_USER_AGENT"),
    "MAX_RESPONSE_SIZE": Setting(
        32 * 1024 * 1024, "bytes of a body, opened; 0: no limit", "DOWNLOAD_MAXSIZE"
    ),
    "ALLOWED_CONTENT_TYPES": Setting([], "prefixes of the types that are received; empty: all"),
    "NETSPY_MAX_INFLIGHT_BYTES": Setting(
        0, "bytes of all bodies that are being received or opened; 0: no limit"
    ),
    "NETSPY_START_MAX_QUEUED": Setting(
        10_000,
        "queued requests above which start() and callbacks wait for the downloader; 0: never",
    ),
    "USE_SESSION": Setting(False, "netspy spiders: requests share their cookies"),
    "RANDOM_USER_AGENT": Setting(True, "a browser's User-Agent on each request"),
    # How each domain is treated
    "ROBOTS_CACHE_TTL": Setting(3600.0, "seconds a robots.txt is believed; 0: for the whole run"),
    "NETSPY_ROBOTS_ON_ERROR": Setting(
        "allow", 'while robots.txt cannot be read: "allow", "disallow" (RFC 9309) or "last_good"'
    ),
    "CIRCUIT_FAILURE_THRESHOLD": Setting(
        10, "final failures in a row that open a domain's circuit; 0: never"
    ),
    "CIRCUIT_COOLDOWN": Setting(60.0, "seconds that an open circuit rests the domain"),
    "NETSPY_CIRCUIT_HALF_OPEN": Setting(False, "after it, let one request through first"),
    "NETSPY_DOMAIN_POLICIES": Setting({}, "other values for single domains; patterns allowed"),
    # Fetching only what changed
    "NETSPY_INCREMENTAL": Setting(False, "ask sites whether pages changed since the last run"),
    "NETSPY_INCREMENTAL_STORE": Setting(
        "sqlite", 'where pages are remembered: "sqlite", or "redis", which nodes share'
    ),
    "NETSPY_INCREMENTAL_PATH": Setting("netspy_incremental.db", 'the file of "sqlite"'),
    "NETSPY_INCREMENTAL_ON_304": Setting(
        "skip",
        'an unchanged page: "skip", "follow" the requests it yielded last time, or "reparse" the '
        "body that was kept",
    ),
    "NETSPY_INCREMENTAL_COMPARE_BODY": Setting(
        False, "a page sent again with the body of last time counts as unchanged"
    ),
    "NETSPY_INCREMENTAL_MIN_AGE": Setting(
        0.0, "seconds before a page without any validator is fetched again"
    ),
    "NETSPY_INCREMENTAL_DYNAMIC_AFTER": Setting(
        3, "changes of the ETag alone, in a row, after which it is no longer asked by; 0: never"
    ),
    "NETSPY_INCREMENTAL_HEADERS": Setting(
        ["Accept", "Accept-Language", "Authorization"],
        "request headers with which a page is another page",
    ),
    # The development cache
    "RESPONSE_CACHE_ENABLE": Setting(
        False, "read answers of earlier runs from disk, and store new ones", "HTTPCACHE_ENABLED"
    ),
    "RESPONSE_CACHE_PATH": Setting(".netspy_cache", "folder of the response cache"),
    "RESPONSE_CACHE_EXPIRE": Setting(3600.0, "seconds a stored answer is used; 0: for ever"),
    # Items and sinks
    "ITEM_MAX_CACHED_COUNT": Setting(5000, "rows in a batch; twice as many may be held by a sink"),
    "BUFFER_FLUSH_INTERVAL": Setting(0.1, "seconds a row waits for its batch to fill"),
    "NETSPY_BUFFER_MAX_BYTES": Setting(
        64 * 1024 * 1024, "bytes of text and binary values that a sink may hold; 0: no limit"
    ),
    "NETSPY_SINK_WAIT": Setting(
        30.0, "seconds that rows wait for a server that is away before any is dumped"
    ),
    "NETSPY_SINK_TIMEOUT": Setting(
        60.0, "seconds without an answer after which a server counts as away"
    ),
    "ITEM_DEFAULT_TABLE": Setting("items", "table of plain dicts"),
    "ITEM_FILTER_ENABLE": Setting(True, "skip items whose fingerprint was stored in this run"),
    "CSV_OUTPUT_DIR": Setting(".", "folder of CsvPipeline's files"),
    "SQLITE_PATH": Setting("items.db", "database file of SqlitePipeline"),
    "MYSQL_HOST": Setting("localhost", "server of MysqlPipeline"),
    "MYSQL_PORT": Setting(3306, "its port"),
    "MYSQL_USER": Setting("root", "who asks"),
    "MYSQL_PASSWORD": Setting("", "of that user"),
    "MYSQL_DB": Setting("netspy", "database that has the tables"),
    "MYSQL_POOL_SIZE": Setting(5, "connections at most"),
    "MYSQL_UPDATE_ON_DUPLICATE": Setting(
        True, "a row whose key is there overwrites its fields; False: it is refused"
    ),
    "POSTGRES_HOST": Setting("localhost", "server of PostgresPipeline"),
    "POSTGRES_PORT": Setting(5432, "its port"),
    "POSTGRES_USER": Setting("postgres", "who asks"),
    "POSTGRES_PASSWORD": Setting("", "of that user"),
    "POSTGRES_DB": Setting("netspy", "database that has the tables"),
    "POSTGRES_POOL_SIZE": Setting(5, "connections at most"),
    "POSTGRES_ON_CONFLICT": Setting(
        "nothing", 'a row whose key is there: "nothing", "update" or "error"'
    ),
    "POSTGRES_CONFLICT_TARGET": Setting([], 'columns of the unique index that "update" goes by'),
    "MONGO_URI": Setting("mongodb://localhost:27017", "server of MongoPipeline"),
    "MONGO_DB": Setting("netspy", "database of MongoPipeline"),
    "NETSPY_MONGO_UPSERT": Setting(
        False, "MongoPipeline: an Item replaces what has the same __unique_key__"
    ),
    "ELASTICSEARCH_HOSTS": Setting(
        ["http://localhost:9200"], "URLs of the nodes for ElasticsearchPipeline"
    ),
    "NETSPY_ELASTICSEARCH_UPSERT": Setting(
        False, "ElasticsearchPipeline: an Item replaces what has the same __unique_key__"
    ),
    "NETSPY_ELASTICSEARCH_OPTIONS": Setting({}, "arguments of the client: keys, certificates"),
    "KAFKA_BOOTSTRAP_SERVERS": Setting(["localhost:9092"], "brokers for KafkaPipeline"),
    "NETSPY_KAFKA_KEY": Setting([], "fields that are the key of a message"),
    "NETSPY_KAFKA_OPTIONS": Setting({}, "properties of librdkafka: security, compression"),
    "FAILED_ITEM_PATH": Setting("failed_items.jsonl", "rows that could not be stored"),
    "FAILED_REQUEST_PATH": Setting("failed_requests.jsonl", "requests that failed for good"),
    "RETRY_FAILED_ON_START": Setting(
        False, "fetch the spider's requests of FAILED_REQUEST_PATH before all others"
    ),
    "DUMP_UNFINISHED_ON_EXIT": Setting(
        True, "write the requests still queued at a stop to FAILED_REQUEST_PATH (not with JOBDIR)"
    ),
    "RUN_SUMMARY_ENABLE": Setting(True, "print the run summary"),
}

#: netspy's settings that nothing here reads yet: named when a user sets them.
UNSUPPORTED: frozenset[str] = frozenset(
    {
        "DEDUP_TO_MD5", "DEDUP_WARN_FILL_RATE", "DOWNLOADER_ASYNC",
        "DOWNLOADER_ASYNC_CONCURRENCY", "DOWNLOADER_IMPERSONATE",
        "HTTPX_HTTP2", "METRICS_ENABLE", "METRICS_LOG_INTERVAL", "METRICS_PROMETHEUS_PORT",
        "PROXY_API", "PROXY_ENABLE", "PROXY_EXTRACT_API", "PROXY_POOL",
        "WARNING_DINGTALK_WEBHOOK", "WARNING_ENABLE",
        "WARNING_FEISHU_WEBHOOK", "WARNING_WECHAT_WEBHOOK",
    }
)  # fmt: skip


def user_set(settings: BaseSettings, name: str) -> bool:
    """Tell whether project, spider or command line gave *name* a value."""
    return (settings.getpriority(name) or 0) > _ADDON_PRIORITY


def deciding(settings: BaseSettings, name: str) -> str:
    """Return which setting of a pair counts: *name* or its counterpart in Scrapy."""
    theirs = SETTINGS[name].scrapy
    if theirs is None or user_set(settings, name):
        return name
    if user_set(settings, theirs):
        return theirs
    return name if settings.getpriority(name) is not None else theirs


# Reading one value -----------------------------------------------------------------------------
def _get(settings: BaseSettings, name: str) -> Any:
    if settings.getpriority(name) is None and name in SETTINGS:
        return SETTINGS[name].default
    return settings.get(name)


def read_bool(settings: BaseSettings, name: str) -> bool:
    """Read *name* as a bool: True, False, 1, 0, or the same words as text."""
    value = _get(settings, name)
    if isinstance(value, str):
        word = value.strip().lower()
        if word in {"true", "1", "yes", "on"}:
            return True
        if word in {"false", "0", "no", "off", ""}:
            return False
    elif value in (True, False):
        return bool(value)
    raise ConfigError(name, value, "True or False")


def read_number(settings: BaseSettings, name: str, *, unit: str, minimum: float = 0.0) -> float:
    """Read *name* as a finite number not below *minimum*."""
    value = _get(settings, name)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < minimum:
        raise ConfigError(name, value, f"a number of {unit}, {minimum:g} or more")
    return number


def read_int(settings: BaseSettings, name: str, *, minimum: int = 0) -> int:
    """Read *name* as a whole number not below *minimum*."""
    value = _get(settings, name)
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise TypeError
        number = int(value)
    except (TypeError, ValueError):
        number = minimum - 1
    if number < minimum:
        raise ConfigError(name, value, f"a whole number, {minimum} or more")
    return number


def read_text(settings: BaseSettings, name: str) -> str:
    """Read *name* as text that is not empty."""
    value = _get(settings, name)
    text = str(value) if value is not None else ""
    if not text or isinstance(value, (bool, int, float, list, dict)):
        raise ConfigError(name, value, "a text that is not empty")
    return text


def read_choice(settings: BaseSettings, name: str, allowed: tuple[str, ...]) -> str:
    """Read *name* as one of a few words."""
    value = _get(settings, name)
    if value not in allowed:
        raise ConfigError(name, value, " or ".join(f'"{one}"' for one in allowed))
    return str(value)


def read_names(settings: BaseSettings, name: str, *, what: str) -> list[str]:
    """Read *name* as a list of texts: a list, JSON, or text with commas; *what* says of what."""
    value = _get(settings, name)
    items: Any = value
    if isinstance(value, str):
        with suppress(ValueError):
            items = json.loads(value)
        if isinstance(items, str):
            items = [part.strip() for part in items.split(",") if part.strip()]
    if value is None:
        return []
    if not isinstance(items, (list, tuple)) or not all(
        isinstance(item, str) and item for item in items
    ):
        raise ConfigError(name, without_secrets(value), f"a list of {what}, or text with commas")
    return list(items)


def read_mapping(settings: BaseSettings, name: str) -> dict[str, Any]:
    """Read *name* as a mapping of names to values: a dict, or JSON."""
    value = _get(settings, name)
    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        # It may hold a password.
        raise ConfigError(name, f"<{type(value).__name__}>", "a dict whose keys are texts")
    return dict(value)


def without_secrets(value: Any) -> Any:
    """Return the value of a setting as an error may show it: no user and password of a URL."""
    if isinstance(value, str):
        return _USER_INFO.sub("***@", value)
    return [without_secrets(one) for one in value] if isinstance(value, (list, tuple)) else value


def read_codes(settings: BaseSettings, name: str) -> frozenset[int]:
    """Read *name* as a set of HTTP statuses: a list, or text with commas."""
    value = _get(settings, name)
    allowed = "a list of HTTP statuses (100 to 999)"
    if value is None:
        return frozenset()
    items: Iterable[Any]
    if isinstance(value, str):
        items = [part for part in value.strip("[] ").split(",") if part.strip()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = value
    else:
        raise ConfigError(name, value, allowed)
    codes = set()
    for item in items:
        try:
            code = int(item)
        except (TypeError, ValueError):
            raise ConfigError(name, value, allowed) from None
        if isinstance(item, bool) or not 100 <= code <= 999:  # noqa: PLR2004
            raise ConfigError(name, value, allowed)
        codes.add(code)
    return frozenset(codes)


def read_prefixes(name: str, value: Any) -> tuple[str, ...]:
    """Return *value* of *name* as prefixes of content types, in lower case: a list, or text."""
    allowed = 'a list of prefixes such as "text/" or "application/json"'
    if value is None:
        return ()
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple, set, frozenset)):
        raise ConfigError(name, value, allowed)
    if not all(isinstance(one, str) for one in items):
        raise ConfigError(name, value, allowed)
    prefixes = tuple(one.strip().lower() for one in items)
    if isinstance(value, str):
        return tuple(filter(None, prefixes))
    if not all(prefixes):
        raise ConfigError(name, value, f"{allowed}; an empty one would allow everything")
    return prefixes


# A dataclass per feature -----------------------------------------------------------------------
@dataclass(frozen=True)
class StatusSettings:
    """Which statuses are accepted, retried, refused."""

    check: bool
    accept_codes: frozenset[int]
    """Reach the callback and are never retried (ACCEPT_STATUS_CODES)."""
    retry_codes: frozenset[int]
    allowed_codes: frozenset[int]
    """Reach the callback once retries are over (HTTPERROR_ALLOWED_CODES)."""
    allow_all: bool
    """Every status does (HTTPERROR_ALLOW_ALL)."""

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> StatusSettings:
        """Read the status policy of a crawl."""
        accepting = deciding(settings, "ACCEPT_STATUS_CODES")
        accept = read_codes(settings, accepting)
        retrying = deciding(settings, "RETRY_STATUS_CODES")
        retry = read_codes(settings, retrying)
        if retrying == "RETRY_STATUS_CODES":
            retry = frozenset(code for code in retry if not is_success(code))
        ours = accepting == "ACCEPT_STATUS_CODES"
        return cls(
            check=read_bool(settings, "CHECK_STATUS_CODE"),
            accept_codes=accept if ours else frozenset(),
            retry_codes=retry,
            allowed_codes=accept,
            allow_all=settings.getbool("HTTPERROR_ALLOW_ALL"),
        )


def is_success(status: int) -> bool:
    """Tell whether *status* is a 2xx or 3xx, which the callback gets by default."""
    return 200 <= status < 400  # noqa: PLR2004


@dataclass(frozen=True)
class RetrySettings:
    """How often a page is fetched again, and after how long."""

    enabled: bool
    times: int
    interval: float
    backoff: float
    retry_after_max: float
    callback_errors: bool
    priority_adjust: int
    exceptions: tuple[type[BaseException], ...] = field(repr=False)

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> RetrySettings:
        """Read the retry policy of a crawl."""
        return cls(
            enabled=settings.getbool("RETRY_ENABLED"),
            times=read_int(settings, deciding(settings, "SPIDER_MAX_RETRY_TIMES")),
            interval=read_number(settings, "SPIDER_RETRY_INTERVAL", unit="seconds"),
            backoff=read_number(settings, "RETRY_BACKOFF", unit="seconds"),
            retry_after_max=read_number(settings, "RETRY_AFTER_MAX", unit="seconds"),
            callback_errors=read_bool(settings, "NETSPY_RETRY_CALLBACK_ERRORS"),
            priority_adjust=settings.getint("RETRY_PRIORITY_ADJUST"),
            exceptions=tuple(
                load_object(one) if isinstance(one, str) else one
                for one in settings.getlist("RETRY_EXCEPTIONS")
            ),
        )


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
        kind = str(_get(settings, "DEDUP_FILTER"))
        if kind not in ("memory", "lite", *_SHARED_FILTERS):
            raise ConfigError("DEDUP_FILTER", kind, '"memory", "lite", "redis" or "redis-set"')
        rate = read_number(settings, "DEDUP_ERROR_RATE", unit="false positives in one")
        if not 0 < rate < 1:
            raise ConfigError(
                "DEDUP_ERROR_RATE", _get(settings, "DEDUP_ERROR_RATE"), "a share between 0 and 1"
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


def _run(settings: BaseSettings, *, needed: bool) -> str:
    """Return the run that DEDUP_SCOPE and RUN_ID mean; empty: none."""
    scope, run = str(_get(settings, "DEDUP_SCOPE")), str(_get(settings, "RUN_ID") or "")
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
class PaceSettings:
    """How far start() and endless callbacks may run ahead."""

    max_queued: int

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> PaceSettings:
        """Read the bound of the queue."""
        return cls(max_queued=read_int(settings, "NETSPY_START_MAX_QUEUED"))


@dataclass(frozen=True)
class PolitenessSettings:
    """How fast a domain may be asked, and when it rests."""

    pace: Pace
    """Of domains that nothing else is said of."""
    half_open: bool
    slots: dict[str, dict[str, Any]] = field(repr=False)
    """DOWNLOAD_SLOTS."""
    policies: DomainPolicies = field(repr=False)

    @classmethod
    def from_settings(
        cls, settings: BaseSettings, spider: Spider | type[Spider] | None = None
    ) -> PolitenessSettings:
        """Read the pace of a crawl; *spider* may have Scrapy's older attributes for it."""
        concurrency = read_int(settings, "CONCURRENT_REQUESTS_PER_DOMAIN")
        delay = read_number(settings, "DOWNLOAD_DELAY", unit="seconds")
        if (settings.getpriority("DOWNLOAD_DELAY") or 0) < _SPIDER_PRIORITY:
            delay = float(getattr(spider, "download_delay", delay))
        if (settings.getpriority("CONCURRENT_REQUESTS_PER_DOMAIN") or 0) < _SPIDER_PRIORITY:
            concurrency = int(getattr(spider, "max_concurrent_requests", concurrency))
        # Plain projects have a circuit only if they ask for it.
        threshold = settings.getpriority("CIRCUIT_FAILURE_THRESHOLD") is not None
        return cls(
            pace=Pace(
                delay=delay,
                jitter=_jitter(settings),
                concurrency=concurrency,
                failure_threshold=(
                    read_int(settings, "CIRCUIT_FAILURE_THRESHOLD") if threshold else 0
                ),
                cooldown=read_number(settings, "CIRCUIT_COOLDOWN", unit="seconds"),
            ),
            half_open=read_bool(settings, "NETSPY_CIRCUIT_HALF_OPEN"),
            slots=settings.getdict("DOWNLOAD_SLOTS"),
            policies=DomainPolicies.from_settings(settings),
        )

    def slot_delay_of(self, domain: str) -> float:
        """Return the delay that Scrapy gives a new slot of *domain*."""
        slot = self.slots.get(domain) or self.slots.get(domain.partition(":")[0]) or {}
        return float(slot.get("delay", self.pace.delay))

    def pace_of(self, domain: str) -> Pace:
        """Return the pace of *domain*: its policy, else its DOWNLOAD_SLOTS entry, else all's."""
        pace = self.pace
        slot = self.slots.get(domain) or self.slots.get(domain.partition(":")[0]) or {}
        policy = self.policies.of(domain)
        jitter = slot.get("jitter")
        if jitter is None and "randomize_delay" in slot:
            jitter = 0.5 if slot["randomize_delay"] else 0.0
        return Pace(
            delay=_first(policy.delay, slot.get("delay"), pace.delay),
            jitter=_first(policy.jitter, jitter, pace.jitter),
            concurrency=_first(policy.concurrency, slot.get("concurrency"), pace.concurrency),
            failure_threshold=_first(policy.circuit_threshold, pace.failure_threshold),
            cooldown=_first(policy.circuit_cooldown, pace.cooldown),
        )


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _jitter(settings: BaseSettings) -> float:
    """Return the share by which delays vary, under the older or the newer of Scrapy's names."""
    older, newer = "RANDOMIZE_DOWNLOAD_DELAY", "DOWNLOAD_DELAY_JITTER"
    newer_priority = settings.getpriority(newer)
    older_priority = settings.getpriority(older) or 0
    if newer_priority is not None and newer_priority >= older_priority:
        return read_number(settings, newer, unit="the delay")
    return 0.5 if read_bool(settings, older) else 0.0


@dataclass(frozen=True)
class RobotsSettings:
    """Whether and how robots.txt is obeyed."""

    obey: bool
    user_agent: str | None
    """The group that counts; None: the request's own User-Agent."""
    default_agent: str
    """The User-Agent of requests that have none yet."""
    cache_ttl: float
    on_error: str

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> RobotsSettings:
        """Read how robots.txt is treated."""
        agent = settings.get(deciding(settings, "ROBOTS_USER_AGENT"))
        on_error = str(_get(settings, "NETSPY_ROBOTS_ON_ERROR"))
        if on_error not in ("allow", "disallow", "last_good"):
            raise ConfigError(
                "NETSPY_ROBOTS_ON_ERROR", on_error, '"allow", "disallow" or "last_good"'
            )
        return cls(
            obey=read_bool(settings, deciding(settings, "ROBOTS_OBEY")),
            user_agent=None if agent is None else str(agent),
            default_agent=str(settings.get("USER_AGENT") or "*"),
            cache_ttl=read_number(settings, "ROBOTS_CACHE_TTL", unit="seconds"),
            on_error=on_error,
        )


#: Keys of netspy's WEBDRIVER that have an effect.
WEBDRIVER_KEYS = frozenset(
    {
        "browser", "headless", "load_images", "timeout", "render_time", "wait_until", "wait_for",
        "user_agent", "proxy", "viewport", "channel", "locale", "timezone_id",
    }
)  # fmt: skip

#: How a browser context is called what WEBDRIVER gives.
_CONTEXT_KEYS = {"user_agent": "user_agent", "locale": "locale", "timezone_id": "timezone_id"}


@dataclass(frozen=True)
class RenderSettings:
    """How a browser fetches pages."""

    pages: int
    timeout: float | None
    """Seconds that a page may take, rendering and all; None: as other downloads."""
    time: float
    """Seconds that are waited after a page is there."""
    wait_for: str | None
    """The selector of an element that is waited for."""
    wait_until: str | None
    context: dict[str, Any] = field(repr=False)
    """What each browser context is made with."""

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> RenderSettings:
        """Read how pages are rendered."""
        webdriver = settings.get("WEBDRIVER") or {}
        if not isinstance(webdriver, dict):
            raise ConfigError("WEBDRIVER", webdriver, "a dict")
        timeout = webdriver.get("timeout")
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
            raise ConfigError("WEBDRIVER['timeout']", timeout, "seconds, more than 0")
        wait_until = webdriver.get("wait_until")
        if wait_until not in (None, "load", "domcontentloaded", "networkidle", "commit"):
            raise ConfigError(
                "WEBDRIVER['wait_until']", wait_until,
                '"load", "domcontentloaded", "networkidle" or "commit"',
            )  # fmt: skip
        context = {
            theirs: webdriver[ours]
            for ours, theirs in _CONTEXT_KEYS.items()
            if webdriver.get(ours) is not None
        }
        if webdriver.get("viewport"):
            width, height = webdriver["viewport"]
            context["viewport"] = {"width": width, "height": height}
        return cls(
            pages=read_int(settings, "NETSPY_RENDER_PAGES", minimum=1),
            timeout=timeout,
            time=float(webdriver.get("render_time") or 0),
            wait_for=webdriver.get("wait_for"),
            wait_until=wait_until,
            context=context,
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
class RuntimeSettings:
    """How long a crawl may take, and how long its end."""

    max_runtime: float
    """0: no limit of ours (CLOSESPIDER_TIMEOUT is Scrapy's own)."""
    stop_timeout: float

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> RuntimeSettings:
        """Read the limits of time."""
        return cls(
            max_runtime=read_number(settings, "SPIDER_MAX_RUNTIME", unit="seconds"),
            stop_timeout=read_number(settings, "NETSPY_STOP_TIMEOUT", unit="seconds"),
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


@dataclass(frozen=True)
class LimitsSettings:
    """How large an answer may be, and of which types."""

    size_setting: str
    """What sets *max_size*: MAX_RESPONSE_SIZE or DOWNLOAD_MAXSIZE."""
    max_size: int
    media_max_size: int
    """Of requests that no callback waits for (DOWNLOAD_MAXSIZE)."""
    types: tuple[str, ...]
    max_inflight: int

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> LimitsSettings:
        """Read the limits of a crawl."""
        size_setting = deciding(settings, "MAX_RESPONSE_SIZE")
        types = _get(settings, "ALLOWED_CONTENT_TYPES")
        return cls(
            size_setting=size_setting,
            max_size=read_int(settings, size_setting),
            media_max_size=read_int(settings, "DOWNLOAD_MAXSIZE"),
            types=read_prefixes("ALLOWED_CONTENT_TYPES", types),
            max_inflight=read_int(settings, "NETSPY_MAX_INFLIGHT_BYTES"),
        )

    @staticmethod
    def are_wanted(settings: BaseSettings) -> bool:
        """Tell whether anything but Scrapy's own limit is asked for.

        An empty ALLOWED_CONTENT_TYPES of the user's own is: single requests may have theirs.
        """
        return (
            (
                settings.getpriority("MAX_RESPONSE_SIZE") is not None
                and read_int(settings, "MAX_RESPONSE_SIZE") > 0
            )
            or user_set(settings, "ALLOWED_CONTENT_TYPES")
            or read_int(settings, "NETSPY_MAX_INFLIGHT_BYTES") > 0
        )
