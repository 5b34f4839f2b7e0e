from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netspy_scrapy.domains import (
    CIRCUIT,
    IDLE,
    SPREAD,
    SPREAD_UNLIMITED,
    TROUBLED_IDLE,
    DomainRegistry,
    DomainState,
    Pace,
    domain_of,
)

NAME = "a.example"
BEGIN = 1000.0


class Clock:
    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> float:
        return self.now


class Dice:
    """Rolls what it is told: 0 for the lower bound, 1 for the upper."""

    def __init__(self, where: float = 0.5) -> None:
        self.where = where

    def __call__(self, low: float, high: float) -> float:
        return low + (high - low) * self.where


@dataclass
class Listener:
    rests: list[tuple[str, float]] = field(default_factory=list)
    circuits: list[int] = field(default_factory=list)
    changes: int = 0

    def domain_rested(self, state: DomainState, seconds: float) -> None:
        self.rests.append((state.rest_cause, seconds))

    def circuit_opened(self, state: DomainState, failures: int) -> None:
        self.circuits.append(failures)

    def domain_changed(self, state: DomainState) -> None:
        self.changes += 1


@dataclass
class World:
    """A registry in which every domain has one pace, its clock, its dice, and one listener."""

    registry: DomainRegistry
    clock: Clock
    dice: Dice
    heard: Listener

    @property
    def state(self) -> DomainState:
        return self.registry.get(NAME)

    def starts(self, count: int) -> list[float]:
        """Start *count* requests, each as soon as it may, and return when."""
        times = []
        for _ in range(count):
            self.clock.now = max(self.clock.now, self.state.ready_at)
            times.append(self.clock.now)
            self.registry.start(self.state)
        return times


def world(*, half_open: bool = False, **pace: float) -> World:
    clock, dice, heard = Clock(), Dice(), Listener()
    registry = DomainRegistry(
        pace_of=lambda _name: Pace(**pace),  # type: ignore[arg-type]
        half_open=half_open,
        clock=clock,
        uniform=dice,
        listeners=[heard],
    )
    return World(registry, clock, dice, heard)


def gaps(times: list[float]) -> list[float]:
    return [round(b - a, 6) for a, b in pairwise(times)]


@pytest.mark.parametrize(
    ("url", "domain"),
    [
        ("http://a.example/x", "a.example"),
        ("http://WWW.A.Example:8080/x", "www.a.example:8080"),
        ("https://user:p%40ss@a.example", "a.example"),
        ("http://user@[::1]:80/", "[::1]:80"),
    ],
)
def test_a_domain_is_the_netloc(url, domain):
    """A domain is lower case, has its port and no user info, and no sub-domain is folded."""
    assert domain_of(url) == domain


# Rests -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rests", "until"),
    [
        ([(0, 2)] * 8, 2),
        ([(0, 5), (0, 2)], 5),
        ([(0, 2), (1, 5)], 6),
        ([(0, 5), (1, 4)], 5),
        ([(0, 5), (4, 0), (4, -3)], 5),
        ([(0, 5), (6, 1)], 7),
    ],
)
def test_a_rest_is_the_maximum_of_all_wishes(rests, until):
    """Eight wishes for 2 s are a rest of 2 s, and a later end always wins over an earlier one."""
    here = world()
    longer = []
    latest = 0.0
    for at, seconds in rests:
        here.clock.now = BEGIN + at
        longer.append(here.registry.rest(here.state, seconds, "cause") == (at + seconds > latest))
        latest = max(latest, at + seconds)

    assert here.state.rest_until == BEGIN + until
    assert all(longer)


def test_a_rest_is_told_once():
    """Listeners hear of a rest that began or grew longer, and of no other."""
    here = world()
    for _ in range(8):
        here.registry.rest(here.state, 2, "Retry-After: 2")
    here.registry.rest(here.state, 3, "backoff")
    here.registry.rest(here.state, 1, "backoff")

    assert here.heard.rests == [("Retry-After: 2", 2), ("backoff", 3)]
    assert here.heard.changes == 2


def test_a_rest_that_grows_by_little_is_not_told_again():
    """Answers that came together extend a rest by moments: that counts, and is not told."""
    here = world()
    here.registry.rest(here.state, 60, "first")
    told = []
    for _ in range(5):
        here.clock.now += 0.3
        here.registry.rest(here.state, 60, "later")
        told.append(len(here.heard.rests))

    assert here.state.rest_until == here.clock.now + 60
    assert told == [1, 1, 1, 2, 2]
    assert here.heard.rests == [("first", 60), ("later", 60)]
    assert here.heard.changes == 6


def test_a_rest_ends():
    """A domain is ready at the very moment at which its rest ends."""
    here = world()
    here.registry.rest(here.state, 2, "cause")

    assert here.state.ready_at == BEGIN + 2
    assert here.starts(1) == [BEGIN + 2]


@pytest.mark.parametrize(("concurrency", "spread"), [(3, 3), (1, 1), (0, SPREAD_UNLIMITED)])
def test_requests_start_spread_out_after_a_rest(concurrency, spread):
    """As many as may be in flight at once start one by one after a rest, the others as before."""
    here = world(concurrency=concurrency)
    here.registry.rest(here.state, 2, "cause")

    assert gaps(here.starts(spread + 3)) == [SPREAD] * spread + [0.0, 0.0]


def test_a_delay_longer_than_the_spread_stays():
    """After a rest the delay counts where it is longer than the spread, and never both."""
    here = world(delay=1.0)
    here.registry.rest(here.state, 2, "cause")

    assert gaps(here.starts(4)) == [1.0, 1.0, 1.0]


# Delay -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pace", "crawl_delay", "slot_delay", "shortest", "longest"),
    [
        ({}, 0, None, 0, 0),
        ({"delay": 2}, 0, None, 2, 2),
        ({"delay": 2, "jitter": 0.5}, 0, None, 1, 3),
        ({"delay": 2, "jitter": 1.0}, 0, None, 0, 4),
        ({"delay": 2}, 10, None, 10, 10),
        ({"delay": 10}, 2, None, 10, 10),
        ({"delay": 2, "jitter": 0.5}, 10, None, 10, 15),
        ({"delay": 10, "jitter": 0.5}, 10, None, 10, 15),
        ({"delay": 10, "jitter": 0.5}, 2, None, 5, 15),
        ({"delay": 10, "jitter": 0.5}, 8, None, 8, 15),
        ({"jitter": 0.5}, 10, None, 10, 15),
        ({"delay": 2}, 0, 5.0, 5, 5),
        ({"delay": 2}, 0, 0.0, 0, 0),
        ({"delay": 2}, 3, 0.5, 3, 3),
    ],
)
def test_the_gap_between_two_requests(pace, crawl_delay, slot_delay, shortest, longest):
    """The longer of delay and Crawl-delay counts, and jitter never undercuts the Crawl-delay."""
    here = world(**pace)
    here.registry.set_crawl_delay(here.state, crawl_delay)
    if slot_delay is not None:
        here.registry.set_slot_delay(here.state, slot_delay)
    here.dice.where = 0
    lower = gaps(here.starts(3))
    here.dice.where = 1
    upper = gaps(here.starts(3))

    assert lower == [shortest] * 2
    # The gap to the first of them was drawn before.
    assert upper == [longest] * 2


@given(
    delay=st.floats(0, 100),
    jitter=st.floats(0, 1),
    crawl_delay=st.floats(0, 100),
    seed=st.integers(0, 2**32),
)
def test_no_dice_undercut_what_the_site_asks_for(delay, jitter, crawl_delay, seed):
    """Whatever is drawn, no gap is below the Crawl-delay or below the delay's own range."""
    here = world(delay=delay, jitter=jitter)
    here.registry.uniform = random.Random(seed).uniform
    here.registry.set_crawl_delay(here.state, crawl_delay)
    times = here.starts(5)

    least = max(delay * (1 - jitter), crawl_delay)
    most = max(delay, crawl_delay) * (1 + jitter)
    assert all(b - a >= least - 1e-6 for a, b in pairwise(times))
    assert all(b - a <= most + 1e-6 for a, b in pairwise(times))


def test_the_delay_counts_from_start_to_start():
    """A request that takes longer than the delay does not put off the next."""
    here = world(delay=2)
    here.registry.start(here.state)
    here.clock.now += 5
    here.registry.finish(here.state)

    assert here.state.ready_at <= here.clock.now


def test_the_delay_counts_from_the_departure():
    """A request that is held up after it was handed out puts off the next one as long."""
    here = world(delay=2)
    here.registry.start(here.state)
    here.clock.now += 1.5
    gap = here.registry.departs(here.state)

    assert gap == 2
    assert here.state.ready_at == here.clock.now + 2


def test_without_a_delay_nothing_is_put_off():
    """A domain without a delay is ready again in the instant in which a request starts."""
    here = world(delay=0)
    before = here.state.next_start
    here.registry.start(here.state)
    here.registry.departs(here.state)

    assert here.state.next_start == before


# Concurrency -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("limit", "full_at"), [(1, 1), (3, 3), (0, None)])
def test_concurrency_of_a_domain(limit, full_at):
    """A domain is full with as many in flight as it may have; 0 is no limit."""
    here = world(concurrency=limit)
    full = []
    for _ in range(50):
        here.registry.start(here.state)
        full.append(here.state.is_full)

    assert full == [full_at is not None and n >= full_at for n in range(1, 51)]


def test_a_place_that_becomes_free_is_told():
    """Listeners hear when a domain is no longer full, and are spared all other ends."""
    here = world(concurrency=2)
    here.starts(2)
    told = []
    for _ in range(2):
        here.registry.finish(here.state)
        told.append((here.heard.changes, here.state.is_full))

    assert told == [(1, False), (1, False)]


# The circuit -------------------------------------------------------------------------------------
def failed(here: World, count: int) -> None:
    for _ in range(count):
        here.registry.failed(here.state)


def test_the_circuit_opens_at_the_threshold():
    """As many failures in a row as the threshold rest the domain, and the count begins anew."""
    here = world(failure_threshold=3, cooldown=60)
    failed(here, 2)
    before = (here.state.rest_until, list(here.heard.circuits))
    failed(here, 1)

    assert before == (0.0, [])
    assert here.state.rest_until == BEGIN + 60
    assert here.state.failures == 0
    assert here.heard.circuits == [3]
    assert here.heard.rests == [(CIRCUIT, 60)]
    assert not here.state.probing


def test_no_threshold_no_circuit():
    """With a threshold of 0 a domain may fail for ever."""
    here = world(failure_threshold=0)
    failed(here, 1000)

    assert here.state.ready_at == 0.0
    assert here.heard.circuits == []


def test_a_success_starts_the_count_anew():
    """Failures count only in a row."""
    here = world(failure_threshold=3)
    for _ in range(5):
        failed(here, 2)
        here.registry.succeeded(here.state)

    assert here.heard.circuits == []
    assert here.state.failures == 0
    assert here.registry.troubled == set()


@pytest.mark.parametrize("half_open", [False, True])
@pytest.mark.parametrize("other_rest", [0, 5, 500])
def test_failures_under_way_when_the_circuit_opened(half_open, other_rest):
    """Failures of requests that were in flight do not count, whatever else rests the domain."""
    here = world(failure_threshold=2, cooldown=60, half_open=half_open)
    here.registry.rest(here.state, other_rest, "Retry-After")
    failed(here, 2)
    here.clock.now += 59
    failed(here, 20)
    while_open = (len(here.heard.circuits), here.state.failures)
    here.clock.now += 1 if not half_open else 500
    failed(here, 1)

    assert while_open == (1, 0)
    assert len(here.heard.circuits) == (2 if half_open else 1)
    assert here.state.failures == (0 if half_open else 1)


def test_a_circuit_does_not_shorten_a_rest():
    """A circuit that opens during a longer rest leaves that as it is."""
    here = world(failure_threshold=1, cooldown=60)
    here.registry.rest(here.state, 500, "Retry-After")
    failed(here, 1)

    assert here.state.rest_until == BEGIN + 500
    assert here.state.rest_cause == "Retry-After"
    assert here.heard.circuits == [1]


def test_half_open_is_one_request_at_a_time():
    """After the rest of a half-open circuit a single request goes, until one succeeds."""
    here = world(failure_threshold=2, cooldown=60, concurrency=4, half_open=True)
    here.starts(3)
    failed(here, 2)
    for _ in range(3):
        here.registry.finish(here.state)
    here.clock.now += 60
    free = here.state.is_full
    here.registry.start(here.state)
    probing = here.state.is_full
    changes = here.heard.changes
    here.registry.succeeded(here.state)

    assert (free, probing) == (False, True)
    assert not here.state.is_full
    assert here.heard.changes == changes + 1
    assert here.state.limit == 4


def test_a_probe_that_fails_opens_the_circuit_again():
    """One failure of a half-open circuit is enough for the next rest."""
    here = world(failure_threshold=5, cooldown=60, half_open=True)
    failed(here, 5)
    here.clock.now += 60
    here.starts(1)
    failed(here, 1)

    assert here.heard.circuits == [5, 1]
    assert here.state.rest_until == BEGIN + 120
    assert here.state.probing


def test_a_page_from_before_is_no_probe():
    """A page that was under way when the circuit opened does not close it."""
    here = world(failure_threshold=2, cooldown=60, half_open=True)
    failed(here, 2)
    here.clock.now += 1
    here.registry.succeeded(here.state)
    while_open = here.state.probing
    here.clock.now += 60
    here.registry.succeeded(here.state)

    assert while_open
    assert not here.state.probing


# Memory ------------------------------------------------------------------------------------------
def pass_time(here: World, seconds: float) -> None:
    """Let *seconds* pass, and a domain come along that makes the registry sweep."""
    here.clock.now += seconds
    here.registry.get(f"other-{here.clock.now}.example")


def test_idle_domains_are_forgotten():
    """A domain that nobody asks for is gone after a while, and begins anew."""
    here = world()
    state = here.state
    pass_time(here, 2 * IDLE + 2)

    assert here.registry.find(NAME) is None
    assert here.state is not state
    assert len(here.registry) == len(list(here.registry)) == 2


def test_failures_in_a_row_are_forgotten_late():
    """A domain that failed, and is not asked for an hour, begins anew too."""
    here = world(failure_threshold=5)
    failed(here, 1)
    pass_time(here, TROUBLED_IDLE - 1)
    kept = here.registry.find(NAME)
    pass_time(here, 2 * IDLE)

    assert kept is not None
    assert here.registry.find(NAME) is None
    assert here.registry.troubled == set()


@pytest.mark.parametrize("what", ["in flight", "failures", "rest", "delay", "circuit"])
def test_domains_with_a_history_are_kept(what):
    """Domains in flight, with failures in a row, or that may not be asked yet are not forgotten."""
    here = world(
        delay=5 * IDLE if what == "delay" else 0, failure_threshold=1 if what == "circuit" else 2
    )
    state = here.state
    if what in {"in flight", "delay"}:
        here.registry.start(state)
    if what == "delay":
        here.registry.finish(state)
    if what in {"failures", "circuit"}:
        here.registry.failed(state)
    if what == "rest":
        here.registry.rest(state, 3 * IDLE, "cause")
    pass_time(here, 2 * IDLE + 2)
    kept = here.registry.find(NAME) is state

    if what == "in flight":
        here.registry.finish(state)
    here.registry.succeeded(state)
    pass_time(here, 10 * IDLE)
    pass_time(here, 10 * IDLE)
    assert kept
    assert here.registry.find(NAME) is None


def test_a_crawl_delay_outlives_the_domains_state():
    """A Crawl-delay is kept to after a pause of any length, until robots.txt says otherwise."""
    here = world()
    here.registry.set_crawl_delay(here.state, 7)
    pass_time(here, 10 * IDLE)
    forgotten = here.registry.find(NAME) is None
    after_a_pause = gaps(here.starts(2))
    for _ in range(2):
        here.registry.finish(here.state)
    here.registry.set_crawl_delay(here.state, 0)
    pass_time(here, 10 * IDLE)

    assert forgotten
    assert after_a_pause == [7]
    assert here.registry.find(NAME) is None
    assert gaps(here.starts(2)) == [0]


def test_memory_is_bounded_when_many_domains_pass_by():
    """However many domains a crawl comes across, those of the last minutes alone are kept."""
    here = world()
    most = 0
    for n in range(50_000):
        here.clock.now += 0.1
        state = here.registry.get(str(n))
        if n % 100 == 0:
            here.registry.start(state)
            here.registry.finish(state)
            most = max(most, len(here.registry))

    assert most <= 2 * IDLE / 0.1 + 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "finish", "rest", "fail", "succeed", "wait", "other"]),
            st.floats(0, 100),
        ),
        max_size=60,
    )
)
def test_no_promise_is_taken_back(steps):
    """In any order of events, what a domain was told to wait for only ever moves forward."""
    here = world(failure_threshold=2, cooldown=30, concurrency=3, delay=1, half_open=True)
    here.registry.uniform = random.Random(0).uniform
    promised = in_flight = 0.0
    for what, seconds in steps:
        state = here.state
        if what == "start" and state.ready_at <= here.clock.now and not state.is_full:
            here.registry.start(state)
            in_flight += 1
        elif what == "finish" and in_flight:
            here.registry.finish(state)
            in_flight -= 1
        elif what == "rest":
            here.registry.rest(state, seconds, "cause")
        elif what == "fail":
            here.registry.failed(state)
        elif what == "succeed":
            here.registry.succeeded(state)
        elif what == "wait":
            here.clock.now += seconds
        elif what == "other":
            pass_time(here, seconds)

        ready = here.state.ready_at
        assert ready >= promised or promised <= here.clock.now
        assert here.state.in_flight == in_flight <= 3
        promised = ready
    assert [seconds for _, seconds in here.heard.rests if seconds <= 0] == []
