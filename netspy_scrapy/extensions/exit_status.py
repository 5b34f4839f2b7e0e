"""The exit status of a crawl says whether all went well."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import signals

from netspy_scrapy import _scrapy
from netspy_scrapy import stats as keys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.findings import ALWAYS_FAIL, FINDINGS, NOTHING_STORED, findings
from netspy_scrapy.settings import WatchSettings, user_set

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class ExitStatus:
    """Has a run that went wrong end with exit status 1, and says why in one warning.

    NETSPY_FAIL_ON lists what counts as wrong; rows that are lost always do. The status is that of
    ``scrapy crawl`` and ``scrapy runspider``, and what ``MySpider().start()`` returns.

    Stats: ``netspy/nothing_stored``, ``netspy/exit_status``.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.fail_on = WatchSettings.from_settings(crawler.settings).fail_on | ALWAYS_FAIL
        """The findings that make the exit status 1."""
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the extension."""
        return cls(crawler)

    async def spider_closed(self, spider: Spider, reason: str) -> None:
        """Judge the run, once the dumps are written."""
        context = CrawlContext.of(self._crawler)
        await context.request_dump.flush()
        found = findings_of(context, reason)
        if NOTHING_STORED in found:
            context.stats.set_value(keys.NOTHING_STORED, found[NOTHING_STORED])
        if names := failing(context, found):
            why = "; ".join(f"{FINDINGS[name]} ({name})" for name in names)
            logger.warning("The exit status is 1: %s", why, extra={"spider": spider})
            _scrapy.fail_exit(self._crawler)


def failing(context: CrawlContext, found: dict[str, int]) -> list[str]:
    """Return those findings that make the exit status 1; none where nothing here sets it."""
    extension = context.crawler.get_extension(ExitStatus)
    return [] if extension is None else [name for name in found if name in extension.fail_on]


def findings_of(context: CrawlContext, reason: str) -> dict[str, int]:
    """Return what is not well with a run, each with how many it concerns."""
    stats = context.stats.get_stats()
    return findings(
        stats, reason, sink_failed=context.sink_failed, expects_rows=_expects_rows(context)
    )


def _expects_rows(context: CrawlContext) -> bool:
    """Tell whether rows should have come to sinks of ours, as far as can be known.

    A netspy spider without ITEM_PIPELINES has the Console sink, and need not yield anything. What
    another pipeline stores is not known here; what a feed took is. ``scrapy fetch`` and its like
    store nothing.
    """
    if not context.intake.sinks or _scrapy.is_trial():
        return False
    settings, stats = context.crawler.settings, context.stats
    if settings.getdict("FEEDS") and stats.get_value("item_scraped_count", 0):
        return False
    return user_set(settings, "ITEM_PIPELINES") or stats.get_value(keys.ITEMS, 0) > 0
