"""The health of each domain: what it may be asked, and when. Pure: the clock is an argument.

A *domain* is a lower-case netloc with its port and without user info; ``www.a.example`` and
``a.example`` are two. One owner holds them all, :class:`DomainRegistry`. Whoever hands out
requests asks it when a domain may be asked next; the status policy, the circuit breaker and
robots.txt tell it what they learned.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Seconds between the first requests after a rest, as many as may be in flight at once.
SPREAD = 0.05

#: How many do so where any number may be in flight.
SPREAD_UNLIMITED = 16

#: The cause of a rest that an open circuit asks for.
CIRCUIT = "circuit"

#: Seconds by which a rest has to grow to be told again.
TOLD_AGAIN = 1.0

#: Seconds after which a domain that nobody asks for any more is forgotten.
IDLE = 60.0

#: Seconds after which so are its failures in a row.
TROUBLED_IDLE = 3600.0


def domain_of(url: str) -> str:
    """Return the domain of *url*.

    >>> domain_of("http://User:pw@WWW.Example.com:8080/x")
    'www.example.com:8080'
    """
    return urlsplit(url).netloc.rpartition("@")[2].lower()


@dataclass(frozen=True)
class Pace:
    """How fast a domain may be asked."""

    delay: float = 0.0
    """Seconds between two requests."""
    jitter: float = 0.0
    """The share by which the delay varies either way, 0.5 for +-50 %."""
    concurrency: int = 8
    """Requests in flight at once; 0: no limit."""
    failure_threshold: int = 0
    """Failures in a row that open the circuit; 0: never."""
    cooldown: float = 60.0
    """Seconds that an open circuit rests the domain."""


@dataclass(eq=False)
class DomainState:
    """What is known of one domain. Times are of the registry's clock, in seconds."""

    name: str
    pace: Pace
    rest_until: float = 0.0
    """No request before this time; a maximum of all wishes, never a sum."""
    rest_cause: str = ""
    told_until: float = 0.0
    """The end of the rest as the listeners were told it."""
    next_start: float = 0.0
    """The delay after the last request has passed at this time."""
    gap: float = 0.0
    """The delay that was drawn after the last request, in seconds."""
    shared_gap: float | None = None
    """The delay after the next request, which all nodes keep to; None: it is drawn here."""
    crawl_delay: float = 0.0
    """What robots.txt asks for: a floor of the delay, which jitter never undercuts."""
    slot_delay: float | None = None
    """The delay that AutoThrottle found, in place of ``pace.delay``."""
    in_flight: int = 0
    failures: int = 0
    """Final failures in a row."""
    spread: int = 0
    """Requests that are still to start spread out, after a rest."""
    open_until: float = 0.0
    """The circuit is open until this time."""
    probing: bool = False
    """The circuit is half open: one request at a time until one succeeds."""
    last_used: float = 0.0

    @property
    def limit(self) -> int:
        """Requests that may be in flight at once; 0: no limit."""
        return 1 if self.probing else self.pace.concurrency

    @property
    def is_full(self) -> bool:
        """Whether as many requests are in flight as may be."""
        return 0 < self.limit <= self.in_flight

    @property
    def ready_at(self) -> float:
        """The time from which a request may go, as far as time decides."""
        return max(self.rest_until, self.next_start)


class Listener(Protocol):
    """Who is told of what happens to a domain."""

    def domain_rested(self, state: DomainState, seconds: float) -> None:
        """Learn of a rest that began, or grew longer."""

    def circuit_opened(self, state: DomainState, failures: int) -> None:
        """Learn of a circuit that opened after so many failures in a row."""

    def domain_changed(self, state: DomainState) -> None:
        """Learn that the domain may take a request sooner or later than before."""


@dataclass(eq=False)
class DomainRegistry:
    """The one owner of every domain's state.

    *pace_of* gives the pace of a domain by name; *clock* and *uniform* can be replaced in tests.
    """

    pace_of: Callable[[str], Pace]
    half_open: bool = False
    clock: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform
    listeners: list[Listener] = field(default_factory=list)
    troubled: set[str] = field(default_factory=set)
    """Domains with failures in a row: of no other does a success change anything."""
    _states: dict[str, DomainState] = field(default_factory=dict)
    _crawl_delays: dict[str, float] = field(default_factory=dict)
    """What robots.txt asks for, which outlives a domain's state."""
    _swept: float = 0.0

    def get(self, name: str) -> DomainState:
        """Return the state of a domain, which is made if it is not known."""
        state = self._states.get(name)
        if state is None:
            now = self.clock()
            if now - self._swept > IDLE:
                self._forget_idle(now)
            state = self._states[name] = DomainState(
                name,
                self.pace_of(name),
                crawl_delay=self._crawl_delays.get(name, 0.0),
                last_used=now,
            )
        return state

    def find(self, name: str) -> DomainState | None:
        """Return the state of a domain, or None if it is not known."""
        return self._states.get(name)

    def __iter__(self) -> Iterator[DomainState]:
        return iter(list(self._states.values()))

    def __len__(self) -> int:
        return len(self._states)

    # Requests ------------------------------------------------------------------------------------
    def start(self, state: DomainState) -> None:
        """Count a request that goes out now, and draw the delay until the next."""
        now = self.clock()
        state.in_flight += 1
        state.last_used = now
        gap = self._gap(state) if state.shared_gap is None else state.shared_gap
        state.shared_gap = None
        if state.spread > 0:
            state.spread -= 1
            gap = max(gap, SPREAD)
        state.gap = gap
        if gap > 0:
            state.next_start = now + gap

    def departs(self, state: DomainState) -> float:
        """Note that a request is sent only now, not when it was handed out; return its delay.

        What lies between the two (middlewares, a busy loop) would shorten the next gap.
        """
        if state.gap > 0:
            state.next_start = max(state.next_start, self.clock() + state.gap)
        return state.gap

    def finish(self, state: DomainState) -> None:
        """Count a request that is no longer in flight."""
        was_full = state.is_full
        state.in_flight -= 1
        state.last_used = self.clock()
        if was_full:
            self._changed(state)

    def _gap(self, state: DomainState) -> float:
        pace = state.pace
        delay = pace.delay if state.slot_delay is None else state.slot_delay
        gap = 0.0
        if delay > 0:
            gap = delay * (1 + self.uniform(-pace.jitter, pace.jitter)) if pace.jitter else delay
        if state.crawl_delay > 0:
            floor = state.crawl_delay
            if pace.jitter and state.crawl_delay >= delay:
                floor *= 1 + self.uniform(0, pace.jitter)
            gap = max(gap, floor)
        return max(gap, 0.0)

    # Several nodes -------------------------------------------------------------------------------
    def shared_gap(self, state: DomainState) -> float:
        """Draw the delay that all nodes are to keep after a request: jitter only lengthens it."""
        pace = state.pace
        delay = pace.delay if state.slot_delay is None else state.slot_delay
        delay = max(delay, state.crawl_delay)
        return delay * (1 + self.uniform(0, pace.jitter)) if delay > 0 else 0.0

    def place(self, state: DomainState, begins: float, gap: float | None) -> None:
        """Let the next request start at *begins*, as the nodes agreed, and *gap* follow it."""
        state.next_start = max(state.next_start, begins)
        state.shared_gap = gap

    def changed(self, state: DomainState) -> None:
        """Tell the listeners that the domain may be asked sooner or later than before."""
        self._changed(state)

    # What others learned -------------------------------------------------------------------------
    def rest(self, state: DomainState, seconds: float, cause: str) -> bool:
        """Let the domain rest for *seconds* from now; True: that is longer than it did anyhow.

        Answers that were in flight together ask for the same rest a little apart. It is told
        once, and again only if it grows by TOLD_AGAIN or more.
        """
        now = self.clock()
        until = now + seconds
        if seconds <= 0 or until <= state.rest_until:
            return False
        is_news = state.rest_until <= now or until - state.told_until >= TOLD_AGAIN
        state.rest_until = until
        # As many as may be in flight would start in the same instant.
        state.spread = state.pace.concurrency or SPREAD_UNLIMITED
        if is_news:
            state.rest_cause = cause
            state.told_until = until
            for listener in self.listeners:
                listener.domain_rested(state, seconds)
        self._changed(state)
        return True

    def failed(self, state: DomainState) -> None:
        """Count a request that failed for good in a way that says the site is not well.

        Those that were under way when the circuit opened say nothing new.
        """
        now = self.clock()
        if now < state.open_until:
            return
        if not state.pace.failure_threshold:
            return
        state.failures += 1
        self.troubled.add(state.name)
        threshold = state.pace.failure_threshold
        if not threshold or not (state.failures >= threshold or state.probing):
            return
        failures, state.failures = state.failures, 0
        state.open_until = now + state.pace.cooldown
        state.probing = self.half_open
        for listener in self.listeners:
            listener.circuit_opened(state, failures)
        self.rest(state, state.pace.cooldown, CIRCUIT)

    def succeeded(self, state: DomainState) -> None:
        """Note that a page was handled: the circuit starts counting anew.

        One that was under way when the circuit opened is no probe.
        """
        if self.clock() < state.open_until:
            return
        state.failures = 0
        self.troubled.discard(state.name)
        if state.probing:
            state.probing = False
            self._changed(state)

    def set_crawl_delay(self, state: DomainState, seconds: float) -> None:
        """Keep to the delay that robots.txt asks for."""
        state.crawl_delay = seconds
        if seconds > 0:
            self._crawl_delays[state.name] = seconds
        else:
            self._crawl_delays.pop(state.name, None)

    def set_slot_delay(self, state: DomainState, seconds: float) -> None:
        """Keep to the delay that AutoThrottle found."""
        state.slot_delay = seconds

    # Own methods ---------------------------------------------------------------------------------
    def _changed(self, state: DomainState) -> None:
        for listener in self.listeners:
            listener.domain_changed(state)

    def _forget_idle(self, now: float) -> None:
        """Drop the domains that nobody asks for, and that ask for nothing."""
        self._swept = now
        for name, state in list(self._states.items()):
            idle = TROUBLED_IDLE if name in self.troubled else IDLE
            if state.in_flight == 0 and max(state.last_used, state.ready_at) + idle < now:
                del self._states[name]
                self.troubled.discard(name)
