"""What one crawl keeps to at each domain: the registry, tied to Scrapy's parts."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import scrapy
from scrapy import signals
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.httpobj import urlparse_cached
from twisted.python.failure import Failure

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy import signals as our_signals
from netspy_scrapy import stats as keys
from netspy_scrapy.domains import DomainRegistry, DomainState
from netspy_scrapy.exceptions import CutOffError, HookError
from netspy_scrapy.robots import Robots, origin_of
from netspy_scrapy.settings import PolitenessSettings, RobotsSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from netspy_scrapy.context import CrawlContext
    from netspy_scrapy.scheduling.queue import ReadyQueue

logger = logging.getLogger(__name__)

_SLOT = "download_slot"

#: Requests that the cache may be asked for at a time; more would only fill the memory.
_PASSING_AT_ONCE = 32


class Politeness:
    """Keeps each domain to its pace, its rests and its circuit, for one crawl.

    The queues ask it what may go; it counts what is in flight from the moment at which a queue
    hands it out until the downloader is done with it, and wakes the engine when the next request
    may go.
    """

    def __init__(self, context: CrawlContext) -> None:
        self._context = context
        crawler = self._crawler = context.crawler
        self.settings = PolitenessSettings.from_settings(crawler.settings, crawler.spidercls)
        self.registry = DomainRegistry(
            pace_of=self.settings.pace_of, half_open=self.settings.half_open
        )
        self.registry.listeners.append(self)
        robots = RobotsSettings.from_settings(crawler.settings)
        self._obey_robots = robots.obey
        stats = crawler.stats
        assert stats is not None
        wanted = robots.obey or self.settings.policies.any_obeys_robots
        self.robots = Robots(robots, stats, self.registry.clock) if wanted else None
        self._robots_waiters: dict[str, list[asyncio.Future[None]]] = {}
        """Who waits for a robots.txt that was fetched past the queue."""
        self._robots_queued: set[str] = set()
        """Origins whose robots.txt the queue has handed out, and not heard of yet."""
        self.is_cut = False
        """Whether the time after a stop is over: what is not done goes back to the queue."""
        self.held: set[str] = set()
        """Domains that wait for something other than time: their robots.txt."""
        self._queues: list[ReadyQueue] = []
        self._in_flight: dict[Request, DomainState] = {}
        self._passing: set[Request] = set()
        """Requests that a queue handed out for the cache to answer: they count for nothing."""
        self._returned: WeakSet[Request] = WeakSet()
        """Of these, those that come back to the queue, for the site has to be asked."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._is_full: Callable[[], bool] | None = None
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

    def start(self, request: Request, state: DomainState) -> Request:
        """Note that a queue hands out *request*; return it, or a copy if it is under way."""
        delay = _scrapy.slot_delay(self._crawler, state.name, with_start=self._auto_throttle)
        if delay is not None and (
            self._auto_throttle or delay != self.settings.slot_delay_of(state.name)
        ):
            # AutoThrottle, or some other extension, steers the slot. It may slow down further than
            # a policy asks for, and not speed up beyond it.
            policy = self.settings.policies.of(state.name).delay
            self.registry.set_slot_delay(state, max(delay, policy or 0.0))
        self.registry.start(state)
        if request in self._in_flight:
            request = request.copy()
        self._in_flight[request] = state
        return request

    def let_pass(self, request: Request) -> Request:
        """Note that a queue hands out *request* for the cache; return it, or a copy as `start`."""
        if request in self._in_flight or request in self._passing:
            request = request.copy()
        self._passing.add(request)
        return request

    @property
    def may_pass(self) -> bool:
        """Whether another request may be handed out for the cache."""
        return len(self._passing) < _PASSING_AT_ONCE

    def is_passing(self, request: Request) -> bool:
        """Tell whether *request* was handed out for the cache, and so must not go to the site."""
        return request in self._passing

    def give_back(self, request: Request) -> Request:
        """Note that *request*, which the cache cannot answer, goes back to the queue; return it."""
        self._returned.add(request)
        return request

    def takes_back(self, request: Request) -> bool:
        """Tell whether *request* comes back to the queue, past the request filter; only once."""
        is_returned = request in self._returned
        self._returned.discard(request)
        return is_returned

    @property
    def is_only_for_cache(self) -> bool:
        """Whether the downloader is full, so that only what the cache answers may be handed out."""
        return self._is_full is not None and self._is_full()

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

    def _wake(self) -> None:
        self._timer = None
        _scrapy.wake(self._crawler)

    def _reconsider(self, domain: str) -> None:
        for queue in self._queues:
            queue.reconsider(domain)
        _scrapy.wake(self._crawler)

    # robots.txt ----------------------------------------------------------------------------------
    def obeys_robots(self, request: Request) -> bool:
        """Tell whether robots.txt counts for *request*."""
        if self.robots is None or request.meta.get("dont_obey_robotstxt"):
            return False
        policies = self.settings.policies
        policy = policies.of(self.state_of(request).name).robots if policies else None
        obeys = self._obey_robots if policy is None else policy
        return obeys and urlparse_cached(request).scheme in {"http", "https"}

    def ahead_of(self, request: Request) -> Request | None:
        """Return the robots.txt to fetch before *request*, whose domain then waits."""
        if self.robots is None or not self.obeys_robots(request):
            return None
        origin = origin_of(request)
        if self.robots.rules_of(origin) is not None or origin in self._robots_queued:
            return None
        self._robots_queued.add(origin)
        self.held.add(request.meta[metakeys.DOMAIN])
        robots = self.robots.request(origin)
        robots.meta[metakeys.HOLDS] = request.meta[metakeys.DOMAIN]
        self.assign(robots)
        return robots

    def learn_robots(self, origin: str, response: Response) -> None:
        """Take in a robots.txt, and let those go that waited for it."""
        assert self.robots is not None
        try:
            self.robots.learn(origin, response)
        except Exception as exc:  # noqa: BLE001 - a parser of hostile text must not end the crawl
            self.robots.learn_error(origin, f"{type(exc).__name__}: {exc}")
        self._robots_known(origin)

    def learn_robots_error(self, origin: str, reason: str) -> None:
        """Take in that a robots.txt cannot be read, and let those go that waited for it."""
        assert self.robots is not None
        self.robots.learn_error(origin, reason)
        self._robots_known(origin)

    async def fetch_robots(
        self, origin: str, download: Callable[[Crawler, Request], Coroutine[Any, Any, Any]]
    ) -> None:
        """Fetch the robots.txt of *origin* for requests that no queue handed out, once for all.

        It does not wait for one that the queue fetches: that may wait for the very download slots
        which these requests hold.
        """
        assert self.robots is not None
        waiters = self._robots_waiters.get(origin)
        if waiters is not None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters.append(waiter)
            await waiter
            return
        self._robots_waiters[origin] = []
        known = self.robots.rules_of(origin)
        try:
            with suppress(Exception):  # the middleware has taken in what came of it
                await download(self._crawler, self.robots.request(origin))
            if self.robots.rules_of(origin) is known:
                self.learn_robots_error(origin, "it was not answered")
        finally:
            for one in self._robots_waiters.pop(origin):
                if not one.done():
                    one.set_result(None)

    def _robots_known(self, origin: str) -> None:
        self._set_crawl_delay(origin.partition("://")[2], origin)

    def _set_crawl_delay(self, domain: str, origin: str) -> None:
        """Have *domain* keep to the Crawl-delay of *origin*: the longer one of http and https."""
        assert self.robots is not None
        host = origin.partition("://")[2]
        delay = max(self.robots.crawl_delay(f"{scheme}://{host}") for scheme in ("http", "https"))
        self.registry.set_crawl_delay(self.registry.get(domain), delay)

    def handled(self, response: Response) -> None:
        """Note that the callback of *response* is done: its domain is well."""
        if self.registry.troubled and response.request and "cached" not in response.flags:
            self.registry.succeeded(self.state_of(response.request))

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
        # The spider's own attributes may have been set when it was made.
        settings = self._crawler.settings
        self.settings = PolitenessSettings.from_settings(settings, self._crawler.spider)
        self.registry.pace_of = self.settings.pace_of
        self._cut_off = _scrapy.watch_downloads(self._crawler, self._done, lambda: self.is_cut)
        if self._context.cache is not None and self._queues:
            self._is_full = _scrapy.let_pass(
                self._crawler,
                lambda: self.may_pass and any(queue.has_cached for queue in self._queues),
                lambda: len(self._passing),
            )
        _scrapy.leave_pace_to(
            self._crawler, self.is_paced, lambda name: self.registry.get(name).pace.concurrency
        )

    def cut(self) -> int:
        """Cut off what is being downloaded; requests of the queue go back. Return how many.

        Nothing is downloaded from then on.
        """
        self.is_cut = True
        requests = _scrapy.requests_under_way(self._crawler)
        for request in requests:
            self._cut_off(request, CutOffError("the crawl is being stopped"))
        return len(requests)

    def _done(self, request: Request, result: Any) -> None:
        state = self._in_flight.pop(request, None)
        if state is not None:
            self.registry.finish(state)
        is_ours = state is not None or request in self._passing
        self._passing.discard(request)
        if is_ours and isinstance(result, Failure) and isinstance(result.value, CutOffError):
            _scrapy.put_back(self._crawler, request)
        if isinstance(result, Failure):
            assert result.value is not None
            self._record_failure(request, result.value)
        if metakeys.ROBOTS in request.meta and metakeys.HOLDS in request.meta:
            if isinstance(result, scrapy.Request):
                # A redirect: in the next turn of the loop the queue has it, if nobody refused it.
                asyncio.get_running_loop().call_soon(self._check_redirect, request)
            else:
                self._robots_settled(request)

    def _check_redirect(self, request: Request) -> None:
        origin = request.meta[metakeys.ROBOTS]
        queued = any(queue.has_robots(origin) for queue in self._queues)
        under_way = any(one.meta.get(metakeys.ROBOTS) == origin for one in self._in_flight)
        if not queued and not under_way and origin in self._robots_queued:
            self._robots_settled(request)

    def _robots_settled(self, request: Request) -> None:
        """Let the requests go that waited for a robots.txt of the queue."""
        assert self.robots is not None
        origin = request.meta[metakeys.ROBOTS]
        self._robots_queued.discard(origin)
        if self.robots.rules_of(origin) is None:  # some other middleware answered or refused it
            self.learn_robots_error(origin, "it was not answered")
        domain = request.meta[metakeys.HOLDS]
        self._set_crawl_delay(domain, origin)  # a slot of the user's own has another name
        self.held.discard(domain)
        self._reconsider(domain)

    def _record_failure(self, request: Request, exception: BaseException) -> None:
        """Count and dump a download that failed for good; its errback gets the failure next.

        Every middleware had its chance to rescue it. Requests that user code awaits itself are
        that code's affair.
        """
        with suppress(AttributeError):
            exception.netspy_download_failed = True  # type: ignore[attr-defined]
        context = self._context
        robots = metakeys.ROBOTS in request.meta
        if robots or isinstance(exception, CutOffError) or not context.owns(request):
            return
        name = type(exception).__name__
        text = str(exception)
        if isinstance(exception, IgnoreRequest) and not _scrapy.is_unusable_answer(exception):
            context.failures.drop(request, getattr(exception, "cause", name), text or name)
            return
        unwell = isinstance(exception, context.retry_settings.exceptions)
        unwell = unwell and not isinstance(exception, HookError)
        context.failures.fail(request, name, f"{name}: {text}" if text else name, unwell=unwell)

    def _spider_closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
