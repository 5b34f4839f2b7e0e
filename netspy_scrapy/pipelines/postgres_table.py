"""A table of PostgreSQL's, and how a batch is written to it."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from netspy_scrapy.exceptions import PipelineError
from netspy_scrapy.pipelines.postgres_driver import IS_FAST
from netspy_scrapy.pipelines.postgres_values import Column, is_binary, texts
from netspy_scrapy.pipelines.sql import Dialect, fault_of_name, not_found, split_keys
from netspy_scrapy.pipelines.staging import escaped, isolate, joined, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from netspy_scrapy.pipelines.postgres_driver import Connection
    from netspy_scrapy.pipelines.servers import Fault
    from netspy_scrapy.pipelines.sql import ColumnGroup, Refused

#: What the names of temporary tables begin with; only letters, as a number of a line follows it.
STAGE = "netspy_stage_[a-p]*"
_STAGE = "netspy_stage_"
_NUMBER = '"netspy row"'
_DIALECT = Dialect()

# Of a domain the type that it is made of: the target checks the domain itself.
_COLUMNS = """
    SELECT a.attname,
           format_type(
               COALESCE(b.oid, t.oid), CASE WHEN b.oid IS NULL THEN a.atttypmod ELSE t.typtypmod END
           ),
           COALESCE(b.typname, t.typname),
           COALESCE(b.typcategory, t.typcategory)::text
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_type b ON b.oid = t.typbasetype
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
"""


class Table:
    """A table as it is now; read for each batch, so that a change of it is noticed."""

    def __init__(self, name: str, columns: Sequence[Column]) -> None:
        self.name = name
        self.columns = {column.name: column for column in columns}
        kinds = "\0".join(f"{column.name}\0{column.type}" for column in columns)
        digest = blake2b(f"{name}\0{kinds}".encode(), digest_size=8).hexdigest()
        letters = digest.translate(str.maketrans("0123456789abcdef", "abcdefghijklmnop"))
        self.stage = f"{_STAGE}{letters}"
        """The temporary table that has its columns."""

    @classmethod
    def read(cls, db: Connection, name: str) -> Table:
        """Look *name* up; raises PipelineError if there is no such table."""
        fault = fault_of_name(name)
        if fault is not None:
            raise PipelineError(fault)
        found = db.execute(_COLUMNS, [_DIALECT.quote(name)]).fetchall()
        if not found:
            raise PipelineError(
                f"there is no table {name!r} in the database POSTGRES_DB = {db.info.dbname!r}"
            )
        return cls(name, [Column(*row) for row in found])

    def ready(
        self, group: ColumnGroup, items: Sequence[dict[str, Any]], refused: Refused
    ) -> Ready | None:
        """Make the rows of *group* ready to be sent; None: none of them can be."""
        unknown = [name for name in group.columns if name not in self.columns]
        if unknown:
            names = ", ".join(map(repr, unknown))
            group.refuse(f"the table {self.name!r} has no column {names}", refused)
            return None
        positions = group.positions
        fields = [self.columns[name] for name in group.columns]
        values = [[items[position][name] for position in positions] for name in group.columns]
        if IS_FAST and all(map(is_binary, fields, values)):
            return Ready(positions, values, [field.base for field in fields])
        columns: list[Sequence[Any]] = []
        bad: dict[int, str] = {}
        for field, column in zip(fields, values, strict=True):
            found, faults = texts(field, column)
            columns.append(found)
            bad |= faults
        if bad:
            refused |= {positions[number]: reason for number, reason in bad.items()}
            good = [number for number in range(len(positions)) if number not in bad]
            positions = [positions[number] for number in good]
            columns = [[column[number] for number in good] for column in columns]
        return Ready(positions, columns) if positions else None


class Ready(NamedTuple):
    """Rows of the same fields, ready to be sent."""

    positions: list[int]
    """In the batch."""
    columns: Sequence[Sequence[Any]]
    """The values of each field: text, or what PostgreSQL has a format for."""
    types: list[str] | None = None
    """The formats; None: text."""


class Batch:
    """Writes rows by way of a temporary table, in the transaction of *db*."""

    def __init__(
        self, db: Connection, table: Table, fault_of: Callable[[Exception], Fault]
    ) -> None:
        self._db = db
        self._table = table
        self._name = _DIALECT.quote(table.name)
        self._fault_of = fault_of
        self._rows = 0
        """Rows in the temporary table, which number the next ones."""
        columns = ", ".join(
            f"{_DIALECT.quote(column.name)} {column.type}" for column in table.columns.values()
        )
        # Kept by the connection: making it each time would fill the server's catalogue.
        self._run(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {table.stage} ({_NUMBER} integer, {columns})"
            " ON COMMIT DELETE ROWS"
        )
        # A check that is put off until the commit would fail the whole batch.
        self._run("SET CONSTRAINTS ALL IMMEDIATE")

    # Writing -----------------------------------------------------------------------------------
    def insert(
        self, group: ColumnGroup, items: Sequence[dict[str, Any]], refused: Refused, mode: str,
        conflict: Sequence[str],
    ) -> None:  # fmt: skip
        """Add the rows of *group*; *mode* and *conflict* are as POSTGRES_ON_CONFLICT says."""
        stage = self._stage(group, items, refused)
        if stage is None:
            return
        keys = [name for name in conflict if name in group.columns] if mode == "update" else []
        names = _DIALECT.names(group.columns)
        action = _action(group.columns, mode, conflict)

        def store(start: int, stop: int) -> None:
            rows = stage.last_rows(start, stop, keys, are_nulls_equal=False)
            with self._db.transaction():
                self._run(
                    f"INSERT INTO {self._name} ({names})"  # noqa: S608
                    f" SELECT {names} FROM ({rows}) AS s{action}"
                )

        stage.finish(isolate(store, stage.ranges, self._fault_of), refused)

    def update(
        self, group: ColumnGroup, items: Sequence[dict[str, Any]], refused: Refused,
        keys: Sequence[str],
    ) -> None:  # fmt: skip
        """Change the rows that *keys* find; refuse those that find none."""
        finders, changed = split_keys(group.columns, keys)
        if len(finders) < len(keys):
            group.refuse(f"the row lacks a field of its update key: {', '.join(keys)}", refused)
            return
        stage = self._stage(group, items, refused)
        if stage is None:
            return
        sets = changed or finders  # a row of nothing but its key has only to be there
        changes = ", ".join(f"{name} = s.{name}" for name in map(_DIALECT.quote, sets))
        missing: set[int] = set()

        def store(start: int, stop: int) -> None:
            lost: set[int] = set()
            with self._db.transaction():
                for nulls in stage.nulls(start, stop, finders):
                    meant, found = _conditions(finders, nulls)
                    rows = stage.last_rows(start, stop, finders, are_nulls_equal=True, more=meant)
                    self._run(
                        f"UPDATE {self._name} AS t SET {changes} FROM ({rows}) AS s WHERE {found}"  # noqa: S608
                    )
                    lost.update(self._missing(stage.rows(start, stop, meant), found))
            missing.update(lost)

        stage.finish(isolate(store, stage.ranges, self._fault_of), refused)
        for number in missing:
            position = stage.position(number)
            refused[position] = not_found(self._table.name, items[position], finders)

    def _missing(self, rows: str, found: str) -> list[int]:
        """Return the numbers of the *rows* that find none."""
        sql = (
            f"SELECT s.{_NUMBER} FROM ({rows}) AS s"  # noqa: S608
            f" WHERE NOT EXISTS (SELECT FROM {self._name} AS t WHERE {found})"
        )
        return [number for (number,) in self._run(sql)]

    # Staging -----------------------------------------------------------------------------------
    def _stage(
        self, group: ColumnGroup, items: Sequence[dict[str, Any]], refused: Refused
    ) -> _Stage | None:
        """Send the rows of *group* to the temporary table; None: none of them can be."""
        ready = self._table.ready(group, items, refused)
        if ready is None:
            return None
        stage = _Stage(self._table.stage, self._rows, ready, group.columns)
        numbers = range(self._rows, self._rows + len(ready.positions))
        self._rows = numbers.stop
        send = self._send_binary if ready.types else self._send_text
        names = _DIALECT.names(group.columns)
        copy = f"COPY {self._table.stage} ({_NUMBER}, {names}) FROM STDIN"
        bad = isolate(send(copy, numbers, ready), stage.ranges, self._fault_of)
        stage.finish(bad, refused)
        return stage if len(bad) < len(numbers) else None

    def _send_text(self, copy: str, numbers: range, ready: Ready) -> Callable[[int, int], None]:
        rows = lines([list(map(str, numbers)), *map(escaped, ready.columns)])

        def send(start: int, stop: int) -> None:
            cursor = self._db.cursor()
            with self._db.transaction(), cursor.copy(copy.encode()) as pipe:
                pipe.write(joined(rows[start:stop]))

        return send

    def _send_binary(self, copy: str, numbers: range, ready: Ready) -> Callable[[int, int], None]:
        rows = list(zip(numbers, *ready.columns, strict=True))
        copy += " (FORMAT BINARY)"
        types = ["int4", *(ready.types or ())]

        def send(start: int, stop: int) -> None:
            cursor = self._db.cursor()
            with self._db.transaction(), cursor.copy(copy.encode()) as pipe:
                pipe.set_types(types)
                for row in rows[start:stop]:
                    pipe.write_row(row)

        return send

    def _run(self, statement: str) -> Any:
        return self._db.execute(statement.encode())


class _Stage:
    """Rows of one group in the temporary table."""

    def __init__(self, name: str, first: int, ready: Ready, fields: Sequence[str]) -> None:
        self._name = name
        self.first = first
        """The number of the first row."""
        self._positions = ready.positions
        self._columns = dict(zip(fields, ready.columns, strict=True))
        self.ranges = [(0, len(ready.positions))]

    def position(self, number: int) -> int:
        """Return where the row of that *number* is in the batch."""
        return self._positions[number - self.first]

    def finish(self, bad: Refused, refused: Refused) -> None:
        """Refuse the *bad* rows of the group."""
        refused |= {self._positions[one]: reason for one, reason in bad.items()}

    def nulls(self, start: int, stop: int, keys: Sequence[str]) -> list[tuple[bool, ...]]:
        """Return which of *keys* are NULL together, in some row."""
        columns = [self._columns[key][start:stop] for key in keys]
        seen = {tuple(one is None for one in key) for key in zip(*columns, strict=True)}
        return sorted(seen)

    def rows(self, start: int, stop: int, more: str = "") -> str:
        """Return a query of rows."""
        where = f"{_NUMBER} >= {self.first + start} AND {_NUMBER} < {self.first + stop}{more}"
        return f"SELECT * FROM {self._name} WHERE {where}"  # noqa: S608

    def last_rows(
        self, start: int, stop: int, keys: Sequence[str], *, are_nulls_equal: bool, more: str = ""
    ) -> str:
        """Return a query of rows, of those with equal *keys* the last only.

        A statement changes a row but once.
        """
        rows = self.rows(start, stop, more)
        if not self._may_repeat(keys):
            return rows
        by = _DIALECT.names(keys)
        if not are_nulls_equal:
            nulls = " OR ".join(f"{_DIALECT.quote(key)} IS NULL" for key in keys)
            by += f", CASE WHEN {nulls} THEN {_NUMBER} END"
        return f"SELECT DISTINCT ON ({by}) * FROM ({rows}) AS r ORDER BY {by}, {_NUMBER} DESC"  # noqa: S608

    def _may_repeat(self, keys: Sequence[str]) -> bool:
        columns = [self._columns[key] for key in keys]
        return bool(columns) and len(set(zip(*columns, strict=True))) < len(self._positions)


def _action(fields: Sequence[str], mode: str, conflict: Sequence[str]) -> str:
    """Return what becomes of a row whose key is there already."""
    if mode == "error":
        return ""
    if mode == "nothing":
        return " ON CONFLICT DO NOTHING"
    changed = [
        name for name in map(_DIALECT.quote, fields) if name not in map(_DIALECT.quote, conflict)
    ]
    changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in changed)
    return f" ON CONFLICT ({_DIALECT.names(conflict)}) " + (
        f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
    )


def _conditions(keys: Sequence[str], nulls: Sequence[bool]) -> tuple[str, str]:
    """Return what rows of the batch are meant, and which of the table's they find.

    "= NULL" finds nothing, and IS NOT DISTINCT FROM uses no index.
    """
    pairs = [(_DIALECT.quote(key), is_null) for key, is_null in zip(keys, nulls, strict=True)]
    meant = "".join(f" AND {key} IS {'' if is_null else 'NOT '}NULL" for key, is_null in pairs)
    found = [f"t.{key} IS NULL" if is_null else f"t.{key} = s.{key}" for key, is_null in pairs]
    return meant, " AND ".join(found)
