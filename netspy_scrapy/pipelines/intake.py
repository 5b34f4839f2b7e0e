"""The intake: what happens to an item once, before the first sink."""

from __future__ import annotations

import logging
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from itemadapter import is_item
from scrapy import signals
from scrapy.exceptions import DropItem
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from netspy_scrapy import _scrapy
from netspy_scrapy import stats as keys
from netspy_scrapy._scrapy import scraping
from netspy_scrapy.exceptions import ItemError, UpdateKeyError
from netspy_scrapy.items import Item, UpdateItem, fields_of, table_name_of
from netspy_scrapy.pipelines.batcher import after
from netspy_scrapy.pipelines.rows import Row, Settlement, fingerprint, snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector
    from typing_extensions import Self

    from netspy_scrapy.context import CrawlContext
    from netspy_scrapy.dedup.item_filter import ItemFilter
    from netspy_scrapy.pipelines.base import BasePipeline
    from netspy_scrapy.pipelines.batcher import Batcher
    from netspy_scrapy.settings import SinkSettings

logger = logging.getLogger(__name__)

#: The row of the item that the current task is taking through the pipelines.
_current: ContextVar[Row | None] = ContextVar("netspy_row", default=None)

#: How many sinks that item has come to.
_passed: ContextVar[int] = ContextVar("netspy_passed", default=0)

_OLD_PREFIX = "netspy.pipelines."
_PREFIX = "netspy_scrapy.pipelines."


class Intake:
    """Turns each item into one row, decides which sinks owe it, and remembers its fingerprint.

    The first sink in the chain asks for the row and so creates it: the fields are copied,
    ``pre_to_db`` runs, the fingerprint is compared with what this run has stored. Later sinks
    get the same row, with its fields read again if a pipeline of the project's own stands
    between them. The fingerprint is recorded when every sink that owed the row has stored it.
    """

    def __init__(
        self, crawler: Crawler, settings: SinkSettings, item_filter: ItemFilter | None
    ) -> None:
        self._crawler = crawler
        self._settings = settings
        self._filter = item_filter
        self._sinks: list[BasePipeline] = []
        self._extra: dict[str, BasePipeline] = {}
        self._closed_sinks = 0
        self._dumping: Batcher | None = None
        self._waits: list[Awaitable[None]] = []
        self._reread: frozenset[BasePipeline] | None = None
        if item_filter is not None:
            crawler.signals.connect(self._abandoned, signals.item_dropped)
        crawler.signals.connect(self._spider_opened, signals.spider_opened)
        crawler.signals.connect(self._item_error, signals.item_error)

    @property
    def sinks(self) -> list[BasePipeline]:
        """All sinks of the crawl, those that items named included."""
        return [*self._sinks, *self._extra.values()]

    @property
    def batchers(self) -> list[Batcher]:
        """The batches of all sinks, and of rows that never reach one."""
        found = [sink.batcher for sink in self._sinks]
        if self._extra:
            found += [sink.batcher for sink in self._extra.values()]
        if self._dumping is not None:
            found.append(self._dumping)
        return found

    @property
    def _stats(self) -> StatsCollector:
        stats = self._crawler.stats
        assert stats is not None
        return stats

    def register(self, sink: BasePipeline) -> bool:
        """Add a sink of ITEM_PIPELINES, in the chain's order; tell whether it is the first."""
        self._sinks.append(sink)
        return len(self._sinks) == 1

    def row_for(self, sink: BasePipeline, item: Any) -> Row | None:
        """Return *item* as the row that *sink* is to store, or None if it owes it nothing."""
        if sink is self._sinks[0]:
            _current.set(None)
            _passed.set(1)
            row = self.admit(item)
            _current.set(row)
        else:
            _passed.set(_passed.get() + 1)
            row = _current.get()
            if row is not None and self._must_reread(sink):
                row = self._reread_row(row, item)
        if row is None or (row.route is not None and sink.path not in row.route):
            return None
        if row.settlement is not None:
            row.settlement.handed += 1
        return row

    def _spider_opened(self) -> None:
        if self._sinks:
            scraping.watch_items(self._crawler, _begin)

    def _item_error(self, item: Any, failure: Any) -> None:
        """Dump what another pipeline raised at, for the sinks that it has not come to."""
        passed = _passed.get()
        if not passed:
            if is_item(item) and self._sinks:
                self._refuse(item, failure.value)
            return
        row = _current.get()
        if row is None:
            return
        reason = f"a pipeline raised {type(failure.value).__name__}: {failure.value}"
        for sink in self._sinks[passed:]:
            if row.route is None or sink.path in row.route:
                self._dump(row, reason, sink.path)

    def _abandoned(self) -> None:
        """Settle for the sinks that will not see an item: a pipeline between dropped it.

        After an error they are not spared: the dump settles for them.
        """
        row = _current.get()
        if row is not None and row.settlement is not None:
            row.settlement.abandon()

    async def open(self) -> None:
        """Get ready for items; raises ConfigError if the item filter's settings are wrong."""
        if self._filter is not None:
            await self._filter.open()

    async def sink_closed(self) -> None:
        """Keep the fingerprints of what a sink has stored to its end; the last sink ends it."""
        self._closed_sinks += 1
        if self._filter is not None:
            is_last = self._closed_sinks >= len(self.sinks)
            await (self._filter.close() if is_last else self._filter.flush())

    async def close_extra_sinks(self) -> None:
        """Close the sinks that only items named."""
        failures = []
        closing = [sink.close_spider for sink in self._extra.values()]
        if self._dumping is not None:
            closing.append(self._dumping.close)
        for close in closing:
            try:
                await close()
            except Exception as exc:  # noqa: BLE001 - the rows of the others are not its affair
                failures.append(exc)
        if failures:
            raise failures[0]

    # Once per item ------------------------------------------------------------------------------
    def admit(self, item: Any) -> Row | None:
        """Make the row of *item*, and give it to the sinks that only the item names.

        None: there is nothing to store (a duplicate, or it was refused and dumped).
        """
        row = self._row(item)
        if row is not None and row.route is not None:
            self._feed_extra_sinks(row)
        return row

    def _row(self, item: Any) -> Row | None:
        if not isinstance(item, dict) and not is_item(item):
            self._stats.inc_value(keys.ITEMS_REFUSED)
            raise DropItem(
                f"{type(item).__name__} {item!r:.80} is not an item: "
                "yield a Request, an Item or a dict"
            )
        self._stats.inc_value(keys.ITEMS)
        try:
            row, update = self._build(item)
        except BaseException as exc:  # noqa: BLE001 - pre_to_db is the user's
            self._refuse(item, self._context().escapes.failure(exc))
            return None
        owed = self._owed(row)
        # What no sink stores is never settled, and would be pending for ever.
        filtered = self._filter if isinstance(item, Item) and owed else None
        mark = b""
        if filtered is not None:
            mark = fingerprint(row.table, row.data, row.unique_keys, update=update)
            if filtered.seen(mark):
                self._stats.inc_value(keys.ITEMS_DUPLICATE)
                return None
            filtered.reserve(mark)
            row.settlement = Settlement(
                owed,
                lambda stored: filtered.record(mark) if stored else filtered.release(mark),
                mark,
                duplicate=False if filtered.decides_at_once else None,
            )
        return row

    def _build(self, item: Any) -> tuple[Row, bool]:
        route: tuple[str, ...] | None = None
        unique: tuple[str, ...] = ()
        update_keys: tuple[str, ...] | None = None
        if isinstance(item, Item):
            item.pre_to_db()
            table = item.table_name
            unique = tuple(item.unique_key)
            if isinstance(item, UpdateItem):
                update_keys = tuple(item.update_key)
                if not update_keys:
                    raise UpdateKeyError(
                        f"{type(item).__name__} has neither __update_key__ nor __unique_key__: "
                        "an update without a key would change every row"
                    )
                missing = [key for key in update_keys if key not in item]
                if missing:
                    raise UpdateKeyError(
                        f"{type(item).__name__} has no value for its update key "
                        + ", ".join(map(repr, missing))
                    )
            route = _route(item)
        elif isinstance(item, dict):
            table = self._settings.default_table
        else:
            table = getattr(type(item), "__table_name__", None) or table_name_of(type(item))
        data, weight = snapshot(fields_of(item))
        return Row(table, data, update_keys, unique, route, None, weight), update_keys is not None

    def _refuse(self, item: Any, exc: Exception) -> None:
        """Keep an item that never became a row: every sink still owes it."""
        self._stats.inc_value(keys.ITEMS_REFUSED)
        table = getattr(item, "table_name", None) or self._settings.default_table
        reason = f"{type(exc).__name__}: {exc}"
        logger.error("An item of %r is refused: %s", table, reason)
        update_keys = None
        route = None
        if isinstance(item, Item):
            with suppress(ItemError):
                update_keys = tuple(item.update_key) if isinstance(item, UpdateItem) else None
            with suppress(ItemError):
                route = _route(item)
        row = Row(table, fields_of(item), update_keys, (), None)
        paths = [sink.path for sink in self._sinks] if route is None else route
        for path in dict.fromkeys(paths):
            self._dump(row, reason, path)

    def _dump(self, row: Row, reason: str, path: str) -> None:
        """Dump a row that no sink is asked to store; *path* is the sink that owes it."""
        if self._dumping is None:
            self._dumping = self._context().new_batcher(_NoStorage(), "Intake", path)
        self._wait_for(self._dumping.refuse(row, reason, path=path))

    def _wait_for(self, waiting: Awaitable[None] | None) -> None:
        if waiting is not None:
            self._waits.append(waiting)

    def take_waits(self) -> list[Any]:
        """Return what has to be awaited since the last call, for sinks that only items name."""
        waits, self._waits = self._waits, []
        return list(waits)

    def _context(self) -> CrawlContext:
        from netspy_scrapy.context import CrawlContext  # noqa: PLC0415 - it imports this module

        return CrawlContext.of(self._crawler)

    def _owed(self, row: Row) -> int:
        if row.route is None:
            return len(self._sinks)
        return len(set(row.route))

    # Later sinks --------------------------------------------------------------------------------
    def _must_reread(self, sink: BasePipeline) -> bool:
        if self._reread is None:
            self._reread = self._sinks_behind_others()
        return sink in self._reread

    def _sinks_behind_others(self) -> frozenset[BasePipeline]:
        """Return the sinks that a pipeline of another kind precedes, after the first sink."""
        found = []
        foreign = False
        for pipeline in _scrapy.item_pipelines(self._crawler):
            if pipeline in self._sinks:
                if foreign:
                    found.append(pipeline)
            elif pipeline is not self._sinks[0]:
                foreign = True
        return frozenset(found)

    def _reread_row(self, row: Row, item: Any) -> Row:
        data, weight = snapshot(fields_of(item))
        return Row(
            row.table, data, row.update_keys, row.unique_keys, row.route, row.settlement, weight
        )

    # Sinks that an item names -------------------------------------------------------------------
    def _feed_extra_sinks(self, row: Row) -> None:
        assert row.route is not None
        for path in dict.fromkeys(row.route):
            if any(sink.path == path for sink in self._sinks):
                continue
            if row.settlement is not None:
                row.settlement.handed += 1
            sink = self._extra.get(path)
            if sink is None:
                try:
                    sink = self._extra[path] = self._load_extra(path)
                except Exception as exc:  # noqa: BLE001 - importing runs the project's code
                    reason = f"item.pipelines names {path!r}, which cannot be used: {exc}"
                    self._dump(row, reason, path)
                    continue
            self._wait_for(sink.take(row))

    def _load_extra(self, path: str) -> BasePipeline:
        from netspy_scrapy.pipelines.base import BasePipeline  # noqa: PLC0415 - it imports us

        cls = load_object(path)
        if not (isinstance(cls, type) and issubclass(cls, BasePipeline)):
            raise TypeError("it is not a BasePipeline")
        sink = cls()
        sink.bind(self._crawler)
        sink.batcher = self._context().new_batcher(sink, sink.name, path, opener=sink.open)
        return sink


def _begin() -> None:
    _passed.set(0)


def _route(item: Item) -> tuple[str, ...] | None:
    """Return the paths of the sinks that *item* names, or None: all."""
    chosen: Any = item.pipelines
    if chosen is None:
        return None
    if isinstance(chosen, (str, type)):
        chosen = [chosen]
    if not hasattr(chosen, "__iter__"):
        raise ItemError(f"item.pipelines is a list of pipelines, not {chosen!r}")
    return tuple(_sink_path(one) for one in chosen)


def _sink_path(one: Any) -> str:
    path = one if isinstance(one, str) else global_object_name(one)
    return _PREFIX + path[len(_OLD_PREFIX) :] if path.startswith(_OLD_PREFIX) else path


class _NoStorage:
    """Stands where a sink would: rows that get here are dumped without being offered."""

    unique_keys: tuple[str, ...] = ()

    def save_items(self, *_: Any) -> bool:
        return False

    update_items = save_items


class IntakePipeline:
    """Looks at ``item.pipelines`` where ITEM_PIPELINES names no sink.

    With a sink in the chain that one does it.
    """

    def __init__(self, crawler: Crawler) -> None:
        from netspy_scrapy.context import CrawlContext  # noqa: PLC0415 - it imports this module

        self._intake = CrawlContext.of(crawler).intake

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the pipeline."""
        return cls(crawler)

    def process_item(self, item: Any) -> Any:
        """Hand the item to the sinks that it names."""
        self._intake.admit(item)
        waits = self._intake.take_waits()
        return after(waits, item) if waits else item

    async def open_spider(self) -> None:
        """Get ready for items."""
        await self._intake.open()

    async def close_spider(self) -> None:
        """Close the sinks that were opened for items."""
        await self._intake.close_extra_sinks()
