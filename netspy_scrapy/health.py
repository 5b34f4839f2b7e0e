"""What happens to domains is told: log, stats, signals, and the run's summary."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netspy_scrapy import signals as our_signals
from netspy_scrapy import stats as keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

    from netspy_scrapy.domains import DomainState

logger = logging.getLogger(__name__)


@dataclass
class DomainRecord:
    """What happened to one domain in the whole run."""

    now: Callable[[], float]
    """The time, which stands still once the crawl is being closed."""
    rests: int = 0
    planned: float = 0.0
    """How long it was to rest, in sum; a rest that grew counts once."""
    until: float = -math.inf
    """When the last rest ends."""
    circuits: int = 0

    @property
    def left(self) -> float:
        """Seconds of rest that are still ahead."""
        return max(0.0, self.until - self.now())

    @property
    def seconds(self) -> float:
        """How long it has really rested: a rest that the end of the run cuts counts up to there."""
        return max(0.0, self.planned - self.left)


class DomainHealth:
    """Tells of rests and open circuits as they come, and keeps count of them by domain.

    Stats: ``netspy/rests``, ``netspy/circuits``. Signals: ``domain_rested``, ``circuit_opened``.
    """

    def __init__(self, crawler: Crawler, clock: Callable[[], float]) -> None:
        self._crawler = crawler
        self._clock = clock
        self._closing_since: float | None = None
        self.records: dict[str, DomainRecord] = {}
        """Only of domains that rested; they outlive the registry's state."""

    def closing(self) -> None:
        """Note that the crawl is being closed: from now on no request waits for a rest."""
        self._closing_since = self._clock()

    def resting(self) -> dict[str, float]:
        """Return the domains that rest now, each with the seconds that are left."""
        left = {name: one.left for name, one in self.records.items()}
        return {name: seconds for name, seconds in left.items() if seconds > 0}

    def domain_rested(self, state: DomainState, seconds: float) -> None:
        """Tell of a rest that began or grew longer."""
        self._count(keys.RESTS)
        record = self._record(state)
        record.rests += 1
        self._prolong(record, state)
        logger.warning(
            "%s rests for %.3g s: %s", state.name, seconds, state.rest_cause,
            extra={"spider": self._crawler.spider},
        )  # fmt: skip
        self._crawler.signals.send_catch_log(
            our_signals.domain_rested, domain=state.name, seconds=seconds, cause=state.rest_cause
        )

    def circuit_opened(self, state: DomainState, failures: int) -> None:
        """Tell of a circuit that opened."""
        self._count(keys.CIRCUITS)
        self._record(state).circuits += 1
        seconds = state.pace.cooldown
        logger.warning(
            "%s failed %d times in a row: the circuit opens for %.3g s",
            state.name, failures, seconds, extra={"spider": self._crawler.spider},
        )  # fmt: skip
        self._crawler.signals.send_catch_log(
            our_signals.circuit_opened, domain=state.name, failures=failures, seconds=seconds
        )

    def domain_changed(self, state: DomainState) -> None:
        """Count a rest that grew by too little to be told."""
        record = self.records.get(state.name)
        if record is not None and state.rest_until > record.until:
            self._prolong(record, state)

    def _record(self, state: DomainState) -> DomainRecord:
        record = self.records.get(state.name)
        if record is None:
            record = self.records[state.name] = DomainRecord(self._now)
        return record

    def _prolong(self, record: DomainRecord, state: DomainState) -> None:
        if self._closing_since is None:  # else there is nothing left that would wait for it
            record.planned += state.rest_until - max(self._clock(), record.until)
            record.until = state.rest_until

    def _now(self) -> float:
        return self._clock() if self._closing_since is None else self._closing_since

    def _count(self, key: str) -> None:
        stats = self._crawler.stats
        assert stats is not None
        stats.inc_value(key)
