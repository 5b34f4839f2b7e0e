"""Keeps what spiders yield from running far ahead of what is downloaded and stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netspy_scrapy import _scrapy
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.settings import PaceSettings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

#: Seconds between two looks at the queue while it is over its bound; one that runs dry says so.
_LOOK = 0.05


class Pace:
    """Waits while more is queued than NETSPY_START_MAX_QUEUED and the queue is moving.

    A queue whose requests all have to wait for something else holds nobody up: what comes next
    may be able to go (another domain). So no wait of one domain holds up another.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._context = CrawlContext.of(crawler)
        self._max_queued = PaceSettings.from_settings(crawler.settings).max_queued

    @property
    def is_over(self) -> bool:
        """Whether more is queued than should be."""
        return 0 < self._max_queued < _scrapy.queued(self._crawler)

    async def wait_for_queue(self) -> None:
        """Wait until the queue has shrunk or does not move, or the crawl closes."""
        while (
            self.is_over
            and _scrapy.queue_is_moving(self._crawler)
            and not _scrapy.is_closing(self._crawler)
        ):
            await _scrapy.until_starved(self._crawler, _LOOK)

    async def wait_for_sinks(self) -> None:
        """Wait until every sink may take more."""
        for batcher in self._context.intake.batchers:
            if batcher.is_full:
                await batcher.room()
