"""Whether the answer that is left in the end keeps to the limits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.http.request import NO_CALLBACK

from netspy_scrapy import meta as metakeys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.logs import shown

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

    from netspy_scrapy.exceptions import ResponseError

logger = logging.getLogger(__name__)

#: Statuses whose answers have no body, whatever their headers say.
_BODILESS = frozenset({204, 304})


class LimitsMiddleware:
    """Refuses what is too large (a failure) or of a type that is not allowed (a drop).

    It sees an answer last, after redirects and retries. An answer whose status is not accepted is
    left to OutcomeMiddleware: a 404 is a 404, be it large. Types count for 2xx and accepted errors,
    not for redirects. The size counts once more here, for what came past ReceivingMiddleware:
    other download handlers, rendered pages, answers of other middlewares.

    Settings: MAX_RESPONSE_SIZE, ALLOWED_CONTENT_TYPES.
    Meta: ``download_maxsize``, ``netspy_allowed_content_types``.
    Stats: ``netspy/failures/ResponseTooLargeError``, ``netspy/drops/content_type``.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        context = CrawlContext.of(crawler)
        self._limits = context.limits
        self._acceptance = context.acceptance

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    def process_response(self, request: Request, response: Response) -> Response:
        """Return the answer, or raise what is wrong with it."""
        error = self._limits.broken.pop(request, None) or self._error(request, response)
        if error is None or not self._is_for_callback(request, response):
            return response
        if request.callback is NO_CALLBACK:  # media pipelines say nothing of an IgnoreRequest
            logger.warning("%s: %s", shown(request), error, extra={"spider": self._crawler.spider})
        raise error

    def _error(self, request: Request, response: Response) -> ResponseError | None:
        if metakeys.ROBOTS in request.meta:
            return None
        limit = self._limits.size_of(request)
        if limit and len(response.body) > limit:
            return self._limits.too_large(request, f"{len(response.body)} bytes")
        if 300 <= response.status < 400:  # noqa: PLR2004
            return None
        return self._limits.refused_type(request, response.headers)

    def _is_for_callback(self, request: Request, response: Response) -> bool:
        if response.status in _BODILESS:
            return False
        return request.callback is NO_CALLBACK or self._acceptance.accepts(request, response)
