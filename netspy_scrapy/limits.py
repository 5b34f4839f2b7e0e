"""Which limits an answer has to keep to, and which answers did not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy.http.request import NO_CALLBACK

from netspy_scrapy import meta as metakeys
from netspy_scrapy.exceptions import ContentTypeRejectedError, ResponseTooLargeError
from netspy_scrapy.settings import LimitsSettings, read_prefixes

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Headers

    from netspy_scrapy.exceptions import ResponseError

#: Scrapy's name for the limit of one request, in its meta, and for a spider's attribute.
_OWN_SIZE = "download_maxsize"


class Limits:
    """The size and the types that one crawl receives.

    A request's ``download_maxsize`` and ``netspy_allowed_content_types`` go before the settings.
    Media (requests without a callback) have no limits of ours unless these keys are there; Scrapy's
    DOWNLOAD_MAXSIZE holds for them. robots.txt has a size of its own, and any type.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.settings = LimitsSettings.from_settings(crawler.settings)
        self.broken: WeakKeyDictionary[Request, ResponseError] = WeakKeyDictionary()
        """Requests whose answer was cut short, and why; until it is judged."""

    def size_of(self, request: Request) -> int:
        """Return the bytes that the body of an answer to *request* may have; 0: any number."""
        if _OWN_SIZE in request.meta:
            own: Any = request.meta[_OWN_SIZE]
            return int(own) if own else 0
        settings = self.settings
        if request.callback is not NO_CALLBACK and settings.size_setting == "MAX_RESPONSE_SIZE":
            return settings.max_size
        # Scrapy's older way to set DOWNLOAD_MAXSIZE.
        return int(getattr(self._crawler.spider, _OWN_SIZE, settings.media_max_size))

    def too_large(self, request: Request, seen: str) -> ResponseTooLargeError:
        """Return the error for a body that is too large, as *seen* says."""
        setting = self.settings.size_setting
        if _OWN_SIZE in request.meta:
            setting = f"{setting} (the request's {_OWN_SIZE})"
        elif request.callback is NO_CALLBACK:
            setting = "DOWNLOAD_MAXSIZE"
        return ResponseTooLargeError(setting, self.size_of(request), seen)

    def refused_type(self, request: Request, headers: Headers) -> ContentTypeRejectedError | None:
        """Return the error for the type that *headers* tell of, or None: it is allowed.

        An answer that does not say its type is of an allowed one.
        """
        prefixes, setting = self._types_of(request)
        if not prefixes or request.method == "HEAD" or metakeys.ROBOTS in request.meta:
            return None
        value = (headers.get(b"Content-Type") or b"").decode("latin-1")
        kind = value.partition(";")[0].strip().lower()
        if not kind or kind.startswith(prefixes):
            return None
        return ContentTypeRejectedError(setting, value)

    def _types_of(self, request: Request) -> tuple[tuple[str, ...], str]:
        key = metakeys.ALLOWED_CONTENT_TYPES
        own: Any = request.meta.get(key)
        if own is not None:
            return read_prefixes(key, own), f"ALLOWED_CONTENT_TYPES (the request's {key})"
        if request.callback is NO_CALLBACK:
            return (), ""
        return self.settings.types, "ALLOWED_CONTENT_TYPES"
