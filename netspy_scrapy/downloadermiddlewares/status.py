"""Which answers are fetched again, and after how long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import IgnoreRequest
from scrapy.http.request import NO_CALLBACK

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.antibot import challenge_of
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import AntiBotError, CutOffError
from netspy_scrapy.retry import Retrier
from netspy_scrapy.settings import read_bool

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

#: How often a request that cannot wait in our scheduler looks whether the crawl is closing.
_POLL = 0.2


class StatusPolicyMiddleware:
    """Retries bad answers and failed downloads, in the place of Scrapy's RetryMiddleware.

    An answer is accepted (ACCEPT_STATUS_CODES), or fetched again (RETRY_STATUS_CODES, up to
    SPIDER_MAX_RETRY_TIMES times), or passed on to the spider middleware, which refuses what is
    neither 2xx nor 3xx. The wait before a retry is what ``Retry-After`` says (429, 503), else
    RETRY_BACKOFF, and the whole domain rests as long, else SPIDER_RETRY_INTERVAL. A
    ``Retry-After`` over RETRY_AFTER_MAX ends the request at once. It waits in the scheduler, or
    before the downloader if it did not come from there (``engine.download_async``), without a
    download slot; where scheduler or queue are not ours, it waits here.

    A challenge page (ANTIBOT_DETECT) is fetched again too, and a failure after the last attempt.

    Meta keys: ``dont_retry``, ``max_retry_times``, ``priority_adjust``.
    Stats: ``netspy/retries``, ``netspy/retries/<status or exception>``.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._context = CrawlContext.of(crawler)
        self._retrier = Retrier(crawler)
        self._acceptance = self._context.acceptance
        # Plain projects look for challenge pages only if they ask for it.
        asked = crawler.settings.getpriority("ANTIBOT_DETECT") is not None
        self._antibot = asked and read_bool(crawler.settings, "ANTIBOT_DETECT")
        self._exceptions = self._context.retry_settings.exceptions

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    def process_response(
        self, request: Request, response: Response
    ) -> Request | Response | Coroutine[Any, Any, Request]:
        """Return the answer, or the request of the next attempt."""
        status = response.status
        if status not in self._acceptance.retried(request):
            return self._unless_challenge(request, response)
        # Also for the last attempt: what the site asks for concerns the next request too.
        wait = self._retrier.wait(request, f"HTTP status {status}", response)
        if not self._retrier.attempts_left(request):
            if not request.meta.get("dont_retry"):
                attempts = request.meta.get("retry_times", 0) + 1
                request.meta[metakeys.GIVEN_UP] = f"given up after {attempts} attempts"
            return response
        if wait.too_long:
            asked = (response.headers.get(b"Retry-After") or b"").decode("latin-1")
            request.meta[metakeys.GIVEN_UP] = (
                f"Retry-After: {asked} is longer than RETRY_AFTER_MAX = {wait.seconds:g} s"
            )
            return response
        again = self._retrier.again(
            request, status, f"HTTP status {status}", wait.seconds, response=response
        )
        return self._send(again, request)

    def _unless_challenge(
        self, request: Request, response: Response
    ) -> Request | Response | Coroutine[Any, Any, Request]:
        """Return the answer, or the next attempt if it is a challenge page in its place.

        Raises AntiBotError when no attempt is left.
        """
        cache = self._context.cache
        if not self._antibot and cache is None:
            return response
        if request.callback is NO_CALLBACK or metakeys.ROBOTS in request.meta:
            return response
        owner = challenge_of(response)
        if owner is None:
            return response
        if cache is not None:
            cache.discard(request)
        if not self._antibot:
            return response
        error = AntiBotError(f"a challenge page of {owner} in place of the page (ANTIBOT_DETECT)")
        wait = self._retrier.wait(request, "AntiBotError", response)
        if not self._retrier.attempts_left(request):
            raise error
        again = self._retrier.again(
            request, "AntiBotError", str(error), wait.seconds, response=response
        )
        return self._send(again, request)

    def process_exception(
        self, request: Request, exception: Exception
    ) -> Request | Coroutine[Any, Any, Request] | None:
        """Return the request of the next attempt, or None: the download failed for good."""
        if (
            isinstance(exception, IgnoreRequest)
            or not isinstance(exception, self._exceptions)
            or not self._retrier.attempts_left(request)
        ):
            return None
        name = type(exception).__name__
        wait = self._retrier.wait(request, name)
        again = self._retrier.again(
            request, name, f"{name}: {exception}", wait.seconds, exception=exception
        )
        return self._send(again, request)

    def _send(self, again: Request, request: Request) -> Request | Coroutine[Any, Any, Request]:
        context = self._context
        elsewhere = request in context.from_scheduler or (
            context.has_scheduler and context.politeness.paces_direct
        )
        if metakeys.DELAY in again.meta and not elsewhere:
            return self._wait_here(again)
        return again

    async def _wait_here(self, again: Request) -> Request:
        """Wait with a download slot, since no scheduler of ours will take the request."""
        left = again.meta.pop(metakeys.DELAY)
        while left > 0 and not _scrapy.is_closing(self._crawler):
            await asyncio.sleep(min(left, _POLL))
            left -= _POLL
        if _scrapy.is_closing(self._crawler):
            raise CutOffError("the crawl is being stopped")
        return again
