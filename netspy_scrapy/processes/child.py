"""The program of one process: it crawls, and tells the command of itself.

Its stdin tells what is to be done, and stays open while the command lives. If that is gone, the
crawl is stopped as by a signal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from scrapy import signals
from scrapy.crawler import AsyncCrawlerProcess

from netspy_scrapy import _scrapy
from netspy_scrapy.commands.project import find_spider, settings_of_script
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import NetspyError
from netspy_scrapy.extensions.record import complete, run_record
from netspy_scrapy.processes import unfinished
from netspy_scrapy.processes.job import Job, Node, tell

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import Settings

logger = logging.getLogger(__name__)

#: Seconds between two reports: what is not known of a process that is killed.
_INTERVAL: Final = 1.0
#: Seconds that a crawl has for its end once the command is gone: those of its sinks, and more.
_LAST: Final = 90.0
_LAST_AT_ONCE: Final = 10.0


def main() -> int:
    """Do the job that stdin tells; return the exit status."""
    job = Job.decode(sys.stdin.buffer.readline())
    for fd in (job.report_fd, job.hold_fd):
        if fd is not None:
            os.set_inheritable(fd, False)  # programs that it starts may outlive it
    orphaned = _outlive_nobody(os.dup(0))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.path += [one for one in job.path if one not in sys.path]
    settings = settings_of_script([])
    settings.setdict(job.settings, "cmdline")
    spider = find_spider(job.target, settings)
    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(spider)
    reporter = _Reporter(crawler, job)
    error = _crawl(process, crawler, job.arguments)
    if error is not None:
        reporter.failed(f"{type(error).__name__}: {error}")
    if orphaned.is_set() and job.hold_fd is not None and reporter.node is not None:
        unfinished.rescue(crawler, reporter.node.base)
    return int(process.bootstrap_failed or error is not None)


def crawl(spider: type[Spider], settings: Settings, arguments: dict[str, str]) -> int:
    """Crawl in this process, alone, until done; return the exit status."""
    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(spider)
    error = _crawl(process, crawler, arguments)
    if process.bootstrap_failed or error is not None:
        return 1
    reason = crawler.stats.get_value("finish_reason") if crawler.stats is not None else None
    return 128 + signal.SIGINT if reason == "shutdown" else 0


def _crawl(
    process: AsyncCrawlerProcess, crawler: Crawler, arguments: dict[str, str]
) -> BaseException | None:
    """Crawl until done; return, and log, what kept it from starting, or from starting well."""
    task = process.crawl(crawler, **arguments)
    process.start()
    error = task.exception() if task.done() and not task.cancelled() else None
    error = error or getattr(crawler.spider, "netspy_start_error", None)
    if error is not None:
        expected = isinstance(error, NetspyError)
        logger.error("%s", error, exc_info=None if expected else error)
    return error


class _Reporter:
    """Tells what becomes of a crawl: once a second, and at its end."""

    def __init__(self, crawler: Crawler, job: Job) -> None:
        self._crawler = crawler
        self._job = job
        self._task: asyncio.Task[None] | None = None
        self.node: Node | None = None
        """How the queue knows this process; None: it has not come to it."""
        crawler.signals.connect(self._spider_opened, signals.spider_opened)
        crawler.signals.connect(self._spider_closed, signals.spider_closed)

    def failed(self, error: str) -> None:
        """Tell what kept the crawl from starting, or from starting well."""
        tell(self._job.report_fd, "failed", error=error)

    def _spider_opened(self, spider: Spider) -> None:
        spider.netspy_process = self._job.label  # type: ignore[attr-defined] # for FEEDS
        scheduler = _scrapy.scheduler_of(self._crawler)
        self.node = Node(scheduler.node, scheduler.names.base, scheduler.names.start)
        tell(self._job.report_fd, "node", node=asdict(self.node))
        self._task = asyncio.ensure_future(self._report_on())

    async def _report_on(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            tell(self._job.report_fd, "report", record=self._record(""))

    async def _spider_closed(self, reason: str) -> None:
        if self._task is not None:
            self._task.cancel()
        await complete(CrawlContext.of(self._crawler))
        tell(self._job.report_fd, "closed", record=self._record(reason), reason=reason)

    def _record(self, reason: str) -> dict[str, Any]:
        context = CrawlContext.of(self._crawler)
        return run_record(context.spider_name, reason, context.stats.get_stats(), context)


def _outlive_nobody(lifeline: int) -> threading.Event:
    """See to it that this process ends when the other end of *lifeline* is gone.

    Returns what tells that it is.
    """
    gone = threading.Event()

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        gone.set()
        # Nobody reads the log any more; writing to it is to be no error.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        for seconds in (_LAST, _LAST_AT_ONCE):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="netspy-lifeline", daemon=True).start()
    return gone


if __name__ == "__main__":
    sys.exit(main())
