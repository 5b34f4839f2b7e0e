"""A table of MySQL's, and how a batch is written to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pymysql

from netspy_scrapy.exceptions import PipelineError
from netspy_scrapy.pipelines.mysql_values import Column, Kind, literal, prepared
from netspy_scrapy.pipelines.sql import Dialect, fault_of_name, not_found, split_keys
from netspy_scrapy.pipelines.staging import isolate, joined, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from netspy_scrapy.pipelines.mysql_driver import Connection
    from netspy_scrapy.pipelines.servers import Fault
    from netspy_scrapy.pipelines.sql import ColumnGroup, Refused

_DIALECT = Dialect(quote_mark="`")
_STAGE = "netspy_stage"
_NUMBER = "netspy_row"
#: Fewer rows than that are faster in one statement.
_FEW_ROWS = 50
#: Bytes of a statement, and of what stands around the rows in it.
_STATEMENT = 1 << 20
_AROUND = 64 << 10


class Table:
    """A table as it is now; read for each batch, so that a change of it is noticed."""

    def __init__(self, db: Connection, name: str) -> None:
        fault = fault_of_name(name)
        if fault is not None:
            raise PipelineError(fault)
        self.name = name
        self.quoted = _DIALECT.quote(name)
        try:
            found = db.rows(f"SHOW COLUMNS FROM {self.quoted}")
        except pymysql.ProgrammingError as exc:
            if exc.args[0] in {1103, 1146}:  # a name that no table can have; no table of that name
                raise PipelineError(
                    f"there is no table {name!r} in the database MYSQL_DB = {text(db.db)!r}"
                ) from exc
            raise
        self.columns = {fold(row[0]): Column(row[0], text(row[1])) for row in found}

    def column(self, name: str) -> Column:
        """Return the column of that name, whatever its case."""
        return self.columns[fold(name)]


def fold(name: str) -> str:
    """Return what is equal for names of one column."""
    return name.lower()


def text(value: str | bytes | None) -> str:
    """Return text that some servers send as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass
class Rows:
    """Rows of the same fields, ready to be written."""

    fields: Sequence[Column]
    positions: list[int]
    """In the batch."""
    columns: list[Sequence[Any]]
    """The values, by column."""
    kinds: list[Kind]

    @classmethod
    def of(
        cls, table: Table, group: ColumnGroup, rows: Mapping[int, Mapping[str, Any]],
        refused: Refused,
    ) -> Rows | None:  # fmt: skip
        """Make the rows of *group* ready; None: none of them can be written."""
        unknown = [name for name in group.columns if fold(name) not in table.columns]
        if unknown:
            names = ", ".join(map(repr, unknown))
            group.refuse(f"the table {table.name!r} has no column {names}", refused)
            return None
        fields = [table.column(name) for name in group.columns]
        columns, kinds = [], []
        bad: dict[int, str] = {}
        for field, name in zip(fields, group.columns, strict=True):
            values, kind, faults = prepared(field, [rows[one][name] for one in group.positions])
            columns.append(values)
            kinds.append(kind)
            bad |= faults
        positions = group.positions
        if bad:
            refused |= {positions[number]: reason for number, reason in bad.items()}
            good = [number for number in range(len(positions)) if number not in bad]
            positions = [positions[number] for number in good]
            columns = [[column[number] for number in good] for column in columns]
        return cls(fields, positions, columns, kinds) if positions else None

    def finish(self, bad: Refused, refused: Refused) -> None:
        """Refuse the *bad* rows."""
        refused |= {self.positions[number]: reason for number, reason in bad.items()}

    def names(self) -> str:
        """Return the columns as a statement has them."""
        return _DIALECT.names(field.name for field in self.fields)


class Writer(Protocol):
    """A way to write rows."""

    ranges: list[tuple[int, int]]
    """In which one statement each can write them."""

    def write(self, start: int, stop: int) -> None:
        """Write a part of a range; raises if one of its rows is bad, and has then done nothing."""


class Statements:
    """Writes rows by INSERT statements that hold them."""

    def __init__(self, db: Connection, head: str, rows: Rows, tail: str, limit: int) -> None:
        self._db = db
        self._head = f"{head} VALUES "
        self._tail = tail
        columns = [
            [literal(db.escape, field, value) for value in values]
            for field, values in zip(rows.fields, rows.columns, strict=True)
        ]
        # UTF-8 takes up to three bytes for what Python counts as one.
        self._rows = [f"({', '.join(row)})".encode() for row in zip(*columns, strict=True)]
        self.ranges = list(self._ranges(min(limit, _STATEMENT)))
        self._limit = limit

    def _ranges(self, size: int) -> Any:
        start, held = 0, 0
        for number, row in enumerate(self._rows):
            if held and held + len(row) > size - _AROUND:
                yield start, number
                start, held = number, 0
            held += len(row)
        yield start, len(self._rows)

    def write(self, start: int, stop: int) -> None:
        """Write a part of a range."""
        rows = b",".join(self._rows[start:stop])
        statement = self._head.encode() + rows + self._tail.encode()
        if len(statement) >= self._limit:
            # The server would close the connection.
            raise pymysql.DataError(
                0, f"{len(statement)} bytes, but max_allowed_packet is {self._limit}"
            )
        self._db.run(statement)


class Stage:
    """Rows of several groups in a temporary table."""

    def __init__(self, db: Connection, groups: Sequence[Rows]) -> None:
        self._db = db
        self._columns: dict[tuple[str, str, str], str] = {}
        self._rows = 0
        types = []
        for rows in groups:
            for field, kind in zip(rows.fields, rows.kinds, strict=True):
                key = self._key(field, kind)
                if key not in self._columns:
                    self._columns[key] = f"netspy_{len(self._columns)}"
                    types.append(f"{self._columns[key]} {kind.type}")
        db.run(f"DROP TEMPORARY TABLE IF EXISTS {_STAGE}")
        db.run(
            f"CREATE TEMPORARY TABLE {_STAGE} ({_NUMBER} INT PRIMARY KEY, {', '.join(types)})"
            " CHARACTER SET utf8mb4"
        )

    @staticmethod
    def _key(field: Column, kind: Kind) -> tuple[str, str, str]:
        return (field.name, kind.type, kind.read)

    def load(self, rows: Rows) -> tuple[list[str], int]:
        """Send *rows*; return what is to be selected of them, and the number of the first."""
        first = self._rows
        self._rows += len(rows.positions)
        texts = [list(map(str, range(first, self._rows)))]
        targets, sets, selected = [_NUMBER], [], []
        for field, values, kind in zip(rows.fields, rows.columns, rows.kinds, strict=True):
            texts.append(kind.texts(values))
            name = self._columns[self._key(field, kind)]
            targets.append(f"@{name}" if kind.read else name)
            if kind.read:
                sets.append(f"{name} = {kind.read.format('@' + name)}")
            selected.append(kind.select.format(name))
        change = f" SET {', '.join(sets)}" if sets else ""
        count = self._db.load(
            f"LOAD DATA LOCAL INFILE 'netspy' INTO TABLE {_STAGE} CHARACTER SET utf8mb4"
            f" ({', '.join(targets)}){change}",
            joined(lines(texts)),
        )
        if count != len(rows.positions) or self._db.warnings:
            raise pymysql.DataError(
                0, f"LOAD DATA read {count} of {len(rows.positions)} rows, with warnings"
            )
        return selected, first


class Selected:
    """Writes rows that are in a temporary table."""

    def __init__(self, db: Connection, head: str, rows: Rows, tail: str, stage: Stage) -> None:
        self._db = db
        selected, self._first = stage.load(rows)
        self._head = f"{head} SELECT {', '.join(selected)} FROM {_STAGE} WHERE {_NUMBER} >= "  # noqa: S608
        self._tail = f" ORDER BY {_NUMBER}{tail}"
        self.ranges = [(0, len(rows.positions))]

    def write(self, start: int, stop: int) -> None:
        """Write a part of a range."""
        first = self._first
        self._db.run(f"{self._head}{first + start} AND {_NUMBER} < {first + stop}{self._tail}")


def insert(
    db: Connection, table: Table, groups: Sequence[Rows], refused: Refused, *,
    tail: Callable[[Rows], str], loads: bool, limit: int, fault_of: Callable[[Exception], Fault],
) -> None:  # fmt: skip
    """Add rows; *tail* ends the statement, *limit* is the longest one that the server takes."""
    large = [rows for rows in groups if len(rows.positions) >= _FEW_ROWS] if loads else []
    stage = Stage(db, large) if large else None
    for rows in groups:
        head = f"INSERT INTO {table.quoted} ({rows.names()})"
        writer: Writer
        if stage is not None and len(rows.positions) >= _FEW_ROWS:
            writer = Selected(db, head, rows, tail(rows), stage)
        else:
            writer = Statements(db, head, rows, tail(rows), limit)
        rows.finish(isolate(writer.write, writer.ranges, fault_of), refused)


def update(
    db: Connection, table: Table, rows: Rows, keys: Sequence[str],
    items: Sequence[Mapping[str, Any]], refused: Refused, fault_of: Callable[[Exception], Fault],
) -> None:  # fmt: skip
    """Change the rows that *keys* find, one after the other; refuse those that find none."""
    finders, changed = split_keys([field.name for field in rows.fields], keys, fold)
    sets = changed or finders  # a row of nothing but its key has only to be there
    for number, position in enumerate(rows.positions):
        of_row = {
            field.name: (field, column[number])
            for field, column in zip(rows.fields, rows.columns, strict=True)
        }
        changes = ", ".join(
            f"{_DIALECT.quote(name)} = {literal(db.escape, *of_row[name])}" for name in sets
        )
        found = " AND ".join(
            f"{_DIALECT.quote(name)} <=> {literal(db.escape, *of_row[name], finds=True)}"
            for name in finders
        )
        try:
            count = db.run(f"UPDATE {table.quoted} SET {changes} WHERE {found}")  # noqa: S608
        except pymysql.Error as exc:
            fault = fault_of(exc)
            if not fault.is_of_a_row:
                raise
            refused[position] = fault.reason
        else:
            if not count:
                refused[position] = not_found(table.name, items[position], keys)
