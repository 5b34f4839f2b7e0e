"""What happened in a run, over time and at each domain. Pure: the clock is an argument.

Bounded, however long the run and however many its domains: steps of the time line merge as it
grows, domains beyond a number are summed, and so are the rests of one domain.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Steps that the time line has at most: enough for a screen.
STEPS = 240

#: Steps that a picture of it should have.
_FEWEST_STEPS = 24

#: Seconds of a step, each a multiple of the one before it; then twice as many each time.
_WIDTHS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)

#: Domains that are told apart; half of them are summed when there are more.
MOST_DOMAINS = 2000

#: Rests of one domain that are told apart.
MOST_RESTS = 50

#: The cause of neighbouring rests that became one.
SEVERAL = "several"

#: Seconds that part the classes of latencies: six in each decade, from 1 ms to 100 s.
BOUNDS = (
    *(round(one * 10.0**power, 9) for power in range(-3, 2) for one in (1, 1.5, 2, 3, 5, 7)),
    100.0,
)


class Timeline:
    """Counts by step of time; the steps become longer as the run does."""

    def __init__(self) -> None:
        self.width = float(_WIDTHS[0])
        """Seconds of one step."""
        self.pages = [0] * STEPS
        self.retries = [0] * STEPS
        self.failures = [0] * STEPS

    @property
    def is_used(self) -> bool:
        """Whether anything was counted."""
        return any(map(any, (self.pages, self.retries, self.failures)))

    def place(self, elapsed: float) -> int:
        """Return the step of a moment, after making room for it."""
        place = int(elapsed / self.width)
        while place >= STEPS:
            self.widen()
            place = int(elapsed / self.width)
        return place

    def readable(self, span: float) -> Timeline:
        """Return a time line of *span* seconds whose steps are long enough to hold some pages."""
        copy = Timeline()
        copy.width = self.width
        copy.pages, copy.retries, copy.failures = self.pages[:], self.retries[:], self.failures[:]
        while sum(copy.pages) < 2 * span / copy.width and span / copy.wider() >= _FEWEST_STEPS:
            copy.widen()
        return copy

    def wider(self) -> float:
        """Return the next longer step."""
        return next((float(one) for one in _WIDTHS if one > self.width), 2 * self.width)

    def widen(self) -> None:
        """Merge steps into longer ones."""
        wider = self.wider()
        several = round(wider / self.width)
        for counts in (self.pages, self.retries, self.failures):
            merged = [sum(counts[first : first + several]) for first in range(0, STEPS, several)]
            counts[:] = merged + [0] * (STEPS - len(merged))
        self.width = wider


class Latencies:
    """How long answers took, in classes."""

    __slots__ = ("counts", "slowest")

    def __init__(self) -> None:
        self.counts = array("L", bytes(array("L").itemsize * (len(BOUNDS) + 1)))
        """Answers up to each of BOUNDS, and those above the last."""
        self.slowest = 0.0

    def add(self, seconds: float) -> None:
        """Count one answer."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.slowest = max(self.slowest, seconds)

    def add_all(self, other: Latencies) -> None:
        """Count the answers of *other* too."""
        for place, count in enumerate(other.counts):
            self.counts[place] += count
        self.slowest = max(self.slowest, other.slowest)

    def total(self) -> int:
        """Return how many answers were counted."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Return about how long that share of the answers took at most; 0 without any.

        Within a class they are taken to lie evenly.
        """
        left = share * self.total()
        for place, count in enumerate(self.counts):
            if count and left <= count:
                low = BOUNDS[place - 1] if place else 0.0
                high = BOUNDS[place] if place < len(BOUNDS) else self.slowest
                return min(low + (high - low) * left / count, self.slowest)
            left -= count
        return self.slowest


class Rest(NamedTuple):
    """A time in which a domain was not asked, in seconds since the start."""

    begin: float
    end: float
    cause: str


class DomainHistory:
    """What one domain answered, and when it rested."""

    __slots__ = ("causes", "drops", "failures", "latencies", "open_until", "pages", "rests",
                 "retries")  # fmt: skip

    def __init__(self) -> None:
        self.pages = 0
        self.retries = 0
        self.failures = 0
        self.drops = 0
        self.latencies: Latencies | None = None
        self.rests: list[Rest] = []
        self.causes: Counter[str] = Counter()
        """Rests by cause."""
        self.open_until = 0.0
        """When the last open circuit closes, in seconds since the start."""

    def rest(self, begin: float, end: float, cause: str) -> None:
        """Note a rest; one that another cause makes longer goes on as a rest of its own."""
        self.causes[cause] += 1
        rests = self.rests
        if rests and rests[-1].end > begin:
            last = rests.pop()
            end = max(end, last.end)
            if last.cause == cause:
                begin = last.begin
            elif begin > last.begin:
                rests.append(last._replace(end=begin))
        rests.append(Rest(begin, end, cause))
        if len(rests) > MOST_RESTS:
            self._merge_nearest()

    def _merge_nearest(self) -> None:
        rests = self.rests
        gaps = [after.begin - before.end for before, after in pairwise(rests)]
        place = gaps.index(min(gaps))
        before, after = rests[place : place + 2]
        cause = before.cause if before.cause == after.cause else SEVERAL
        rests[place : place + 2] = [Rest(before.begin, after.end, cause)]

    def add_all(self, other: DomainHistory) -> None:
        """Count what *other* counted; its rests are only summed."""
        self.pages += other.pages
        self.retries += other.retries
        self.failures += other.failures
        self.drops += other.drops
        if other.latencies is not None:
            if self.latencies is None:
                self.latencies = Latencies()
            self.latencies.add_all(other.latencies)
        self.causes += other.causes

    @property
    def trouble(self) -> tuple[int, int, int]:
        """What sets a domain before others that have less of it."""
        return self.failures, self.retries + len(self.rests), self.pages


class History:
    """Collects what the report shows, while the crawl runs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.timeline = Timeline()
        self.latencies = Latencies()
        self.domains: dict[str, DomainHistory] = {}
        self.others = DomainHistory()
        """The sum of the domains that are told apart no more."""
        self.folded = 0
        """How many these are; one that came back counts again."""

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return self._clock() - self._began

    def answered(self, domain: str, latency: float | None) -> None:
        """Count an answer, which took *latency* seconds; None: it came from no site."""
        timeline = self.timeline
        timeline.pages[timeline.place(self.elapsed())] += 1
        found = self._of(domain)
        found.pages += 1
        if latency is not None:
            self.latencies.add(latency)
            if found.latencies is None:
                found.latencies = Latencies()
            found.latencies.add(latency)

    def retried(self, domain: str) -> None:
        """Count a request that is sent once more."""
        self.timeline.retries[self.timeline.place(self.elapsed())] += 1
        self._of(domain).retries += 1

    def failed(self, domain: str) -> None:
        """Count a request that failed for good."""
        self.timeline.failures[self.timeline.place(self.elapsed())] += 1
        self._of(domain).failures += 1

    def dropped(self, domain: str) -> None:
        """Count a request that was given up on purpose."""
        self._of(domain).drops += 1

    def rested(self, domain: str, seconds: float, cause: str) -> None:
        """Note that a domain rests for *seconds* from now; *cause* without its numbers."""
        now = self.elapsed()
        self._of(domain).rest(now, now + seconds, cause.partition(":")[0])

    def circuit_opened(self, domain: str, seconds: float) -> None:
        """Note that the circuit of a domain opened for *seconds*."""
        self._of(domain).open_until = self.elapsed() + seconds

    def _of(self, domain: str) -> DomainHistory:
        found = self.domains.get(domain)
        if found is None:
            if len(self.domains) >= MOST_DOMAINS:
                self._fold()
            found = self.domains[domain] = DomainHistory()
        return found

    def _fold(self) -> None:
        """Sum the half of the domains with the least trouble and the fewest pages."""
        ranked = sorted(self.domains.items(), key=lambda pair: pair[1].trouble)
        self.fold(domain for domain, _ in ranked[: MOST_DOMAINS // 2])

    def fold(self, domains: Iterable[str]) -> None:
        """Sum these domains."""
        for domain in domains:
            self.others.add_all(self.domains.pop(domain))
            self.folded += 1
