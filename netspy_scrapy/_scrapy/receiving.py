"""Receiving bodies within a budget: nothing of Scrapy's public parts can hold a body back."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import Request, signals
from scrapy.exceptions import StopDownload
from scrapy.utils.httpobj import urlparse_cached
from twisted.internet.defer import maybeDeferred

from netspy_scrapy import stats as keys
from netspy_scrapy._scrapy import CANCELLED, engine_of
from netspy_scrapy.budget import Body, Budget
from netspy_scrapy.logs import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.internet.defer import Deferred

logger = logging.getLogger(__name__)

#: Bytes that a body reserves ahead of what it has: as many as are read from a socket at once.
STEP = 64 * 1024
#: How often a download is begun anew: only a site that falls silent again and again needs more.
_BEGUN_ANEW = 3
#: Seconds without a byte after which the body that need not fit lets another one be that.
_SILENCE = 1.0

#: Whether the present code runs inside a download: in a middleware that needs another page first.
_inside: ContextVar[bool] = ContextVar("_inside", default=False)
_receiving: ContextVar[_Receipt | None] = ContextVar("_receiving", default=None)


class _Receipt(Body):
    """A body with what is known of its download."""

    __slots__ = ("declared", "moved", "pause", "received", "room")

    def __init__(self) -> None:
        super().__init__()
        self.received = 0
        self.declared: int | None = None
        """Content-Length, if the body has one."""
        self.moved = False
        """Whether a byte came since the last look."""
        self.pause: Callable[[], None] | None = None
        self.room: asyncio.Future[None] | None = None
        """What a coroutine that needs the bytes waits for."""

    def begin(self) -> None:
        """Forget an attempt that is over."""
        self.received = 0
        self.declared = None
        self.pause = None
        self.resume = None

    async def wait(self) -> None:
        """Wait until the budget has what was asked for."""
        self.room = asyncio.get_running_loop().create_future()
        self.resume = self._enter
        try:
            await self.room
        finally:
            self.room = None

    def _enter(self) -> None:
        if self.room is not None and not self.room.done():
            self.room.set_result(None)


class Bodies:
    """Holds the bodies of a crawl to a budget, from their first byte until they are opened.

    Scrapy's HTTP/1.1 handler and its handlers for aiohttp and httpx stop reading from a connection
    whose body has to wait; so the site stops sending. What other handlers receive is counted, and
    not held back. What another download waits for (a token that a middleware fetches) is neither:
    that other may hold what it would wait for. A download that fails after such a wait, since the
    site or the clock of the download lost patience, is begun anew as soon as it need not wait: it
    has not failed.

    *is_cut* tells whether nothing may be downloaded any more, *is_queued* whether a request came
    from the queue.

    Stats: ``netspy/bodies/held``, ``netspy/bodies/again``.
    """

    def __init__(
        self,
        crawler: Crawler,
        limit: int,
        *,
        is_cut: Callable[[], bool],
        is_queued: Callable[[Request], bool],
    ) -> None:
        self._crawler = crawler
        self._is_cut = is_cut
        self._is_queued = is_queued
        sharers = crawler.settings.getint("CONCURRENT_REQUESTS")
        self.budget = Budget(limit, sharers)
        self._receipts: dict[Request, _Receipt] = {}
        self._nested: WeakSet[Request] = WeakSet()
        """Requests for which other downloads wait, whose bodies may be held."""
        self._arriving: Any = None
        """The answer of the HTTP/1.1 handler whose headers are told of next."""
        self._timer: asyncio.TimerHandle | None = None
        self._told = False
        connect = crawler.signals.connect
        connect(self._spider_opened, signals.spider_opened)
        connect(self._spider_closed, signals.spider_closed)
        connect(self._headers_received, signals.headers_received)
        connect(self._bytes_received, signals.bytes_received)

    # Opening -------------------------------------------------------------------------------------
    def room_to_open(self, request: Request) -> int | None:
        """Return how many bytes the body of *request* may open to right now; None: any number."""
        receipt = self._receipts.get(request)
        return None if receipt is None else self.budget.room(receipt)

    def opened(self, request: Request) -> None:
        """Note that the body of *request* is opened, or cannot be."""
        receipt = self._receipts.pop(request, None)
        if receipt is not None:
            self.budget.close(receipt)

    async def wait_to_open(self, request: Request, size: int) -> None:
        """Wait until the body of *request* may open to *size* bytes; 0: to any number."""
        receipt = self._receipts.get(request)
        if receipt is not None:
            await self._wait_for(receipt, size or self.budget.limit + 1)

    # Scrapy --------------------------------------------------------------------------------------
    def _spider_opened(self) -> None:
        engine = engine_of(self._crawler)
        assert engine is not None
        downloader: Any = engine.downloader
        fetch, handlers = downloader.fetch, downloader.handlers
        download = handlers.download_request_async
        watched_handlers: set[int] = set()

        def watched_fetch(request: Request, *args: Any) -> Deferred[Any]:
            def done(result: Any) -> Any:
                self.opened(request)
                return result

            # One of the queue may have been handed out by what a download did in the end.
            if _inside.get() and not self._is_queued(request):
                self._nested.add(request)
            token = _inside.set(True)
            try:
                return maybeDeferred(fetch, request, *args).addBoth(done)
            finally:
                _inside.reset(token)

        async def watched_download(request: Request) -> Response:
            handler = handlers._get_handler(urlparse_cached(request).scheme)  # noqa: SLF001
            if handler is not None and id(handler) not in watched_handlers:
                watched_handlers.add(id(handler))
                self._watch(handler)
                self._watch(getattr(handler, "http11", None))  # what ours hands requests on to
            return await self._receive(download, request)

        downloader.fetch = watched_fetch
        handlers.download_request_async = watched_download

    def _spider_closed(self) -> None:
        self.budget.dissolve()
        if self._timer is not None:
            self._timer.cancel()

    async def _receive(self, download: Callable[[Request], Any], request: Request) -> Response:
        # Downloaded twice at once, or needed by a download that may itself hold what it waits for.
        if request in self._receipts or request in self._nested:
            return await download(request)  # type: ignore[no-any-return]
        receipt = self._receipts[request] = _Receipt()
        token = _receiving.set(receipt)
        try:
            response: Response = await self._download(download, request, receipt)
        except BaseException:
            self.opened(request)
            raise
        finally:
            _receiving.reset(token)
        if response.headers.get(b"Content-Encoding"):
            self.budget.shrink(receipt, len(response.body))
        else:
            self.opened(request)
        return response

    async def _download(
        self, download: Callable[[Request], Any], request: Request, receipt: _Receipt
    ) -> Response:
        for _ in range(_BEGUN_ANEW):
            try:
                return await download(request)  # type: ignore[no-any-return]
            except Exception as exc:
                ended = isinstance(exc, (StopDownload, *CANCELLED))  # too large, or the like
                if ended or not receipt.was_held or self._is_cut():
                    raise
                logger.info(
                    "%s is fetched again: its body had to wait for NETSPY_MAX_INFLIGHT_BYTES (%s)",
                    shown(request), type(exc).__name__, extra={"spider": self._crawler.spider},
                )  # fmt: skip
            self._count(keys.BODIES_AGAIN)
            self.budget.close(receipt)
            receipt.begin()
            # More than there is: it is granted to the one that need not fit.
            await self._wait_for(receipt, self.budget.limit + 1)
            self.budget.shrink(receipt, 0)
            receipt.was_held = False
        return await download(request)  # type: ignore[no-any-return]

    async def _wait_for(self, receipt: _Receipt, size: int) -> None:
        if not self._reserve(receipt, size):
            await receipt.wait()

    # The handlers --------------------------------------------------------------------------------
    def _watch(self, handler: Any) -> None:
        pool: Any = getattr(handler, "_pool", None)
        chunks = getattr(handler, "_iter_body_chunks", None)
        if chunks is not None:
            handler._iter_body_chunks = _held_back(chunks)  # noqa: SLF001
        elif hasattr(pool, "getConnection"):
            get_connection = pool.getConnection

            def connection(*args: Any) -> Deferred[Any]:
                waited: Deferred[Any] = get_connection(*args)
                return waited.addCallback(_Connection, self._arrived)

            pool.getConnection = connection

    def _arrived(self, answer: Any) -> Any:
        self._arriving = answer
        return answer

    def _headers_received(self, body_length: Any, request: Request) -> None:
        answer, self._arriving = self._arriving, None
        receipt = self._receipts.get(request)
        if receipt is None:
            return
        receipt.received = 0
        if isinstance(body_length, int) and body_length >= 0:
            receipt.declared = body_length
        if answer is not None and answer.length == body_length:
            _make_pausable(receipt, answer._transport)  # noqa: SLF001
        self._look_ahead(receipt)

    def _bytes_received(self, data: bytes, request: Request) -> None:
        receipt = self._receipts.get(request)
        if receipt is not None:
            receipt.received += len(data)
            receipt.moved = True
            self._look_ahead(receipt)

    def _look_ahead(self, receipt: _Receipt) -> None:
        size = receipt.received + STEP
        if receipt.declared is not None:
            size = max(receipt.received, min(size, receipt.declared))
        if not self._reserve(receipt, size) and receipt.pause is not None:
            receipt.pause()

    def _reserve(self, receipt: _Receipt, size: int) -> bool:
        held_before = receipt.was_held
        if self.budget.reserve(receipt, size):
            return True
        if not held_before:
            self._count(keys.BODIES_HELD)
        if not self._told:
            self._told = True
            logger.info(
                "NETSPY_MAX_INFLIGHT_BYTES = %d is reached: bodies wait until others are done",
                self.budget.limit, extra={"spider": self._crawler.spider},
            )  # fmt: skip
        self._watch_first()
        return False

    def _watch_first(self) -> None:
        if self._timer is None:
            first = self.budget.first
            if isinstance(first, _Receipt):
                first.moved = False
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_SILENCE, self._look_at_first, first)

    def _look_at_first(self, before: Body | None) -> None:
        self._timer = None
        first = self.budget.first
        if first is before and isinstance(first, _Receipt) and not first.moved:
            self.budget.pass_on()
        if self.budget.waiting:
            self._watch_first()

    def _count(self, key: str) -> None:
        stats = self._crawler.stats
        assert stats is not None
        stats.inc_value(key)


class _Connection:
    """A connection of the pool, as the agent uses it: tells of each answer before others learn."""

    def __init__(self, protocol: Any, arrived: Callable[[Any], Any]) -> None:
        self._protocol = protocol
        self._arrived = arrived

    def request(self, request: Any) -> Deferred[Any]:
        answer: Deferred[Any] = self._protocol.request(request)
        return answer.addCallback(self._arrived)


def _make_pausable(receipt: _Receipt, transport: Any) -> None:
    """Let *receipt* stop and start the reading of an answer's body.

    Twisted itself starts it once it has somebody to hand the body to, which must not undo a stop.
    """
    resume = transport.resumeProducing
    paused = False

    def stop() -> None:
        nonlocal paused
        paused = True
        transport.pauseProducing()

    def start() -> None:
        nonlocal paused
        paused = False
        resume()

    def start_unless_stopped() -> None:
        if not paused:
            resume()

    receipt.pause, receipt.resume = stop, start
    transport.resumeProducing = start_unless_stopped


def _held_back(chunks: Callable[[Any], AsyncIterator[Any]]) -> Callable[[Any], AsyncIterator[Any]]:
    """Return what yields a body's chunks, and does not ask for the next while the body waits."""

    async def held_back(response: Any) -> AsyncIterator[Any]:
        receipt = _receiving.get()
        if receipt is not None and receipt.wanted:
            await receipt.wait()
        async for chunk in chunks(response):
            yield chunk
            if receipt is not None and receipt.wanted:
                await receipt.wait()

    return held_back
