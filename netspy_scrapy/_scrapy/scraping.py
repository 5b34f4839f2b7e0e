"""Where answers meet their callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.spider import iterate_spider_output
from twisted.python.failure import Failure

from netspy_scrapy._scrapy import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response


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
    slot: Any = engine._slot  # noqa: SLF001
    scraper: Any = engine.scraper
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


def watch_items(crawler: Crawler, begins: Callable[[], None]) -> None:
    """Call *begins* when an item starts its way through the pipelines, in its task."""
    engine = engine_of(crawler)
    assert engine is not None
    scraper: Any = engine.scraper
    original = scraper.start_itemproc_async

    async def start_itemproc(item: Any, *, response: Any) -> None:
        begins()
        await original(item, response=response)

    scraper.start_itemproc_async = start_itemproc


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
