"""The scheduler: Scrapy's, with requests that wait, and nothing lost at the end."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.job import job_dir
from scrapy.utils.misc import build_from_crawler

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy import stats as keys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.http.request import Request as FacadeRequest
from netspy_scrapy.incremental.validator import clear_validator
from netspy_scrapy.retry import claim_budget
from netspy_scrapy.scheduling.job import Job

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred

    from netspy_scrapy.receipts import Receipt

logger = logging.getLogger(__name__)

#: Unfinished requests are written in portions of this many lines.
_DUMP_PORTION = 1000


class Scheduler(ScrapyScheduler):
    """Scrapy's scheduler, with three additions.

    - A request with ``meta["netspy_delay"]`` (seconds) waits here, where it holds no download
      slot. Retries that wait (Retry-After, backoff) use it.
    - ``enqueue_request`` never raises: what cannot be queued is logged with the request, counted
      and dumped. (An exception there ends a worker of Scrapy's scraper.)
    - At the end, without a job directory, what was not done is written to FAILED_REQUEST_PATH;
      with one, waiting requests are kept in it, also if the process is killed.

    Settings: DUMP_UNFINISHED_ON_EXIT, FAILED_REQUEST_PATH, and Scrapy's own.
    Stats: ``netspy/requests/delayed``, ``netspy/requests/unfinished_dumped``,
    ``netspy/requests/recovered``.
    """

    crawler: Crawler
    job: Job | None = None
    """What keeps the job directory; None: there is none."""

    checks_redis: ClassVar[bool] = False
    """Whether it sees to it itself that Redis can be used."""

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the queues."""
        self._context = CrawlContext.of(self.crawler)
        self._context.has_scheduler = True
        self._politeness = self._context.politeness
        self._waiting: list[tuple[float, int, Request]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = ""
        """Why it is closed; empty: it is not."""
        self.starved = asyncio.Event()
        """Set when the engine is told that no request may go, until one comes."""
        opened = self._open_queues(spider)
        throttle = self._politeness.throttle
        if throttle is None or self.checks_redis:
            return opened
        return deferred_from_coro(_after(opened, throttle.check))

    def _job_folder(self) -> str | None:
        """Return the job directory, if there is one."""
        return job_dir(self.crawler.settings)

    def _open_queues(self, spider: Spider) -> Deferred[None] | None:
        folder = self._job_folder()
        if folder is None:
            return super().open(spider)
        self.job = Job(self.crawler, Path(folder), self._context.when_durable)
        try:
            if self.job.was_recovered:  # Scrapy's filter has read its file already
                self.df.close("recovered")
                self.df = build_from_crawler(type(self.df), self.crawler)
            self.job.seen_file = getattr(self.df, "file", None)
            self.dqclass = self.job.watched(self.dqclass)
            if self._sdqclass is not None:
                self._sdqclass = self.job.watched(self._sdqclass)
            _scrapy.watch_dropped(self.crawler, self.job.finished)
            return super().open(spider)
        except BaseException:
            self.job.close(queues_are_closed=True)
            raise

    def enqueue_request(self, request: Request) -> bool:
        """Queue *request*; False: the request filter knows it."""
        if _is_hop(request) and not request.dont_filter:
            request.dont_filter = True
            try:
                return self.enqueue_request(request)
            finally:
                request.dont_filter = False
        if self._ended:
            self._keep_late(request)
            return True
        clear_validator(request)  # of an attempt that this one replaces
        receipts = self._context.receipts_in_use
        receipt = None if receipts is None else receipts.adopt(request)
        queued = self._enqueue(request, receipt)
        if receipts is not None:
            receipts.adopted(receipt, request, queued=bool(queued))
        if queued and self._context.on_queued is not None:
            self._context.on_queued(request)
        return queued is not False

    def _enqueue(self, request: Request, receipt: Receipt | None) -> bool | None:  # noqa: ARG002
        """Return what ``enqueue_request`` does, None if it could not be queued.

        *receipt* is that of the page which yielded it, or of which it is the next attempt.
        """
        if self._politeness.passing.takes_back(request):  # the cache could not answer it
            self.starved.clear()
            self.put_back(request)
            return True
        try:
            if isinstance(request, FacadeRequest):
                request.seal(self.spider)
            claim_budget(request, self.crawler)
            self._politeness.assign(request)
            seconds = request.meta.pop(metakeys.DELAY, None)
            if seconds is None or not seconds > 0:
                self.starved.clear()
                return super().enqueue_request(request)
            if not request.dont_filter and self.df.request_seen(request):
                self.df.log(request, self.spider)
                return False
            self._delay(request, time.time() + seconds)
        except Exception as exc:  # noqa: BLE001 - anything raised here would end Scrapy's worker
            reason = f"it cannot be queued: {type(exc).__name__}: {exc}"
            self._context.failures.fail(request, "unqueueable", reason)
            return None
        return True

    def next_request(self) -> Request | None:
        """Return a request that may go now."""
        self._release_due()
        while True:
            request = super().next_request()
            if request is None:
                self.starved.set()
                return None
            due = request.meta.get(metakeys.NOT_BEFORE)
            if due is None:
                break
            if due <= time.time():  # it waited in a job directory, and its time has come
                del request.meta[metakeys.NOT_BEFORE]
                break
            self._wait(request, due)
        self.starved.clear()
        self._context.from_scheduler.add(request)
        return request

    def put_back(self, request: Request) -> None:
        """Queue *request* past the filter: it was taken out, or waited, and is not done."""
        if self._context.receipts_in_use is not None:
            self._context.receipts.give_back(request)
        clear_validator(request)  # when its turn comes again, it is asked anew
        try:
            if not self._dqpush(request):
                self._mqpush(request)
        except Exception as exc:  # noqa: BLE001 - e.g. a full disk; it must not be lost for that
            reason = f"it cannot be queued: {type(exc).__name__}: {exc}"
            self._context.failures.fail(request, "unqueueable", reason)

    def _dqpush(self, request: Request) -> bool:
        is_on_disk = super()._dqpush(request)
        if not is_on_disk and self.job is not None:
            self.job.kept_in_memory()
        return is_on_disk

    def __len__(self) -> int:
        return super().__len__() + len(self._waiting)

    def has_pending_requests(self) -> bool:
        """Tell whether the crawl goes on: also for downloads past the queue that wait."""
        return super().has_pending_requests() or self._politeness.waits

    @property
    def ready(self) -> int:
        """How many requests are queued, those of domains that rest among them.

        Not those that wait here for a time of their own.
        """
        return super().__len__()

    def close(self, reason: str) -> Deferred[None] | None:
        """Keep what was not done, and close the queues."""
        if not hasattr(self, "mqs"):  # it could not be opened
            return None
        return deferred_from_coro(self._close(reason))

    # Waiting ------------------------------------------------------------------------------------
    def _delay(self, request: Request, due: float) -> None:
        """Take in *request*, which may not go before the Unix time *due*."""
        request.meta[metakeys.NOT_BEFORE] = due
        self._context.stats.inc_value(keys.REQUESTS_DELAYED)
        # From the disk it comes back to wait here, where a kill does not lose it.
        if not self._dqpush(request):
            self._wait(request, due)

    def _wait(self, request: Request, due: float) -> None:
        """Hold *request* until the Unix time *due*."""
        heapq.heappush(self._waiting, (due, next(self._order), request))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            seconds = max(0.0, self._waiting[0][0] - time.time())
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._release_due()
        _scrapy.wake(self.crawler)

    def _release_due(self) -> None:
        """Move the requests whose time has come to the queue."""
        if not self._waiting:
            return
        now = time.time()
        released = False
        while self._waiting and self._waiting[0][0] <= now:
            request = heapq.heappop(self._waiting)[2]
            del request.meta[metakeys.NOT_BEFORE]
            self.put_back(request)
            released = True
            self.starved.clear()
        if released or self._timer is None:
            self._set_timer()

    # The end ------------------------------------------------------------------------------------
    def take_unfinished(self) -> Iterator[Request]:
        """Yield what would be lost if the process ended now: what is queued, and what is under way.

        Not what a job directory or the file of a replay has.
        """
        if not hasattr(self, "mqs") or not self._context.dump_settings.unfinished:
            return
        if self.dqs is not None:
            yield from self._in_memory()
            return
        under_way = (
            one
            for one in _scrapy.unfinished(self.crawler)
            if self._context.owns(one) and metakeys.ROBOTS not in one.meta
        )
        for request in itertools.chain(under_way, self._unfinished()):
            if not self._is_kept(request):
                yield request

    def _is_kept(self, request: Request) -> bool:
        """Tell whether the line that *request* comes from is still in the dump."""
        receipts = self._context.receipts_in_use
        return receipts is not None and self.dqs is None and receipts.is_kept(request)

    def _keep_late(self, request: Request) -> None:
        """Dump what is yielded after the end: nobody will ask for it any more."""
        if self._context.dump_settings.unfinished:
            self._context.request_dump.add(request, reason=f"unfinished: {self._ended}")
            self._context.stats.inc_value(keys.UNFINISHED_DUMPED)

    async def _close(self, reason: str) -> None:
        self._ended = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.dqs is not None:
            self._keep_waiting_on_disk()
        if self._context.dump_settings.unfinished:
            await self._dump_unfinished(reason)
        result: Any = super().close(reason)
        if result is not None:
            await result
        if self.dqs is not None and self._context.receipts_in_use is not None:
            self._context.receipts.queue_is_kept()
        if self.job is not None:
            self.job.close(queues_are_closed=True)

    def _keep_waiting_on_disk(self) -> None:
        """Write the waiting requests to the job directory, with the time they are due."""
        waiting, self._waiting = self._waiting, []
        for _, _, request in waiting:
            self.put_back(request)

    async def _dump_unfinished(self, reason: str) -> None:
        """Write what is only in memory to FAILED_REQUEST_PATH."""
        dumped = 0
        for request in self._unfinished():
            if self._is_kept(request):
                continue
            self._context.request_dump.add(request, reason=f"unfinished: {reason}")
            dumped += 1
            if dumped % _DUMP_PORTION == 0:
                await self._context.request_dump.flush()
        if dumped:
            await self._context.request_dump.flush()
            self._context.stats.inc_value(keys.UNFINISHED_DUMPED, dumped)
            logger.warning(
                "%d requests were not done when the crawl stopped (%s): kept in %s", dumped, reason,
                self._context.dump_settings.request_path, extra={"spider": self.spider},
            )  # fmt: skip

    def _unfinished(self) -> Iterator[Request]:
        while self._waiting:
            yield self._waiting.pop()[2]
        yield from self._in_memory()

    def _in_memory(self) -> Iterator[Request]:
        drain = getattr(self.mqs, "drain", None)
        if drain is not None:
            yield from drain()
        while (request := self.mqs.pop()) is not None:
            yield request


async def _after(opened: Deferred[None] | None, check: Callable[[], Awaitable[None]]) -> None:
    if opened is not None:
        await maybe_deferred_to_future(opened)
    await check()


def _is_hop(request: Request) -> bool:
    """Tell whether a redirect of a netspy request made *request*: it gets its own answer.

    Its page may have been fetched for another request, or be the very same with a cookie now.
    """
    return (
        isinstance(request, FacadeRequest)
        and request.is_sealed
        and bool(request.meta.get("redirect_urls"))
    )
