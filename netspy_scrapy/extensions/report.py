"""The report: what came of a crawl, as a page to look at."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured

from netspy_scrapy import _scrapy
from netspy_scrapy import signals as our_signals
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.extensions.record import complete, run_record
from netspy_scrapy.politeness import domain_of_request
from netspy_scrapy.report.file import ReportFile
from netspy_scrapy.report.history import History
from netspy_scrapy.report.page import Report

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class RunReport:
    """Writes a page about the run at its end: pages and rests over time, domains, sinks, causes.

    Setting: NETSPY_REPORT.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._context = CrawlContext.of(crawler)
        file = ReportFile.from_settings(crawler.settings, self._context.spider_name)
        if file is None:
            raise NotConfigured
        self._file = file
        self._began = datetime.now(timezone.utc)
        for handler, signal in (
            (self.spider_opened, signals.spider_opened),
            (self.response_received, signals.response_received),
            (self.domain_rested, our_signals.domain_rested),
            (self.circuit_opened, our_signals.circuit_opened),
            (self.spider_closed, signals.spider_closed),
        ):
            crawler.signals.connect(handler, signal)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the extension."""
        return cls(crawler)

    def spider_opened(self) -> None:
        """Start the clock, unless a page is only tried (``scrapy fetch``): that is no run."""
        if _scrapy.is_trial():
            return
        self._began = datetime.now(timezone.utc)
        self._context.history = History()

    def response_received(self, response: Response, request: Request) -> None:
        """Count a page, as Scrapy does."""
        history = self._context.history
        if history is not None:
            latency = request.meta.get("download_latency")
            if "cached" in response.flags:  # then it may be that of the page that led here
                latency = None
            history.answered(domain_of_request(request), latency)

    def domain_rested(self, domain: str, seconds: float, cause: str) -> None:
        """Note a rest."""
        if self._context.history is not None:
            self._context.history.rested(domain, seconds, cause)

    def circuit_opened(self, domain: str, seconds: float) -> None:
        """Note an open circuit."""
        if self._context.history is not None:
            self._context.history.circuit_opened(domain, seconds)

    async def spider_closed(self, spider: Spider, reason: str) -> None:
        """Write the page, once all is counted."""
        context = self._context
        history = context.history
        if history is None:  # a trial, or closed before it was open
            return
        await complete(context)
        stats = context.stats.get_stats()
        page = Report(
            record=run_record(spider.name, reason, stats, context),
            history=history,
            began=self._began,
            seconds=history.elapsed(),
        ).html()
        path = self._file.path
        try:
            await asyncio.to_thread(self._file.write, page)
        except OSError as exc:
            logger.error(  # noqa: TRY400 - where it happened says nothing
                "NETSPY_REPORT: %s cannot be written: %s", path, exc.strerror or exc,
                extra={"spider": spider},
            )  # fmt: skip
        else:
            logger.info("Report of the run: %s", path, extra={"spider": spider})
