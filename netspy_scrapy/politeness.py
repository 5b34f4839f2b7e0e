"""What one crawl keeps to at each domain: the registry, tied to Scrapy's parts."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy import signals
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.httpobj import urlparse_cached
from twisted.python.failure import Failure

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.cache.passing import Passing
from netspy_scrapy.domains import DomainRegistry, DomainState
from netspy_scrapy.exceptions import CutOffError, HookError, ResponseTooLargeError
from netspy_scrapy.health import DomainHealth
from netspy_scrapy.robots import Robots, origin_of
from netspy_scrapy.scheduling.direct import DirectDownloads
from netspy_scrapy.settings import PolitenessSettings, RobotsSettings, read_bool

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from netspy_scrapy.context import CrawlContext
    from netspy_scrapy.receipts import Receipts
    from netspy_scrapy.redis.throttle import Throttle
    from netspy_scrapy.scheduling.queue import ReadyQueue

logger = logging.getLogger(__name__)

_SLOT = "download_slot"


def domain_of_request(request: Request) -> str:
    """Return the domain that *request* counts for."""
    domain: str | None = request.meta.get(metakeys.DOMAIN)
    if domain is None:
        domain = urlparse_cached(request).netloc.rpartition("@")[2].lower()
    return domain


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
        self.throttle = self._new_throttle()
        """What keeps the pace of all nodes together (GLOBAL_THROTTLE)."""
        self.health = DomainHealth(crawler, self.registry.clock)
        self.registry.listeners += [self.health, self]
        if self.throttle is not None:
            self.registry.listeners.append(self.throttle)
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
        self.on_cut: list[Callable[[], None]] = []
        """Who has downloads of their own to end then."""
        self.held: set[str] = set()
        """Domains that wait for something other than time: their robots.txt."""
        self._queues: list[ReadyQueue] = []
        self._in_flight: dict[Request, DomainState] = {}
        self.passing = Passing()
        """What goes to the cache, past all of this."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.receipts: Receipts | None = None
        """What follows each request until its outcome is safe, if a feature asked for that."""
        self._direct = DirectDownloads(self, crawler)
        self._auto_throttle = crawler.settings.getbool("AUTOTHROTTLE_ENABLED")
        crawler.signals.connect(self._spider_opened, signals.spider_opened)
        crawler.signals.connect(self._spider_closed, signals.spider_closed)

    def _new_throttle(self) -> Throttle | None:
        if not read_bool(self._crawler.settings, "GLOBAL_THROTTLE"):
            return None
        from netspy_scrapy.redis.throttle import Throttle  # noqa: PLC0415 - see context.redis

        throttle = Throttle(self._context.redis, self.registry)
        self._crawler.signals.connect(throttle.close, signals.spider_closed)
        return throttle

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
        return self.registry.get(domain_of_request(request))

    # The queues ----------------------------------------------------------------------------------
    def add_queue(self, queue: ReadyQueue) -> None:
        """Tell *queue* from now on when a domain may have become ready."""
        self._queues.append(queue)

    def start(self, request: Request, state: DomainState) -> Request:
        """Note that a queue hands out *request*; return it, or a copy if it is under way."""
        self._count(state)
        if request in self._in_flight:
            request = request.copy()
        self._in_flight[request] = state
        self._direct.queue_started(state.name)
        return request

    def start_direct(self, request: Request, state: DomainState) -> None:
        """Note that a download past the queue begins."""
        if request not in self._in_flight:
            self._count(state)
            self._in_flight[request] = state

    def _count(self, state: DomainState) -> None:
        delay = _scrapy.slot_delay(self._crawler, state.name, with_start=self._auto_throttle)
        if delay is not None and (
            self._auto_throttle or delay != self.settings.slot_delay_of(state.name)
        ):
            # AutoThrottle, or some other extension, steers the slot. It may slow down further than
            # a policy asks for, and not speed up beyond it.
            policy = self.settings.policies.of(state.name).delay
            self.registry.set_slot_delay(state, max(delay, policy or 0.0))
        self.registry.start(state)
        if self.throttle is not None:
            self.throttle.started(state)

    def has_place(self, state: DomainState) -> bool:
        """Tell whether the nodes' common pace lets a request go now; else it is told later."""
        return self.throttle is None or self.throttle.allows(state)

    def let_pass(self, request: Request) -> Request:
        """Note that a queue hands out *request* for the cache; return it, or a copy as `start`."""
        return self.passing.start(request, self._in_flight)

    def is_paced(self, request: Request) -> bool:
        """Tell whether *request* was let go here, and so has kept its domain's delay."""
        return request in self._in_flight

    def is_held(self, domain: str) -> bool:
        """Tell whether what is queued waits for something else: robots.txt, or direct downloads."""
        return domain in self.held or self._direct.holds(domain)

    def has_queued(self, domain: str) -> bool:
        """Tell whether requests of *domain* are queued."""
        return any(domain in queue for queue in self._queues)

    def may_take_turn(self, domain: str) -> bool:
        """Tell whether the engine would take what is queued of *domain*, were it not for a line."""
        return (
            domain not in self.held
            and self.has_queued(domain)
            and _scrapy.takes_requests(self._crawler)
        )

    @property
    def paces_direct(self) -> bool:
        """Whether downloads past the queue wait for their turn: only our queue tells them apart."""
        return bool(self._queues)

    @property
    def waits(self) -> bool:
        """Whether downloads past the queue wait for their turn."""
        return len(self._direct) > 0

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

    def reconsider(self, domain: str) -> None:
        """See whether requests of *domain* may go now."""
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

    def unknown_robots(self, request: Request) -> str | None:
        """Return the origin whose robots.txt has to be fetched before *request*; None: it is known.

        Or it does not count.
        """
        if self.robots is None or not self.obeys_robots(request):
            return None
        origin = origin_of(request)
        return origin if self.robots.rules_of(origin) is None else None

    def ahead_of(self, request: Request) -> Request | None:
        """Return the robots.txt to fetch before *request*, whose domain then waits."""
        origin = self.unknown_robots(request)
        if origin is None or origin in self._robots_queued:
            return None
        assert self.robots is not None
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
        """Nothing to do: a rest is a change too."""

    def circuit_opened(self, state: DomainState, failures: int) -> None:
        """Nothing to do: the rest that follows is a change."""

    def domain_changed(self, state: DomainState) -> None:
        """See whether requests of the domain may go now."""
        self._direct.serve(state)
        self.reconsider(state.name)

    # Scrapy --------------------------------------------------------------------------------------
    def _spider_opened(self) -> None:
        # The spider's own attributes may have been set when it was made.
        settings = self._crawler.settings
        self.settings = PolitenessSettings.from_settings(settings, self._crawler.spider)
        self.registry.pace_of = self.settings.pace_of
        self._downloads = _scrapy.WatchedDownloads(self._crawler, self._done, self._admit)
        _scrapy.watch_closing(self._crawler, self._closing)
        if self._context.cache is not None and self._queues:
            self.passing.is_full = _scrapy.let_pass(
                self._crawler,
                lambda: self.passing.has_room and any(one.has_cached for one in self._queues),
                self.passing.__len__,
            )
        _scrapy.leave_pace_to(
            self._crawler, self._departs, lambda name: self.registry.get(name).pace.concurrency
        )

    def _closing(self, _reason: str) -> None:
        self._direct.closing()
        self.health.closing()

    def _admit(self, request: Request) -> Coroutine[Any, Any, None] | None:
        """Let a download begin, or have it wait for its turn."""
        if (
            self.receipts is not None
            and metakeys.ROBOTS not in request.meta
            and self._context.owns(request)
        ):
            self.receipts.begin(request)
        if self.is_cut:
            raise CutOffError("the crawl is being stopped")
        if request in self._in_flight or request in self.passing or not self.paces_direct:
            return None
        cache = self._context.cache
        if cache is not None and cache.may_have(request):
            self.passing.start(request)  # if there is no entry it comes here again
            return None
        return self._direct.admit(request)

    def _departs(self, request: Request) -> float | None:
        state = self._in_flight.get(request)
        return None if state is None else self.registry.departs(state)

    def cut(self) -> int:
        """Cut off what is being downloaded; requests of the queue go back. Return how many.

        Nothing is downloaded from then on.
        """
        self.is_cut = True
        self._direct.cut()
        requests = _scrapy.requests_under_way(self._crawler)
        for request in requests:
            self._downloads.cut_off(request, CutOffError("the crawl is being stopped"))
        for end in self.on_cut:
            end()
        return len(requests)

    def _done(self, request: Request, result: Any) -> None:
        if self.receipts is not None:
            self.receipts.downloaded(request, result)
        state = self._in_flight.pop(request, None)
        if state is not None:
            self.registry.finish(state)
        if self.passing.finish(request) or state is not None:
            cut = isinstance(result, Failure) and isinstance(result.value, CutOffError)
            if cut and self._context.owns(request):
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
        if origin in self.robots.pending:  # some other middleware answered or refused it
            self.learn_robots_error(origin, "it was not answered")
        domain = request.meta[metakeys.HOLDS]
        self._set_crawl_delay(domain, origin)  # a slot of the user's own has another name
        self.held.discard(domain)
        self.reconsider(domain)

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
        if isinstance(exception, ResponseTooLargeError) or _scrapy.is_too_large(exception):
            # Scrapy's own limit has another error in each place, and counts alike.
            cause = ResponseTooLargeError.__name__
            context.failures.fail(request, cause, f"{cause}: {text}" if text else name)
            return
        if isinstance(exception, IgnoreRequest) and not _scrapy.is_too_many_redirects(exception):
            context.failures.drop(request, getattr(exception, "cause", name), text or name)
            with suppress(AttributeError):
                exception.netspy_dropped = True  # type: ignore[attr-defined]
            return
        unwell = isinstance(exception, context.retry_settings.exceptions)
        unwell = unwell and not isinstance(exception, HookError)
        context.failures.fail(request, name, f"{name}: {text}" if text else name, unwell=unwell)

    def _spider_closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
