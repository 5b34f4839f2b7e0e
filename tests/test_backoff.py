"""Retry-After and backoff, as tables with a fixed clock."""

from __future__ import annotations

import pytest

from netspy_scrapy.backoff import Wait, parse_retry_after, wait_before_retry
from netspy_scrapy.settings import RetrySettings

NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT, the date of RFC 9110's examples


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"120", 120),
        (b" 120 ", 120),
        (b"\t2", 2),
        (b"1.5", 2),
        (b"0.129", 1),
        (b"Sun, 06 Nov 1994 08:51:37 GMT", 120),
        (b"Sunday, 06-Nov-94 08:51:37 GMT", 120),
        (b"Sun Nov  6 08:51:37 1994", 120),
        (b"Fri, 31 Dec 9999 23:59:59 GMT", 252618189022),
        (b"0", None),
        (b"0.0", None),
        (b"Sun, 06 Nov 1994 08:49:37 GMT", None),
        (b"Sat, 05 Nov 1994 08:49:37 GMT", None),
        (b"-5", None),
        (b"+5", None),
        (b"nan", None),
        (b"inf", None),
        (b"infinity", None),
        (b"", None),
        (None, None),
        (b"120s", None),
        (b"tomorrow", None),
        (b"120, 60", None),
        (b"1_000", None),
        (b"1e3", None),
        (b"0x10", None),
        ("٣".encode(), None),
        (b"9" * 5000, None),
        (b"1994-11-06T08:51:37Z", None),
        (b"Fri, 31 Dec 99999 23:59:59 GMT", None),
        (b"Xyz, 99 Foo 1994 99:99:99 GMT", None),
        (b"\xff\xfe\x00", None),
    ],
)
def test_retry_after_values(value: bytes | None, seconds: float | None) -> None:
    """Only ASCII digits and HTTP-dates in the future are a wish; nothing crashes."""
    assert parse_retry_after(value, NOW) == seconds


def settings(**changed: float) -> RetrySettings:
    """Return a retry policy with some values changed."""
    values = {"interval": 0.0, "backoff": 0.0, "retry_after_max": 60.0, **changed}
    return RetrySettings(
        enabled=True, times=3, callback_errors=False, priority_adjust=0, exceptions=(), **values
    )


def high(_low: float, high: float) -> float:
    """Draw the upper end."""
    return high


def low(low: float, _high: float) -> float:
    """Draw the lower end."""
    return low


@pytest.mark.parametrize(
    ("policy", "attempt", "asked", "dice", "wait"),
    [
        (settings(), 1, None, high, Wait(0.0)),
        (settings(interval=2), 3, None, high, Wait(2.0)),
        (settings(backoff=1), 1, None, high, Wait(1.0)),
        (settings(backoff=1), 2, None, high, Wait(2.0)),
        (settings(backoff=1), 3, None, high, Wait(4.0)),
        (settings(backoff=1), 3, None, low, Wait(2.0)),
        (settings(backoff=1, interval=9), 1, None, high, Wait(1.0)),
        (settings(backoff=1), 5000, None, high, Wait(60.0)),
        (settings(backoff=1, retry_after_max=0), 3, None, high, Wait(4.0)),
        (settings(backoff=1), 1, 30.0, high, Wait(30.0)),
        (settings(), 1, 60.0, high, Wait(60.0)),
        (settings(), 1, 61.0, high, Wait(60.0, too_long=True)),
        (settings(retry_after_max=0, interval=1), 1, 30.0, high, Wait(1.0)),
    ],
)
def test_order_of_waits(
    policy: RetrySettings, attempt: int, asked: float | None, dice: object, wait: Wait
) -> None:
    """Retry-After counts before backoff, backoff before the interval; the cap holds for both."""
    assert wait_before_retry(policy, attempt, retry_after=asked, uniform=dice) == wait
