"""Which statuses reach the callback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netspy_scrapy.settings import StatusSettings, is_success

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

    from netspy_scrapy.context import CrawlContext


class Acceptance:
    """Tells which answers the callback gets, by their status.

    Settings: CHECK_STATUS_CODE, ACCEPT_STATUS_CODES, HTTPERROR_ALLOWED_CODES, HTTPERROR_ALLOW_ALL.
    Meta: ``handle_httpstatus_list``, ``handle_httpstatus_all``.
    """

    def __init__(self, context: CrawlContext) -> None:
        self._context = context
        self._settings = StatusSettings.from_settings(context.crawler.settings)

    def accepts(self, request: Request | None, response: Response) -> bool:
        """Tell whether the callback of *request* gets *response*."""
        settings = self._settings
        status = response.status
        if not settings.check or settings.allow_all or is_success(status):
            return True
        if status in settings.accept_codes:
            return True
        if request is None:
            return status in settings.allowed_codes
        politeness = self._context.politeness
        if politeness.settings.policies:
            policy = politeness.settings.policies.of(politeness.state_of(request).name)
            if policy.accept is not None and status in policy.accept:
                return True
        meta = request.meta
        if meta.get("handle_httpstatus_all", False):
            return True
        allowed: Any = meta.get("handle_httpstatus_list")
        if allowed is None:
            spider = self._context.crawler.spider
            allowed = getattr(spider, "handle_httpstatus_list", settings.allowed_codes)
        return status in allowed
