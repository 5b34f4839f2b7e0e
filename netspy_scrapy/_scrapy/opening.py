"""Opening compressed bodies up to a size that is each request's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.utils._compression import _DecompressionMaxSizeExceeded

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response


class TooLargeOpenedError(Exception):
    """A body opens to more bytes than it may. It holds none of them."""


class Opener(HttpCompressionMiddleware):
    """Scrapy's middleware, with the size as an argument and an error that says what happened.

    Scrapy's takes the size from ``download_maxsize`` or its settings, logs a line that names
    DOWNLOAD_MAXSIZE, and raises an IgnoreRequest whose traceback keeps what was opened.
    """

    def open(self, request: Request, response: Response, max_size: int) -> Response:
        """Return *response* with its body opened, up to *max_size* bytes; 0: any number."""
        self._bound = max_size
        return cast("Response", super().process_response(request, response))

    def _handle_encoding(
        self,
        body: bytes,
        content_encoding: list[bytes],
        max_size: int,  # noqa: ARG002
    ) -> tuple[bytes, list[bytes]]:
        try:
            return super()._handle_encoding(body, content_encoding, self._bound)
        except _DecompressionMaxSizeExceeded:
            pass  # with its traceback goes what was opened
        raise TooLargeOpenedError
