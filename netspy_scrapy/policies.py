"""NETSPY_DOMAIN_POLICIES: what is kept to at single domains, in place of the crawl's settings."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.incremental.policy import MODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy.settings import BaseSettings

SETTING = "NETSPY_DOMAIN_POLICIES"

#: Domains whose policy is kept at hand.
_CACHED = 10_000

_PORT = re.compile(r":\d+$")  # of [::1]:80 too


def slot_of(slots: Mapping[str, Any], domain: str) -> dict[str, Any]:
    """Return the DOWNLOAD_SLOTS entry of *domain* (a netloc), or of its host; empty: there is none.

    >>> slot_of({"[::1]": {"delay": 1}}, "[::1]:80")
    {'delay': 1}
    """
    found = slots.get(domain) or slots.get(_PORT.sub("", domain)) or {}
    return dict(found)


@dataclass(frozen=True)
class DomainPolicy:
    """What one domain is treated by; None: as the settings say."""

    delay: float | None = None
    """Seconds between two requests (DOWNLOAD_DELAY)."""
    jitter: float | None = None
    """Share by which the delay varies, 0 to 1."""
    concurrency: int | None = None
    """Requests in flight (CONCURRENT_REQUESTS_PER_DOMAIN); 0: no limit."""
    retry_times: int | None = None
    accept: frozenset[int] | None = None
    """Statuses that reach the callback (ACCEPT_STATUS_CODES)."""
    retry: frozenset[int] | None = None
    """Statuses that are fetched again (RETRY_STATUS_CODES)."""
    retry_interval: float | None = None
    backoff: float | None = None
    retry_after_max: float | None = None
    circuit_threshold: int | None = None
    circuit_cooldown: float | None = None
    robots: bool | None = None
    """Whether robots.txt is obeyed (ROBOTS_OBEY)."""
    incremental: bool | None = None
    """False: NETSPY_INCREMENTAL does not count."""
    on_304: str | None = None
    """NETSPY_INCREMENTAL_ON_304."""
    min_age: float | None = None
    """NETSPY_INCREMENTAL_MIN_AGE."""


class DomainPolicies:
    """The policies by domain; names may be patterns (``*.example.com``).

    Of several that match, all count: patterns in the order in which they stand, then the exact
    name, each overriding what came before.
    """

    def __init__(self, policies: Mapping[str, DomainPolicy]) -> None:
        self._policies = dict(policies)
        self.of = lru_cache(maxsize=_CACHED)(self._of)

    def __bool__(self) -> bool:
        return bool(self._policies)

    @property
    def any_obeys_robots(self) -> bool:
        """Whether some policy asks for robots.txt to be obeyed."""
        return any(policy.robots for policy in self._policies.values())

    def _of(self, domain: str) -> DomainPolicy:
        found = DomainPolicy()
        for pattern, policy in self._policies.items():
            if pattern != domain and fnmatchcase(domain, pattern):
                found = _over(found, policy)
        exact = self._policies.get(domain)
        return found if exact is None else _over(found, exact)

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> DomainPolicies:
        """Read and check NETSPY_DOMAIN_POLICIES."""
        try:
            value = settings.getdict(SETTING)
        except (TypeError, ValueError) as exc:
            raise ConfigError(SETTING, settings.get(SETTING), "a dict by domain") from exc
        return cls({_domain(name): _policy(name, one) for name, one in value.items()})


def _over(below: DomainPolicy, above: DomainPolicy) -> DomainPolicy:
    given = {
        field.name: getattr(above, field.name)
        for field in fields(above)
        if getattr(above, field.name) is not None
    }
    return replace(below, **given)


def _domain(name: Any) -> str:
    if not isinstance(name, str) or not name or "/" in name:
        raise ConfigError(SETTING, name, "a domain or a pattern as each name, without a scheme")
    return name.lower()


def _policy(name: str, given: Any) -> DomainPolicy:
    if not isinstance(given, dict):
        raise ConfigError(f"{SETTING}[{name!r}]", given, "a dict")
    values = {}
    for key, value in given.items():
        check = _CHECKS.get(key)
        if check is None:
            known = ", ".join(_CHECKS)
            raise ConfigError(f"{SETTING}[{name!r}]", {key: value}, f"keys among {known}")
        values[key] = check(f"{SETTING}[{name!r}][{key!r}]", value)
    return DomainPolicy(**values)


def _number(maximum: float = math.inf) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        ok = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not ok or not 0 <= value <= maximum or not math.isfinite(value):
            upper = "" if maximum == math.inf else f" to {maximum:g}"
            raise ConfigError(name, value, f"a number, 0{upper or ' or more'}")
        return float(value)

    return check


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(name, value, "a whole number, 0 or more")
    return value


def _statuses(name: str, value: Any) -> frozenset[int]:
    ok = isinstance(value, (list, tuple, set, frozenset))
    if not ok or not all(isinstance(one, int) and 100 <= one <= 999 for one in value):  # noqa: PLR2004
        raise ConfigError(name, value, "a list of HTTP statuses (100 to 999)")
    return frozenset(value)


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(name, value, "True or False")
    return value


def _on_304(name: str, value: Any) -> str:
    if value not in MODES:
        raise ConfigError(name, value, f"one of {', '.join(MODES)}")
    return str(value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "delay": _number(),
    "jitter": _number(1.0),
    "concurrency": _whole,
    "retry_times": _whole,
    "accept": _statuses,
    "retry": _statuses,
    "retry_interval": _number(),
    "backoff": _number(),
    "retry_after_max": _number(),
    "circuit_threshold": _whole,
    "circuit_cooldown": _number(),
    "robots": _truth,
    "incremental": _truth,
    "on_304": _on_304,
    "min_age": _number(),
}
