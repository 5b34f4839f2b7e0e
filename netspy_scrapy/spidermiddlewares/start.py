"""The pace of ``start()``."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request

from netspy_scrapy import _scrapy
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.pacing import Pace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy.crawler import Crawler
    from typing_extensions import Self


#: Seconds for which start() may go on without a turn of the loop where nodes share what it yields.
_SLICE: Final = 0.005


class StartPaceMiddleware:
    """Lets ``start()`` run ahead only as far as the queue and the sinks can follow.

    Scrapy asks ``start()`` for the next request without a turn of the event loop while its
    downloader is busy, so a long list of URLs fills the memory before the first answer is
    handled. Settings: NETSPY_START_MAX_QUEUED.

    Where nodes share the work, all of them wait for what this one yields, so there a turn of the
    loop, with the callbacks in it, is taken each few milliseconds, and not for each request.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._pace = Pace(crawler)
        self._escapes = CrawlContext.of(crawler).escapes

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pass on what ``start()`` yields, at a pace that the crawl can follow."""
        is_shared = getattr(_scrapy.scheduler_of(self._crawler), "is_shared", False)
        turn_ends = 0.0
        async for one in self._escapes.output(start):
            if is_shared and isinstance(one, Request):
                assert self._crawler.engine is not None
                self._crawler.engine.crawl(one)  # as Scrapy does with what is yielded
            else:
                yield one
            if not is_shared or time.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + _SLICE
            await self._pace.wait_for_queue()
            await self._pace.wait_for_sinks()
