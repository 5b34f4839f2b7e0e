"""Callbacks that compute: run in threads when asked, named when they stop the event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import NotConfigured

from netspy_scrapy._scrapy import scraping
from netspy_scrapy.settings import read_int, read_number

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import FrameType

    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

#: Outputs, and seconds, after which a thread hands over what a callback has yielded.
_PORTION = 100
_PORTION_SECONDS = 0.05

#: Where this package's own code is.
_OURS = str(Path(__file__).parent.parent)
#: Functions that run a loop, and their files.
_LOOPS = frozenset(
    {("_run_once", "base_events.py"), ("run", "asyncioreactor.py"), ("run", "host.py")}
)
#: As many places are named in a run.
_MOST_PLACES = 20


class CallbackThreads:
    """Runs the sync callbacks of the spider in NETSPY_CALLBACK_THREADS threads.

    A callback that computes for long stops every other page while it runs on the event loop. In
    a thread it does not; it must not use the engine there. What it yields is handed over in
    portions, in its order. ``async def`` callbacks and errbacks stay on the loop.
    """

    def __init__(self, crawler: Crawler) -> None:
        threads = read_int(crawler.settings, "NETSPY_CALLBACK_THREADS")
        if not threads:
            raise NotConfigured
        self._crawler = crawler
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="callback")
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the extension."""
        return cls(crawler)

    def spider_opened(self) -> None:
        """Take over the calls of callbacks."""
        scraping.call_callbacks_by(self._crawler, self._call)

    def spider_closed(self) -> None:
        """Let the threads end."""
        self._pool.shutdown(wait=False)

    async def _call(self, callback: Callable[..., Any], response: Any, kwargs: Any) -> Any:
        """Call *callback*, and return what it gives as Scrapy takes it."""
        function = inspect.unwrap(callback)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return callback(response, **kwargs)
        output = await self._in_thread(callback, response, **kwargs)
        if inspect.isgenerator(output):
            return self._iterate(output)
        return output

    async def _iterate(self, outputs: Iterator[Any]) -> AsyncIterator[Any]:
        while True:
            portion, is_over, error = await self._in_thread(_portion, outputs)
            for one in portion:
                yield one
            if error is not None:
                raise error
            if is_over:
                return

    async def _in_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        context = copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, lambda: context.run(function, *args, **kwargs)
        )


def _portion(outputs: Iterator[Any]) -> tuple[list[Any], bool, BaseException | None]:
    """Return what comes next, whether that was all, and what was raised after it."""
    portion: list[Any] = []
    until = time.monotonic() + _PORTION_SECONDS
    try:
        for one in outputs:
            portion.append(one)
            if len(portion) >= _PORTION or time.monotonic() > until:
                return portion, False, None
    except Exception as exc:  # noqa: BLE001 - what came before it counts
        return portion, True, exc
    return portion, True, None


class BlockedLoop:
    """Names the code that stops the event loop for longer than NETSPY_BLOCK_WARNING seconds.

    While it is stopped no page moves, of whatever domain. A thread looks at what the loop is
    doing, so nothing is measured for each page.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._limit = read_number(crawler.settings, "NETSPY_BLOCK_WARNING", unit="seconds")
        if self._limit <= 0:
            raise NotConfigured
        self._crawler = crawler
        self._beat = 0.0
        self._is_over = threading.Event()
        self._told: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the extension."""
        return cls(crawler)

    def spider_opened(self) -> None:
        """Begin to watch the loop of this thread."""
        self._tick()
        threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="blocked-loop", daemon=True
        ).start()

    def spider_closed(self) -> None:
        """Stop watching."""
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._beat = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(self._limit / 4, self._tick)

    def _watch(self, thread: int) -> None:
        while not self._is_over.wait(self._limit / 4):
            seconds = time.monotonic() - self._beat
            if seconds < self._limit or len(self._told) >= _MOST_PLACES:
                continue
            frame = _to_blame(sys._current_frames().get(thread))  # noqa: SLF001 - the only way
            if frame is not None:
                self._tell(frame, seconds)

    def _tell(self, frame: FrameType, seconds: float) -> None:
        code = frame.f_code
        if code.co_filename + code.co_name in self._told:
            return
        self._told.add(code.co_filename + code.co_name)
        logger.warning(
            "The event loop is blocked since %.1f s by %s (%s:%d): no page moves meanwhile. Await "
            "what waits; NETSPY_CALLBACK_THREADS runs callbacks that compute in threads",
            seconds, code.co_name, code.co_filename, frame.f_lineno,
            extra={"spider": self._crawler.spider},
        )  # fmt: skip


def _to_blame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the project's own code; None: there is none.

    The script that started the crawl is on the stack too, below the event loop.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        # What runs the loop; uvloop's own part has no frames.
        if (frame.f_code.co_name, Path(name).name) in _LOOPS:
            return None
        libraries = ("<", sys.prefix, sys.base_prefix, _OURS)
        if "site-packages" not in name and not name.startswith(libraries):
            return frame
        frame = frame.f_back
    return None
