"""What a status means for a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netspy_scrapy.settings import StatusSettings, is_success

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

    from netspy_scrapy.context import CrawlContext


class Acceptance:
    """Tells by their status which answers the callback gets, and which are fetched again.

    Settings: CHECK_STATUS_CODE, RETRY_STATUS_CODES, ACCEPT_STATUS_CODES, HTTPERROR_ALLOWED_CODES,
    HTTPERROR_ALLOW_ALL. Meta: ``handle_httpstatus_list``, ``handle_httpstatus_all``.
    """

    def __init__(self, context: CrawlContext) -> None:
        self._context = context
        settings = self._settings = StatusSettings.from_settings(context.crawler.settings)
        self._policies = context.politeness.settings.policies
        self._retry_codes = (
            settings.retry_codes - settings.accept_codes if settings.check else frozenset()
        )

    def accepts(self, request: Request | None, response: Response) -> bool:
        """Tell whether the callback of *request* gets *response*."""
        settings = self._settings
        status = response.status
        if not settings.check or settings.allow_all or is_success(status):
            return True
        if request is None:
            return status in settings.accept_codes or status in settings.allowed_codes
        return bool(request.meta.get("handle_httpstatus_all")) or self.names(request, status)

    def names(self, request: Request, status: int) -> bool:
        """Tell whether *status* is in a list of accepted ones, and not merely let through."""
        settings = self._settings
        if status in settings.accept_codes:
            return True
        if self._policies:
            politeness = self._context.politeness
            policy = self._policies.of(politeness.state_of(request).name)
            if policy.accept is not None and status in policy.accept:
                return True
        allowed: Any = request.meta.get("handle_httpstatus_list")
        if allowed is None:
            spider = self._context.crawler.spider
            allowed = getattr(spider, "handle_httpstatus_list", settings.allowed_codes)
        return status in allowed

    def retried(self, request: Request) -> frozenset[int]:
        """Return the statuses that are fetched again at the request's domain."""
        if not self._policies:
            return self._retry_codes
        policy = self._policies.of(self._context.politeness.state_of(request).name)
        codes = self._retry_codes if policy.retry is None else policy.retry
        return codes if policy.accept is None else codes - policy.accept
