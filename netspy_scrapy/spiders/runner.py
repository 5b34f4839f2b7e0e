"""``MySpider().start()``: a crawl that blocks until it is done, in this very process.

Twisted's reactor can be started once. So it is started once and never stopped, and what runs, and
stops, and runs again is the asyncio loop beneath it. Spiders can be run one after another, also
from a thread while another loop runs, and what callbacks did to the spider, to globals and to
lists is there afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from contextlib import suppress
from pathlib import Path
from signal import default_int_handler
from typing import TYPE_CHECKING, Any, cast

from scrapy.crawler import AsyncCrawlerRunner
from scrapy.utils.log import configure_logging
from scrapy.utils.ossignal import install_shutdown_handlers, signal_names
from scrapy.utils.project import get_project_settings

from netspy_scrapy import _scrapy
from netspy_scrapy import stats as keys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import ConfigError, SinkFailedError, SpiderError
from netspy_scrapy.extensions.runtime import Runtime
from netspy_scrapy.spiders import host
from netspy_scrapy.spiders.setup import translated

if TYPE_CHECKING:
    from types import FrameType

    from scrapy.crawler import Crawler

    from netspy_scrapy.spiders.air import AirSpider

logger = logging.getLogger(__name__)

#: Modules that import spiders in order to run them: a ``start()`` at the end of the file is not
#: meant for them.
_IMPORTERS = frozenset(
    {
        "scrapy.cmdline",
        "scrapy.spiderloader",
        "netspy_scrapy.commands.retry",
        "netspy_scrapy.commands.spiders",
    }
)


def run(spider: AirSpider) -> int:
    """Run *spider* until it is done; return the exit status that the run deserves.

    Raises what kept the crawl from starting, what ``start_requests`` raised (once what it had
    yielded is done), and :exc:`SinkFailedError` if rows were lost.
    """
    if _is_being_imported_to_run():
        logger.debug("%s.start() is left to the command that runs it", type(spider).__name__)
        return 0
    if host.is_within_a_crawl():
        raise SpiderError(
            f"{type(spider).__name__}.start() is called by the code of a spider that is running: "
            "it would wait for itself. Call it after that start()"
        )
    one = _Run(spider)
    if _loop_is_running():
        one.in_thread()
    else:
        one.here()
    return one.status


class _Run:
    """One run of one spider."""

    def __init__(self, spider: AirSpider) -> None:
        self._spider = spider
        self._settings = get_project_settings()
        self._settings.setdict(translated(spider.netspy_arguments), "cmdline")
        if not self._settings.getbool("TWISTED_REACTOR_ENABLED", True):
            raise ConfigError("TWISTED_REACTOR_ENABLED", False, "True for MySpider().start()")
        self.loop: asyncio.AbstractEventLoop | None = None
        self.status = 0
        """The exit status, once it is done."""
        self._task: asyncio.Task[None] | None = None
        self._crawler: Crawler | None = None
        self._is_stopped = False
        """Whether somebody wants the crawl to end, which may be before it begins."""
        self._is_cut = False
        """Whether a second signal came."""

    def here(self) -> None:
        """Run in this thread."""
        restore = self._install_signal_handlers()
        try:
            settings = self._settings.copy()
            self._spider.update_settings(settings)  # for ASYNCIO_EVENT_LOOP
            host.run(self, settings)
        except BaseException:
            self._last_words()  # a KeyboardInterrupt may come from the midst of the loop
            raise
        finally:
            restore()

    def in_thread(self) -> None:
        """Run in a thread of its own, since a loop runs in this one."""
        failure: list[BaseException] = []

        def target() -> None:
            try:
                self.here()
            except BaseException as exc:  # noqa: BLE001 - it is raised in the caller's thread
                failure.append(exc)

        thread = threading.Thread(target=target, name=f"{type(self._spider).__name__}.start")
        thread.start()
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt:
                self.stop()
        if failure:
            raise failure[0]

    async def crawl(self) -> None:
        """Crawl until done."""
        runner = AsyncCrawlerRunner(self._settings)
        crawler = self._crawler = runner.create_crawler(type(self._spider))
        if crawler.settings["LOG_FILE"]:
            Path(crawler.settings["LOG_FILE"]).parent.mkdir(parents=True, exist_ok=True)
        configure_logging(crawler.settings)
        _scrapy.install_resolver(crawler)
        self._task = asyncio.ensure_future(runner.crawl(crawler, netspy_instance=self._spider))
        if self._is_stopped:
            self._stop_soon()
        try:
            with suppress(asyncio.CancelledError):
                await self._task
        finally:
            self._spider.netspy_active = False
        if self._is_cut:
            raise KeyboardInterrupt
        raised = CrawlContext.of(crawler).escapes.exit
        if raised is not None:
            raise raised
        if self._spider.netspy_start_error is not None:
            raise self._spider.netspy_start_error
        _raise_if_lost(crawler)
        if crawler.stats is not None:
            self.status = crawler.stats.get_value(keys.EXIT_STATUS, 0)

    def _last_words(self) -> None:
        with suppress(RuntimeError):  # the crawl had no extensions yet
            runtime = self._crawler.get_extension(Runtime) if self._crawler is not None else None
            if runtime is not None:
                runtime.last_words()

    # Stopping ------------------------------------------------------------------------------------
    def _install_signal_handlers(self) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        saved = _scrapy.shutdown_handlers()
        install_shutdown_handlers(cast("Any", self._on_signal))
        return lambda: _scrapy.restore_handlers(saved)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        name = signal_names[number]
        install_shutdown_handlers(cast("Any", self._on_second_signal))
        self._say("Received %s: stopping. Send it again to stop at once", name)
        self.stop()
        for one in host.all_runs():
            if one is not self:
                one.stop()

    def _on_second_signal(self, number: int, _frame: FrameType | None) -> None:
        self._say("Received %s again: stopping at once", signal_names[number])
        self._is_cut = True
        # Where a callback blocks the loop, only an exception in it ends the process.
        _scrapy.restore_handlers(dict.fromkeys(_scrapy.shutdown_handlers(), default_int_handler))
        if self.loop is not None and self._task is not None:
            self.loop.call_soon_threadsafe(self._task.cancel)

    def _say(self, message: str, name: str) -> None:
        # Writing to a log within a signal handler can meet a write that it interrupted.
        if self.loop is not None:
            self.loop.call_soon_threadsafe(logger.info, message, name)

    def stop(self) -> None:
        """End the crawl soon; for any thread."""
        self._is_stopped = True
        if self.loop is not None and self._crawler is not None:
            self.loop.call_soon_threadsafe(self._stop_soon)

    def _stop_soon(self) -> None:
        assert self._crawler is not None  # the runner knows it only once it has begun
        _scrapy.keep(self._crawler, _scrapy.stop(self._crawler))


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _raise_if_lost(crawler: Crawler) -> None:
    if CrawlContext.of(crawler).sink_failed:
        raise SinkFailedError(
            "rows could neither be stored nor dumped; the log names the sink and the rows"
        )


def _is_being_imported_to_run() -> bool:
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - no other way to see who imports
    while frame is not None:
        if frame.f_globals.get("__name__") in _IMPORTERS:
            return True
        frame = frame.f_back
    return False
