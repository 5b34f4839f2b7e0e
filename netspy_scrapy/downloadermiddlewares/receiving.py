"""Where an answer ends that is too large, or of a type that nobody wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.exceptions import StopDownload

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import ConfigError

if TYPE_CHECKING:
    from types import FrameType

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Headers, Response
    from typing_extensions import Self

    from netspy_scrapy.exceptions import ResponseError


class DownloadEnded(StopDownload):
    """Ends a download; what came of the answer so far is in ``response``."""

    def __init__(self, error: ResponseError) -> None:
        super().__init__(fail=True)
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


class ReceivingMiddleware:
    """Ends the download of an answer that is too large or of a refused type.

    The connection is closed: at the headers where these say it, else at the byte that is too many.
    What has come is thrown away, and the answer goes on without a body. So a redirect is followed
    and a 503 is fetched again whatever was wrong with its body; LimitsMiddleware judges the answer
    that is left in the end.

    Settings: MAX_RESPONSE_SIZE, ALLOWED_CONTENT_TYPES, NETSPY_MAX_INFLIGHT_BYTES.
    Meta: ``download_maxsize``, ``netspy_allowed_content_types``.
    """

    def __init__(self, crawler: Crawler) -> None:
        context = CrawlContext.of(crawler)
        self._limits = context.limits
        self._left: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        """Bytes that the bodies under way may still have."""
        self._bodies = context.bodies  # which listens from now on
        crawler.signals.connect(self._headers_received, signals.headers_received)
        crawler.signals.connect(self._bytes_received, signals.bytes_received)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    def process_exception(self, request: Request, exception: Exception) -> Response | None:
        """Return the answer of a download that was ended here, without its body."""
        if isinstance(exception, DownloadEnded) and metakeys.ROBOTS not in request.meta:
            response = exception.response
            assert response is not None
            exception.response = None
            forget_frames(exception)
            self._limits.broken[request] = exception.error
            _scrapy.skip_cache_once(request)
            return without_body(response)
        if isinstance(exception, _scrapy.CANCELLED) and self._limits.size_of(request):
            raise self._limits.too_large(request, str(exception) or "ended by Scrapy") from None
        return None

    def _headers_received(self, headers: Headers, body_length: Any, request: Request) -> None:
        self._limits.broken.pop(request, None)
        if request.method == "HEAD":  # its Content-Length is that of a body which does not come
            return
        limit = self._limits.size_of(request)
        if limit:
            # It is a text, or None, where it is not known.
            if isinstance(body_length, int) and body_length > limit:
                raise DownloadEnded(
                    self._limits.too_large(request, f"{body_length} bytes are declared")
                )
            self._left[request] = limit
        # A redirect counts by where it leads; signals do not tell the status.
        if b"Location" not in headers:
            try:
                error = self._limits.refused_type(request, headers)
            except ConfigError:
                return  # told where the request fails for it: in LimitsMiddleware
            if error is not None:
                raise DownloadEnded(error)

    def _bytes_received(self, data: bytes, request: Request) -> None:
        left = self._left.get(request)
        if left is None:
            return
        left -= len(data)
        self._left[request] = left
        if left < 0:
            seen = f"{self._limits.size_of(request) - left} bytes were received"
            raise DownloadEnded(self._limits.too_large(request, seen))


def forget_frames(exception: BaseException) -> None:
    """Empty the frames that *exception* passed through, and those that they were called from.

    They hold what was received of the body. Scrapy keeps what signal handlers raise in a cycle of
    frames and tracebacks, which only the garbage collector would find, 30 MB a time.
    """
    trace, exception.__traceback__ = exception.__traceback__, None
    while trace is not None:
        frame: FrameType | None = trace.tb_frame
        while frame is not None:
            try:
                frame.clear()
            except RuntimeError:  # it still runs, and so do those that it was called from
                break
            frame = frame.f_back
        trace = trace.tb_next


def without_body(response: Response) -> Response:
    """Return *response* with no body, and without headers that tell of one."""
    headers = response.headers.copy()
    headers.pop(b"Content-Encoding", None)
    return response.replace(body=b"", headers=headers)
