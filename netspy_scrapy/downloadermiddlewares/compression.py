"""Opening compressed bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy._scrapy.opening import BombError, Opener
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.downloadermiddlewares.receiving import without_body

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response


class CompressionMiddleware(Opener):
    """Opens compressed bodies as far as they may go, in the place of HttpCompressionMiddleware.

    Bombs of gzip (of any number of members), deflate, Brotli and Zstandard end at the byte that is
    too many, and so does each layer of a body that was compressed several times. Bodies of very
    many layers or members, which are made to cost time, are not opened. What was opened is thrown
    away, and the answer goes on without a body, for LimitsMiddleware to judge.

    With NETSPY_MAX_INFLIGHT_BYTES a body opens as far as there is room. One that needs more waits
    for it, and is opened anew.

    Settings: MAX_RESPONSE_SIZE, NETSPY_MAX_INFLIGHT_BYTES, and Scrapy's COMPRESSION_ENABLED.
    Meta: ``download_maxsize``.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler=crawler)
        context = CrawlContext.of(crawler)
        self._limits = context.limits
        self._bodies = context.bodies

    def process_response(  # type: ignore[override]
        self, request: Request, response: Response
    ) -> Response | Coroutine[Any, Any, Response]:
        """Open the body."""
        if b"Content-Encoding" not in response.headers or request.method == "HEAD":
            return response
        limit = self._limits.size_of(request)
        if self._bodies is None:
            return self._open(request, response, limit)
        room = self._bodies.room_to_open(request)
        if room is None or 0 < limit <= room:
            return self._open_held(request, response, limit)
        try:
            opened = self.open(request, response, max(room, 1))
        except BombError:
            return self._open_later(request, response, limit)
        self._bodies.opened(request)
        return opened

    async def _open_later(self, request: Request, response: Response, limit: int) -> Response:
        assert self._bodies is not None
        await self._bodies.wait_to_open(request, limit)
        return self._open_held(request, response, limit)

    def _open_held(self, request: Request, response: Response, limit: int) -> Response:
        assert self._bodies is not None
        try:
            return self._open(request, response, limit)
        finally:
            self._bodies.opened(request)

    def _open(self, request: Request, response: Response, limit: int) -> Response:
        try:
            return self.open(request, response, limit)
        except BombError as exc:
            seen = f"{len(response.body)} bytes were received, and {exc}"
            error = self._limits.too_large(request, seen)
            if metakeys.ROBOTS in request.meta:
                raise error from None
            self._limits.broken[request] = error
            _scrapy.skip_cache_once(request)
            return without_body(response)
