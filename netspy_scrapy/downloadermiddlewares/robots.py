"""Whether robots.txt lets a page be fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.exceptions import IgnoreRequest, NotConfigured

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import RobotsDeniedError
from netspy_scrapy.robots import origin_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self


class RobotsMiddleware:
    """Drops what robots.txt forbids, in the place of Scrapy's RobotsTxtMiddleware.

    The robots.txt of an origin is a request of the queue: it goes out before the first page of
    its origin, whose others wait meanwhile without a download slot. This middleware judges, and
    reads the answer. Requests that did not come from the queue (``engine.download_async``) fetch
    it themselves, once however many of them wait. A page that the cache may have is judged only
    once the site is to be asked after all.

    Settings: ROBOTS_OBEY, ROBOTS_USER_AGENT, ROBOTS_CACHE_TTL, NETSPY_ROBOTS_ON_ERROR.
    Meta: ``dont_obey_robotstxt``. Stats: ``netspy/robots/...``, ``netspy/drops/robots``.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._politeness = CrawlContext.of(crawler).politeness
        robots = self._politeness.robots
        if robots is None:
            raise NotConfigured
        self._robots = robots

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    def process_request(self, request: Request) -> Coroutine[Any, Any, None] | None:
        """Refuse a request that robots.txt forbids."""
        if not self._politeness.obeys_robots(request) or request in self._politeness.passing:
            return None
        origin = origin_of(request)
        # Of the queue's own, even rules that are old by now were looked at before it was let go.
        known = self._robots.knows(origin)
        if not known or (
            self._robots.rules_of(origin) is None and not self._politeness.is_paced(request)
        ):
            return self._fetch_then_judge(request, origin)
        self._judge(request, origin)
        return None

    def process_response(self, request: Request, response: Response) -> Response:
        """Take in a robots.txt; it goes no further."""
        origin = request.meta.get(metakeys.ROBOTS)
        if origin is None:
            return response
        self._politeness.learn_robots(origin, response)
        raise IgnoreRequest("robots.txt is read")

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Take in that a robots.txt cannot be read."""
        origin = request.meta.get(metakeys.ROBOTS)
        if origin is not None:
            self._politeness.learn_robots_error(origin, f"{type(exception).__name__}: {exception}")
            raise IgnoreRequest("robots.txt cannot be read")

    def _judge(self, request: Request, origin: str) -> None:
        if not self._robots.allows(origin, request.url, request.headers.get(b"User-Agent")):
            raise RobotsDeniedError("forbidden by robots.txt")

    async def _fetch_then_judge(self, request: Request, origin: str) -> None:
        await self._politeness.fetch_robots(origin, _scrapy.download)
        self._judge(request, origin)
