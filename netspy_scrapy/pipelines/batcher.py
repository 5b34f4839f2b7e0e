"""Batches of one sink: filled on the event loop, written off it, bounded in memory."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import Counter
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

from netspy_scrapy import stats as keys
from netspy_scrapy.dumps.items import ItemRecord, now
from netspy_scrapy.escapes import as_exception, in_thread
from netspy_scrapy.exceptions import DumpError, SinkUnavailableError
from netspy_scrapy.pipelines.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from scrapy.statscollectors import StatsCollector

    from netspy_scrapy.dumps.items import ItemDump
    from netspy_scrapy.pipelines.rows import Row, Settlement
    from netspy_scrapy.settings import SinkSettings

    #: Finds out which items are duplicates; see ItemFilter.ask.
    Ask = Callable[[Sequence[Settlement]], Awaitable[None]]

logger = logging.getLogger(__name__)

# Among so many groups one is looked for that is dumped for the same reason.
_LATEST = 8

#: Rows with their reasons, by position in the batch.
Refused = dict[int, str]


class Storage(Protocol):
    """What a sink does with a batch; see :class:`~netspy_scrapy.pipelines.base.BasePipeline`."""

    unique_keys: tuple[str, ...]

    def save_items(self, table: str, items: list[dict[str, Any]]) -> Any: ...  # noqa: D102
    def update_items(  # noqa: D102
        self, table: str, items: list[dict[str, Any]], update_keys: list[str]
    ) -> Any: ...


class _Group:
    """Rows of one batch that go into one call: same table, same kind, same keys."""

    __slots__ = ("path", "reason", "rows", "table", "unique_keys", "update_keys")

    def __init__(self, first: Row, rows: list[Row], path: str, reason: str | None = None) -> None:
        self.table = first.table
        self.update_keys = first.update_keys
        self.unique_keys = first.unique_keys
        self.rows = rows
        self.path = path
        """The sink that owes the rows, as the dump names it."""
        self.reason = reason
        """Why the rows are not even offered to the sink; None: they are."""

    def part(self, rows: list[Row]) -> _Group:
        return _Group(rows[0], rows, self.path, self.reason)

    def takes(self, row: Row) -> bool:
        return self.update_keys == row.update_keys and self.unique_keys == row.unique_keys


class Batcher:
    """Collects the rows of one sink and writes them in batches.

    ``accepted`` numbers the rows; ``mark`` is the number up to which every row is durable, that
    is stored or dumped. Rows of one table are written in the order in which they came.
    """

    def __init__(
        self,
        sink: Storage,
        *,
        name: str,
        path: str,
        settings: SinkSettings,
        dump: ItemDump,
        stats: StatsCollector,
        on_stuck: Callable[[], None],
        on_mark: Callable[[], None],
        opener: Callable[[], Any] | None = None,
        ask: Ask | None = None,
    ) -> None:
        self.accepted = 0
        self.mark = 0
        self.stuck: list[tuple[_Group, Refused]] = []
        """Rows that could be neither stored nor dumped, tried once more at the close."""
        self._has_lost = False
        """Whether rows are lost: the mark says nothing of them, and does not rise any more."""
        self.tables: dict[str, Counter[str]] = {}
        """Rows by table: stored, refused, dumped, lost."""
        self.is_given_up = False
        """Whether the sink hangs, and what it held is dumped."""
        self._sink = sink
        self.name = name
        self._path = path
        self._settings = settings
        self._dump = dump
        self._stats = stats
        self._on_stuck = on_stuck
        self._on_mark = on_mark
        self._opener = opener
        self._ask = ask
        self._groups: list[_Group] = []
        self._writing: list[_Group] = []
        """What the present flush has not written yet."""
        self._rows = 0
        self._bytes = 0
        self._rows_in_flight = 0
        self._bytes_in_flight = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._row_bound = 2 * settings.batch_size
        self._byte_batch = settings.max_bytes // 2
        self._outage = Outage(name, settings.wait)
        self._moved = 0.0
        """When it last got on with what it is doing (monotonic)."""

    @property
    def is_open(self) -> bool:
        """Whether nothing is left to open."""
        return self._opener is None

    @property
    def stalled(self) -> float:
        """Seconds for which the sink has been at one batch, or at its close; 0: it is idle."""
        return time.monotonic() - self._moved if self._task is not None else 0.0

    async def open(self, opener: Callable[[], Any]) -> None:
        """Open the sink; if its server is away, it is opened with the first batch."""
        self._opener = opener
        try:
            await self._open()
        except SinkUnavailableError as exc:
            self._went_away(exc)

    async def _open(self) -> None:
        if self._opener is not None:
            await call(self._opener)
            self._opener = None

    def _went_away(self, exc: SinkUnavailableError) -> None:
        if self._outage.begin(str(exc)):
            self._stats.inc_value(keys.OUTAGES.format(sink=self.name))

    @property
    def held(self) -> int:
        """How many rows the sink has taken and not yet stored or dumped."""
        return self._rows + self._rows_in_flight

    @property
    def is_full(self) -> bool:
        """Whether the sink holds as much as it may: who brings more has to wait."""
        held = self._bytes + self._bytes_in_flight
        return self.held >= self._row_bound or 0 < self._settings.max_bytes <= held

    def accept(self, row: Row) -> Awaitable[None] | None:
        """Take *row*; return something to await if the sink is full, else None."""
        return self._take(row, self._group_for(row))

    def refuse(self, row: Row, reason: str, *, path: str | None = None) -> Awaitable[None] | None:
        """Dump *row* with the next batch, without offering it to the sink.

        *path* names another sink that owes the row.
        """
        owes = path or self._path
        for group in self._groups[: -_LATEST - 1 : -1]:
            if (group.table, group.path, group.reason) == (row.table, owes, reason):
                if group.takes(row):
                    return self._take(row, group)
                break
        group = _Group(row, [], owes, reason)
        self._groups.append(group)
        return self._take(row, group)

    def _take(self, row: Row, group: _Group) -> Awaitable[None] | None:
        group.rows.append(row)
        self.accepted += 1
        self._rows += 1
        self._bytes += row.weight
        if self._task is None:
            if self._batch_is_due():
                self._start()
            elif self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._settings.flush_interval, self._start)
        if not self.is_full:
            return None
        self._outage.wake()
        return self.room()

    def hurry(self) -> None:
        """Write what is held now: somebody waits for it to be durable."""
        self._start()

    async def room(self) -> None:
        """Wait until the sink may take more."""
        while self.is_full:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            if self._task is None:
                self._start()
            await waiter

    async def close(self) -> None:
        """Write all that is held, then try once more what could be neither stored nor dumped."""
        self._outage.close()
        while self._rows or self._task is not None:
            if self._task is None:
                self._start()
            assert self._task is not None
            await asyncio.wait({self._task})
        if self.stuck:
            again = [group for group, _ in self.stuck]
            self.stuck = []
            await self._alone(self._write_again(again))
            self._raise_mark(self.accepted)
        if self.stuck:
            self._lose([(group, next(iter(reasons.values()))) for group, reasons in self.stuck])

    async def close_sink(self, close: Callable[[], Any]) -> None:
        """Close what the sink has open, unless it is given up."""
        if self.is_open and not self.is_given_up:
            await self._alone(call(close))

    async def _alone(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the last *work*, which ends when the sink is given up."""
        self._moved = time.monotonic()
        task = self._task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait({task})
        finally:
            self._task = None
        if not task.cancelled():
            task.result()

    async def _write_again(self, groups: list[_Group]) -> None:
        self._writing = groups
        while self._writing:
            try:
                await self._write(self._writing[0], again=True)
            except Exception as exc:
                logger.exception("%s: a batch ended in a fault of its own", self.name)
                self._keep_unwritten(self._writing[:1], exc)
            self._writing = self._writing[1:]
            self._moved = time.monotonic()

    def dump_now(self) -> int:
        """Dump all that is held, without the event loop, and return how many rows that were.

        For a process that ends: rows of a batch that is being written may be stored as well.
        """
        groups = [*self._writing, *self._groups, *(group for group, _ in self.stuck)]
        self._writing, self._groups, self.stuck = [], [], []
        records = [
            self._record(group, row, group.reason or "the crawl was cut off before it was stored")
            for group in groups
            for row in group.rows
        ]
        if not records:
            return 0
        try:
            self._dump.append(records)
        except DumpError as exc:
            self._lose([(group, str(exc)) for group in groups])
            return 0
        self._count_all(groups, keys.ROWS_DUMPED, "dumped")
        return len(records)

    def _lose(self, groups: list[tuple[_Group, str]]) -> None:
        """Say which rows are neither stored nor dumped, and why the sink did not store them."""
        self._has_lost = True
        self._count_all([group for group, _ in groups], keys.ROWS_LOST, "lost")
        for group, reason in groups:
            labels = "; ".join(row.label for row in group.rows[:20])
            more = "" if len(group.rows) <= 20 else f" and {len(group.rows) - 20} more"  # noqa: PLR2004
            logger.error(
                "LOST: %d rows of %r could be neither stored by %s (%s) nor dumped: %s%s",
                len(group.rows), group.table, self.name, reason, labels, more,
            )  # fmt: skip

    def _count_all(self, groups: list[_Group], key: str, what: str) -> None:
        for group in groups:
            self._stats.inc_value(key.format(sink=self.name), len(group.rows))
            self._count(group, what, len(group.rows))

    def _count(self, group: _Group, what: str, rows: int) -> None:
        self.tables.setdefault(group.table, Counter())[what] += rows

    def give_up(self) -> int:
        """Dump all that is held, do not wait for the sink any more, return how many rows it was."""
        self.is_given_up = True
        rows = self.dump_now()
        self._rows = self._bytes = 0
        if self._task is not None:
            self._task.cancel()
        self._raise_mark(self.accepted)
        return rows

    def _record(self, group: _Group, row: Row, reason: str) -> ItemRecord:
        return ItemRecord(
            table=group.table,
            data=row.data,
            update_keys=group.update_keys,
            unique_keys=group.unique_keys,
            pipelines=(group.path,),
            reason=reason,
            time=now(),
            spider=self._dump.spider,
        )

    # Filling ------------------------------------------------------------------------------------
    def _group_for(self, row: Row) -> _Group:
        for group in reversed(self._groups):
            if group.table == row.table and group.reason is None:
                if group.takes(row):
                    return group
                break  # an older group of this kind would write the row out of order
        group = _Group(row, [], self._path)
        self._groups.append(group)
        return group

    def _batch_is_due(self) -> bool:
        return self._rows >= self._settings.batch_size or 0 < self._byte_batch <= self._bytes

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and self._rows:
            self._task = asyncio.get_running_loop().create_task(self._flush())
            self._task.add_done_callback(self._flushed)

    def _flushed(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s: a batch ended in a fault of its own", self.name,
                         exc_info=task.exception())  # fmt: skip
        if self._rows and not task.cancelled():
            if self._batch_is_due() or self._waiters:
                self._start()
            elif self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._settings.flush_interval, self._start)

    # Writing ------------------------------------------------------------------------------------
    async def _flush(self) -> None:
        groups, self._groups = self._groups, []
        number = self.accepted
        self._rows_in_flight, self._rows = self._rows, 0
        self._bytes_in_flight, self._bytes = self._bytes, 0
        size = self._settings.batch_size
        self._writing = groups
        self._moved = time.monotonic()
        try:
            if self._ask is not None:
                await self._leave_out_duplicates(groups, self._ask)
            self._writing = [
                group.part(group.rows[start : start + size])
                for group in groups
                for start in range(0, len(group.rows), size)
            ]
            while self._writing:
                part = self._writing[0]
                await self._write(part)
                self._writing = self._writing[1:]
                self._moved = time.monotonic()
                self._rows_in_flight -= len(part.rows)
                self._bytes_in_flight -= sum(row.weight for row in part.rows)
                self._release()
            self._raise_mark(number)
        except Exception as exc:
            self._keep_unwritten(self._writing, exc)
            raise
        finally:
            self._rows_in_flight = self._bytes_in_flight = 0
            self._release()

    def _raise_mark(self, number: int) -> None:
        """Note that every row up to *number* is durable, unless some are stuck or lost."""
        if not self.stuck and not self._has_lost:
            self.mark = number
            self._on_mark()

    def _keep_unwritten(self, groups: list[_Group], exc: Exception) -> None:
        """Hold rows that a fault of ours left unwritten, as those that cannot be dumped are held.

        Some of the first group may be stored already: twice is better than not at all.
        """
        why = f"{type(exc).__name__}: {exc}"
        self.stuck += [(group, dict.fromkeys(range(len(group.rows)), why)) for group in groups]
        if groups:
            self._on_stuck()

    async def _leave_out_duplicates(self, groups: list[_Group], ask: Ask) -> None:
        """Ask the item filter once for all rows, and take out those that it knows."""
        rows = [row for group in groups for row in group.rows]
        await ask([row.settlement for row in rows if row.settlement is not None])
        for group in groups:
            fresh = [row for row in group.rows if not (row.settlement and row.settlement.duplicate)]
            self._rows_in_flight -= len(group.rows) - len(fresh)
            group.rows = fresh
        self._bytes_in_flight = sum(row.weight for group in groups for row in group.rows)
        self._release()

    def _release(self) -> None:
        if not self.is_full:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def _write(self, group: _Group, *, again: bool = False) -> None:
        refused, waited = await self._store(group)
        if refused and not again:
            self._stats.inc_value(keys.ROWS_REFUSED.format(sink=self.name), len(refused))
            self._count(group, "refused", len(refused))
        self._stats.inc_value(keys.BATCHES.format(sink=self.name))
        left = refused | waited
        stored = len(group.rows) - len(left)
        if stored:
            self._stats.inc_value(keys.ROWS_STORED.format(sink=self.name), stored)
            self._count(group, "stored", stored)
        if left:
            await self._dump_refused(group, left)
        for position, row in enumerate(group.rows):
            if position not in left and row.settlement is not None:
                row.settlement.settle(stored=True)

    async def _store(self, group: _Group) -> tuple[Refused, Refused]:
        """Have the rows stored; return those refused, and those that waited in vain."""
        owed = list(range(len(group.rows)))
        if group.reason is not None:
            return dict.fromkeys(owed, group.reason), {}
        if self.is_given_up:
            return {}, dict.fromkeys(owed, "the sink is given up: it hung at the stop")
        refused: Refused = {}
        reason = "the server is away"
        while await self._outage.turn(lambda: self.is_full):
            try:
                await self._open()
                answer = await offer(
                    self._sink, group.table, [group.rows[position].data for position in owed],
                    group.update_keys, group.unique_keys,
                )  # fmt: skip
            except SinkUnavailableError as exc:
                self._went_away(exc)
                reason = str(exc)
                if exc.in_doubt:
                    in_doubt = len(exc.in_doubt - exc.stored - exc.refused.keys())
                    self._stats.inc_value(keys.ROWS_IN_DOUBT.format(sink=self.name), in_doubt)
                refused |= {owed[number]: why for number, why in exc.refused.items()}
                done = exc.stored | exc.refused.keys()
                owed = [one for number, one in enumerate(owed) if number not in done]
                if not owed:
                    return refused, {}
            except Exception as exc:
                if self.is_given_up:  # it was cancelled, and what it held is dumped
                    raise asyncio.CancelledError from exc
                # A user's sink may raise anything.
                logger.debug("A sink raised", exc_info=True)
                return refused | dict.fromkeys(owed, f"{type(exc).__name__}: {exc}"), {}
            else:
                self._outage.end()
                return refused | {owed[number]: why for number, why in answer.items()}, {}
        return refused, dict.fromkeys(owed, f"the server was away: {reason}")

    async def _dump_refused(self, group: _Group, refused: Refused) -> None:
        reason = next(iter(refused.values()))
        records = [
            self._record(group, group.rows[position], why) for position, why in refused.items()
        ]
        try:
            notes = await in_thread(self._dump.append, records)
        except DumpError as exc:
            part = group.part([group.rows[position] for position in refused])
            self.stuck.append((part, dict(enumerate(refused.values()))))
            logger.error(  # noqa: TRY400 - the message says it all
                "%s did not store %d rows of %r (%s), and they cannot be dumped: %s",
                self.name, len(refused), group.table, reason, exc,
            )  # fmt: skip
            self._on_stuck()
            return
        self._stats.inc_value(keys.ROWS_DUMPED.format(sink=self.name), len(refused))
        self._count(group, "dumped", len(refused))
        logger.error(
            "%s did not store %d of %d rows of %r: dumped to %s. First: %s (%s)",
            self.name, len(refused), len(group.rows), group.table, self._dump.path,
            reason, group.rows[next(iter(refused))].label,
        )  # fmt: skip
        for note in notes:
            logger.warning("%s: %s", self.name, note)
        for position in refused:
            settlement = group.rows[position].settlement
            if settlement is not None:
                settlement.settle(stored=False)


async def offer(
    sink: Storage,
    table: str,
    rows: Sequence[dict[str, Any]],
    update_keys: tuple[str, ...] | None,
    unique_keys: tuple[str, ...],
) -> Refused:
    """Have *sink* store *rows*, and return those that it refused; raises what it raises."""
    if getattr(sink, "wants_unique_keys", False):
        sink.unique_keys = unique_keys
    if update_keys is None:
        answer = await call(_copying(sink.save_items), table, rows)
        return refused_rows(answer, len(rows), "save_items")
    answer = await call(_copying(sink.update_items), table, rows, list(update_keys))
    return refused_rows(answer, len(rows), "update_items")


def _copying(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give *function* dicts of its own: what it does to them reaches neither dump nor others.

    They are copied where it runs, in a thread or here.
    """
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaiting(table: str, rows: Sequence[dict[str, Any]], *more: Any) -> Any:
            return await function(table, [dict(row) for row in rows], *more)

        return awaiting

    @wraps(function)
    def copying(table: str, rows: Sequence[dict[str, Any]], *more: Any) -> Any:
        return function(table, [dict(row) for row in rows], *more)

    return copying


async def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a sink's method: a coroutine function here, any other in a thread."""
    try:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        result = await in_thread(function, *args)
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            # Nothing of it has run, and as an answer it would count as true.
            raise TypeError(f"{getattr(function, '__qualname__', function)} must return, not yield")
        return await result if inspect.isawaitable(result) else result
    except Exception:
        raise
    except BaseException as exc:
        raise as_exception(exc) from exc


def refused_rows(answer: Any, count: int, what: str) -> Refused:
    """Translate what ``save_items`` or ``update_items`` returned into the rows that it refused.

    A mapping of positions to reasons: these rows. Else what is true means none, what is false
    means all; None does not say that the rows are stored, so they count as refused.
    """
    if isinstance(answer, dict):
        outside = [position for position in answer if not 0 <= int(position) < count]
        if outside:
            raise ValueError(f"{what} refused row {outside[0]} of a batch of {count}")
        return {int(position): str(reason) for position, reason in answer.items()}
    if answer:
        return {}
    reason = f"{what} returned {answer!r}" + ("" if answer is False else ", not True")
    return dict.fromkeys(range(count), reason)


async def after(waits: list[Any], item: Any) -> Any:
    """Return *item* once every sink that is full has room again."""
    for waiting in waits:
        await waiting
    return item
