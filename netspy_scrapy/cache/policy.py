"""What the cache may answer, and what it may keep."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.extensions.httpcache import DummyPolicy

from netspy_scrapy import meta as metakeys
from netspy_scrapy.cache.entries import vary_of
from netspy_scrapy.logs import shown
from netspy_scrapy.settings import is_success

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response
    from scrapy.settings import BaseSettings

    from netspy_scrapy.acceptance import Acceptance

logger = logging.getLogger(__name__)

#: Never kept, even where the spider accepts them: what a site says to one visitor at one time
#: (refused, busy), a part of a page, and an answer that is none without an earlier one.
NEVER = frozenset({206, 304, 401, 403, 407, 408, 425, 429})
_SERVER_ERROR = 500
_REFRESH = "refresh"
#: Flags of bodies that are not whole.
_PARTIAL = frozenset({"dataloss", "partial", "download_stopped"})


class CachePolicy(DummyPolicy):
    """Scrapy's policy of a development cache, narrowed to accepted answers to GET.

    ``Cache-Control`` is not looked at: it speaks to browsers, and most pages say ``no-cache``.
    Settings: HTTPCACHE_IGNORE_SCHEMES, HTTPCACHE_IGNORE_HTTP_CODES.
    Meta: ``netspy_cache``, ``dont_cache``.
    """

    def __init__(self, settings: BaseSettings, acceptance: Acceptance) -> None:
        super().__init__(settings)
        self._acceptance = acceptance
        self._told: set[str] = set()

    def should_cache_request(self, request: Request) -> bool:
        """Tell whether the answer to *request* may be kept."""
        meta = request.meta
        return (
            request.method == "GET"
            and self._wish(request) is not False
            and not meta.get("dont_cache")
            and metakeys.ROBOTS not in meta  # it has a time of its own, ROBOTS_CACHE_TTL
            and not meta.get("playwright_include_page")  # the page itself is wanted
            and b"Range" not in request.headers
            and super().should_cache_request(request)
        )

    def wants_entry(self, request: Request) -> bool:
        """Tell whether an entry may be given for a cacheable *request*: not for a further attempt.

        What was wrong with the answer may be wrong with the entry.
        """
        return not request.meta.get("retry_times") and self._wish(request) != _REFRESH

    def should_cache_response(self, response: Response, request: Request) -> bool:
        """Tell whether *response* may be kept."""
        return (
            self.accepts(request, response.status)
            and _PARTIAL.isdisjoint(response.flags)
            and super().should_cache_response(response, request)
            and (b"Vary" not in response.headers or vary_of(_lower(response)) is not None)
        )

    def accepts(self, request: Request, status: int) -> bool:
        """Tell whether the status policy takes an answer with *status* for the page.

        An answer that is only let through (CHECK_STATUS_CODE = False, handle_httpstatus_all) must
        be a 2xx or 3xx to be kept.
        """
        if (
            status in NEVER
            or status >= _SERVER_ERROR
            or status in self._acceptance.retried(request)
        ):
            return False
        return is_success(status) or self._acceptance.names(request, status)

    def _wish(self, request: Request) -> object:
        """Return what the request's meta asks for: False, "refresh", or None."""
        wish = request.meta.get(metakeys.CACHE)
        if wish is None or wish is False or wish == _REFRESH:
            return wish
        if wish is not True and str(wish) not in self._told:
            self._told.add(str(wish))
            logger.warning(
                "meta[%r] = %r of %s is not looked at: expected False (neither read nor stored) or "
                "%r (fetched, and stored)", metakeys.CACHE, wish, shown(request), _REFRESH,
            )  # fmt: skip
        return None


def _lower(response: Response) -> dict[str, list[bytes]]:
    return {"vary": response.headers.getlist(b"Vary")}
