"""The only module that touches what Scrapy keeps private, tested against each Scrapy version."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import sys
import threading
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar, cast

from scrapy import Request, signals
from scrapy.core.downloader import Slot
from scrapy.exceptions import IgnoreRequest
from scrapy.pqueues import _path_safe
from scrapy.utils.defer import deferred_from_coro, ensure_awaitable, maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.reactor import install_reactor, is_reactor_installed
from scrapy.utils.spider import iterate_spider_output
from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.python.failure import Failure

from netspy_scrapy.exceptions import SpiderError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from scrapy.core.engine import ExecutionEngine
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

_ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"

RequestT = TypeVar("RequestT", bound=Request)


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


def _length(scheduler: Any) -> int:
    try:
        return len(scheduler)
    except TypeError:
        return 0


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
    """Make ``scrapy crawl`` and ``scrapy runspider`` end with status 1.

    They do so for a crawler that has no spider once it is done, which is how Scrapy notices a
    crawl that could not start; no signal or setting reaches the exit status.
    """

    def forget_spider() -> None:
        crawler.spider = None

    crawler.signals.connect(forget_spider, signals.engine_stopped, weak=False)


def _slot(crawler: Crawler) -> Any:
    engine = engine_of(crawler)
    return None if engine is None else engine._slot  # noqa: SLF001


def set_url(request: Request, url: str) -> None:
    """Change the URL of a request in place (``download_midware``); Scrapy knows only copies."""
    request._set_url(url)  # noqa: SLF001


def set_body(request: Request, body: bytes) -> None:
    """Change the body of a request in place."""
    request._set_body(body)  # noqa: SLF001


def set_meta(request: Request, meta: dict[str, Any]) -> None:
    """Give *request*, a shallow copy, a meta of its own."""
    request._meta = meta  # noqa: SLF001


def shallow_copy(request: RequestT) -> RequestT:
    """Return a copy that shares meta, headers and everything else with *request*.

    ``Request.copy()`` runs the constructor, which costs ten times as much.
    """
    cls = type(request)
    other = cls.__new__(cls)
    for base in cls.__mro__:
        for slot in base.__dict__.get("__slots__", ()):
            if slot != "__weakref__" and hasattr(request, slot):
                setattr(other, slot, getattr(request, slot))
    if hasattr(request, "__dict__"):  # a plain request has none from Scrapy 2.19 on
        other.__dict__.update(request.__dict__)
    return other


def keep(crawler: Crawler, coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine beside the crawl; the loop itself keeps only a weak reference."""
    tasks = crawler.__dict__.setdefault("_netspy_tasks", set())
    task = asyncio.ensure_future(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def become(request: RequestT, other: RequestT) -> None:
    """Give *request* the whole state of *other*: the engine knows it by its identity."""
    for base in type(request).__mro__:
        for slot in base.__dict__.get("__slots__", ()):
            if slot != "__weakref__" and hasattr(other, slot):
                setattr(request, slot, getattr(other, slot))
    request.__dict__.clear()
    request.__dict__.update(other.__dict__)


def reactor_loop(settings: BaseSettings) -> asyncio.AbstractEventLoop:
    """Return the loop of the asyncio reactor, which is installed and started if there is none.

    The reactor counts as running from then on; it does its work whenever the loop runs. Its
    threads (DNS look-ups) end with the process.
    """
    if not is_reactor_installed():
        install_reactor(_ASYNCIO_REACTOR, settings["ASYNCIO_EVENT_LOOP"])
    from twisted.internet import reactor as installed  # noqa: PLC0415 - importing it installs one

    reactor: Any = installed
    loop = getattr(reactor, "_asyncioEventloop", None)
    if loop is None:
        raise SpiderError(
            f"{type(reactor).__name__} is installed as the reactor of this process: "
            "start() needs Twisted's AsyncioSelectorReactor, or none"
        )
    if not loop.is_running() and not getattr(reactor, "_started", False):
        pool = reactor.getThreadPool()
        pool.threadFactory = functools.partial(threading.Thread, daemon=True)
        reactor.startRunning(installSignalHandlers=False)
    return cast("asyncio.AbstractEventLoop", loop)


def install_resolver(crawler: Crawler) -> None:
    """Let the reactor look up names as the settings say, as Scrapy's process does at its start."""
    from twisted.internet import reactor as installed  # noqa: PLC0415

    reactor: Any = installed
    settings = crawler.settings
    path = settings.get("TWISTED_DNS_RESOLVER") or settings["DNS_RESOLVER"]
    build: Any = build_from_crawler  # typed for components that take a crawler alone
    resolver = build(load_object(path), crawler, reactor=reactor)
    resolver.install_on_reactor()
    threads = settings.getint("REACTOR_THREADPOOL_MAXSIZE")
    reactor.getThreadPool().adjustPoolsize(maxthreads=threads)


def shutdown_handlers() -> dict[int, Any]:
    """Return the handlers of the signals that end a process."""
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def restore_handlers(handlers: dict[int, Any]) -> None:
    """Put back what :func:`shutdown_handlers` returned."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


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
        self._under_way: dict[Request, tuple[Deferred[Any], Deferred[Any]]] = {}
        self._outside = copy_context()
        downloader.fetch = self.fetch

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
        self._under_way[request] = (outcome, inner)
        inner.addBoth(lambda result: self._finish(request, outcome, result))
        return outcome

    def cut_off(self, request: Request, exception: Exception) -> None:
        """Give the engine *exception* at once; what the download still brings goes nowhere."""
        if request in self._under_way:
            self._finish(request, self._under_way[request][0], _failure(exception))

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

    def _finish(self, request: Request, outcome: Deferred[Any], result: Any) -> None:
        if self._under_way.get(request, (None,))[0] is not outcome:
            return  # it was cut off before
        del self._under_way[request]
        try:
            self._done(request, result)
        finally:
            if not outcome.called:  # nobody cancelled it
                # What follows (callbacks, pipelines) is outside the download.
                self._outside.copy().run(outcome.callback, result)


def watch_requests(
    crawler: Crawler,
    yields: Callable[[Any, Any], None],
    yielded: Callable[[], None],
    errback: Callable[[Failure], None],
    removed: Callable[[Request], None],
) -> None:
    """Tell what the engine does with requests.

    *yields* gets each output of a callback or errback with the response (or failure) it comes
    from, after all spider middlewares and right before the engine does; *yielded* is called after.
    *errback* gets each failure that an errback is asked about. *removed* gets each request once
    the engine is through with it: callback or errback, and all items in the pipelines. No signal
    covers all of these.
    """
    engine = engine_of(crawler)
    assert engine is not None
    slot, scraper = _slot(crawler), cast("Any", engine.scraper)
    remove, process, call = (
        slot.remove_request, scraper._process_spidermw_output_async,  # noqa: SLF001
        scraper.call_spider_async,
    )  # fmt: skip

    def watched_remove(request: Request) -> None:
        try:
            removed(request)
        finally:
            remove(request)

    async def watched_process(output: Any, source: Any) -> None:
        yields(output, source)
        try:
            await process(output, source)
        finally:
            yielded()

    async def watched_call(result: Any, request: Request) -> Any:
        if isinstance(result, Failure):
            result.request = request  # type: ignore[attr-defined]  # as Scrapy does a moment later
            errback(result)
        return await call(result, request)

    slot.remove_request = watched_remove
    scraper._process_spidermw_output_async = watched_process  # noqa: SLF001
    scraper.call_spider_async = watched_call


def call_callbacks_by(
    crawler: Crawler, call: Callable[[Callable[..., Any], Response, dict[str, Any]], Any]
) -> None:
    """Let *call* call the callbacks of answers, with the answer and cb_kwargs, and await it."""
    engine = engine_of(crawler)
    assert engine is not None
    scraper: Any = engine.scraper
    original = scraper.call_spider_async

    async def call_spider(result: Any, request: Request) -> Any:
        if isinstance(result, Failure):
            return await original(result, request)
        if result.request is None:
            result.request = request
        spider: Any = crawler.spider
        callback = result.request.callback or spider._parse  # noqa: SLF001
        output = await call(callback, result, result.request.cb_kwargs)
        return await ensure_awaitable(iterate_spider_output(output))

    scraper.call_spider_async = call_spider


def _failure(exception: Exception) -> Any:
    return Failure(exception)  # type: ignore[no-untyped-call]


def requests_under_way(crawler: Crawler) -> list[Request]:
    """Return the requests that the downloader or its middlewares have."""
    engine = engine_of(crawler)
    return [] if engine is None else list(engine.downloader.active)


def watch_closing(crawler: Crawler, closing: Callable[[], None]) -> None:
    """Call *closing* once the spider is being closed, for whatever reason. No signal says so."""
    slot = _slot(crawler)
    close = slot.close

    async def watched() -> None:
        closing()
        await close()

    slot.close = watched


def start_is_exhausted(crawler: Crawler) -> bool:
    """Tell whether ``start()`` has yielded all it had."""
    engine = engine_of(crawler)
    return engine is None or engine._start is None  # noqa: SLF001


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


class _ByHost(dict[str, Any]):
    """DOWNLOAD_SLOTS, in which a host name stands for all its ports."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key) or super().get(key.partition(":")[0], default)


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


def is_unusable_answer(exception: BaseException) -> bool:
    """Tell whether Scrapy gave up on an answer: a redirect without end, a body too big unpacked.

    Both raise the exception that elsewhere means that a request is dropped on purpose.
    """
    return type(exception) is IgnoreRequest and (
        str(exception) == "max redirections reached"
        or type(exception.__cause__).__name__ == "_DecompressionMaxSizeExceeded"
    )
