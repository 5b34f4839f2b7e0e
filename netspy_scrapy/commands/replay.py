"""The replay of FAILED_ITEM_PATH: each row goes to the sinks that still owe it."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

from scrapy.spiderloader import get_spider_loader

from netspy_scrapy.commands.sinks import describe
from netspy_scrapy.dumps.codec import ClassResolver
from netspy_scrapy.dumps.items import ItemRecord
from netspy_scrapy.exceptions import DumpError, SinkUnavailableError
from netspy_scrapy.pipelines.batcher import offer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from scrapy.settings import BaseSettings

    from netspy_scrapy.commands.sinks import Sink, Sinks
    from netspy_scrapy.dumps.claims import ClaimedFile
    from netspy_scrapy.pipelines.base import BasePipeline
    from netspy_scrapy.settings import SinkSettings

logger = logging.getLogger(__name__)

# Surrogates cannot be written as UTF-8, and the others end a line for some readers.
_UNSAFE = re.compile(r"[\x85\u2028\u2029\ud800-\udfff]")
_NO_SINK = "it names no sink, and neither does the line"


@dataclass(eq=False, slots=True)
class _Line:
    """A line that is being replayed."""

    number: int
    text: str
    record: ItemRecord
    owes: dict[Sink, str]
    """The sinks that have not stored the row, with the path that the line has for each."""
    refused: dict[Sink, str] = field(default_factory=dict)
    """What the sinks among them said."""
    stored: bool = False
    """Whether one of the sinks has stored the row."""

    def rest(self) -> str:
        """Return the line for the next replay: as it was read, unless something changed."""
        reasons = {sink: self.reason(sink) for sink in self.owes}
        if not (self.stored or self.refused):
            return self.text
        # Changed as JSON and not rebuilt from the record, so that all else stays as it is.
        fields = json.loads(self.text.lstrip("\ufeff"))
        before = dict(fields)
        if self.stored:
            fields["pipelines"] = list(self.owes.values())
        known = {sink: why for sink, why in reasons.items() if why}
        if len(known) == 1:
            fields["reason"] = next(iter(known.values()))
        elif known:
            fields["reason"] = "; ".join(f"{sink.label}: {why}" for sink, why in known.items())
        return self.text if fields == before else _to_json(fields)

    def reason(self, sink: Sink) -> str:
        """Return why *sink* did not store the row; empty: it was not asked."""
        return self.refused.get(sink) or sink.fault


@dataclass(eq=False)
class _Group:
    """Rows that go into one call: same table, same kind, same keys."""

    table: str
    update_keys: tuple[str, ...] | None
    unique_keys: tuple[str, ...]
    lines: list[_Line] = field(default_factory=list)


@dataclass
class Fault:
    """Rows that were left for one reason."""

    reason: str
    """That of the first."""
    rows: int = 0


class ItemReplay:
    """Takes the lines of a claimed file, in portions of a batch, through their sinks.

    What is stored is noted as done, the rest is put back, portion by portion: memory stays flat,
    and a kill costs at most one portion that is replayed once more.
    """

    def __init__(
        self,
        claimed: ClaimedFile,
        sinks: Sinks,
        settings: SinkSettings,
        classes: ClassResolver,
        *,
        say: Callable[[str], None],
        advance: Callable[[int], None],
    ) -> None:
        self.stored = 0
        """Rows that every sink which owed them has stored."""
        self.faults: dict[str, Fault] = {}
        """Rows that were left, by sink; a row that two sinks owe counts at both."""
        self.close_failed = False
        """Whether a sink could not be closed, so that what it stored is in doubt."""
        self._claimed = claimed
        self._sinks = sinks
        self._settings = settings
        self._classes = classes
        self._say = say
        self._advance = advance
        self._kept: list[tuple[int, str]] = []
        """Lines of the present portion that cannot be replayed."""
        self._stopping = Event()
        self._told: set[str] = set()

    def stop(self) -> None:
        """End after the batch that is being written; what is not done stays in the file."""
        self._stopping.set()

    async def run(self) -> None:
        """Replay every line, and close the sinks; a cancellation leaves them as they are.

        Nothing else runs on this loop, so files are read and written on it, between the batches.
        """
        abandoned = False
        try:
            for lines in self._portions():
                try:
                    await self._offer(lines)
                finally:
                    # Also after an exception or a cancellation: what is stored is stored.
                    self._settle(lines)
        except asyncio.CancelledError:
            abandoned = True
            raise
        finally:
            if not abandoned:
                await self._sinks.close(self._note_close)

    # Reading -------------------------------------------------------------------------------------
    def _portions(self) -> Iterator[list[_Line]]:
        portion: list[_Line] = []
        size = 0
        bound = self._settings.max_bytes // 2
        for number, text in self._claimed.lines():
            if self._stopping.is_set():
                break
            line = self._read(number, text)
            if line is not None:
                portion.append(line)
            size += len(text)
            held = len(portion) + len(self._kept)
            if held >= self._settings.batch_size or 0 < bound <= size:
                yield portion
                portion, size = [], 0
        if portion or self._kept:
            yield portion

    def _read(self, number: int, text: str) -> _Line | None:
        """Return the line; None: it cannot be replayed, and is kept."""
        try:
            record = ItemRecord.from_line(text, self._classes)
        except UnknownClassError as exc:
            self._keep(number, text, "unreadable", str(exc))
            return None
        except DumpError:
            # The error quotes the row, which may hold anything.
            self._keep(number, text, "unreadable", _complaint(text))
            return None
        owes: dict[Sink, str] = {}
        for path in record.pipelines or ():
            owes.setdefault(self._sinks.named(path), path)
        if not record.pipelines:
            owes = {sink: sink.path for sink in self._sinks.configured}
        if not owes:
            self._keep(number, text, "ITEM_PIPELINES", _NO_SINK)
            return None
        return _Line(number, text, record, owes)

    def _keep(self, number: int, text: str, label: str, reason: str) -> None:
        self._note(label, reason)
        self._tell_once(f"a line stays: {reason}")
        self._kept.append((number, text))

    # Storing -------------------------------------------------------------------------------------
    async def _offer(self, lines: list[_Line]) -> None:
        owed: dict[Sink, list[_Line]] = {}
        for line in lines:
            for sink in line.owes:
                owed.setdefault(sink, []).append(line)
        for sink, mine in owed.items():
            if self._stopping.is_set():
                return
            if not await self._sinks.open(sink):
                self._tell_once(f"{sink.label} cannot be used, its rows stay: {sink.fault}")
                continue
            for group in _groups(_fit(sink, mine)):
                if self._stopping.is_set():
                    return
                await self._store(sink, group)
                if sink.fault:
                    self._tell_once(f"{sink.label} cannot be used, its rows stay: {sink.fault}")
                    break

    async def _store(self, sink: Sink, group: _Group) -> None:
        assert sink.pipeline is not None
        rows = [line.record.data for line in group.lines]
        left: Collection[int] = ()
        try:
            refused = await offer(
                sink.pipeline, group.table, rows, group.update_keys, group.unique_keys
            )
        except SinkUnavailableError as exc:
            # Who replays is there to do it again; to wait for each batch would take for ever.
            sink.fault = f"its server is away: {exc}"
            refused = exc.refused
            left = set(range(len(rows))) - exc.stored
        except Exception as exc:
            logger.debug("%s raised", sink.path, exc_info=exc)
            refused = dict.fromkeys(range(len(rows)), describe(exc))
        for position, line in enumerate(group.lines):
            if position in refused:
                line.refused[sink] = refused[position]
            elif position not in left:
                del line.owes[sink]
                line.stored = True

    # Noting --------------------------------------------------------------------------------------
    def _settle(self, lines: list[_Line]) -> None:
        done = [line.number for line in lines if not line.owes]
        left = [line for line in lines if line.owes]
        self._claimed.done(done)
        self.stored += len(done)
        kept, self._kept = self._kept, []
        self._claimed.put_back([*kept, *((line.number, line.rest()) for line in left)])
        for line in left:
            for sink in line.owes:
                if reason := line.reason(sink):
                    self._note(sink.label, reason)
        self._advance(len(lines) + len(kept))

    def _note(self, label: str, reason: str) -> None:
        self.faults.setdefault(label, Fault(reason)).rows += 1

    def _note_close(self, sink: Sink, reason: str) -> None:
        self.close_failed = True
        self._say(f"{sink.label} could not be closed, so its rows may not be stored: {reason}")

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)


class UnknownClassError(DumpError):
    """A line names a class that is not imported here."""


class ProjectClasses(ClassResolver):
    """Finds classes also in the modules of SPIDER_MODULES, imported when a line first needs it."""

    def __init__(self, settings: BaseSettings) -> None:
        super().__init__()
        self._settings = settings
        self._note: str | None = None
        """What importing them gave; None: not done yet."""

    def resolve(self, name: str) -> type:
        """Return the class called *name*; see :meth:`ClassResolver.resolve`."""
        try:
            return super().resolve(name)
        except DumpError:
            if self._note is None:
                self._note = self._import_spiders()
        try:
            return super().resolve(name)
        except DumpError as exc:
            raise UnknownClassError(
                f"{name} is not known here, or is neither an Enum nor an item: name its module in "
                f"SPIDER_MODULES (for this run: -s SPIDER_MODULES=module){self._note}"
            ) from exc

    def _import_spiders(self) -> str:
        try:
            get_spider_loader(self._settings)
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - imports the project's code
            return f"; what is there cannot be imported: {describe(exc)}"
        return ""


def _fit(sink: Sink, lines: list[_Line]) -> list[_Line]:
    """Return the lines that the sink can be offered; the others are refused."""
    fit = []
    assert sink.pipeline is not None
    for line in lines:
        why = _misfit(sink.pipeline, line.record)
        if why:
            line.refused[sink] = why
        else:
            fit.append(line)
    return fit


def _misfit(pipeline: BasePipeline, record: ItemRecord) -> str:
    keys = record.update_keys
    if keys is None:
        return ""
    if not pipeline.supports_update:
        return f"{pipeline.name} stores new rows only"
    if not keys:
        return "an update without a key would change every row"
    missing = [key for key in keys if key not in record.data]
    return "no value for the update key " + ", ".join(map(repr, missing)) if missing else ""


def _groups(lines: list[_Line]) -> list[_Group]:
    """Put rows together that one call can take, in the order of first appearance.

    Rows of one table keep their order: an insert that follows an update is another call.
    """
    groups = []
    latest: dict[str, _Group] = {}
    for line in lines:
        record = line.record
        group = latest.get(record.table)
        if (
            group is None
            or group.update_keys != record.update_keys
            or group.unique_keys != record.unique_keys
        ):
            group = _Group(record.table, record.update_keys, record.unique_keys)
            latest[record.table] = group
            groups.append(group)
        group.lines.append(line)
    return groups


def _complaint(text: str) -> str:
    """Say what keeps a line from being read, without quoting it."""
    try:
        fields: dict[str, Any] = json.loads(text.lstrip("\ufeff"))
    except (RecursionError, ValueError):
        return "it holds more than Python's JSON reader takes"
    missing = [name for name in ("table", "data") if name not in fields]
    if missing:
        return f"it is no row, having no {' and no '.join(map(repr, missing))}"
    return "its fields, or values with a type, are not what a row has"


def _to_json(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, ensure_ascii=False)
    return json.dumps(fields) if _UNSAFE.search(text) else text
