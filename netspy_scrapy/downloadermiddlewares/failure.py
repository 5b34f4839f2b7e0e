"""The last word on a download that failed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy.exceptions import IgnoreRequest

from netspy_scrapy import meta as metakeys
from netspy_scrapy.context import CrawlContext

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self


class FinalFailureMiddleware:
    """Counts and dumps downloads that failed for good.

    It stands next to the engine, so every other middleware had its chance to rescue the request,
    and has one hook only, so a page that arrives costs nothing. Requests that user code awaits
    itself (``engine.download_async``) are its own affair.

    Stats: ``netspy/failures``, ``netspy/failures/<exception>``, ``netspy/drops/...``.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._context = CrawlContext.of(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Record the failure; the errback still gets it."""
        with suppress(AttributeError):
            exception.netspy_download_failed = True  # type: ignore[attr-defined]
        if not self._context.owns(request) or metakeys.ROBOTS in request.meta:
            return
        name = type(exception).__name__
        if isinstance(exception, IgnoreRequest):
            cause = getattr(exception, "cause", name)
            self._context.failures.drop(request, cause, str(exception) or name)
            return
        text = str(exception)
        reason = f"{name}: {text}" if text else name
        unwell = isinstance(exception, self._context.retry_settings.exceptions)
        self._context.failures.fail(request, name, reason, unwell=unwell)
