"""The pace of ``start()``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from netspy_scrapy.context import CrawlContext
from netspy_scrapy.pacing import Pace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy.crawler import Crawler
    from typing_extensions import Self


class StartPaceMiddleware:
    """Lets ``start()`` run ahead only as far as the queue and the sinks can follow.

    Scrapy asks ``start()`` for the next request without a turn of the event loop while its
    downloader is busy, so a long list of URLs fills the memory before the first answer is
    handled. Settings: NETSPY_START_MAX_QUEUED.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._pace = Pace(crawler)
        self._escapes = CrawlContext.of(crawler).escapes

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pass on what ``start()`` yields, at a pace that the crawl can follow."""
        async for one in self._escapes.output(start):
            yield one
            await asyncio.sleep(0)
            await self._pace.wait_for_queue()
            await self._pace.wait_for_sinks()
