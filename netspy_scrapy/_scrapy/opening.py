"""Opening compressed bodies up to a size that is each request's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.utils._compression import _DecompressionMaxSizeExceeded

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

#: Members of a gzip body and frames of a Zstandard one: an empty one of 20 bytes takes 10 us of the
#: event loop, so that 32 MB of them, which 32 KB can open to, would stop a crawl for 20 seconds.
MAX_PARTS = 20_000
#: How often a body may have been compressed. A site that is set up wrongly does it twice.
MAX_LAYERS = 4

_GZIP = (b"\x1f\x8b\x08",)
#: What each part begins with. The last is that of skipped frames, but for its first byte.
_BEGINNINGS = {
    b"gzip": _GZIP,
    b"x-gzip": _GZIP,
    b"zstd": (b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"),
}
_SMALLEST_PART = 8


class BombError(Exception):
    """A body opens to more than it may; the text says how. It holds nothing of it."""


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
        if self._bound and sum(one.count(b",") + 1 for one in content_encoding) > MAX_LAYERS:
            raise BombError(f"are compressed more than {MAX_LAYERS} times")
        try:
            return super()._handle_encoding(body, content_encoding, self._bound)
        except _DecompressionMaxSizeExceeded:
            pass  # with its traceback goes what was opened
        raise BombError("open to more")

    @staticmethod
    def _decode(body: bytes, encoding: bytes, max_size: int) -> bytes:
        if max_size and len(body) > MAX_PARTS * _SMALLEST_PART:
            parts = sum(body.count(one) for one in _BEGINNINGS.get(encoding, ()))
            if parts > MAX_PARTS:
                raise BombError(f"are more than {MAX_PARTS} parts")
        return HttpCompressionMiddleware._decode(body, encoding, max_size)  # noqa: SLF001
