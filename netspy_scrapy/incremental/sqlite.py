"""Pages in one SQLite file."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from netspy_scrapy.exceptions import ConfigError, StoreError
from netspy_scrapy.incremental.entry import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from netspy_scrapy.incremental.store import Changes

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Written into the file (PRAGMA application_id), so that no other database is taken for one.
_APPLICATION: Final = 0x4E535059
_VERSION: Final = 1
#: Milliseconds to wait for another process that writes.
_BUSY: Final = 30_000
_PAUSE: Final = 0.02
#: SQLite takes 999 parameters in old builds.
_AT_ONCE: Final = 500
_SUFFIXES: Final = ("", "-wal", "-shm")

_COLUMNS: Final = (
    "key", "spider", "url", "etag", "modified", "status", "fetched", "checked", "run", "size",
    "digest", "changes", "dynamic", "children", "body",
)  # fmt: skip
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM pages"  # noqa: S608 - names of ours
_UPSERT: Final = (
    f"INSERT INTO pages ({', '.join(_COLUMNS)}) "  # noqa: S608
    f"VALUES ({', '.join('?' for _ in _COLUMNS)}) ON CONFLICT (key) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[1:])
)
# Keys are spread at random. Rows lie in the order in which pages were met, which is about that of
# the next run: its updates touch pages of the file one after the other, and not all of them.
_SCHEMA: Final = """
CREATE TABLE pages (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, spider TEXT NOT NULL, url TEXT NOT NULL,
    etag BLOB, modified BLOB, status INTEGER NOT NULL, fetched REAL NOT NULL,
    checked REAL NOT NULL, run INTEGER NOT NULL, size INTEGER NOT NULL, digest BLOB,
    changes INTEGER NOT NULL, dynamic INTEGER NOT NULL, children INTEGER, body BLOB
);
CREATE TABLE children (key BLOB PRIMARY KEY, requests BLOB NOT NULL);
CREATE TABLE bodies (
    key BLOB NOT NULL, digest BLOB NOT NULL, body BLOB NOT NULL, PRIMARY KEY (key, digest)
);
CREATE TABLE runs (spider TEXT PRIMARY KEY, run INTEGER NOT NULL);
"""


class SqliteBackend:
    """A :class:`~netspy_scrapy.incremental.store.Backend` in one file (NETSPY_INCREMENTAL_PATH).

    Several crawls may use the file at once, each for its own spider. Batches are transactions in
    WAL mode: a killed process leaves whole batches only. A file that is damaged is kept under
    another name, and a new one is begun, with one warning. Readable by the owner only, for it
    may hold pages, and requests with their headers.

    Raises ConfigError if the path cannot be used, or names a database of something else.
    """

    def __init__(self, path: str, *, create: bool = True) -> None:
        self.path = Path(path).absolute()
        self._create = create
        self._database: sqlite3.Connection | None = None
        self._spider = ""

    # Backend -------------------------------------------------------------------------------------
    def open(self, spider: str) -> int:
        """Begin a run."""
        self._spider = spider
        return self._try(_next_run, spider)

    def read(self, wanted: list[bytes]) -> dict[bytes, Entry]:
        """Return the entries of these keys."""
        return self._try(_read, wanted)

    def read_children(self, key: bytes) -> bytes | None:
        """Return the requests kept for a page."""
        return self._try(_one, "SELECT requests FROM children WHERE key = ?", key)

    def read_body(self, key: bytes, digest: bytes) -> bytes | None:
        """Return the body kept for a page."""
        return self._try(_one, "SELECT body FROM bodies WHERE key = ? AND digest = ?", key, digest)

    def write(self, changes: Changes) -> None:
        """Write a batch as one transaction."""
        self._try(_write, changes)

    def close(self) -> None:
        """Close the file."""
        database, self._database = self._database, None
        if database is not None:
            with suppress(sqlite3.Error):
                database.close()

    def abandon(self) -> None:
        """Interrupt a call that waits for another process's lock, or for the disk."""
        database = self._database
        if database is not None:
            with suppress(sqlite3.Error):
                database.interrupt()

    # For the command -----------------------------------------------------------------------------
    def entries(self) -> Iterator[Entry]:
        """Yield all entries, in the order of spiders and URLs."""
        with closing(self._connected().cursor()) as cursor:
            for row in cursor.execute(f"{_SELECT} ORDER BY spider, url"):
                yield _entry(row)

    def runs(self) -> dict[str, int]:
        """Return the number of the last run of each spider."""
        return self._try(lambda database: dict(database.execute("SELECT spider, run FROM runs")))

    # The file ------------------------------------------------------------------------------------
    def check(self) -> None:
        """Open the file now; raises ConfigError if it cannot be used."""
        self._try(lambda database: database.execute("SELECT 1 FROM runs LIMIT 1").fetchall())

    def _try(self, function: Callable[..., T], *args: Any) -> T:
        """Call *function* with the database; once more with a new one if it is damaged."""
        try:
            try:
                return function(self._connected(), *args)
            except sqlite3.DatabaseError as exc:
                if not _is_damage(exc) or not self._create:
                    raise
                self._begin_anew(exc)
                return function(self._connected(), *args)
        except (sqlite3.Error, OSError) as exc:
            raise StoreError(f"{self.path}: {exc}") from exc

    def _connected(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = self._connect()
        return self._database

    def _connect(self) -> sqlite3.Connection:
        new = not self.path.exists()
        if new and not self._create:
            raise ConfigError("NETSPY_INCREMENTAL_PATH", str(self.path), "a file that exists")
        try:
            # SQLite gives its further files the same rights.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            database = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=_BUSY / 1000
            )
        except (OSError, sqlite3.OperationalError) as exc:
            if isinstance(exc, OSError) and exc.errno == errno.ENOSPC:
                raise
            raise ConfigError(
                "NETSPY_INCREMENTAL_PATH", str(self.path), f"a file that can be written ({exc})"
            ) from exc
        try:
            self._prepare(database)
        except BaseException:
            database.close()
            raise
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        _switch_to_wal(database)
        # In WAL mode a kill loses nothing of a commit, and a power cut the last ones at most.
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA cache_size = -16384")  # KiB
        database.execute("PRAGMA wal_autocheckpoint = 4000")
        with _transaction(database):
            (application,) = database.execute("PRAGMA application_id").fetchone()
            (version,) = database.execute("PRAGMA user_version").fetchone()
            empty = not database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            if empty:
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA application_id = {_APPLICATION}")
                database.execute(f"PRAGMA user_version = {_VERSION}")
            elif application != _APPLICATION or version != _VERSION:
                raise ConfigError(
                    "NETSPY_INCREMENTAL_PATH", str(self.path),
                    "a file of its own (this one holds something else)",
                )  # fmt: skip

    def _begin_anew(self, exc: sqlite3.DatabaseError) -> None:
        self.close()
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        for suffix in _SUFFIXES:
            with suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")  # noqa: PTH105
        logger.warning(
            "%s is damaged (%s): kept as %s, and begun anew; pages are fetched as if they were "
            "not known", self.path, exc, aside.name,
        )  # fmt: skip
        if self._spider:
            _next_run(self._connected(), self._spider)


def _switch_to_wal(database: sqlite3.Connection) -> None:
    """Switch a new file to WAL; SQLite does not wait by itself while another process does so."""
    until = time.monotonic() + _BUSY / 1000
    while database.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > until:
                raise
            time.sleep(_PAUSE)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk may have ended the transaction
            database.execute("ROLLBACK")
        raise


def _next_run(database: sqlite3.Connection, spider: str) -> int:
    with _transaction(database):
        row = database.execute("SELECT run FROM runs WHERE spider = ?", (spider,)).fetchone()
        run = 1 if row is None else int(row[0]) + 1
        database.execute("INSERT OR REPLACE INTO runs (spider, run) VALUES (?, ?)", (spider, run))
    return run


def _read(database: sqlite3.Connection, wanted: list[bytes]) -> dict[bytes, Entry]:
    found = {}
    for start in range(0, len(wanted), _AT_ONCE):
        some = wanted[start : start + _AT_ONCE]
        marks = ",".join("?" * len(some))
        for row in database.execute(f"{_SELECT} WHERE key IN ({marks})", some):
            found[row[0]] = _entry(row)
    return found


def _one(database: sqlite3.Connection, statement: str, *parameters: bytes) -> bytes | None:
    row = database.execute(statement, parameters).fetchone()
    return None if row is None else bytes(row[0])


def _write(database: sqlite3.Connection, changes: Changes) -> None:
    kept = [entry for entry in changes.entries.values() if entry is not None]
    gone = [(key,) for key, entry in changes.entries.items() if entry is None]
    with_body = [(one.key, one.body) for one in kept if one.body is not None]
    with _transaction(database):
        database.executemany(_UPSERT, map(_row, kept))
        for table in ("pages", "children", "bodies") if gone else ():
            database.executemany(f"DELETE FROM {table} WHERE key = ?", gone)  # noqa: S608
        database.executemany(
            "INSERT OR REPLACE INTO children (key, requests) VALUES (?, ?)",
            changes.children.items(),
        )
        database.executemany(
            "INSERT OR REPLACE INTO bodies (key, digest, body) VALUES (?, ?, ?)",
            ((*pair, body) for pair, body in changes.bodies.items()),
        )
        # Bodies of which the rows were never safe, and those of earlier runs.
        database.executemany("DELETE FROM bodies WHERE key = ? AND digest <> ?", with_body)


def _row(entry: Entry) -> tuple[Any, ...]:
    return (
        entry.key, entry.spider, entry.url, entry.etag, entry.modified, entry.status,
        entry.fetched, entry.checked, entry.run, entry.size, entry.digest, entry.changes,
        entry.dynamic, entry.children, entry.body,
    )  # fmt: skip


def _entry(row: tuple[Any, ...]) -> Entry:
    entry = Entry(*(*row[:12], bool(row[12]), *row[13:]))
    if not isinstance(entry.etag, (bytes, type(None))):
        raise sqlite3.DatabaseError("malformed: an ETag that is no bytes")
    return entry


def _is_damage(exc: sqlite3.DatabaseError) -> bool:
    """Tell whether the file itself is bad; a full disk or a lock is an OperationalError."""
    return type(exc) is sqlite3.DatabaseError and (
        "malformed" in str(exc) or "not a database" in str(exc)
    )
