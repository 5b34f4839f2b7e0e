"""How long to wait before a page is fetched again. Pure: the clock and the dice are arguments."""

from __future__ import annotations

import math
import re
from calendar import timegm
from email.utils import parsedate_tz
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from netspy_scrapy.settings import RetrySettings

# RFC 9110 10.2.3 allows whole seconds; some sites send fractions, which are rounded up.
_SECONDS = re.compile(rb"[0-9]{1,12}(\.[0-9]{1,9})?", re.ASCII)
_DATE = re.compile(rb"[A-Z][a-z]{2,8}[, ][\x20-\x7e]{10,40}", re.ASCII)

#: Statuses whose Retry-After is honoured (seed: 429 and 503).
RETRY_AFTER_STATUSES = frozenset({429, 503})


class Wait(NamedTuple):
    """What to do before the next attempt."""

    seconds: float
    too_long: bool = False
    """The site asked for more than RETRY_AFTER_MAX: the request fails now."""


def parse_retry_after(value: bytes | None, now: float) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for, or None.

    *now* is the Unix time to which an HTTP-date (RFC 9110 5.6.7, all three forms) is compared.
    None: there is no valid value, or it is not in the future (``0``, a past date): the site
    states no wish, so the crawler's own backoff applies.
    """
    text = (value or b"").strip(b" \t")
    if _SECONDS.fullmatch(text):
        seconds = float(math.ceil(float(text)))
    elif _DATE.fullmatch(text):
        parts = parsedate_tz(text.decode("ascii"))
        if parts is None or not 1 <= parts[0] <= 9999:  # noqa: PLR2004
            return None
        try:
            # A date without a zone (asctime) is in GMT, as every HTTP-date is.
            seconds = timegm((*parts[:6], 0, 1, 0)) - (parts[9] or 0) - now
        except (ValueError, OverflowError):
            return None
    else:
        return None
    return seconds if seconds > 0 else None


def wait_before_retry(
    settings: RetrySettings,
    attempt: int,
    *,
    retry_after: float | None,
    uniform: Callable[[float, float], float],
) -> Wait:
    """Return how long to wait before retry number *attempt* (from 1).

    *retry_after* is what the site asked for, *uniform* draws the jitter. Order: Retry-After, else
    backoff, else the fixed interval.
    """
    if retry_after is not None and settings.retry_after_max > 0:
        if retry_after > settings.retry_after_max:
            return Wait(settings.retry_after_max, too_long=True)
        return Wait(retry_after)
    if settings.backoff > 0:
        # 2**1024 overflows a float; far beyond any cap before that.
        seconds = settings.backoff * 2.0 ** min(attempt - 1, 1000) * uniform(0.5, 1.0)
        cap = settings.retry_after_max
        return Wait(min(seconds, cap) if cap > 0 else seconds)
    return Wait(settings.interval)
