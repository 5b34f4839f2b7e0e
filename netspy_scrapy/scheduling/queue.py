"""ReadyQueue: hands out only requests that may go now."""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.pqueues import ScrapyPriorityQueue

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from netspy_scrapy.domains import DomainState


logger = logging.getLogger(__name__)

#: Among the names of domains, the queue of requests that the cache may have. No domain's name.
LANE = "(cached)"
#: Requests that one pop moves between the lane and their domains; the rest is for the next one.
_MOVES = 50


class ReadyQueue:
    """A priority queue per domain, of which only domains that may be asked now take turns.

    Domains that can be asked stand in a ring. One that rests, or whose delay has not passed, is
    parked in a heap by the time at which it will be ready; one with as many requests in flight as
    it may have is parked until one of them is done. So the cost of a pop does not depend on the
    number of domains, and what waits holds no download slot. Priorities hold inside a domain.

    Requests that the response cache may have stand in a lane of their own, which takes turns with
    the ring: they wait for no domain, and count for none.

    It is a ``SCHEDULER_PRIORITY_QUEUE``; the queues below it (memory, disk) are Scrapy's. A job
    directory makes two of them, which share the registry and so each domain's state.
    """

    @classmethod
    def from_crawler(
        cls,
        crawler: Crawler,
        downstream_queue_cls: type[Any],
        key: str,
        startprios: dict[str, Iterable[int]] | None = None,
        *,
        start_queue_cls: type[Any] | None = None,
    ) -> Self:
        """Build the queue, as Scrapy's scheduler asks for it."""
        return cls(
            crawler, downstream_queue_cls, key, startprios or {}, start_queue_cls=start_queue_cls
        )

    def __init__(
        self,
        crawler: Crawler,
        downstream_queue_cls: type[Any],
        key: str,
        startprios: Any,
        *,
        start_queue_cls: type[Any] | None = None,
    ) -> None:
        if not isinstance(startprios, dict):
            raise ConfigError(
                "JOBDIR",
                crawler.settings["JOBDIR"],
                "the folder of a job that ran with a queue per domain",
            )
        self._crawler = crawler
        self._downstream = downstream_queue_cls
        self._start_downstream = start_queue_cls
        self._key = key
        context = CrawlContext.of(crawler)
        self._politeness = context.politeness
        self._cache = context.cache
        self._lane_is_next = True
        self._moves = 0
        self._registry = self._politeness.registry
        self._queues: dict[str, ScrapyPriorityQueue] = {}
        self._spare: dict[str, ScrapyPriorityQueue] = {}
        """The queue in memory that ran empty last."""
        self._ring: deque[str] = deque()
        self._in_ring: set[str] = set()
        self._heap: list[tuple[float, int, str]] = []
        self._parked_until: dict[str, float] = {}
        self._order = itertools.count()
        self._length = 0
        self._front: dict[str, deque[Request]] = {}
        """By domain, what goes before its queue: a robots.txt that was redirected, and the page
        that waited for a robots.txt."""
        self._redirected: set[str] = set()
        """The origins of the robots.txt there."""
        self._politeness.add_queue(self)
        for domain, priorities in startprios.items():
            queue = self._queues[domain] = self._new_queue(domain, priorities)
            self._length += len(queue)
            if domain != LANE:
                self._place(domain)
        if self._cache is None:  # unlike the run before this one
            while self.has_cached and (request := self._take(LANE)) is not None:
                self._push_to(request.meta[metakeys.DOMAIN], request)

    # Scrapy's interface --------------------------------------------------------------------------
    def push(self, request: Request) -> None:
        """Add *request* to its domain's queue."""
        if metakeys.ROBOTS in request.meta:
            domain = self._politeness.state_of(request).name
            self._front.setdefault(domain, deque()).appendleft(request)
            self._redirected.add(request.meta[metakeys.ROBOTS])
            self._length += 1
            self._place(domain)
            return
        if metakeys.DOMAIN not in request.meta:  # another scheduler has not assigned it
            self._politeness.assign(request)
        self._push_to(LANE if self._is_cached(request) else request.meta[metakeys.DOMAIN], request)

    def _push_to(self, domain: str, request: Request) -> None:
        queue = self._queues.get(domain)
        new = queue is None
        if queue is None:
            queue = self._spare.pop(domain, None) or self._new_queue(domain, ())
        try:
            queue.push(request)
        except Exception:  # a disk queue cannot take it
            if new:
                self._drop(domain, queue)
            raise
        self._queues[domain] = queue
        self._length += 1
        if new and domain != LANE:
            self._place(domain)

    def pop(self) -> Request | None:
        """Return a request of the next domain that may be asked now."""
        now = self._registry.clock()
        if self._cache is None:
            return self._pop_ring(now)
        if self._politeness.passing.only:
            return self._pop_lane()
        # In turns: a long lane must not keep the sites waiting, nor they the lane.
        order = (self._pop_lane, lambda: self._pop_ring(now))
        for pop in order if self._lane_is_next else reversed(order):
            request = pop()
            if request is not None:
                self._lane_is_next = not self._lane_is_next
                return request
        return None

    def _pop_ring(self, now: float) -> Request | None:
        self._unpark_due(now)
        self._moves = 0
        while self._ring:
            domain = self._ring.popleft()
            self._in_ring.discard(domain)
            request = self._pop_of(domain, now)
            if request is not None:
                return request
            if self._moves == _MOVES:
                _scrapy.wake(self._crawler)
                return None
        if self._heap:
            # Nobody asks again before the engine is woken.
            self._politeness.parked(self._heap[0][0])
        return None

    def _pop_lane(self) -> Request | None:
        """Return a request that the cache may have."""
        for _ in range(_MOVES):
            if not (self.has_cached and self._politeness.passing.has_room):
                return None
            request = self._take(LANE)
            if request is None:
                return None
            if self._is_cached(request):
                return self._politeness.let_pass(request)
            domain = request.meta[metakeys.DOMAIN]  # its entry has expired, or was deleted
            try:
                self._push_to(domain, request)
            except Exception:  # noqa: BLE001 - a full disk; it must not be lost for that
                self._front.setdefault(domain, deque()).append(request)
                self._length += 1
                self.reconsider(domain)
        _scrapy.wake(self._crawler)
        return None

    def _is_cached(self, request: Request) -> bool:
        return (
            self._cache is not None
            and metakeys.NOT_BEFORE not in request.meta
            and self._cache.may_have(request)
        )

    def _pop_of(self, domain: str, now: float) -> Request | None:
        queue = self._queues.get(domain)
        front = self._front.get(domain)
        if queue is None and not front:
            return None
        state = self._registry.get(domain)
        if not self._may_go(state, now):
            return None
        request: Request | None
        if front:  # what came of a page's robots.txt is known, even if that is old by now
            request = front.popleft()
            self._redirected.discard(request.meta.get(metakeys.ROBOTS, ""))
            self._length -= 1
            if not front:
                del self._front[domain]
            request = self._politeness.start(request, state)
        else:
            request = self._pop_queued(domain, state)
        if domain in self and self._may_go(state, now):
            self._append(domain)
        return request

    def _pop_queued(self, domain: str, state: DomainState) -> Request | None:
        request = self._take(domain)
        if request is None:
            return None
        request.meta.setdefault(metakeys.DOMAIN, domain)  # Scrapy's own queue sets none
        if self._is_cached(request):  # by now, or the job was begun without the cache
            with suppress(Exception):  # a full disk: then it waits its turn as any other
                self._push_to(LANE, request)
                self._moves += 1
                return None
        if _is_early(request):
            return request
        ahead = self._politeness.ahead_of(request)
        if ahead is not None:
            # robots.txt first; the request waits where it was.
            self._front.setdefault(domain, deque()).append(request)
            self._length += 1
            request = ahead
        return self._politeness.start(request, state)

    def _take(self, domain: str) -> Request | None:
        """Take out the next request of *domain*; None: nothing that is left can be read."""
        queue = self._queues[domain]
        request: Request | None = None
        left = len(queue)
        attempts = 0
        # After an error Scrapy's queue returns None once, if that one was the last of its priority.
        while request is None and left and attempts < 2:  # noqa: PLR2004
            try:
                request = queue.pop()
            except Exception as exc:  # noqa: BLE001 - e.g. it names a callback that is gone
                logger.error(  # noqa: TRY400
                    "A request of %s cannot be read from the job directory: %s: %s",
                    domain, type(exc).__name__, exc,
                    extra={"spider": self._crawler.spider},
                )  # fmt: skip
            before, left = left, len(queue)
            self._length -= before - left
            attempts = attempts + 1 if left == before else 0
        if not left or request is None:
            self._length -= left
            self._drop(domain, queue)
        return request

    def peek(self) -> Request | None:
        """Return nothing: what is next depends on the time at which it is asked."""
        return None

    def close(self) -> dict[str, list[int]]:
        """Close the queues below; return the state that a job directory keeps."""
        for request in self._take_front():
            self.push(request)
        state = {domain: queue.close() for domain, queue in self._queues.items()}
        self._queues.clear()
        self._length = 0
        return state

    def __len__(self) -> int:
        return self._length

    def __contains__(self, domain: str) -> bool:
        return domain in self._queues or domain in self._front

    @property
    def has_cached(self) -> bool:
        """Whether there are requests that the cache may have."""
        return LANE in self._queues

    # What the politeness tells -------------------------------------------------------------------
    def reconsider(self, domain: str) -> None:
        """See whether a domain that was parked may be asked now."""
        if domain in self and domain not in self._in_ring:
            self._place(domain)

    def has_robots(self, origin: str) -> bool:
        """Tell whether the robots.txt of *origin* was redirected, and is still to be fetched."""
        return origin in self._redirected

    def drain(self) -> Iterable[Request]:
        """Take everything out, whether it may go or not."""
        yield from self._take_front()
        for domain, queue in list(self._queues.items()):
            while queue:
                request: Request | None = queue.pop()
                if request is None:
                    break
                yield request
            self._drop(domain, queue)
        self._length = 0

    def take_out(self, domain: str) -> list[Request]:
        """Take the requests of *domain* out, in their order, but for what goes before them."""
        taken = []
        while domain in self._queues:
            request = self._take(domain)
            if request is not None:
                taken.append(request)
        return taken

    # Own methods ---------------------------------------------------------------------------------
    def _may_go(self, state: DomainState, now: float) -> bool:
        """Tell whether the domain may be asked now; else park it, or leave it till it is told."""
        if state.is_full:
            return False
        if self._politeness.is_held(state.name) and not self._robots_waits(state.name):
            return False
        ready = state.ready_at
        if ready > now:
            self._park(state.name, ready)
            return False
        return self._politeness.has_place(state)

    def _robots_waits(self, domain: str) -> bool:
        front = self._front.get(domain)
        return front is not None and metakeys.ROBOTS in front[0].meta  # it is never empty

    def _take_front(self) -> list[Request]:
        """Take out the pages of what goes first: robots.txt is no work that is left."""
        front, self._front = self._front, {}
        self._redirected.clear()
        return [one for line in front.values() for one in line if metakeys.ROBOTS not in one.meta]

    def _place(self, domain: str) -> None:
        if self._may_go(self._registry.get(domain), self._registry.clock()):
            self._append(domain)

    def _append(self, domain: str) -> None:
        if domain not in self._in_ring:
            self._in_ring.add(domain)
            self._ring.append(domain)

    def _park(self, domain: str, ready: float) -> None:
        if self._parked_until.get(domain) != ready:
            self._parked_until[domain] = ready
            heapq.heappush(self._heap, (ready, next(self._order), domain))
            self._politeness.parked(ready)

    def _unpark_due(self, now: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= now:
            ready, _, domain = heapq.heappop(heap)
            if self._parked_until.get(domain) == ready:
                del self._parked_until[domain]
                if domain in self:
                    self._append(domain)

    def _new_queue(self, domain: str, priorities: Iterable[int]) -> ScrapyPriorityQueue:
        return ScrapyPriorityQueue(
            self._crawler,
            self._downstream,
            f"{self._key}/{_scrapy.queue_folder(domain)}",
            priorities,
            start_queue_cls=self._start_downstream,
        )

    def _drop(self, domain: str, queue: ScrapyPriorityQueue) -> None:
        self._queues.pop(domain, None)
        if not self._key and not len(queue):
            # A quick site empties its queue again and again.
            self._spare = {domain: queue}
            return
        queue.close()
        if self._key:
            with suppress(OSError):  # the folder of a disk queue that left nothing behind
                Path(self._key, _scrapy.queue_folder(domain)).rmdir()


def _is_early(request: Request) -> bool:
    """Tell whether a request of a job directory comes before its time: the scheduler keeps it."""
    due = request.meta.get(metakeys.NOT_BEFORE)
    return due is not None and due > time.time()
