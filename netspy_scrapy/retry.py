"""Making the request of a further attempt, and whose attempts are counted."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from netspy_scrapy import meta as metakeys
from netspy_scrapy import stats as keys
from netspy_scrapy.backoff import RETRY_AFTER_STATUSES, Wait, parse_retry_after, wait_before_retry
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.logs import shown
from netspy_scrapy.politeness import domain_of_request

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from netspy_scrapy.settings import RetrySettings

logger = logging.getLogger(__name__)


def claim_budget(request: Request, crawler: Crawler) -> None:
    """Reset the retry count of a request that inherited it from another page.

    ``Request(other_url, meta=response.meta)`` copies ``retry_times`` (scrapy#5598). The page that
    a count belongs to is kept beside it. A redirect keeps the count of the page that redirected.
    """
    meta = request._meta if hasattr(request, "_meta") else request.meta  # noqa: SLF001
    if not meta or "retry_times" not in meta:
        return
    page = fingerprint(request, crawler)
    redirects = len(meta.get("redirect_urls", ()))
    times = meta["retry_times"]
    owner = meta.get(metakeys.RETRY_OWNER)
    # Who counted on, for whatever URL, means it (get_retry_request of a changed request).
    if owner is not None and owner[0] != page and redirects <= owner[1] and times <= owner[2]:
        del meta["retry_times"]
        del meta[metakeys.RETRY_OWNER]
    else:
        meta[metakeys.RETRY_OWNER] = [page, redirects, times]


def fingerprint(request: Request, crawler: Crawler) -> str:
    """Return the page's fingerprint as the project's fingerprinter sees it, in hex."""
    fingerprinter = crawler.request_fingerprinter
    assert fingerprinter is not None
    return fingerprinter.fingerprint(request).hex()


class Retrier:
    """Decides whether a page is fetched again, and makes the request that does it.

    A netspy spider's ``exception_request`` sees it first, and may change it. The request waits in
    the scheduler (``meta["netspy_delay"]``) and passes the request filter.
    Meta keys obeyed: ``dont_retry``, ``max_retry_times``, ``priority_adjust``.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._context = CrawlContext.of(crawler)
        self._settings = self._context.retry_settings
        self._hook = getattr(crawler.spidercls, "netspy_before_retry", None)

    def attempts_left(self, request: Request) -> bool:
        """Tell whether *request* may be fetched once more."""
        meta = request.meta
        if not self._settings.enabled or meta.get("dont_retry", False):
            return False
        times = meta.get("max_retry_times")
        if times is None:
            times = self._settings_of(request).times
        return bool(meta.get("retry_times", 0) < times)

    def wait(
        self,
        request: Request,
        cause: str | int,
        response: Response | None = None,
        *,
        rests: bool = True,
    ) -> Wait:
        """Return how long the next attempt has to wait; the whole domain rests as long.

        With *rests* False it does not: what went wrong says nothing about the site. Waiting alone
        would not help: the others would go on asking a site that wants to be left alone. A mere
        SPIDER_RETRY_INTERVAL concerns the request only.
        """
        asked = None
        if response is not None and response.status in RETRY_AFTER_STATUSES:
            asked = parse_retry_after(response.headers.get(b"Retry-After"), time.time())
        settings = self._settings_of(request)
        wait = wait_before_retry(
            settings,
            request.meta.get("retry_times", 0) + 1,
            retry_after=asked,
            uniform=random.uniform,
        )
        if wait.seconds > 0 and rests and (asked is not None or settings.backoff > 0):
            why = f"Retry-After: {asked:g}" if asked is not None else "backoff"
            politeness = self._context.politeness
            politeness.registry.rest(politeness.state_of(request), wait.seconds, f"{cause}, {why}")
        return wait

    def _settings_of(self, request: Request) -> RetrySettings:
        """Return the retry policy of the request's domain."""
        politeness = self._context.politeness
        policies = politeness.settings.policies
        if not policies:
            return self._settings
        policy = policies.of(politeness.state_of(request).name)
        changed: dict[str, Any] = {
            name: value
            for name, value in (
                ("times", policy.retry_times),
                ("interval", policy.retry_interval),
                ("backoff", policy.backoff),
                ("retry_after_max", policy.retry_after_max),
            )
            if value is not None
        }
        return replace(self._settings, **changed) if changed else self._settings

    def again(
        self,
        request: Request,
        cause: str | int,
        reason: str,
        seconds: float,
        *,
        response: Response | None = None,
        exception: Exception | None = None,
    ) -> Request:
        """Return the request of the next attempt, to be handed to the scheduler.

        *cause* is what it is counted under, *response* and *exception* are what went wrong.
        """
        crawler = self._context.crawler
        retry_times = request.meta.get("retry_times", 0) + 1
        again = request.copy()
        again.meta["retry_times"] = retry_times
        again.dont_filter = True
        adjust = request.meta.get("priority_adjust", self._settings.priority_adjust)
        again.priority = request.priority + adjust
        if self._hook is not None:
            self._hook(crawler.spider, again, response, exception)
        # After the hook, which may have changed the URL, and so the page.
        redirects = len(again.meta.get("redirect_urls", ()))
        again.meta[metakeys.RETRY_OWNER] = [fingerprint(again, crawler), redirects, retry_times]
        if seconds > 0:
            again.meta[metakeys.DELAY] = seconds
        receipts = self._context.receipts_in_use
        if receipts is not None and self._context.owns(request):
            receipts.replace(request, again)
        stats = self._context.stats
        stats.inc_value(keys.RETRIES)
        stats.inc_value(keys.RETRIES_BY_CAUSE.format(cause=cause))
        if self._context.history is not None:
            self._context.history.retried(domain_of_request(request))
        logger.debug(
            "Retrying %s in %.3g s (failed %d times): %s",
            shown(request),
            seconds,
            retry_times,
            reason,
            extra={"spider": crawler.spider},
        )
        return again
