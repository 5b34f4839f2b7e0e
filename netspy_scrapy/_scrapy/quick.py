"""What Scrapy does for each page though nobody is there for it, left out.

Nothing comes out otherwise: signals that somebody listens to are sent, log lines that a handler
takes are written, middlewares are asked in their order.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pydispatch import dispatcher  # type: ignore[import-untyped]
from scrapy import Request
from scrapy.core.downloader.middleware import DownloaderMiddlewareManager
from scrapy.exceptions import _InvalidOutput
from scrapy.http import Response
from scrapy.logformatter import LogFormatter
from scrapy.signalmanager import SignalManager
from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.python import global_object_name

from netspy_scrapy._scrapy import engine_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from scrapy import Spider
    from scrapy.crawler import Crawler

_ENGINE_LOGGER = logging.getLogger("scrapy.core.engine")
_SCRAPER_LOGGER = logging.getLogger("scrapy.core.scraper")


def quicken(crawler: Crawler) -> None:
    """Leave out what can be, for this crawl; the engine is there already."""
    if type(crawler.signals) is SignalManager:
        _quicken_signals(crawler.signals)
    engine = engine_of(crawler)
    manager: Any = getattr(getattr(engine, "downloader", None), "middleware", None)
    # Before, Scrapy has these as functions within a method.
    if type(manager) is DownloaderMiddlewareManager and hasattr(manager, "_process_response"):
        _Hooks(manager).install()


def _quicken_signals(manager: Any) -> None:
    """Send no signal that nobody is connected to: some ten for each page."""
    send = manager.send_catch_log
    connections = dispatcher.connections
    anyone = id(dispatcher.Any)
    own = id(manager.sender)

    def is_heard(signal: Any) -> bool:
        for key in (own, anyone):
            by_signal = connections.get(key)
            if by_signal and (signal in by_signal or dispatcher.Any in by_signal):
                return True
        return False

    def send_catch_log(signal: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        if "sender" not in kwargs and not is_heard(signal):
            return []
        sent: list[tuple[Any, Any]] = send(signal, **kwargs)
        return sent

    manager.send_catch_log = send_catch_log


class _Hooks:
    """Asks downloader middlewares, and awaits only what one gives to be awaited.

    Scrapy makes a coroutine of each answer, some twenty for a page.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._methods: Any = manager.methods
        self._call: Callable[..., Any] = manager._handle_mw_method  # noqa: SLF001
        self._wanting_spider: set[Any] = manager._mw_methods_requiring_spider  # noqa: SLF001

    def install(self) -> None:
        """Take the place of the manager's own methods."""
        self._manager._process_request = self.process_request  # noqa: SLF001
        self._manager._process_response = self.process_response  # noqa: SLF001

    async def process_request(
        self, request: Request, download: Callable[[Request], Awaitable[Response]]
    ) -> Response | Request:
        """Ask on the way to the downloader."""
        for method in self._methods["process_request"]:
            if self._wanting_spider:
                answer = self._call(method, request=request)
            else:
                answer = method(request=request)
            if answer is None:
                continue
            if not isinstance(answer, (Response, Request)):
                answer = await ensure_awaitable(answer, _warn=global_object_name(method))
                _check(method, answer, Response, Request, type(None))
            if answer is not None:
                return answer  # type: ignore[no-any-return]
        return await download(request)

    async def process_response(
        self, response: Response | Request | None, request: Request
    ) -> Response | Request:
        """Ask on the way back."""
        if response is None:
            raise TypeError("Received None in process_response")
        answer: Any = response
        if isinstance(answer, Request):
            return answer
        for method in self._methods["process_response"]:
            if self._wanting_spider:
                answer = self._call(method, request=request, response=answer)
            else:
                answer = method(request=request, response=answer)
            if isinstance(answer, Response):
                continue
            if not isinstance(answer, Request):
                answer = await ensure_awaitable(answer, _warn=global_object_name(method))
                _check(method, answer, Response, Request)
            if isinstance(answer, Request):
                return answer
        return answer  # type: ignore[no-any-return]


def _check(method: Any, answer: Any, *kinds: type[Any]) -> None:
    if not isinstance(answer, kinds):
        may_be_none = type(None) in kinds
        allowed = "None, Response or Request" if may_be_none else "Response or Request"
        found = type(answer).__name__ if may_be_none else type(answer)
        raise _InvalidOutput(f"Middleware {method.__qualname__} must return {allowed}, got {found}")


class HeardLogFormatter(LogFormatter):
    """Makes the two lines of each page (crawled, scraped) only where a handler takes them.

    Scrapy's handlers look at the level, and its loggers do not: each line would become a record
    that all handlers refuse.
    """

    def crawled(self, request: Request, response: Response, spider: Spider) -> Any:
        """Tell of a page."""
        if not _is_heard(_ENGINE_LOGGER, logging.DEBUG):
            return None
        return super().crawled(request, response, spider)

    def scraped(self, item: Any, response: Any, spider: Spider) -> Any:
        """Tell of an item."""
        if not _is_heard(_SCRAPER_LOGGER, logging.DEBUG):
            return None
        return super().scraped(item, response, spider)


def _is_heard(logger: logging.Logger, level: int) -> bool:
    """Tell whether some handler would take a record of *logger*."""
    if not logger.isEnabledFor(level):
        return False
    one: logging.Logger | None = logger
    while one is not None:
        if logger.filters or any(handler.level <= level for handler in one.handlers):
            return True
        one = one.parent if one.propagate else None
    return False
