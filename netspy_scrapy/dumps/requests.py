"""Lines of FAILED_REQUEST_PATH: requests that failed for good, or were not done at a stop.

A line holds netspy's fields (``url method callback priority retry_times filter_repeat render
wait_for render_time cb_kwargs requests_kwargs custom``), so that netspy can replay it, and of our
own ``request`` (``Request.to_dict``), ``spider``, ``spider_path`` (``file.py:Class`` or
``module:Class``), ``reason``, ``status`` (int or null), ``attempts`` and ``time`` (ISO 8601, UTC).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy import stats as keys
from netspy_scrapy.dumps.classes import class_name
from netspy_scrapy.dumps.codec import encode_line_lossy
from netspy_scrapy.dumps.files import DumpFile
from netspy_scrapy.dumps.items import now
from netspy_scrapy.escapes import in_thread
from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.http.request import NETSPY_PRIORITY
from netspy_scrapy.logs import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector

logger = logging.getLogger(__name__)

#: Lines kept in memory before they are written, at the latest in _FLUSH_INTERVAL seconds.
_BATCH = 500
_FLUSH_INTERVAL = 0.2
#: Seconds that a process which is to end at once spends on the lines of what was queued.
_LAST_SECONDS = 3.0


def request_record(
    request: Request, spider: Spider, *, reason: str, status: int | None = None
) -> dict[str, Any]:
    """Return the line of *request*, as a dict of plain and tagged values."""
    bare = _scrapy.shallow_copy(request)
    bare.callback = bare.errback = None  # to_dict() refuses what is no method
    state = bare.to_dict()
    state["callback"] = callback_name(request.callback, spider)
    state["errback"] = callback_name(request.errback, spider)
    meta = request.meta
    asked = meta.get(metakeys.RENDER)
    render = asked if isinstance(asked, dict) else {}
    kwargs = dict(getattr(request, "requests_kwargs", None) or {})
    if not hasattr(request, "requests_kwargs"):
        if request.headers:
            kwargs["headers"] = {
                key.decode("latin-1"): b",".join(values).decode("latin-1")
                for key, values in request.headers.items()
            }
        if request.cookies:
            kwargs["cookies"] = request.cookies
        if request.body:
            kwargs["content"] = request.body
    return {
        "url": getattr(request, "given_url", None) or request.url,
        "method": request.method,
        "callback": state["callback"],
        "priority": NETSPY_PRIORITY - getattr(request, "scrapy_priority", request.priority),
        "retry_times": meta.get("retry_times", 0),
        "filter_repeat": not request.dont_filter,
        "render": bool(meta.get(metakeys.RENDER)),
        "wait_for": render.get("wait_for"),
        "render_time": render.get("time"),
        "cb_kwargs": request.cb_kwargs,
        "requests_kwargs": kwargs,
        "custom": getattr(request, "custom", {}),
        "request": state,
        "spider": spider.name,
        "spider_path": class_name(type(spider)),
        "reason": reason,
        "status": status,
        "attempts": meta.get("retry_times", 0) + 1,
        "time": now(),
    }


def callback_name(callback: Any, spider: Spider) -> str | None:
    """Return what names *callback* in a line: a method of the spider, or ``module:function``.

    A lambda or a closure gets the name it prints as, which a replay cannot find: it says so, and
    the line stays.
    """
    callback = getattr(callback, "netspy_given", callback)  # it is guarded, and about to be called
    if callback is None or isinstance(callback, str):
        return callback
    function = getattr(callback, "wrapped", callback)
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", None)
    if owner is spider and name:
        return str(name)
    qualified = getattr(function, "__qualname__", None) or repr(function)
    return f"{getattr(function, '__module__', '?')}:{qualified}"


class RequestDump:
    """Writes the lines of a crawl: collected on the event loop, appended in a thread."""

    def __init__(self, path: str, crawler: Crawler, on_mark: Callable[[], None]) -> None:
        self.path = path
        self.accepted = 0
        """How many lines it took."""
        self.mark = 0
        """How many of them, from the first on, are in the file."""
        self._on_mark = on_mark
        self.is_broken = False
        """Whether a line was lost: from then on the mark does not rise."""
        self._file = DumpFile(path)
        self.problem = self._file.check_writable()
        """Why lines cannot be written; None: they can, as far as is known."""
        self._crawler = crawler
        self._lines: list[str] = []
        self._writing: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, request: Request, *, reason: str, status: int | None = None) -> None:
        """Take *request*; its line is written soon, at the latest by :meth:`close`."""
        self.accepted += 1
        line = self._line(request, reason, status)
        if line is None:
            self.is_broken = True
            return
        self._lines.append(line)
        if len(self._lines) >= _BATCH:
            self._start()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_INTERVAL, self._start)

    def _line(self, request: Request, reason: str, status: int | None) -> str | None:
        """Return the line of *request*; None: there can be none, and that is said."""
        spider = self._crawler.spider
        assert spider is not None
        try:
            record = request_record(request, spider, reason=reason, status=status)
            line, replaced = encode_line_lossy(record)
        except Exception:
            # Whoever calls this can do nothing about it; the request is named.
            self._stats.inc_value(keys.REQUESTS_LOST)
            logger.exception("LOST: %s cannot be dumped", shown(request))
            return None
        if replaced:
            logger.warning(
                "%s is dumped without what cannot be written: %s",
                shown(request),
                ", ".join(replaced),
            )
        return line

    @property
    def _stats(self) -> StatsCollector:
        stats = self._crawler.stats
        assert stats is not None
        return stats

    async def flush(self) -> None:
        """Write every line taken so far."""
        while self._lines or self._task is not None:
            self._start()
            if self._task is not None:
                await self._task

    def dump_now(self, unfinished: Iterable[Request] = (), *, reason: str = "") -> tuple[int, int]:
        """Write what is held, and the lines of *unfinished*, without the event loop.

        For a process that ends: it stops after some seconds, and says what it has left out. Returns
        how many lines were held, and how many requests of *unfinished* have one now. Lines that
        were being written may be there twice.
        """
        lines = [*self._writing, *self._lines]
        self._writing, self._lines = [], []
        held, count = len(lines), 0
        until = time.monotonic() + _LAST_SECONDS
        requests = iter(unfinished)
        for request in requests:
            line = self._line(request, reason, None)
            if line is not None:
                lines.append(line)
                count += 1
            if len(lines) >= _BATCH:
                self._append_now(lines)
                lines = []
            if time.monotonic() > until:
                left = sum(1 for _ in requests)
                self._stats.inc_value(keys.REQUESTS_LOST, left)
                logger.error("LOST: %d queued requests: the process was to end at once", left)
                break
        self._append_now(lines)
        return held, count

    def _lose(self, lines: list[str], why: str) -> None:
        self.problem = why
        self.is_broken = True
        self._stats.inc_value(keys.REQUESTS_LOST, len(lines))
        logger.error("LOST: %d requests could not be written: %s", len(lines), why)

    def _append_now(self, lines: list[str]) -> None:
        if not lines:
            return
        try:
            self._file.append(lines)
        except DumpError as exc:
            self._lose(lines, str(exc))
            return
        self._stats.inc_value(keys.REQUESTS_DUMPED, len(lines))

    async def close(self) -> None:
        """Write what is left."""
        await self.flush()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and self._lines:
            self._task = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        lines = self._writing = self._lines
        self._lines = []
        number = self.accepted
        try:
            await in_thread(self._file.append, lines)
        except DumpError as exc:
            self._lose(lines, str(exc))
        except Exception as exc:
            self._lose(lines, f"{type(exc).__name__}: {exc}")
            logger.exception("A fault in writing %s", self.path)
        else:
            self.problem = None
            self._stats.inc_value(keys.REQUESTS_DUMPED, len(lines))
            if not self.is_broken:
                self.mark = number
                self._on_mark()
        finally:
            self._task = None
            self._writing = []
            if self._lines:
                self._start()
