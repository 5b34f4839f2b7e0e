"""Download handlers beside Scrapy's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.utils.defer import ensure_awaitable

from netspy_scrapy._scrapy import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response


def divert_downloads(
    crawler: Crawler,
    download: Callable[[Request], Coroutine[Any, Any, Response] | None],
    close: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Let *download* bring the answers of those requests for which it returns a coroutine.

    They keep their download slots and all else. *close* is awaited once the engine has stopped.
    """
    engine = engine_of(crawler)
    assert engine is not None
    handlers: Any = engine.downloader.handlers
    original = handlers.download_request_async

    async def diverted(request: Request) -> Any:
        own = download(request)
        return await (original(request) if own is None else own)

    handlers.download_request_async = diverted
    crawler.signals.connect(close, signals.engine_stopped, weak=False)


async def close_handler(handler: Any) -> None:
    """Close a download handler, whichever kind of answer that gives."""
    await ensure_awaitable(handler.close())
