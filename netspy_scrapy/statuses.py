"""What a status means for a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netspy_scrapy.settings import StatusSettings, is_success

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from netspy_scrapy.politeness import Politeness


class StatusRules:
    """Tells which statuses are fetched again, and which reach the callback.

    Meta keys: ``handle_httpstatus_list``, ``handle_httpstatus_all``.
    """

    def __init__(self, crawler: Crawler, politeness: Politeness) -> None:
        self._crawler = crawler
        self._politeness = politeness
        self._policies = politeness.settings.policies
        settings = self._settings = StatusSettings.from_settings(crawler.settings)
        self._retry_codes = (
            settings.retry_codes - settings.accept_codes if settings.check else frozenset()
        )

    def retried(self, request: Request) -> frozenset[int]:
        """Return the statuses that are fetched again at the request's domain."""
        if not self._policies:
            return self._retry_codes
        policy = self._policies.of(self._politeness.state_of(request).name)
        codes = self._retry_codes if policy.retry is None else policy.retry
        return codes if policy.accept is None else codes - policy.accept

    def accepts(self, request: Request, status: int) -> bool:
        """Tell whether an answer with *status* reaches the callback."""
        settings = self._settings
        if not settings.check or settings.allow_all or is_success(status):
            return True
        return bool(request.meta.get("handle_httpstatus_all")) or self.names(request, status)

    def names(self, request: Request, status: int) -> bool:
        """Tell whether a list of accepted statuses names *status*."""
        settings = self._settings
        if status in settings.accept_codes:
            return True
        if self._policies:
            policy = self._policies.of(self._politeness.state_of(request).name)
            if policy.accept is not None and status in policy.accept:
                return True
        allowed: Any = request.meta.get("handle_httpstatus_list")
        if allowed is None:
            allowed = getattr(
                self._crawler.spider, "handle_httpstatus_list", settings.allowed_codes
            )
        return status in allowed
