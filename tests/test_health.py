"""What is remembered of the rests of domains."""

from __future__ import annotations

from netspy_scrapy.domains import DomainRegistry, Pace
from netspy_scrapy.health import DomainHealth
from tests.crawling import idle_crawler


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def health_and_registry(clock: Clock) -> tuple[DomainHealth, DomainRegistry]:
    health = DomainHealth(idle_crawler(), clock)
    registry = DomainRegistry(lambda _: Pace(), clock=clock, listeners=[health])
    return health, registry


def test_a_rest_counts_as_it_passes() -> None:
    """A rest of 30 s has lasted 10 s after 10 s, and 30 s at last."""
    clock = Clock()
    health, registry = health_and_registry(clock)
    registry.rest(registry.get("a"), 30, "why")

    seen = []
    for clock.now in (100, 110, 130, 150):
        seen.append((health.records["a"].seconds, health.resting()))
    assert seen == [(0, {"a": 30}), (10, {"a": 20}), (30, {}), (30, {})]


def test_a_rest_that_grows_counts_once() -> None:
    """Two wishes that overlap are one rest from the first second to the last."""
    clock = Clock()
    health, registry = health_and_registry(clock)
    registry.rest(registry.get("a"), 10, "why")
    clock.now = 105
    registry.rest(registry.get("a"), 10, "why")
    clock.now = 105.5
    registry.rest(registry.get("a"), 10, "too little to be told")
    clock.now = 200
    registry.rest(registry.get("a"), 5, "why")
    clock.now = 300

    record = health.records["a"]
    assert (record.rests, record.seconds) == (3, 20.5)


def test_the_end_of_the_run_cuts_a_rest() -> None:
    """What was planned beyond it was never rested, and a rest that begins after it is none."""
    clock = Clock()
    health, registry = health_and_registry(clock)
    registry.rest(registry.get("a"), 600, "why")
    clock.now = 104
    health.closing()
    clock.now = 110
    registry.rest(registry.get("b"), 60, "an answer that was under way")
    registry.rest(registry.get("a"), 1000, "another")
    clock.now = 120

    record = health.records["a"]
    assert (record.rests, record.seconds) == (2, 4)
    assert (health.records["b"].rests, health.records["b"].seconds) == (1, 0)
