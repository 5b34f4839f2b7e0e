"""What the report collects: exact while it is small, bounded when it grows."""

from __future__ import annotations

import pytest

from netspy_scrapy.report.history import (
    BOUNDS,
    MOST_DOMAINS,
    MOST_RESTS,
    SEVERAL,
    STEPS,
    History,
    Latencies,
    Rest,
)
from tests.report.runs import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(clock: Clock) -> History:
    return History(clock)


def test_steps_of_a_short_run(history: History, clock: Clock) -> None:
    """Each event is in the tenth of a second in which it came."""
    history.answered("a.example", 0.02)
    clock.now += 0.25
    history.answered("a.example", None)
    history.retried("a.example")
    clock.now += 0.1
    history.failed("b.example")
    timeline = history.timeline

    assert timeline.width == 0.1
    assert timeline.pages[:4] == [1, 0, 1, 0]
    assert timeline.retries[:4] == [0, 0, 1, 0]
    assert timeline.failures[:4] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("seconds", "width"),
    [(20, 0.1), (25, 0.5), (239, 1), (3600, 30), (86_400, 600), (1e8, 691_200)],
)
def test_steps_merge_as_the_run_grows(
    history: History, clock: Clock, seconds: float, width: float
) -> None:
    """However long a run is, its steps are as many, and no event of it is lost."""
    began = clock.now
    for n in range(1000):
        clock.now = began + seconds * n / 1000
        history.answered("a.example", 0.1)
    timeline = history.timeline

    assert timeline.width == width
    assert len(timeline.pages) == STEPS
    assert sum(timeline.pages) == 1000
    if width < seconds / 2:
        used = timeline.pages[: int(seconds / width)]
        assert max(used) - min(used) <= max(2, max(used) * 0.6)


def test_latencies_are_about_right() -> None:
    """Median and 95 % are within a class of what they are, and never above the slowest."""
    latencies = Latencies()
    for n in range(1, 1001):
        latencies.add(n / 1000)

    assert latencies.total() == 1000
    assert latencies.quantile(0.5) == pytest.approx(0.5, rel=0.05)
    assert latencies.quantile(0.95) == pytest.approx(0.95, rel=0.05)
    assert latencies.quantile(1) == latencies.slowest == 1.0


@pytest.mark.parametrize("seconds", [0.0, 0.0004, 0.001, 0.3, 100, 5000])
def test_one_latency(seconds: float) -> None:
    """A single answer is the slowest, and nothing is said to be slower."""
    latencies = Latencies()
    latencies.add(seconds)

    assert latencies.quantile(0.95) <= latencies.slowest == seconds


def test_no_latency() -> None:
    """Without an answer there is none."""
    assert Latencies().quantile(0.5) == 0
    assert list(BOUNDS) == sorted(BOUNDS)


def test_rests_of_a_domain(history: History, clock: Clock) -> None:
    """A rest that grows for the same cause stays one, for another cause the next follows it."""
    history.rested("a.example", 5, "HTTP status 429, Retry-After: 5")
    clock.now += 2
    history.rested("a.example", 6, "HTTP status 429, Retry-After: 6")
    clock.now += 1
    history.rested("a.example", 60, "circuit")
    clock.now += 100
    history.rested("a.example", 1, "TimeoutError, backoff")
    domain = history.domains["a.example"]

    assert domain.rests == [
        Rest(0, 3, "HTTP status 429, Retry-After"), Rest(3, 63, "circuit"),
        Rest(103, 104, "TimeoutError, backoff"),
    ]  # fmt: skip
    assert domain.causes == {
        "HTTP status 429, Retry-After": 2, "circuit": 1, "TimeoutError, backoff": 1
    }  # fmt: skip


def test_very_many_rests(history: History, clock: Clock) -> None:
    """Of very many rests the nearest merge, so that they stay few; all of them are counted."""
    for n in range(1000):
        history.rested("a.example", 1, "circuit" if n % 2 else "HTTP status 503, Retry-After: 1")
        clock.now += 2 + n % 7
    domain = history.domains["a.example"]

    assert len(domain.rests) == MOST_RESTS
    assert domain.rests[0].begin == 0
    assert sum(domain.causes.values()) == 1000
    assert {one.cause for one in domain.rests} >= {SEVERAL}
    assert all(a.end <= b.begin for a, b in zip(domain.rests, domain.rests[1:], strict=False))


def test_very_many_domains(history: History) -> None:
    """Beyond a number of domains those with little to tell are summed, and nothing is lost."""
    for n in range(10_000):
        history.answered(f"{n}.example", 0.1)
        if n % 100 == 0:
            history.failed(f"{n}.example")
    domains = history.domains

    assert len(domains) <= MOST_DOMAINS
    assert len(domains) + history.folded == 10_000
    assert sum(one.pages for one in domains.values()) + history.others.pages == 10_000
    assert sum(one.failures for one in domains.values()) == 100
    assert history.others.latencies is not None
    assert history.others.latencies.total() == history.others.pages
