"""How a crawl ends before it is done: a limit of time, a signal, a second signal."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
from typing import TYPE_CHECKING

from scrapy import signals

from netspy_scrapy import _scrapy
from netspy_scrapy._scrapy import quick
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.settings import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

#: Seconds that sinks have, after what downloads have, to store what they hold at a stop.
_SINK_TIMEOUT = 60.0


class Runtime:
    """Ends a crawl in time, and leaves nothing behind.

    After SPIDER_MAX_RUNTIME the spider is closed with the reason ``max_runtime``. However it is
    closed (that limit, a first Ctrl-C or SIGTERM, Scrapy's CLOSESPIDER settings): what is in
    flight may finish for NETSPY_STOP_TIMEOUT seconds, then it is cut off and goes back to the
    queue, and so to the job directory or the dump. Sinks have a minute more to store what they
    hold; then it is dumped. If the process ends before the crawl is closed
    (a second signal), the rows that sinks still hold are dumped on the way out.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._context = CrawlContext.of(crawler)
        self._settings = RuntimeSettings.from_settings(crawler.settings)
        self._timers: list[asyncio.TimerHandle] = []
        self._is_open = False
        self._process = os.getpid()
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.engine_started, signals.engine_started)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the extension."""
        return cls(crawler)

    def spider_opened(self) -> None:
        """Start the clock."""
        _scrapy.watch_closing(self._crawler, self._closing)
        atexit.register(self.last_words)
        self._is_open = True
        if self._settings.max_runtime > 0:
            self._later(self._settings.max_runtime, self._time_is_up)

    def engine_started(self) -> None:
        """Guard what user code raises, around all that others do to callbacks.

        And leave out what nobody needs.
        """
        pipelines = _scrapy.item_pipelines(self._crawler)
        foreign = any(not isinstance(one, BasePipeline) for one in pipelines)
        self._context.escapes.guard(items=foreign)
        quick.quicken(self._crawler)

    def spider_closed(self) -> None:
        """Stop the clock."""
        for timer in self._timers:
            timer.cancel()
        self._is_open = False
        atexit.unregister(self.last_words)

    def last_words(self) -> None:
        """Dump what would be lost with the process, if the crawl was not closed."""
        atexit.unregister(self.last_words)
        if not self._is_open or os.getpid() != self._process:  # a fork holds copies only
            return
        self._is_open = False
        rows = sum(batcher.dump_now() for batcher in self._context.intake.batchers)
        requests = self._context.request_dump.dump_now()
        if rows or requests:
            logger.warning(
                "Cut off: %d rows that sinks still held are dumped to %s, %d failed requests to %s",
                rows, self._context.item_dump.path, requests, self._context.request_dump.path,
            )  # fmt: skip

    # Own methods -------------------------------------------------------------------------------
    def _time_is_up(self) -> None:
        logger.info(
            "SPIDER_MAX_RUNTIME = %g s is reached", self._settings.max_runtime,
            extra={"spider": self._crawler.spider},
        )  # fmt: skip
        _scrapy.close_spider(self._crawler, "max_runtime")

    def _closing(self, reason: str) -> None:
        """Do what has to be done once the spider is being closed."""
        if not _scrapy.start_is_exhausted(self._crawler):
            logger.warning(
                "start() was not at its end when the crawl was stopped: what it had not yielded "
                "yet is in no dump and no job directory", extra={"spider": self._crawler.spider},
            )  # fmt: skip
        if self._settings.stop_timeout > 0:
            self._later(self._settings.stop_timeout, self._cut)
        if reason != "finished":
            self._later(self._settings.stop_timeout + _SINK_TIMEOUT, self._give_up_sinks)

    def _cut(self) -> None:
        count = self._context.politeness.cut()
        if count:
            logger.warning(
                "%d downloads were not done within NETSPY_STOP_TIMEOUT = %g s of the stop: cut off",
                count, self._settings.stop_timeout, extra={"spider": self._crawler.spider},
            )  # fmt: skip

    def _give_up_sinks(self) -> None:
        """Dump what sinks still hold: one of them hangs, and nobody may be there to see it."""
        for batcher in self._context.intake.batchers:
            rows = batcher.give_up()
            if rows:
                logger.error(
                    "%s did not store %d rows within %g s of the stop: given up, and dumped to %s",
                    batcher.name, rows, self._settings.stop_timeout + _SINK_TIMEOUT,
                    self._context.item_dump.path, extra={"spider": self._crawler.spider},
                )  # fmt: skip

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, function))
