"""The clock of a stop."""

from __future__ import annotations

import math

from netspy_scrapy.stopping import Stop


def test_what_is_left() -> None:
    """All steps of the end share one time; the last ones have a second each."""
    now = 100.0
    stop = Stop(lambda: now)
    before = stop.left(60.0)
    stop.begin(8.0)
    at_once = stop.left(60.0), stop.left(5.0), stop.left(math.inf)
    now = 106.0
    later = stop.left(60.0)
    now = 120.0

    assert before == 60.0
    assert at_once == (8.0, 5.0, 8.0)
    assert later == 2.0
    assert stop.left(60.0) == 1.0


def test_any_time() -> None:
    """NETSPY_STOP_TIMEOUT = 0 hurries nobody."""
    stop = Stop(lambda: 0.0)
    stop.begin(0.0)

    assert stop.has_begun
    assert stop.left(60.0) == 60.0
