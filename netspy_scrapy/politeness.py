"""What one crawl keeps to at each domain: the registry, tied to Scrapy's parts."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.utils.httpobj import urlparse_cached

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy import signals as our_signals
from netspy_scrapy import stats as keys
from netspy_scrapy.domains import DomainRegistry, DomainState
from netspy_scrapy.settings import PolitenessSettings

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from netspy_scrapy.scheduling.queue import ReadyQueue

logger = logging.getLogger(__name__)

_SLOT = "download_slot"


class Politeness:
    """Keeps each domain to its pace, its rests and its circuit, for one crawl.

    The queues ask it what may go; it counts what is in flight from the moment at which a queue
    hands it out until the downloader is done with it, and wakes the engine when the next request
    may go.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.settings = PolitenessSettings.from_settings(crawler.settings)
        self.registry = DomainRegistry(
            pace_of=self.settings.pace_of, half_open=self.settings.half_open
        )
        self.registry.listeners.append(self)
        self.held: set[str] = set()
        """Domains that wait for something other than time: their robots.txt."""
        self._queues: list[ReadyQueue] = []
        self._in_flight: dict[Request, DomainState] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._auto_throttle = crawler.settings.getbool("AUTOTHROTTLE_ENABLED")
        crawler.signals.connect(self._spider_opened, signals.spider_opened)
        crawler.signals.connect(self._spider_closed, signals.spider_closed)

    # Domains of requests -------------------------------------------------------------------------
    def assign(self, request: Request) -> None:
        """Say which domain *request* counts for: that of its URL, or the slot that the user gave.

        Redirects and copied meta bring the domain of another URL along, and Scrapy writes a slot
        of its own into every request.
        """
        meta = request.meta
        parts = urlparse_cached(request)
        slot = meta.get(_SLOT)
        if slot is not None and slot != meta.get(metakeys.DOMAIN) and slot != parts.hostname:
            meta[metakeys.OWN_SLOT] = slot
        if meta.get(metakeys.OWN_SLOT) is not None and slot == meta[metakeys.OWN_SLOT]:
            domain = slot
        else:
            meta.pop(metakeys.OWN_SLOT, None)
            domain = parts.netloc.rpartition("@")[2].lower()
        meta[metakeys.DOMAIN] = meta[_SLOT] = domain

    def state_of(self, request: Request) -> DomainState:
        """Return the state of the domain that *request* counts for."""
        domain = request.meta.get(metakeys.DOMAIN)
        if domain is None:
            domain = urlparse_cached(request).netloc.rpartition("@")[2].lower()
        return self.registry.get(domain)

    # The queues ----------------------------------------------------------------------------------
    def add_queue(self, queue: ReadyQueue) -> None:
        """Tell *queue* from now on when a domain may have become ready."""
        self._queues.append(queue)

    def start(self, request: Request, state: DomainState) -> None:
        """Note that a queue handed out *request*."""
        if self._auto_throttle:
            delay = _scrapy.slot_delay(self._crawler, state.name)
            if delay is not None:
                self.registry.set_slot_delay(state, delay)
        self.registry.start(state)
        self._in_flight[request] = state

    def is_paced(self, request: Request) -> bool:
        """Tell whether a queue handed out *request*, and so kept its delay."""
        return request in self._in_flight

    def parked(self, ready: float) -> None:
        """Wake the engine at *ready*, unless it wakes before."""
        if self._timer is not None:
            if self._due <= ready:
                return
            self._timer.cancel()
        self._due = ready
        seconds = max(0.0, ready - self.registry.clock())
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    def hold(self, domain: str) -> None:
        """Hand out nothing of *domain* until it is released."""
        self.held.add(domain)

    def release(self, domain: str) -> None:
        """Let the requests of *domain* go again."""
        self.held.discard(domain)
        self._reconsider(domain)

    def _wake(self) -> None:
        self._timer = None
        now = self.registry.clock()
        times = [queue.next_ready for queue in self._queues]
        later = [time for time in times if time is not None and time > now]
        if later:
            self.parked(min(later))
        _scrapy.wake(self._crawler)

    def _reconsider(self, domain: str) -> None:
        for queue in self._queues:
            queue.reconsider(domain)
        _scrapy.wake(self._crawler)

    # What happens to domains ---------------------------------------------------------------------
    def domain_rested(self, state: DomainState, seconds: float) -> None:
        """Tell of a rest that began or grew longer."""
        stats = self._crawler.stats
        assert stats is not None
        stats.inc_value(keys.RESTS)
        logger.warning(
            "%s rests for %.3g s: %s", state.name, seconds, state.rest_cause,
            extra={"spider": self._crawler.spider},
        )  # fmt: skip
        self._crawler.signals.send_catch_log(
            our_signals.domain_rested, domain=state.name, seconds=seconds, cause=state.rest_cause
        )

    def circuit_opened(self, state: DomainState, failures: int) -> None:
        """Tell of a circuit that opened."""
        stats = self._crawler.stats
        assert stats is not None
        stats.inc_value(keys.CIRCUITS)
        logger.warning(
            "%s failed %d times in a row: the circuit opens for %.3g s",
            state.name, failures, state.pace.cooldown, extra={"spider": self._crawler.spider},
        )  # fmt: skip
        self._crawler.signals.send_catch_log(
            our_signals.circuit_opened, domain=state.name, failures=failures,
            seconds=state.pace.cooldown,
        )  # fmt: skip

    def domain_changed(self, state: DomainState) -> None:
        """See whether requests of the domain may go now."""
        self._reconsider(state.name)

    # Scrapy --------------------------------------------------------------------------------------
    def _spider_opened(self) -> None:
        _scrapy.watch_downloads(self._crawler, self._done)
        _scrapy.leave_delays_to(self._crawler, self.is_paced)
        if self.settings.no_limit:
            _scrapy.lift_domain_limit(self._crawler)

    def _done(self, request: Request) -> None:
        state = self._in_flight.pop(request, None)
        if state is not None:
            self.registry.finish(state)

    def _spider_closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
