"""The one place that counts requests which failed or were given up, and dumps the failed ones."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.http.request import NO_CALLBACK

from netspy_scrapy import stats as keys
from netspy_scrapy.logs import shown, without_credentials
from netspy_scrapy.politeness import domain_of_request

if TYPE_CHECKING:
    from scrapy import Request

    from netspy_scrapy.context import CrawlContext

logger = logging.getLogger(__name__)

#: Statuses that say that a site is not well; a 404 or a 403 says nothing of the kind.
UNWELL_STATUSES = frozenset({429, 500, 502, 503, 504})


class Failures:
    """Counts failures and drops by cause, and writes failures to FAILED_REQUEST_PATH.

    A *failure* is a page that the spider wanted and did not get. A *drop* was given up on purpose
    (``validate`` returned False, robots.txt, ...): it is counted, and that is all.
    """

    def __init__(self, context: CrawlContext) -> None:
        self._context = context

    def fail(
        self,
        request: Request,
        cause: str | int,
        reason: str,
        *,
        status: int | None = None,
        unwell: bool = False,
    ) -> None:
        """Record that *request* failed for good.

        *cause* is the short name under which it is counted (a status, an exception's name).
        *unwell*: the failure says that the site is not well, and counts for the circuit.
        """
        if request.callback is NO_CALLBACK:
            return
        if self._context.receipts_in_use is not None:
            self._context.receipts.fail(request)
        stats = self._context.stats
        stats.inc_value(keys.FAILURES)
        stats.inc_value(keys.FAILURES_BY_CAUSE.format(cause=cause))
        if self._context.history is not None:
            self._context.history.failed(domain_of_request(request))
        if unwell:
            politeness = self._context.politeness
            politeness.registry.failed(politeness.state_of(request))
        dump = self._context.request_dump
        dump.add(request, reason=reason, status=status)
        logger.error(
            "Failed: %s: %s (%s)",
            shown(request),
            without_credentials(reason, request),
            f"not kept: {dump.problem}" if dump.problem else f"kept in {dump.path}",
            extra={"spider": self._context.crawler.spider},
        )

    def drop(self, request: Request, cause: str, reason: str) -> None:
        """Record that *request* was given up on purpose."""
        if self._context.receipts_in_use is not None:
            self._context.receipts.drop(request)
        stats = self._context.stats
        stats.inc_value(keys.DROPS)
        stats.inc_value(keys.DROPS_BY_CAUSE.format(cause=cause))
        if self._context.history is not None:
            self._context.history.dropped(domain_of_request(request))
        logger.info("Dropped: %s: %s", shown(request), without_credentials(reason, request),
                    extra={"spider": self._context.crawler.spider})  # fmt: skip
