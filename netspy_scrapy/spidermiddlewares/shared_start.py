"""``start()`` is run by one node only."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from netspy_scrapy import _scrapy
from netspy_scrapy.redis.first_requests import FirstRequests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from netspy_scrapy.redis.scheduler import RedisScheduler


class SharedStartMiddleware:
    """Lets one node yield the first requests, for spiders that do not see to it themselves.

    The others wait until all of them are in Redis, and work on what comes. ``start_callback`` of a
    netspy spider runs on each. Setting: NETSPY_SHARED_START.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pass on what ``start()`` yields, or nothing."""
        spider: Spider | None = self._crawler.spider
        assert spider is not None
        scheduler: RedisScheduler = _scrapy.scheduler_of(self._crawler)
        begin = getattr(spider, "netspy_begin", None)
        if begin is not None:
            begin()
        async with aclosing(FirstRequests(scheduler, spider).of(start)) as first:
            async for one in first:
                yield one
