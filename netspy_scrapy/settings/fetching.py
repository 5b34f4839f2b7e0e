"""Settings of how pages are fetched, and which of them count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object

from netspy_scrapy.domains import Pace
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.policies import DomainPolicies, slot_of
from netspy_scrapy.processes.share import Share
from netspy_scrapy.settings.reading import (
    deciding,
    read,
    read_bool,
    read_codes,
    read_int,
    read_number,
    read_prefixes,
    user_set,
)

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

_SPIDER_PRIORITY = SETTINGS_PRIORITIES["spider"]


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
    share: Share = field(default_factory=Share)
    """The part of each domain's concurrency that is this process's."""
    total: int = 0
    """Requests in flight at most, of all domains (CONCURRENT_REQUESTS)."""

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
            share=_share(settings),
            total=settings.getint("CONCURRENT_REQUESTS"),
        )

    @property
    def places(self) -> int:
        """How many requests of a domain one process alone would have in flight at most."""
        return min(self.pace.concurrency or self.total, self.total)

    def is_others(self, domain: str) -> bool:
        """Tell whether *domain* is left to other processes: it has too few places for all."""
        return self.share.count > 1 and not self._own_places(domain)

    def _own_places(self, domain: str) -> int:
        whole = self._concurrency_of(domain)
        return self.share.of(domain, min(whole or self.total, self.total))

    def _concurrency_of(self, domain: str) -> int:
        slot = slot_of(self.slots, domain)
        policy = self.policies.of(domain)
        return int(_first(policy.concurrency, slot.get("concurrency"), self.pace.concurrency))

    def slot_delay_of(self, domain: str) -> float:
        """Return the delay that Scrapy gives a new slot of *domain*."""
        slot = slot_of(self.slots, domain)
        return float(slot.get("delay", self.pace.delay))

    def pace_of(self, domain: str) -> Pace:
        """Return the pace of *domain*: its policy, else its DOWNLOAD_SLOTS entry, else all's."""
        pace = self.pace
        slot = slot_of(self.slots, domain)
        policy = self.policies.of(domain)
        jitter = slot.get("jitter")
        if jitter is None and "randomize_delay" in slot:
            jitter = 0.5 if slot["randomize_delay"] else 0.0
        return Pace(
            delay=_first(policy.delay, slot.get("delay"), pace.delay),
            jitter=_first(policy.jitter, jitter, pace.jitter),
            # Also of a domain that is left to others: a redirect may lead to it.
            concurrency=(
                self._concurrency_of(domain)
                if self.share.count == 1
                else max(1, self._own_places(domain))
            ),
            failure_threshold=_first(policy.circuit_threshold, pace.failure_threshold),
            cooldown=_first(policy.circuit_cooldown, pace.cooldown),
        )


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _share(settings: BaseSettings) -> Share:
    text = str(read(settings, "NETSPY_PROCESS") or "")
    try:
        return Share.parse(text) if text else Share()
    except ValueError:
        allowed = 'the number of a process and how many there are, as in "2/3"'
        raise ConfigError("NETSPY_PROCESS", text, allowed) from None


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
        on_error = str(read(settings, "NETSPY_ROBOTS_ON_ERROR"))
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
        types = read(settings, "ALLOWED_CONTENT_TYPES")
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
