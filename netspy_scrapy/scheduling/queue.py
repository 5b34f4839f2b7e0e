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


class ReadyQueue:
    """A priority queue per domain, of which only domains that may be asked now take turns.

    Domains that can be asked stand in a ring. One that rests, or whose delay has not passed, is
    parked in a heap by the time at which it will be ready; one with as many requests in flight as
    it may have is parked until one of them is done. So the cost of a pop does not depend on the
    number of domains, and what waits holds no download slot. Priorities hold inside a domain.

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
        self._politeness = CrawlContext.of(crawler).politeness
        self._registry = self._politeness.registry
        self._queues: dict[str, ScrapyPriorityQueue] = {}
        self._ring: deque[str] = deque()
        self._in_ring: set[str] = set()
        self._heap: list[tuple[float, int, str]] = []
        self._parked_until: dict[str, float] = {}
        self._order = itertools.count()
        self._length = 0
        self._front: dict[str, deque[Request]] = {}
        """By domain, what goes before its queue: a robots.txt that was redirected, and the page
        that waited for a robots.txt."""
        self._politeness.add_queue(self)
        for domain, priorities in startprios.items():
            queue = self._queues[domain] = self._new_queue(domain, priorities)
            self._length += len(queue)
            self._place(domain)

    # Scrapy's interface --------------------------------------------------------------------------
    def push(self, request: Request) -> None:
        """Add *request* to its domain's queue."""
        if metakeys.ROBOTS in request.meta:
            domain = self._politeness.state_of(request).name
            self._front.setdefault(domain, deque()).appendleft(request)
            self._length += 1
            self._place(domain)
            return
        if metakeys.DOMAIN not in request.meta:  # another scheduler has not assigned it
            self._politeness.assign(request)
        domain = request.meta[metakeys.DOMAIN]
        queue = self._queues.get(domain)
        new = queue is None
        if queue is None:
            queue = self._new_queue(domain, ())
        try:
            queue.push(request)
        except Exception:  # a disk queue cannot take it
            if new:
                self._drop(domain, queue)
            raise
        self._queues[domain] = queue
        self._length += 1
        if new:
            self._place(domain)

    def pop(self) -> Request | None:
        """Return a request of the next domain that may be asked now."""
        now = self._registry.clock()
        self._unpark_due(now)
        while self._ring:
            domain = self._ring.popleft()
            self._in_ring.discard(domain)
            request = self._pop_of(domain, now)
            if request is not None:
                return request
        if self._heap:
            # Nobody asks again before the engine is woken.
            self._politeness.parked(self._heap[0][0])
        return None

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
            self._length -= 1
            if not front:
                del self._front[domain]
            request = self._politeness.start(request, state)
        else:
            assert queue is not None
            request = self._take(domain, queue)
            if request is None:
                return None
            request.meta.setdefault(metakeys.DOMAIN, domain)  # Scrapy's own queue sets none
            if not _is_early(request):
                ahead = self._politeness.ahead_of(request)
                if ahead is not None:
                    # robots.txt first; the request waits where it was.
                    self._front.setdefault(domain, deque()).append(request)
                    self._length += 1
                    request = ahead
                request = self._politeness.start(request, state)
        if domain in self and self._may_go(state, now):
            self._append(domain)
        return request

    def _take(self, domain: str, queue: ScrapyPriorityQueue) -> Request | None:
        """Take out the next request of *domain*; None: nothing that is left can be read."""
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
        front, self._front = self._front, {}
        for request in _pages(front):
            self.push(request)
        state = {domain: queue.close() for domain, queue in self._queues.items()}
        self._queues.clear()
        self._length = 0
        return state

    def __len__(self) -> int:
        return self._length

    def __contains__(self, domain: str) -> bool:
        return domain in self._queues or domain in self._front

    # What the politeness tells -------------------------------------------------------------------
    def reconsider(self, domain: str) -> None:
        """See whether a domain that was parked may be asked now."""
        if domain in self and domain not in self._in_ring:
            self._place(domain)

    def has_robots(self, origin: str) -> bool:
        """Tell whether the robots.txt of *origin* is still to be fetched."""
        lines = self._front.values()
        return any(one.meta.get(metakeys.ROBOTS) == origin for line in lines for one in line)

    def drain(self) -> Iterable[Request]:
        """Take everything out, whether it may go or not."""
        front, self._front = self._front, {}
        yield from _pages(front)
        for domain, queue in list(self._queues.items()):
            while queue:
                request: Request | None = queue.pop()
                if request is None:
                    break
                yield request
            self._drop(domain, queue)
        self._length = 0

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
        return True

    def _robots_waits(self, domain: str) -> bool:
        front = self._front.get(domain)
        return front is not None and metakeys.ROBOTS in front[0].meta  # it is never empty

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
        queue.close()
        if self._key:
            with suppress(OSError):  # the folder of a disk queue that left nothing behind
                Path(self._key, _scrapy.queue_folder(domain)).rmdir()


def _pages(front: dict[str, deque[Request]]) -> Iterable[Request]:
    """Return the pages among what goes first: robots.txt is no work that is left."""
    return (one for line in front.values() for one in line if metakeys.ROBOTS not in one.meta)


def _is_early(request: Request) -> bool:
    """Tell whether a request of a job directory comes before its time: the scheduler keeps it."""
    due = request.meta.get(metakeys.NOT_BEFORE)
    return due is not None and due > time.time()
