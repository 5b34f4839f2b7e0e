"""The base of every sink, ours and the user's own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy.utils.python import global_object_name

from netspy_scrapy import _scrapy
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import UpdateNotSupportedError
from netspy_scrapy.pipelines.batcher import Batcher, after
from netspy_scrapy.spiders.logger import SpiderLogger

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

    from netspy_scrapy.pipelines.rows import Row


class BasePipeline:
    """A sink: stores rows in batches, and dumps those that it cannot store.

    A pipeline of your own needs one method::

        class MyPipeline(BasePipeline):
            def save_items(self, table, items):     # items: a list of dicts
                ...
                return True                         # False: these rows are dumped

    ``save_items`` and ``update_items`` run in a thread, or on the event loop if they are
    ``async def``; one call at a time. They return True (all stored), False (none), or a dict that
    maps the position of each refused row to the reason. An exception refuses the whole batch;
    only :exc:`~netspy_scrapy.exceptions.SinkUnavailableError` lets it wait for the server.
    Refused rows go to FAILED_ITEM_PATH, from where ``netspy-retry --items`` stores them.

    ``open()`` and ``close()`` may be overridden, sync or async; ``self.settings`` and
    ``self.logger`` are there from ``open()`` on.

    Settings: ITEM_MAX_CACHED_COUNT, BUFFER_FLUSH_INTERVAL, NETSPY_BUFFER_MAX_BYTES,
    NETSPY_SINK_WAIT, FAILED_ITEM_PATH. Stats: ``netspy/rows/<class>/...``.
    """

    supports_update: ClassVar[bool] = True
    """False: an UpdateItem is dumped at once, with the reason."""

    wants_unique_keys: ClassVar[bool] = False
    """True: ``unique_keys`` is set before each call."""

    unique_keys: tuple[str, ...] = ()
    """The ``__unique_key__`` fields that the rows of the present call share."""

    crawler: Crawler
    settings: BaseSettings
    batcher: Batcher

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the sink; ``__init__`` takes no arguments."""
        sink = cls()
        sink.bind(crawler)
        context = CrawlContext.of(crawler)
        sink._is_first = context.intake.register(sink)
        sink.batcher = context.new_batcher(sink, sink.name, sink.path)
        return sink

    def bind(self, crawler: Crawler) -> None:
        """Give the sink its settings without putting it into a crawl (as the replay does)."""
        self.crawler = crawler
        self.settings = crawler.settings

    _is_first = False

    # What a sink is ----------------------------------------------------------------------------
    def save_items(self, table: str, items: list[dict[str, Any]]) -> Any:
        """Store new rows of *table*; return True, False, or the refused rows."""
        del table, items
        raise NotImplementedError(f"{self.path} does not define save_items(table, items)")

    def update_items(self, table: str, items: list[dict[str, Any]], update_keys: list[str]) -> Any:
        """Change the rows of *table* that *update_keys* find; return as ``save_items``."""
        del table, items, update_keys
        raise UpdateNotSupportedError(f"{self.name} cannot update rows: use Item, or another sink")

    def open(self) -> Coroutine[Any, Any, None] | None:
        """Connect, or open files; called before the first batch."""

    def close(self) -> Coroutine[Any, Any, None] | None:
        """Close what ``open`` opened; called once after the last batch, if it is open."""

    @property
    def name(self) -> str:
        """The class name, as it appears in stats and logs."""
        return type(self).__name__

    @property
    def path(self) -> str:
        """The import path, by which dump lines and ``item.pipelines`` name the sink."""
        return global_object_name(type(self))

    @property
    def logger(self) -> SpiderLogger:
        """A logger of the sink's own name; takes ``{}`` and ``%s`` messages, as a spider's."""
        return SpiderLogger(logging.getLogger(self.name), {})

    # Scrapy's hooks ----------------------------------------------------------------------------
    async def open_spider(self) -> None:
        """Open the sink; one whose server is away is opened with the first batch."""
        if self._is_first:
            await CrawlContext.of(self.crawler).intake.open()
        try:
            await self.batcher.open(self.open)
        except Exception:
            _scrapy.fail_exit(self.crawler)  # old Scrapy ends with 0 after a crawl that never began
            raise

    def process_item(self, item: Any) -> Any:
        """Take the item; the answer has to be awaited only while the sink is full."""
        intake = CrawlContext.of(self.crawler).intake
        row = intake.row_for(self, item)
        waits = intake.take_waits()
        if row is not None:
            waiting = self.take(row)
            if waiting is not None:
                waits.append(waiting)
        return after(waits, item) if waits else item

    async def close_spider(self) -> None:
        """Write what is left and close the sink."""
        try:
            try:
                await self.batcher.close()
            finally:
                if self._is_first:
                    await CrawlContext.of(self.crawler).intake.close_extra_sinks()
        finally:
            try:
                await CrawlContext.of(self.crawler).intake.sink_closed()
            finally:
                await self.batcher.close_sink(self.close)

    # Own methods -------------------------------------------------------------------------------
    def take(self, row: Row) -> Any:
        """Put *row* into the next batch; return something to await if the sink is full."""
        if row.update_keys is not None and not self.supports_update:
            return self.batcher.refuse(row, f"{self.name} stores new rows only")
        return self.batcher.accept(row)
