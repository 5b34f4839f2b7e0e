"""Fetching only what changed since the last run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import NotConfigured
from scrapy.http import Response

from netspy_scrapy import _scrapy
from netspy_scrapy import stats as keys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.incremental.crawl import Attempt
from netspy_scrapy.incremental.policy import FOLLOW, REPARSE, Meaning
from netspy_scrapy.incremental.unchanged import Unchanged
from netspy_scrapy.incremental.validator import clear_validator
from netspy_scrapy.logs import without_credentials
from netspy_scrapy.settings import read_bool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_NOT_MODIFIED = 304
#: Flags of responses that come from here, or from a cache of Scrapy's.
_CACHED, _FRESH = "cached", "fresh"


class IncrementalMiddleware:
    """Asks sites whether pages changed, and handles those that did not.

    A page that was fetched in an earlier run, and whose rows are safe, is asked for with its ETag
    (If-None-Match), else with its Last-Modified (If-Modified-Since). An answer of 304 goes through
    the rest of Scrapy (log, stats, signals), but neither to ``validate`` nor to the callback:

    - ``skip``: that is all.
    - ``follow``: the requests that the callback yielded last time are sent again.
    - ``reparse``: the callback gets the body that was kept, as a response of 200 with the flag
      ``not-modified``.

    Only GET requests of the crawl that have a callback take part; requests with conditions of
    their own, or a Range, are left alone.

    Settings: NETSPY_INCREMENTAL and those that begin with it; NETSPY_DOMAIN_POLICIES
    (``incremental``, ``on_304``, ``min_age``). Meta: ``netspy_incremental``.
    Stats: ``netspy/incremental/...``. At level DEBUG each page has a line with CACHE or FETCH,
    status, latency and bytes, also as fields of the log record.
    """

    def __init__(self, crawler: Crawler) -> None:
        if not read_bool(crawler.settings, "NETSPY_INCREMENTAL"):
            raise NotConfigured
        self._crawler = crawler
        context = CrawlContext.of(crawler)
        self._stats = context.stats
        self._incremental = context.incremental

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    def process_request(
        self, request: Request
    ) -> Response | Coroutine[Any, Any, Response | None] | None:
        """Add a validator, if the page is known."""
        clear_validator(request)
        mode = self._incremental.mode_of(request)
        if mode is None:
            return None
        attempt = self._incremental.begin(request, mode)
        if isinstance(attempt, Attempt):
            return _fresh(request, attempt)
        return self._begin(request, attempt)

    def process_response(
        self, request: Request, response: Response
    ) -> Response | Coroutine[Any, Any, Response | Request]:
        """Handle the answer to a request that took part."""
        attempt = self._incremental.end(request)
        if attempt is None or (_CACHED in response.flags and not attempt.is_fresh):
            return response
        meaning, answer, digest = self._incremental.judge(attempt, response)
        self._log(request, response, attempt, meaning, answer.size)
        if meaning is Meaning.NOT_MODIFIED:
            self._incremental.confirm(attempt)
            return self._unchanged(request, response, attempt)
        if meaning is Meaning.SAME_BODY:
            self._incremental.learn(request, attempt, answer, digest, None)
            return self._unchanged(request, response, attempt)
        if meaning is Meaning.CONTENT:
            self._incremental.learn(request, attempt, answer, digest, response)
        elif meaning is Meaning.GONE:
            self._incremental.forget(request, attempt)
        return response

    def process_exception(self, request: Request, exception: Exception) -> None:  # noqa: ARG002
        """Leave no validator on a request that is fetched again, or dumped."""
        clear_validator(request)

    # Own methods ---------------------------------------------------------------------------------
    async def _begin(
        self, request: Request, attempt: Coroutine[None, None, Attempt]
    ) -> Response | None:
        return _fresh(request, await attempt)

    def _unchanged(
        self, request: Request, response: Response, attempt: Attempt
    ) -> Response | Coroutine[Any, Any, Response | Request]:
        if attempt.mode == FOLLOW:
            return self._follow(request, response, attempt)
        if attempt.mode == REPARSE:
            return self._reparse(request, attempt)
        return _answered(request, response, ())

    async def _follow(
        self, request: Request, response: Response, attempt: Attempt
    ) -> Response | Request:
        try:
            children = await self._incremental.children(attempt)
        except DumpError as exc:
            return self._incremental.fetch_anew(request, attempt, str(exc))
        self._stats.inc_value(keys.INCREMENTAL_FOLLOWED, len(children))
        return _answered(request, response, children)

    async def _reparse(self, request: Request, attempt: Attempt) -> Response | Request:
        try:
            return await self._incremental.body(attempt, request)
        except DumpError as exc:
            return self._incremental.fetch_anew(request, attempt, str(exc))

    def _log(
        self, request: Request, response: Response, attempt: Attempt, meaning: Meaning, size: int
    ) -> None:
        """Count the answer, and log its fields."""
        stats = self._stats
        if attempt.asked:
            stats.inc_value(keys.INCREMENTAL_ASKED)
        if meaning is Meaning.NOT_MODIFIED:
            size = len(response.body)
            assert attempt.known is not None
            stats.inc_value(
                keys.INCREMENTAL_FRESH if attempt.is_fresh else keys.INCREMENTAL_NOT_MODIFIED
            )
            stats.inc_value(keys.INCREMENTAL_SAVED, attempt.known.size)
        elif meaning is Meaning.SAME_BODY:
            stats.inc_value(keys.INCREMENTAL_SAME_BODY)
        elif meaning is Meaning.CONTENT:
            stats.inc_value(keys.INCREMENTAL_FETCHED)
        if not logger.isEnabledFor(logging.DEBUG):
            return
        kind = "CACHE" if meaning in (Meaning.NOT_MODIFIED, Meaning.SAME_BODY) else "FETCH"
        latency = request.meta.get("download_latency", 0.0) * 1000
        logger.debug(
            "%s | %d | %.0f ms | %d bytes | %s", kind, response.status, latency, size,
            without_credentials(request.url, request),
            extra={
                "spider": self._crawler.spider, "outcome": kind, "status": response.status,
                "latency_ms": latency, "bytes": size,
            },
        )  # fmt: skip


def _fresh(request: Request, attempt: Attempt) -> Response | None:
    """Return an answer in place of the site's, if the page is not old enough to be asked for."""
    if not attempt.is_fresh:
        return None
    return Response(request.url, status=_NOT_MODIFIED, flags=[_CACHED, _FRESH])


def _answered(request: Request, response: Response, children: Iterable[Request]) -> Response:
    """Return *response* as the answer to a copy of *request* whose callback yields *children*.

    A copy, for the spider may yield the very same request again.
    """
    other = _scrapy.shallow_copy(request)
    other.callback = Unchanged(children)
    # For Scrapy's HttpErrorMiddleware, which takes a 304 for an error.
    _scrapy.set_meta(other, {**request.meta, "handle_httpstatus_all": True})
    response.request = other
    return response
