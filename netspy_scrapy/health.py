"""What happens to domains is told: log, stats, signals, and the run's summary."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netspy_scrapy import signals as our_signals
from netspy_scrapy import stats as keys

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from netspy_scrapy.domains import DomainState

logger = logging.getLogger(__name__)


@dataclass
class DomainRecord:
    """What happened to one domain in the whole run."""

    rests: int = 0
    seconds: float = 0.0
    """How long it rested, in sum; a rest that grew counts once."""
    circuits: int = 0


class DomainHealth:
    """Tells of rests and open circuits as they come, and keeps count of them by domain.

    Stats: ``netspy/rests``, ``netspy/circuits``. Signals: ``domain_rested``, ``circuit_opened``.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.records: dict[str, DomainRecord] = {}
        """Only of domains that rested; they outlive the registry's state."""
        self._rest_ends: dict[str, float] = {}

    def domain_rested(self, state: DomainState, seconds: float) -> None:
        """Tell of a rest that began or grew longer."""
        self._count(keys.RESTS)
        record = self.records.setdefault(state.name, DomainRecord())
        record.rests += 1
        begins = state.rest_until - seconds
        record.seconds += state.rest_until - max(begins, self._rest_ends.get(state.name, begins))
        self._rest_ends[state.name] = state.rest_until
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
        self.records.setdefault(state.name, DomainRecord()).circuits += 1
        seconds = state.pace.cooldown
        logger.warning(
            "%s failed %d times in a row: the circuit opens for %.3g s",
            state.name, failures, seconds, extra={"spider": self._crawler.spider},
        )  # fmt: skip
        self._crawler.signals.send_catch_log(
            our_signals.circuit_opened, domain=state.name, failures=failures, seconds=seconds
        )

    def domain_changed(self, state: DomainState) -> None:
        """Nothing that is told."""

    def _count(self, key: str) -> None:
        stats = self._crawler.stats
        assert stats is not None
        stats.inc_value(key)
