"""A sink that writes to a SQLite database."""

from __future__ import annotations

import math
import sqlite3
import string
import sys
import time
from contextlib import contextmanager
from hashlib import blake2b
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from netspy_scrapy.exceptions import PipelineError
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.pipelines.sql import (
    Adapter,
    Dialect,
    escape_surrogates,
    fault_of_name,
    not_found,
    sound_groups,
    split_keys,
)
from netspy_scrapy.settings import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from netspy_scrapy.pipelines.sql import ColumnGroup, Refused
    from netspy_scrapy.spiders.logger import SpiderLogger

_DIALECT = Dialect(is_same="IS")
_ADAPTER = Adapter(
    {type(None), str, int, float, bool, bytes}, {bytearray: bytes, memoryview: bytes}
)
# SQLite compares names by their ASCII letters only.
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_INT64 = range(-(2**63), 2**63)
# What is wrong with one row. OperationalErrors (a full disk, a lock) concern the whole batch.
_ROW_FAULTS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    ValueError,
)
_MEMORY = ":memory:"


class SqlitePipeline(BasePipeline):
    r"""Writes the rows of each table to the table of that name in the database SQLITE_PATH.

    The file, its folder, and missing tables and columns are made. Columns get no type, so each
    value is stored exactly as it came: ``"007"`` stays text. (A type would have SQLite convert
    it.) Tables and types of your own are respected. As everywhere in SQLite, names that differ
    in ASCII case only are one table or column.

    With ``__unique_key__`` a row replaces the one that has the same key: the fields that it has
    are overwritten, others stay. For this the table gets a unique index, unless it has one. Rows
    already there that share a key prevent it: then one warning, and each row is looked up first.
    A row whose key holds a None is always a new one. Without ``__unique_key__`` rows are
    inserted. A row that breaks a constraint of the table's is refused, and only that row.

    An UpdateItem changes every row that its key finds (None finds NULL). If there is none it is
    refused. The first update by a key for which the table has no index makes one.

    Values: None and NaN are NULL; True and False 1 and 0; integers over 64 bits and Decimals
    text, which keeps their digits; bytes BLOBs; dates and times ISO text; a UUID text; an Enum
    its value; lists, dicts, sets and items JSON. A lone surrogate is written out (``\udc80``). A
    value of any other type refuses its row.

    The database is in WAL mode, so others can read while rows are written. A batch is one
    transaction: a killed process leaves none half stored; after a power cut the last ones may be
    missing (``synchronous=NORMAL``). A lock that another process holds is waited for
    :attr:`lock_timeout`; then the batch is dumped.

    Settings: SQLITE_PATH, and those of every sink.
    """

    lock_timeout: ClassVar[float] = 30.0
    """Seconds to wait while another process writes."""
    wants_unique_keys: ClassVar[bool] = True
    unique_keys: tuple[str, ...] = ()
    """``__unique_key__`` of the rows that ``save_items`` is called with; set by the batcher."""

    _db: sqlite3.Connection | None = None
    _path: str
    _file: tuple[int, int] | None = None
    """Device and inode of the file that is open."""
    _without_index: set[tuple[str, ...]]
    """Tables and keys that cannot have a unique index."""

    def open(self) -> None:
        """Open the database."""
        setting = read_text(self.settings, "SQLITE_PATH")
        # The working folder may change while the crawl runs.
        self._path = setting if setting == _MEMORY else str(Path(setting).absolute())
        self._without_index = set()
        try:
            self._connect()
        except (OSError, sqlite3.Error) as exc:
            self.close()
            raise PipelineError(f"SQLITE_PATH = {setting!r} cannot be opened: {exc}") from exc

    def close(self) -> None:
        """Close the database."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def save_items(self, table: str, items: list[dict[str, Any]]) -> Refused:
        """Insert rows, or replace those of the same ``unique_keys``; raises if none is stored."""
        keys = tuple(self.unique_keys)
        rows, refused = _ADAPTER.rows(items)
        groups = sound_groups(rows, refused, keys=keys, fold=_folded)
        if not groups:
            return refused
        with self._transaction() as db:
            target = _Table(db, table, self.logger)
            groups = target.make_room(groups, keys, refused)
            indexed = bool(groups and keys) and self._has_unique_index(target, keys)
            for group in groups:
                if indexed:
                    target.upsert(group, rows, keys, refused)
                elif keys:
                    target.replace(group, rows, keys, refused)
                else:
                    target.insert(group, rows, refused)
        return refused

    def update_items(
        self, table: str, items: list[dict[str, Any]], update_keys: list[str]
    ) -> Refused:
        """Change the rows that *update_keys* find; raises if none is changed."""
        rows, refused = _ADAPTER.rows(items)
        groups = sound_groups(rows, refused, keys=update_keys, fold=_folded)
        if not groups:
            return refused
        with self._transaction() as db:
            target = _Table(db, table, self.logger)
            fault = target.fault_of_keys(update_keys)
            if fault is not None:
                return refused | dict.fromkeys(rows, fault)
            groups = target.make_room(groups, (), refused)
            target.index_for_lookups(update_keys)
            for group in groups:
                target.update(group, rows, update_keys, refused)
        return refused

    # Connection ---------------------------------------------------------------------------------
    def _connect(self) -> None:
        if self._path != _MEMORY:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        self._db = db = sqlite3.connect(
            self._path,
            timeout=self.lock_timeout,
            isolation_level=None,  # transactions are begun and ended here
            check_same_thread=False,  # batches run in one thread at a time, not always the same
        )
        mode = self._set_wal(db)
        db.execute("PRAGMA synchronous = NORMAL")
        if mode not in {"wal", "memory"}:
            self.logger.info("%s cannot be in WAL mode here: it is in %r", self._path, mode)
        self._file = self._identity()

    def _set_wal(self, db: sqlite3.Connection) -> str:
        # SQLite does not wait here for somebody who is writing.
        deadline = time.monotonic() + self.lock_timeout
        while True:
            try:
                return str(db.execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as exc:
                if "locked" not in str(exc) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _identity(self) -> tuple[int, int] | None:
        if self._path == _MEMORY:
            return None
        try:
            status = Path(self._path).stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _connection(self) -> sqlite3.Connection:
        if self._db is not None and self._file is not None and self._file != self._identity():
            # SQLite would go on writing to the file that has no name any more.
            self.logger.warning("%s was removed or replaced: it is opened again", self._path)
            self.close()
        if self._db is None:
            self._connect()
        assert self._db is not None
        return self._db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._connection()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _has_unique_index(self, target: _Table, keys: tuple[str, ...]) -> bool:
        if target.takes_conflict(keys):
            return True
        known = (_folded(target.name), *sorted(map(_folded, keys)))
        if known not in self._without_index:
            try:
                target.add_index(keys, unique=True)
            except sqlite3.IntegrityError:
                self._without_index.add(known)
                self.logger.warning(
                    "%r has rows that share %s, so it cannot have a unique index: "
                    "each row is looked up before it is written",
                    target.name, ", ".join(keys),
                )  # fmt: skip
            else:
                return True
        target.index_for_lookups(keys)
        return False


class _Table:
    """A table, looked at within the transaction in which it is written."""

    def __init__(self, db: sqlite3.Connection, name: str, logger: SpiderLogger) -> None:
        fault = fault_of_name(name)
        if fault is None and _folded(name).startswith("sqlite_"):
            fault = f"SQLite keeps the table {name!r} for itself: its names begin with sqlite_"
        if fault is not None:
            raise PipelineError(fault)
        self.name = name
        self._db = db
        self._logger = logger
        self.columns = self._read_columns()
        """Declared types by folded name; empty: there is no such table."""

    def _read_columns(self) -> dict[str, str]:
        # Without the question, json_each and the like would seem to be tables.
        exists = self._db.execute(
            "SELECT 1 FROM sqlite_master"
            " WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')",
            [self.name],
        ).fetchone()
        if exists is None:
            return {}
        found = self._db.execute("SELECT name, type FROM pragma_table_xinfo(?)", [self.name])
        return {_folded(name): kind for name, kind in found}

    def fault_of_keys(self, keys: Iterable[str]) -> str | None:
        """Return why no row can be found by *keys*, or None."""
        if not self.columns:
            return f"there is no table {self.name!r}"
        for key in keys:
            if _folded(key) not in self.columns:
                return f"{self.name!r} has no column {key!r}"
        return None

    def make_room(
        self, groups: list[ColumnGroup], keys: Sequence[str], refused: Refused
    ) -> list[ColumnGroup]:
        """Add the columns of *groups* and *keys*; return the groups for which there is room."""
        limit = _max_columns(self._db)
        columns: dict[str, str] = {}
        kept = []
        for group in groups:
            names = {_folded(name): name for name in (*group.columns, *keys)}
            new = {
                folded: name
                for folded, name in names.items()
                if folded not in self.columns and folded not in columns
            }
            count = len(self.columns) + len(columns) + len(new)
            if count > limit:
                group.refuse(
                    f"{self.name!r} would have {count} columns; SQLite takes {limit}", refused
                )
                continue
            columns |= new
            kept.append(group)
        self._add(columns)
        return kept

    def _add(self, columns: dict[str, str]) -> None:
        if not columns:
            return
        if not self.columns:
            names = _DIALECT.names(columns.values())
            self._db.execute(f"CREATE TABLE {_DIALECT.quote(self.name)} ({names})")
        else:
            for name in columns.values():
                self._db.execute(
                    f"ALTER TABLE {_DIALECT.quote(self.name)} ADD COLUMN {_DIALECT.quote(name)}"
                )
            self._logger.info(
                "%r has %d more columns: %s", self.name, len(columns),
                ", ".join(map(repr, list(columns.values())[:20])),
            )  # fmt: skip
        self.columns |= dict.fromkeys(columns, "")

    # Indexes ------------------------------------------------------------------------------------
    def takes_conflict(self, keys: Sequence[str]) -> bool:
        """Tell whether ON CONFLICT may name *keys*: SQLite itself is asked."""
        names = _DIALECT.names(keys)
        nulls = ", ".join(["NULL"] * len(keys))
        sql = (
            f"EXPLAIN INSERT INTO {_DIALECT.quote(self.name)} ({names}) VALUES ({nulls})"  # noqa: S608
            f" ON CONFLICT ({names}) DO NOTHING"
        )
        try:
            self._db.execute(sql).close()
        except sqlite3.OperationalError as exc:
            if "ON CONFLICT" in str(exc):
                return False
            raise
        return True

    def index_for_lookups(self, keys: Sequence[str]) -> None:
        """Add an index on *keys*, if they are not found by one already."""
        found = " AND ".join(f"{_DIALECT.quote(key)} IS ?" for key in keys)
        sql = f"EXPLAIN QUERY PLAN SELECT 1 FROM {_DIALECT.quote(self.name)} WHERE {found}"  # noqa: S608
        plan = self._db.execute(sql, [None] * len(keys)).fetchall()
        if any(step[3].startswith("SCAN") for step in plan):
            self.add_index(keys, unique=False)

    def add_index(self, keys: Sequence[str], *, unique: bool) -> None:
        """Add an index; raises IntegrityError if it is unique and the rows are not."""
        kind = "UNIQUE INDEX" if unique else "INDEX"
        text = "\0".join([_folded(self.name), *sorted(map(_folded, keys))])
        digest = blake2b(text.encode(), digest_size=4).hexdigest()
        name = _DIALECT.quote(f"netspy_{'unique' if unique else 'lookup'}_{digest}")
        self._db.execute(
            f"CREATE {kind} IF NOT EXISTS {name}"
            f" ON {_DIALECT.quote(self.name)} ({_DIALECT.names(keys)})"
        )

    # Writing ------------------------------------------------------------------------------------
    def insert(
        self, group: ColumnGroup, rows: Mapping[int, Mapping[str, Any]], refused: Refused
    ) -> None:
        """Add the rows of *group*."""
        self._run_all(self._insert(group.columns), group, rows, refused)

    def upsert(
        self,
        group: ColumnGroup,
        rows: Mapping[int, Mapping[str, Any]],
        keys: Sequence[str],
        refused: Refused,
    ) -> None:
        """Add the rows of *group*, or change those of the same *keys*, which a unique index has."""
        _, changed = split_keys(group.columns, keys, _folded)
        changes = ", ".join(f"{name} = excluded.{name}" for name in map(_DIALECT.quote, changed))
        action = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
        sql = f"{self._insert(group.columns)} ON CONFLICT ({_DIALECT.names(keys)}) {action}"
        self._run_all(sql, group, rows, refused)

    def replace(
        self,
        group: ColumnGroup,
        rows: Mapping[int, Mapping[str, Any]],
        keys: Sequence[str],
        refused: Refused,
    ) -> None:
        """Do as :meth:`upsert`, without the index."""
        finders, changed = split_keys(group.columns, keys, _folded)
        if len(finders) < len(keys):
            self.insert(group, rows, refused)  # the rest of the key is NULL
            return
        insert = self._insert(group.columns)
        update, order = self._update(finders, changed)
        for position in group.positions:
            row = rows[position]
            with self._refusing(position, refused):
                if any(_is_null(row[name]) for name in finders) or not self._run(
                    update, order, row
                ):
                    self._run(insert, group.columns, row)

    def update(
        self,
        group: ColumnGroup,
        rows: Mapping[int, Mapping[str, Any]],
        keys: Sequence[str],
        refused: Refused,
    ) -> None:
        """Change the rows that *keys* find."""
        finders, changed = split_keys(group.columns, keys, _folded)
        if len(finders) < len(keys):
            group.refuse(f"the row lacks a field of its update key: {', '.join(keys)}", refused)
            return
        sql, order = self._update(finders, changed)
        for position in group.positions:
            row = rows[position]
            with self._refusing(position, refused):
                if not self._run(sql, order, row):
                    refused[position] = not_found(self.name, row, finders)

    def _insert(self, columns: Sequence[str]) -> str:
        # OR ABORT: no constraint of the user's may undo the rows before, or drop this one.
        return _DIALECT.insert(self.name, columns, verb="INSERT OR ABORT")

    def _update(self, finders: list[str], changed: list[str]) -> tuple[str, list[str]]:
        """Return the statement, and the fields that are its parameters."""
        changed = changed or finders  # a row of nothing but its key has only to be there
        sql = _DIALECT.update(self.name, changed, finders, verb="UPDATE OR ABORT")
        return sql, [*changed, *finders]

    def _run_all(
        self,
        sql: str,
        group: ColumnGroup,
        rows: Mapping[int, Mapping[str, Any]],
        refused: Refused,
    ) -> None:
        positions = group.positions
        rest = iter(group.values(rows))
        done = 0
        while done < len(positions):
            try:
                self._db.executemany(sql, rest)
            except _ROW_FAULTS as exc:
                # The rows before it are written; what SQLite has not taken tells which it was.
                failed = len(positions) - length_hint(rest) - 1
                if failed < done:
                    raise
                done = failed + 1
                position = positions[failed]
                with self._refusing(position, refused):
                    self._run_again(sql, group.columns, rows[position], exc)
            else:
                return

    def _run(self, sql: str, columns: Sequence[str], row: Mapping[str, Any]) -> int:
        """Run *sql* for one row; return how many rows it found."""
        try:
            return self._db.execute(sql, [row[name] for name in columns]).rowcount
        except _ROW_FAULTS as exc:
            return self._run_again(sql, columns, row, exc)

    def _run_again(
        self, sql: str, columns: Sequence[str], row: Mapping[str, Any], exc: Exception
    ) -> int:
        """Run *sql* with values that SQLite takes, if it was a value that it did not take."""
        if not isinstance(exc, (OverflowError, UnicodeEncodeError)):
            raise exc
        values = [self._bindable(name, row[name]) for name in columns]
        return self._db.execute(sql, values).rowcount

    def _bindable(self, column: str, value: Any) -> Any:
        if isinstance(value, str):
            return escape_surrogates(value)
        if isinstance(value, int) and value not in _INT64:
            kind = self.columns[_folded(column)]
            if _converts_to_number(kind):
                raise OverflowError(f"the column {column!r} of type {kind} would round {value}")
            return str(value)
        return value

    @contextmanager
    def _refusing(self, position: int, refused: Refused) -> Iterator[None]:
        try:
            yield
        except _ROW_FAULTS as exc:
            # A trigger may end the transaction; then the rows before are gone too.
            if not self._db.in_transaction:
                raise
            refused[position] = f"{type(exc).__name__}: {exc}"


def _folded(name: str) -> str:
    return name.translate(_LOWER)


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _converts_to_number(declared: str) -> bool:
    """Tell whether a column stores text that looks like a number as one.

    https://www.sqlite.org/datatype3.html#determination_of_column_affinity
    """
    kind = declared.upper()
    if "INT" in kind:
        return True
    return bool(kind) and not any(word in kind for word in ("CHAR", "CLOB", "TEXT", "BLOB"))


def _max_columns(db: sqlite3.Connection) -> int:
    if sys.version_info >= (3, 11):
        return min(
            db.getlimit(sqlite3.SQLITE_LIMIT_COLUMN),
            db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER),
        )
    return 2000 if sqlite3.sqlite_version_info >= (3, 32) else 999  # its defaults
