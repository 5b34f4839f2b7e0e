"""Keeping what an unchanged page will yield next time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.exceptions import NotConfigured

from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.incremental.pages import request_to_line
from netspy_scrapy.settings import read_bool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self


class KeepChildrenMiddleware:
    """Notes the requests that callbacks yield, for pages in the mode ``follow``.

    It stands next to the spider: what it notes goes through all spider middlewares again when it
    is yielded again.

    Settings: NETSPY_INCREMENTAL, NETSPY_INCREMENTAL_ON_304.
    """

    def __init__(self, crawler: Crawler) -> None:
        if not read_bool(crawler.settings, "NETSPY_INCREMENTAL"):
            raise NotConfigured
        self._crawler = crawler
        self._incremental = CrawlContext.of(crawler).incremental

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Pass on what the callback yields, and note the requests."""
        request = response.request
        assert request is not None
        if not self._incremental.keeps_children(request):
            async for one in result:
                yield one
            return
        lines: list[str] | None = []
        async for one in result:
            if lines is not None and isinstance(one, Request):
                try:
                    lines.append(request_to_line(one, self._spider))
                except DumpError as exc:
                    lines = None
                    self._incremental.cannot_keep(request, str(exc))
            yield one
        if lines is not None:
            self._incremental.keep_children(request, lines)

    @property
    def _spider(self) -> Spider:
        spider = self._crawler.spider
        assert spider is not None
        return spider
