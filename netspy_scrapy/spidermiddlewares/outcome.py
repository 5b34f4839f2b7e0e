"""What becomes of an answer: accepted, refused, fetched again, given up."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import signals
from scrapy.exceptions import CloseSpider
from twisted.python.failure import Failure

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import (
    EscapedError,
    HttpStatusError,
    NotRetryError,
    ValidationError,
)
from netspy_scrapy.failures import UNWELL_STATUSES
from netspy_scrapy.incremental.unchanged import Unchanged
from netspy_scrapy.logs import shown, without_credentials
from netspy_scrapy.pacing import Pace
from netspy_scrapy.retry import Retrier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)

#: Set on an exception whose page is recorded as failed.
_RECORDED = "netspy_recorded"

#: How many outputs of a callback pass between two looks at the queue.
_LOOK_EVERY = 20


class OutcomeMiddleware:
    """Decides the outcome of a page, in the place of Scrapy's HttpErrorMiddleware.

    - An answer that is neither 2xx nor 3xx nor accepted (ACCEPT_STATUS_CODES,
      HTTPERROR_ALLOWED_CODES, ``handle_httpstatus_list``) is a failure: the errback gets an
      ``HttpStatusError``, and the request is dumped.
    - ``ValidationError`` from ``validate`` or a callback fetches the page again, and is a failure
      once the retries are used up. ``NotRetryError`` is a drop.
    - Any other exception of a callback is treated like a ValidationError for netspy spiders, or
      with NETSPY_RETRY_CALLBACK_ERRORS; else Scrapy logs it as always, and the request is dumped.
    - A page whose callback is done resets the count of its domain's circuit.
    - A callback that yields without end is held back while the queue is over its bound.

    Meta keys: ``handle_httpstatus_list``, ``handle_httpstatus_all``, and the Retrier's.
    Stats: ``netspy/failures/...``, ``netspy/drops/...``, ``netspy/retries/...``.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._context = CrawlContext.of(crawler)
        self._retrier = Retrier(crawler)
        self._pace = Pace(crawler)
        self._recorded: WeakSet[Request] = WeakSet()
        """Requests whose refused status is recorded, while their errbacks run."""
        self._acceptance = self._context.acceptance
        self._politeness = self._context.politeness
        self._retry_callback_errors = self._context.retry_settings.callback_errors
        self._validate = getattr(crawler.spidercls, "netspy_validate", None)
        self._failed = getattr(crawler.spidercls, "netspy_failed", None)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    def process_spider_input(self, response: Response) -> None:
        """Refuse an answer whose status is not wanted, then ask the spider's ``validate``."""
        status = response.status
        request = response.request
        assert request is not None
        if not 200 <= status < 300 and not self._acceptance.accepts(request, response):  # noqa: PLR2004
            reason = response.meta.pop(metakeys.GIVEN_UP, "not an accepted status")
            error = HttpStatusError(response, reason)
            unwell = status in UNWELL_STATUSES
            self._context.failures.fail(request, status, str(error), status=status, unwell=unwell)
            self._recorded.add(request)
            raise error
        if self._validate is not None and not _is_unchanged(response):
            try:
                self._context.escapes.call(self._validate, self._crawler.spider, response)
            except (NotRetryError, ValidationError):
                self._uncache(request)  # here, for an errback may keep the exception to itself
                raise

    async def process_spider_output(
        self,
        response: Response,
        result: AsyncIterator[Any],
    ) -> AsyncIterator[Any]:
        """Pass on what the callback yields, at a pace that the crawl can follow."""
        count = 0
        async for one in result:
            yield one
            count += 1
            if count % _LOOK_EVERY == 0:
                if self._politeness.is_cut:
                    self._cut_off(response)
                    return
                await self._pace.wait_for_queue()
        if response.request not in self._recorded:  # else it is an errback's output
            self._politeness.handled(response)

    def process_spider_exception(
        self, response: Response, exception: Exception
    ) -> Iterable[Any] | None:
        """Turn an exception into a retry, a drop or a failure."""
        request = response.request
        assert request is not None
        if isinstance(exception, HttpStatusError):
            return self._after_failure(request, response)
        if isinstance(exception, CloseSpider):
            self._not_done(request)
            return None
        if (
            request in self._recorded  # what an errback raised
            or getattr(exception, _RECORDED, False)  # Scrapy 2.14 asks for each middleware
        ):
            return None  # the page is recorded as failed already
        if isinstance(exception, (NotRetryError, ValidationError)):
            self._uncache(request)
        if isinstance(exception, NotRetryError):
            self._context.failures.drop(request, "NotRetryError", str(exception))
            return ()
        if isinstance(exception, ValidationError) or self._retry_callback_errors:
            return self._retry_or_fail(request, response, exception)
        self._fail(request, response, exception)
        return None

    # Own methods -------------------------------------------------------------------------------
    def _uncache(self, request: Request) -> None:
        """Take an answer out of the cache of which the spider says that it is not the page.

        One whose callback raised anything else stays: mostly it is the callback that is mended.
        """
        cache = self._context.cache
        if cache is not None:
            cache.discard(request)

    def _cut_off(self, response: Response) -> None:
        """Give up a callback that would keep the crawl from ending; its request is kept."""
        request = response.request
        assert request is not None
        logger.warning(
            "The callback of %s still yielded after the stop: cut off, the request is kept",
            shown(request), extra={"spider": self._crawler.spider},
        )  # fmt: skip
        self._not_done(request)
        _scrapy.put_back(self._crawler, request)

    def _not_done(self, request: Request) -> None:
        if self._context.receipts_in_use is not None:
            self._context.receipts.give_back(request)

    def _retry_or_fail(
        self, request: Request, response: Response, exception: Exception
    ) -> Iterable[Any]:
        name = _name(exception)
        if self._retrier.attempts_left(request):
            wait = self._retrier.wait(request, name, rests=False)
            why = without_credentials(_describe(exception), request)
            logger.warning(
                "%s is fetched again: %s", shown(request), why,
                extra={"spider": self._crawler.spider},
            )  # fmt: skip
            again = self._retrier.again(
                request,
                name,
                _describe(exception),
                wait.seconds,
                response=response,
                exception=exception,
            )
            return [again]
        self._fail(request, response, exception)
        if not isinstance(exception, ValidationError):
            self._report(response, exception)
        return self._after_failure(request, response)

    def _fail(self, request: Request, response: Response, exception: Exception) -> None:
        name = _name(exception)
        self._context.failures.fail(request, name, _describe(exception), status=response.status)
        with suppress(AttributeError):
            setattr(exception, _RECORDED, True)

    def _report(self, response: Response, exception: Exception) -> None:
        """Tell what Scrapy tells of a callback that raised: a log line, a signal and stats."""
        request = response.request
        assert request is not None
        failure: Any = Failure(exception)  # type: ignore[no-untyped-call]
        logger.error("Spider error processing %s", shown(request), exc_info=exception,
                     extra={"spider": self._crawler.spider})  # fmt: skip
        self._crawler.signals.send_catch_log(
            signals.spider_error, failure=failure, response=response, spider=self._crawler.spider
        )
        self._context.stats.inc_value("spider_exceptions/count")
        self._context.stats.inc_value(f"spider_exceptions/{type(exception).__name__}")

    def _after_failure(self, request: Request, response: Response | None) -> Iterable[Any]:
        if self._failed is None:
            return ()
        output: Iterable[Any] = self._failed(self._crawler.spider, request, response)
        return output


def _is_unchanged(response: Response) -> bool:
    return response.request is not None and isinstance(response.request.callback, Unchanged)


def _name(exception: Exception) -> str:
    return type(exception.raised if isinstance(exception, EscapedError) else exception).__name__


def _describe(exception: BaseException) -> str:
    """Return the exception with the line that raised it."""
    if isinstance(exception, EscapedError):
        exception = exception.raised
    text = f"{type(exception).__name__}: {exception}" if str(exception) else repr(exception)
    trace = exception.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return text
    code = trace.tb_frame.f_code
    return f"{text} ({code.co_filename}:{trace.tb_lineno} in {code.co_name})"
