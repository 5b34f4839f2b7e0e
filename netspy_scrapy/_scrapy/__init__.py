"""The only room that touches what Scrapy keeps private, tested against each Scrapy version.

Here is what concerns the engine and the downloader; callbacks are in ``scraping``, bodies in
``receiving`` and ``opening``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from contextvars import ContextVar, copy_context
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import scrapy.exceptions
from scrapy import Request, signals
from scrapy.core.downloader import Slot
from scrapy.crawler import CrawlerRunnerBase
from scrapy.exceptions import IgnoreRequest
from scrapy.pqueues import _path_safe
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import CancelledError, Deferred, fail, maybeDeferred
from twisted.python.failure import Failure

from netspy_scrapy._scrapy.reactor import (
    install_resolver,
    reactor_loop,
    restore_handlers,
    shutdown_handlers,
)
from netspy_scrapy._scrapy.requests import become, set_body, set_meta, set_url, shallow_copy
from netspy_scrapy.policies import slot_of
from netspy_scrapy.stats import EXIT_STATUS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import FrameType

    from scrapy.core.engine import ExecutionEngine
    from scrapy.crawler import Crawler
    from scrapy.http import Response

__all__ = [
    "become",
    "install_resolver",
    "reactor_loop",
    "restore_handlers",
    "set_body",
    "set_meta",
    "set_url",
    "shallow_copy",
    "shutdown_handlers",
]

logger = logging.getLogger(__name__)

#: What Scrapy's handlers raise for a body over DOWNLOAD_MAXSIZE: the second from 2.15 on.
CANCELLED: tuple[type[BaseException], ...] = (
    CancelledError,
    *filter(None, [getattr(scrapy.exceptions, "DownloadCancelledError", None)]),
)

#: Commands that fetch a page for a person to look at.
_TRIALS = frozenset(f"scrapy.commands.{name}" for name in ("check", "fetch", "parse", "view"))


#: Whether this Scrapy has a handler for aiohttp: from 2.19 on.
HAS_AIOHTTP_HANDLER = find_spec("scrapy.core.downloader.handlers._aiohttp") is not None


def engine_of(crawler: Crawler) -> ExecutionEngine | None:
    """Return the engine, or None before the crawl has one.

    ``crawler.engine`` raises RuntimeError there from Scrapy 2.19 on, and is None before.
    """
    try:
        return crawler.engine
    except RuntimeError:
        return None


def wake(crawler: Crawler) -> None:
    """Make the engine ask the scheduler for a request in this turn of the loop."""
    slot = _slot(crawler)
    if slot is not None and slot.closing is None:
        slot.nextcall.schedule()


def is_closing(crawler: Crawler) -> bool:
    """Tell whether the spider is being closed, or is gone."""
    slot = _slot(crawler)
    return slot is None or slot.closing is not None


def takes_requests(crawler: Crawler) -> bool:
    """Tell whether the engine would take a request from the scheduler now."""
    engine = engine_of(crawler)
    return engine is not None and not is_closing(crawler) and not engine.needs_backout()


def queue_is_moving(crawler: Crawler) -> bool:
    """Tell whether the engine takes requests out of the queue, so that it will shrink.

    It does not while what is queued has to wait for something else (a scheduler of ours says so),
    and while answers that are being handled fill the scraper.
    """
    engine = engine_of(crawler)
    slot = _slot(crawler)
    if engine is None or slot is None:
        return False
    scraping = engine.scraper.slot
    if scraping is not None and scraping.needs_backout():
        return False
    starved = getattr(slot.scheduler, "starved", None)
    return bool(engine.downloader.needs_backout()) if starved is None else not starved.is_set()


async def until_starved(crawler: Crawler, seconds: float) -> None:
    """Wait *seconds*, or only until the scheduler has nothing that may go, if it says so."""
    slot = _slot(crawler)
    starved = getattr(slot.scheduler, "starved", None) if slot is not None else None
    if starved is None:
        await asyncio.sleep(seconds)
        return
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(starved.wait(), seconds)


def queued(crawler: Crawler) -> int:
    """Return how many requests are queued, without those that wait for a time of their own.

    0 for a scheduler that does not say.
    """
    slot = _slot(crawler)
    if slot is None:
        return 0
    ready = getattr(slot.scheduler, "ready", None)
    return int(ready) if ready is not None else _length(slot.scheduler)


def pending(crawler: Crawler) -> int:
    """Return how many requests the scheduler has, those that wait for a time among them.

    0 for a scheduler that does not say.
    """
    return _length(scheduler_of(crawler))


def _length(scheduler: Any) -> int:
    try:
        return len(scheduler)
    except TypeError:
        return 0


def scheduler_of(crawler: Crawler) -> Any:
    """Return the scheduler, or None before the spider is opened."""
    slot = _slot(crawler)
    return None if slot is None else slot.scheduler


def item_pipelines(crawler: Crawler) -> tuple[Any, ...]:
    """Return the item pipelines in their order; nothing where another ITEM_PROCESSOR keeps none."""
    engine = engine_of(crawler)
    if engine is None:
        return ()
    return tuple(getattr(engine.scraper.itemproc, "middlewares", ()))


def close_spider(crawler: Crawler, reason: str) -> None:
    """Close the spider soon, with *reason* as the finish reason."""
    engine = engine_of(crawler)
    if engine is None or is_closing(crawler):
        return
    keep(crawler, engine.close_spider_async(reason=reason))


def fail_exit(crawler: Crawler) -> None:
    """Make ``scrapy crawl`` and ``scrapy runspider`` end with status 1; for the loop's thread.

    They do so if their process object has ``bootstrap_failed`` set. No signal or setting reaches
    it, and no crawler knows it; but its ``start()`` is what runs the loop, and so is further up.
    In a program that runs crawls in a loop of its own there is none, and the status is its affair:
    it finds it in the stats.
    """
    if crawler.stats is not None:
        crawler.stats.set_value(EXIT_STATUS, 1)
    for one in _callers():
        if isinstance(one, CrawlerRunnerBase) and crawler in one.crawlers:
            one.bootstrap_failed = True


def is_trial() -> bool:
    """Tell whether a command of Scrapy's runs the loop that tries a page and stores nothing."""
    return any(type(one).__module__ in _TRIALS for one in _callers())


def _callers() -> Iterator[Any]:
    """Yield the objects whose methods are running in this thread, the innermost first."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - no other way to them
    while frame is not None:
        yield frame.f_locals.get("self")
        frame = frame.f_back


def _slot(crawler: Crawler) -> Any:
    engine = engine_of(crawler)
    return None if engine is None else engine._slot  # noqa: SLF001


def keep(crawler: Crawler, coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine beside the crawl; the loop itself keeps only a weak reference."""
    tasks = crawler.__dict__.setdefault("_netspy_tasks", set())
    task = asyncio.ensure_future(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


#: Whether the present code runs inside a download: in a middleware that needs another page first.
inside_a_download: ContextVar[bool] = ContextVar("inside_a_download", default=False)


class WatchedDownloads:
    """Stands before the downloader: lets requests in, and tells what became of each.

    *admit* is asked before a download starts. It may raise, or return what has to be awaited
    first; meanwhile the request holds no download slot. *done* is called once the downloader is
    through with a request, with what came of it. No signal says so for requests that a middleware
    answers or refuses.
    """

    def __init__(
        self,
        crawler: Crawler,
        done: Callable[[Request, Any], None],
        admit: Callable[[Request], Coroutine[Any, Any, None] | None],
    ) -> None:
        engine = engine_of(crawler)
        assert engine is not None
        downloader: Any = engine.downloader
        self._fetch = downloader.fetch
        self._done = done
        self._admit = admit
        self._under_way: dict[Deferred[Any], Request] = {}
        """By what the engine waits for: one request may be downloaded twice at a time."""
        outside = self._outside = copy_context()
        downloader.fetch = self.fetch
        # A middleware that wakes the engine is inside a download; what the engine then starts, and
        # the signals that come of it, are not.
        nextcall = _slot(crawler).nextcall
        ask = nextcall._func  # noqa: SLF001
        nextcall._func = lambda: outside.copy().run(ask)  # noqa: SLF001

    def fetch(self, request: Request, *args: Any) -> Deferred[Any]:
        """Do what ``Downloader.fetch`` does."""
        inner: Deferred[Any]
        try:
            waiting = self._admit(request)
            if waiting is None:
                inner = self._start(request, *args)
            else:
                inner = deferred_from_coro(self._start_after(waiting, request, *args))
        except Exception as exc:  # noqa: BLE001 - the engine gets it as it gets a failed download
            inner = fail(exc)
        outcome: Deferred[Any] = Deferred(lambda _: inner.cancel())
        self._under_way[outcome] = request
        inner.addBoth(lambda result: self._finish(outcome, result))
        return outcome

    def cut_off(self, request: Request, exception: Exception) -> None:
        """Give the engine *exception* at once; what the download still brings goes nowhere."""
        for outcome in [one for one, its in self._under_way.items() if its is request]:
            self._finish(outcome, _failure(exception))

    def _start(self, request: Request, *args: Any) -> Deferred[Any]:
        token = inside_a_download.set(True)
        try:
            return maybeDeferred(self._fetch, request, *args)
        finally:
            inside_a_download.reset(token)

    async def _start_after(
        self, waiting: Coroutine[Any, Any, None], request: Request, *args: Any
    ) -> Any:
        await waiting
        return await maybe_deferred_to_future(self._start(request, *args))

    def _finish(self, outcome: Deferred[Any], result: Any) -> None:
        request = self._under_way.pop(outcome, None)
        if request is None:
            return  # it was cut off before
        try:
            self._done(request, result)
        finally:
            if not outcome.called:  # nobody cancelled it
                # What follows (callbacks, pipelines) is outside the download.
                self._outside.copy().run(outcome.callback, result)


def _failure(exception: Exception) -> Any:
    return Failure(exception)  # type: ignore[no-untyped-call]


def requests_under_way(crawler: Crawler) -> list[Request]:
    """Return the requests that the downloader or its middlewares have."""
    engine = engine_of(crawler)
    return [] if engine is None else list(engine.downloader.active)


def watch_closing(
    crawler: Crawler, closing: Callable[[str], None], again: Callable[[], None] | None = None
) -> None:
    """Call *closing* with the reason once the spider is being closed. No signal says so.

    *again* is called when somebody closes it meanwhile: a stop of a crawl that closes by itself.
    """
    engine: Any = engine_of(crawler)
    watched: _WatchedClose | None = engine.__dict__.get("_netspy_close")
    if watched is None:
        watched = engine.__dict__["_netspy_close"] = _WatchedClose(engine)
    watched.closing.append(closing)
    if again is not None:
        watched.again.append(again)


class _WatchedClose:
    """Stands in the place of ``engine.close_spider_async``.

    Who closes the spider again waits until it is closed. In Scrapy a stop while the pipelines close
    goes on at once, and the crawl ends with the last batch half written.
    """

    def __init__(self, engine: Any) -> None:
        self.closing: list[Callable[[str], None]] = []
        self.again: list[Callable[[], None]] = []
        self._close = engine.close_spider_async
        self._inside: ContextVar[bool] = ContextVar("netspy_closing", default=False)
        self._closed: asyncio.Future[None] | None = None
        engine.close_spider_async = self.close

    async def close(self, *, reason: str = "cancelled") -> None:
        if self._closed is not None:
            if not self._inside.get():  # else it would wait for itself
                for one in self.again:
                    one()
                await asyncio.shield(self._closed)
            return
        self._closed = asyncio.get_running_loop().create_future()
        self._inside.set(True)
        try:
            for tell in self.closing:
                tell(reason)
            await self._close(reason=reason)
        finally:
            self._closed.set_result(None)


def watch_dropped(crawler: Crawler, dropped: Callable[[Request], None]) -> None:
    """Call *dropped* with each request that the engine is through with: callback, items and all.

    No signal covers all the cases.
    """
    slot = _slot(crawler)
    remove = slot.remove_request

    def watched(request: Request) -> None:
        try:
            dropped(request)
        finally:
            remove(request)

    slot.remove_request = watched


def start_is_exhausted(crawler: Crawler) -> bool:
    """Tell whether ``start()`` has yielded all it had."""
    engine = engine_of(crawler)
    return engine is None or engine._start is None  # noqa: SLF001


def end_start(crawler: Crawler) -> None:
    """Ask ``start()`` for nothing more, as Scrapy does at a stop, but not at every other close.

    What it yields once the scheduler is closed would be nowhere.
    """
    engine: Any = engine_of(crawler)
    task = engine._start_request_processing_awaitable  # noqa: SLF001
    if isinstance(task, asyncio.Future) and task is not asyncio.current_task():
        task.cancel()


async def stop(crawler: Crawler) -> None:
    """Stop *crawler*; one that is being opened stops once it is open.

    Scrapy takes a stop for nothing, or raises RuntimeError, until the engine starts. While its
    signal engine_started is still being sent it can be stopped, though it does not run yet.
    """
    engine: Any = engine_of(crawler)
    if engine is not None and getattr(engine, "_starting", engine.running):
        with suppress(RuntimeError):  # it was stopped before
            await engine.stop_async()
        return

    async def once_open() -> None:
        opened: Any = engine_of(crawler)
        with suppress(RuntimeError):  # it was stopped before
            await opened.stop_async()

    crawler.signals.connect(once_open, signals.engine_started, weak=False)


def unfinished(crawler: Crawler) -> list[Request]:
    """Return the requests that the engine is not through with."""
    slot = _slot(crawler)
    return [] if slot is None else list(slot.inprogress)


def leave_pace_to(
    crawler: Crawler,
    departs: Callable[[Request], float | None],
    concurrency_of: Callable[[str], int],
) -> None:
    """Make download slots keep the delay that *departs* gives for a request about to be sent.

    None: nobody else has paced it, and the slot keeps its own. The concurrency of a slot is what
    *concurrency_of* says of the domain; 0: no limit.

    Their attributes stay as they are, for AutoThrottle and whoever else reads or writes them.
    ``DOWNLOAD_SLOTS`` is looked up by domain, then by host name.
    """
    engine = engine_of(crawler)
    assert engine is not None
    downloader: Any = engine.downloader

    class PacedSlot(Slot):
        __slots__ = ()

        def download_delay(self) -> float:
            # An empty queue is asked too, and a delay would then hold up what comes next.
            if not self.queue:
                return 0.0
            gap = departs(self.queue[0][0])
            return float(super().download_delay()) if gap is None else gap

    get_slot = getattr(downloader, "_get_slot", None)
    if get_slot is None:
        logger.warning(
            "%s has no slots of Scrapy's kind: it keeps to its own delays and limits",
            type(downloader).__name__,
        )
        return

    def paced_slot(request: Request, *args: Any) -> Any:
        key, slot = get_slot(request, *args)
        if type(slot) is Slot:
            slot.__class__ = PacedSlot
            slot.concurrency = concurrency_of(key) or sys.maxsize
        return key, slot

    downloader._get_slot = paced_slot  # noqa: SLF001
    downloader.per_slot_settings = _ByHost(downloader.per_slot_settings)
    for handler in getattr(downloader.handlers, "_handlers", {}).values():
        pool = getattr(handler, "_pool", None)
        if (
            pool is not None and getattr(pool, "maxPersistentPerHost", None) == 0
        ):  # "no limit" is unknown to Twisted
            pool.maxPersistentPerHost = sys.maxsize


def let_pass(
    crawler: Crawler, waiting: Callable[[], bool], passing: Callable[[], int]
) -> Callable[[], bool]:
    """Have the engine ask for requests that need no download, though every download slot is taken.

    *waiting* tells whether there is such a request, *passing* how many are under way: these do not
    count in CONCURRENT_REQUESTS. Returns a function that tells whether all of that is in use.
    """
    engine = engine_of(crawler)
    assert engine is not None
    downloader: Any = engine.downloader
    needs_backout = downloader.needs_backout

    def is_full() -> bool:
        limit = getattr(downloader, "total_concurrency", 0)
        count = passing()
        return bool(needs_backout()) and not (count and limit > len(downloader.active) - count)

    downloader.needs_backout = lambda: is_full() and not waiting()
    return is_full


def given_encoding(response: Response) -> str | None:
    """Return the encoding that a response was made with; None: it is found out."""
    return getattr(response, "_encoding", None)


class _ByHost(dict[str, Any]):
    """DOWNLOAD_SLOTS, in which a host name stands for all its ports."""

    def get(self, key: str, default: Any = None) -> Any:
        return slot_of(dict(self), key) or default


def slot_delay(crawler: Crawler, key: str, *, with_start: bool) -> float | None:
    """Return the delay of a download slot, which extensions may have changed.

    Where there is no slot yet, None, or *with_start* the delay that AutoThrottle starts with.
    """
    engine = engine_of(crawler)
    if engine is None:
        return None
    slot = getattr(engine.downloader, "slots", {}).get(key)
    if slot is not None:
        return float(slot.delay)
    if not with_start:
        return None
    # It is with the downloader, or, below Scrapy 2.19, with the spider.
    delay = getattr(engine.downloader, "_delay", None)
    return float(getattr(crawler.spider, "download_delay", 0.0) if delay is None else delay)


def queue_folder(domain: str) -> str:
    """Return the folder of a domain's queue as Scrapy names it, so that its jobs can go on."""
    return _path_safe(domain)


async def download(crawler: Crawler, request: Request) -> Response:
    """Download *request* past the scheduler."""
    engine = engine_of(crawler)
    assert engine is not None
    return await engine.download_async(request)


def put_back(crawler: Crawler, request: Request) -> None:
    """Give *request* back to the scheduler that handed it out, if that is ours."""
    slot = _slot(crawler)
    give = getattr(slot.scheduler, "put_back", None) if slot is not None else None
    if give is not None:
        give(request)


def skip_cache_once(request: Request) -> None:
    """Keep Scrapy's HTTP cache from storing the next answer to *request*."""
    request.meta["_dont_cache"] = True


def is_too_many_redirects(exception: BaseException) -> bool:
    """Tell whether Scrapy gave up on a redirect without end.

    It raises the exception that elsewhere means that a request is dropped on purpose.
    """
    return type(exception) is IgnoreRequest and str(exception) == "max redirections reached"


def is_too_large(exception: BaseException) -> bool:
    """Tell whether Scrapy itself gave up on a body for its size.

    While receiving it raises what else a cancelled download raises; for one that is too large
    once opened, the exception that elsewhere means that a request is dropped on purpose.
    """
    return isinstance(exception, CANCELLED) or (
        type(exception) is IgnoreRequest
        and type(exception.__cause__).__name__ == "_DecompressionMaxSizeExceeded"
    )
