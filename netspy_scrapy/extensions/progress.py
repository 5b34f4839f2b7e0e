"""How a crawl is getting on, in one line at the foot of a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured

from netspy_scrapy import _scrapy
from netspy_scrapy import stats as keys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.extensions.terminal import TerminalLine, is_for_people
from netspy_scrapy.findings import rows
from netspy_scrapy.logs import counted
from netspy_scrapy.settings import WatchSettings
from netspy_scrapy.shared import shared

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

#: Seconds between two drawings.
_INTERVAL = 1.0

#: Seconds over which pages per second are counted.
_WINDOW = 5.0

#: Domains that are named while they rest.
_NAMED = 2


class Progress:
    """Shows pages per second, pages, queue, resting domains, failures and rows, once a second.

    Only where stderr is a terminal that can clear a line, not in CI (the variable CI), and not in
    ``scrapy shell``. Log records on the same terminal stay whole: the line steps aside for them.

    Setting: NETSPY_PROGRESS.
    """

    def __init__(self, crawler: Crawler) -> None:
        if not WatchSettings.from_settings(crawler.settings).progress:
            raise NotConfigured
        if not is_for_people(sys.stderr, os.environ):
            raise NotConfigured
        self._crawler = crawler
        self._context = CrawlContext.of(crawler)
        self._seen: deque[tuple[float, int]] = deque()
        self._line: TerminalLine | None = None
        self._timer: asyncio.TimerHandle | None = None
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the extension."""
        return cls(crawler)

    def spider_opened(self) -> None:
        """Begin to draw."""
        if threading.current_thread() is not threading.main_thread():
            return  # the terminal is somebody else's, as in scrapy shell
        stream = sys.stderr
        self._line = shared(("terminal", id(stream)), lambda: TerminalLine(stream))
        self._seen.append((time.monotonic(), 0))
        _scrapy.watch_closing(self._crawler, self._closing)
        self._later()

    def spider_closed(self) -> None:
        """Leave the terminal as it was."""
        if self._timer is not None:
            self._timer.cancel()
        if self._line is not None:
            self._line.remove(self)

    # Own methods -------------------------------------------------------------------------------
    def _closing(self, reason: str) -> None:
        if reason == "shutdown":  # a second signal would end the process in the midst of the line
            self.spider_closed()

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._tick)

    def _tick(self) -> None:
        self._later()
        assert self._line is not None
        self._line.show(self, self.text())

    def text(self) -> str:
        """Return what the line says now."""
        stats = self._context.stats
        pages = stats.get_value("response_received_count", 0)
        parts = [
            f"{self._rate(pages):.1f} pages/s",
            counted(pages, "page"),
            f"{_scrapy.pending(self._crawler)} queued",
            f"{len(_scrapy.requests_under_way(self._crawler))} in flight",
            *self._resting(),
        ]
        if failures := stats.get_value(keys.FAILURES, 0):
            parts.append(f"{failures} failed")
        if self._context.intake.sinks:
            parts.append(counted(rows(stats.get_stats(), keys.ROWS_STORED), "row"))
        else:
            parts.append(counted(stats.get_value("item_scraped_count", 0), "item"))
        if dumped := rows(stats.get_stats(), keys.ROWS_DUMPED):
            parts.append(f"{dumped} dumped")
        return f"{self._context.spider_name}: {', '.join(parts)}"

    def _rate(self, pages: int) -> float:
        """Return the pages per second of the last seconds."""
        now = time.monotonic()
        self._seen.append((now, pages))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:  # noqa: PLR2004
            self._seen.popleft()
        since, before = self._seen[0]
        return (pages - before) / (now - since) if now > since else 0.0

    def _resting(self) -> list[str]:
        resting = self._context.politeness.health.resting()
        if not resting:
            return []
        longest = sorted(resting, key=lambda name: -resting[name])[:_NAMED]
        named = ", ".join(f"{name} {resting[name]:.0f} s" for name in longest)
        more = ", ..." if len(resting) > _NAMED else ""
        return [f"{len(resting)} resting ({named}{more})"]
