"""Lines of FAILED_REQUEST_PATH: requests that failed for good, or were not done at a stop.

A line holds netspy's fields (``url method callback priority retry_times filter_repeat render
wait_for render_time cb_kwargs requests_kwargs custom``), so that netspy can replay it, and of our
own ``request`` (``Request.to_dict``), ``spider``, ``spider_path`` (``file.py:Class`` or
``module:Class``), ``reason``, ``status`` (int or null), ``attempts`` and ``time`` (ISO 8601, UTC).
"""

from __future__ import annotations

import asyncio
import logging
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
    from collections.abc import Callable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

#: Lines kept in memory before they are written, at the latest in _FLUSH_INTERVAL seconds.
_BATCH = 500
_FLUSH_INTERVAL = 0.2


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
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, request: Request, *, reason: str, status: int | None = None) -> None:
        """Take *request*; its line is written soon, at the latest by :meth:`close`."""
        self.accepted += 1
        spider = self._crawler.spider
        assert spider is not None
        try:
            record = request_record(request, spider, reason=reason, status=status)
            line, replaced = encode_line_lossy(record)
        except Exception:
            # Whoever calls this can do nothing about it; the request is named.
            stats = self._crawler.stats
            assert stats is not None
            stats.inc_value(keys.REQUESTS_LOST)
            self._is_broken = True
            logger.exception("LOST: %s cannot be dumped", shown(request))
            return
        if replaced:
            logger.warning(
                "%s is dumped without what cannot be written: %s",
                shown(request),
                ", ".join(replaced),
            )
        self._lines.append(line)
        self.accepted += 1
        if len(self._lines) >= _BATCH:
            self._start()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_INTERVAL, self._start)

    async def flush(self) -> None:
        """Write every line taken so far."""
        while self._lines or self._task is not None:
            self._start()
            if self._task is not None:
                await self._task

    def dump_now(self) -> int:
        """Write what is held, without the event loop; return how many lines that were."""
        lines, self._lines = self._lines, []
        if lines:
            try:
                self._file.append(lines)
            except DumpError as exc:
                logger.error("LOST: %d failed requests: %s", len(lines), exc)  # noqa: TRY400
                return 0
        return len(lines)

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
        lines, self._lines = self._lines, []
        number = self.accepted
        stats = self._crawler.stats
        assert stats is not None
        try:
            await in_thread(self._file.append, lines)
        except DumpError as exc:
            self.problem = str(exc)
            self.is_broken = True
            stats.inc_value(keys.REQUESTS_LOST, len(lines))
            logger.error(  # noqa: TRY400 - the message says it all
                "LOST: %d failed requests could not be written: %s", len(lines), exc
            )
        else:
            self.problem = None
            stats.inc_value(keys.REQUESTS_DUMPED, len(lines))
            if not self.is_broken:
                self.mark = number
                self._on_mark()
        finally:
            self._task = None
            if self._lines:
                self._start()
