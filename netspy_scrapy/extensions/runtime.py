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

    from netspy_scrapy.pipelines.batcher import Batcher

logger = logging.getLogger(__name__)

#: Seconds after NETSPY_STOP_TIMEOUT from which on a sink is given up if it hangs: if it has been at
#: one batch for so long.
_SINK_GRACE = 1.0
_SINK_HANGS = 1.5
#: Seconds after NETSPY_STOP_TIMEOUT at which a sink is given up though it is slow only. Without
#: such a time: seconds at one batch after which it counts as hanging.
_SINK_TIMEOUT = 60.0
#: Seconds between two looks at the sinks.
_LOOK = 0.2


class Runtime:
    """Ends a crawl in time, and leaves nothing behind.

    After SPIDER_MAX_RUNTIME the spider is closed with the reason ``max_runtime``. However it is
    closed (that limit, a first Ctrl-C or SIGTERM, Scrapy's CLOSESPIDER settings): what is in
    flight may finish for NETSPY_STOP_TIMEOUT seconds, then it is cut off and goes back to the
    queue, and so to the job directory or the dump. A sink that then hangs is given up: what it
    holds is dumped. One that gets on has a minute more. A crawl that closes by itself has all the
    time, until somebody stops it.

    If the process ends before the crawl is closed (a second signal), the rows that sinks still
    hold are dumped on the way out, and so are the requests that were queued or under way.
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
        _scrapy.watch_closing(self._crawler, self._closing, self._stop)
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
        context = self._context
        rows = sum(batcher.dump_now() for batcher in context.intake.batchers)
        take = getattr(_scrapy.scheduler_of(self._crawler), "take_unfinished", None)
        unfinished = take() if take is not None else ()
        failed, cut = context.request_dump.dump_now(unfinished, reason="unfinished: cut off")
        if rows or failed or cut:
            logger.warning(
                "Cut off: %d rows that sinks still held are dumped to %s, %d failed requests and "
                "%d that were not done to %s", rows, context.item_dump.path, failed, cut,
                context.request_dump.path,
            )  # fmt: skip

    # Own methods -------------------------------------------------------------------------------
    def _time_is_up(self) -> None:
        logger.info(
            "SPIDER_MAX_RUNTIME = %g s is reached", self._settings.max_runtime,
            extra={"spider": self._crawler.spider},
        )  # fmt: skip
        if _scrapy.is_closing(self._crawler):
            self._stop()
        else:
            _scrapy.close_spider(self._crawler, "max_runtime")

    def _closing(self, reason: str) -> None:
        """Do what has to be done once the spider is being closed."""
        if not _scrapy.start_is_exhausted(self._crawler):
            logger.warning(
                "start() was not at its end when the crawl was stopped: what it had not yielded "
                "yet is in no dump and no job directory", extra={"spider": self._crawler.spider},
            )  # fmt: skip
            _scrapy.end_start(self._crawler)
        if self._settings.stop_timeout > 0:
            self._later(self._settings.stop_timeout, self._cut)
        if reason != "finished":
            self._stop()

    def _stop(self) -> None:
        """Begin the time that the end may take; what closes by itself may be stopped later."""
        if self._context.stop.has_begun:
            return
        seconds = self._settings.stop_timeout
        self._context.stop.begin(seconds)
        for batcher in self._context.intake.batchers:
            batcher.hurry()  # one that hangs hangs now, and not when all else is done
        if seconds > 0:
            self._later(seconds + _SINK_GRACE, self._give_up_hanging_sinks)
            self._later(seconds + _SINK_TIMEOUT, self._give_up_sinks)
        else:  # downloads take as long as they take, and need their sinks
            self._later(_SINK_TIMEOUT, self._give_up_hanging_sinks)

    def _cut(self) -> None:
        count = self._context.politeness.cut()
        if count:
            logger.warning(
                "%d downloads were not done within NETSPY_STOP_TIMEOUT = %g s of the stop: cut off",
                count, self._settings.stop_timeout, extra={"spider": self._crawler.spider},
            )  # fmt: skip

    def _give_up_hanging_sinks(self) -> None:
        """Dump what a sink holds that does not get on: nobody may be there to see it hang."""
        if not self._is_open:
            return
        hangs = _SINK_HANGS if self._settings.stop_timeout > 0 else _SINK_TIMEOUT
        for batcher in self._context.intake.batchers:
            if batcher.stalled >= hangs:
                self._give_up(batcher)
        self._later(_LOOK, self._give_up_hanging_sinks)

    def _give_up_sinks(self) -> None:
        for batcher in self._context.intake.batchers:
            self._give_up(batcher)

    def _give_up(self, batcher: Batcher) -> None:
        seconds = batcher.stalled
        rows = batcher.give_up()
        if rows or seconds:
            logger.error(
                "%s is given up after the stop, having been at one batch, or at its close, for "
                "%.1f s: %d rows that it held are dumped to %s, some of which it may have stored",
                batcher.name, seconds, rows, self._context.item_dump.path,
                extra={"spider": self._crawler.spider},
            )  # fmt: skip

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, function))
