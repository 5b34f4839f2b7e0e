"""Answers from the response cache, in place of a download."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import NotConfigured

from netspy_scrapy.context import CrawlContext

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self


class ResponseCacheMiddleware:
    """Answers requests from RESPONSE_CACHE_PATH, and stores accepted answers to GET there.

    Its place is next to the downloader: headers and cookies are set, answers are as they came
    (compressed, redirects too), and whatever else is in the chain treats an entry as it treated
    the answer. A response from the cache has the flag ``cached``.

    Our queue hands out a request that the cache may have past all delays and limits. If there is
    no entry for it after all, it goes back to the queue, and from there to the site in its turn.

    Settings: RESPONSE_CACHE_ENABLE, RESPONSE_CACHE_PATH, RESPONSE_CACHE_EXPIRE.
    Meta: ``netspy_cache``, ``dont_cache``. Stats: ``netspy/cache/...``.
    """

    def __init__(self, crawler: Crawler) -> None:
        context = CrawlContext.of(crawler)
        if context.cache is None:
            raise NotConfigured
        self._cache = context.cache
        self._passing = context.politeness.passing
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    async def spider_opened(self) -> None:
        """Read what there is."""
        await self._cache.open()

    async def spider_closed(self) -> None:
        """Write what is left."""
        await self._cache.close()

    def process_request(
        self, request: Request
    ) -> Request | Coroutine[Any, Any, Request | Response | None] | None:
        """Answer *request*, or let it go to the site, or back to the queue."""
        if request in self._passing or self._cache.may_have(request):
            return self._look_up(request)
        return self._fetch(request)

    def process_response(self, request: Request, response: Response) -> Response:
        """Store an answer of the site."""
        self._cache.answered(request, response)
        return response

    async def _look_up(self, request: Request) -> Request | Response | None:
        response = await self._cache.read(request)
        return self._fetch(request) if response is None else response

    def _fetch(self, request: Request) -> Request | None:
        if request in self._passing:
            self._cache.mark_missed(request)
            return self._passing.give_back(request)
        self._cache.sent(request)
        return None
