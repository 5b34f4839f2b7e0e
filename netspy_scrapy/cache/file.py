"""The cache's file: one SQLite database in RESPONSE_CACHE_PATH.

A file for each page, as Scrapy's FilesystemCacheStorage has it, would need a walk over all of them
to know which pages are there, how old they are and what each domain takes. One database answers
that from an index, deletes by domain and age in one statement, lets several processes write, and is
whole again after a kill at any moment (WAL). Nothing in it is pickled.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from netspy_scrapy.cache.entries import Entry
from netspy_scrapy.exceptions import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from netspy_scrapy.cache.entries import Asked

logger = logging.getLogger(__name__)

FILE = "responses.sqlite3"

_VERSION = 1
#: Seconds that a writer waits for another process.
_BUSY = 5.0
#: Answers to one URL that are kept side by side (cookies, languages), the newest ones.
_MAX_VARIANTS = 16

_SCHEMA = (
    """CREATE TABLE entries (
    id INTEGER PRIMARY KEY, scope TEXT NOT NULL, key INTEGER NOT NULL, stored REAL NOT NULL,
    variant BLOB NOT NULL, vary TEXT NOT NULL, cookies BLOB NOT NULL, domain TEXT NOT NULL,
    url TEXT NOT NULL, status INTEGER NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL)""",
    "CREATE INDEX entries_by_key ON entries (scope, key, stored)",
    "CREATE INDEX entries_by_domain ON entries (domain, stored, size)",
    # Apart, so that what goes over all entries does not read all pages.
    "CREATE TABLE contents (id INTEGER PRIMARY KEY, head BLOB NOT NULL, body BLOB NOT NULL)",
    """CREATE TRIGGER entries_deleted AFTER DELETE ON entries
    BEGIN DELETE FROM contents WHERE id = old.id; END""",
    "CREATE TABLE ambient (scope TEXT, domain TEXT, name TEXT, PRIMARY KEY (scope, domain, name))",
    f"PRAGMA user_version = {_VERSION}",
)
_COLUMNS = "e.scope, e.key, e.variant, e.vary, e.cookies, e.stored, e.domain, e.url, e.status"


class CacheFile:
    """Reads and writes entries. Methods block; each raises :exc:`CacheError`.

    It may be used by one thread at a time. A file that is damaged, or of another version, is kept
    aside under the name ``<file>.broken``, and a new one begun.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE
        self.read_only = False
        self._db: sqlite3.Connection | None = None
        self._inode: int | None = None

    # Opening -------------------------------------------------------------------------------------
    def open(self, *, create: bool = True) -> None:
        """Open the file, and make it if *create* says so."""
        if self._db is not None:
            return
        with _reported(self.path, "opened"):
            if not create and not self.path.exists():
                raise CacheError(f"{self.path} does not exist")
            try:
                self._open(create=create)
            except sqlite3.DatabaseError as exc:
                if _is_damage(exc) and create:
                    self._set_aside(exc)
                    self._open(create=True)
                elif _is_damage(exc):
                    raise
                else:
                    self._open_read_only()

    def _open(self, *, create: bool) -> None:
        if create:
            self.folder.mkdir(parents=True, exist_ok=True)
            ignore = self.folder / ".gitignore"
            if not ignore.exists():
                with suppress(OSError):
                    ignore.write_text("*\n", encoding="ascii")
            with suppress(OSError):  # answers may hold cookies and what is behind a login
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        self._connect("mode=rw")
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _open_read_only(self) -> None:
        """Open a file that cannot be written, where no other process writes it either."""
        if not self.path.exists():
            self._connect("mode=rw")  # for the error that it raises
        for mode in ("mode=ro", "immutable=1"):
            self._connect(mode)
            try:
                self._check_version()
            except sqlite3.OperationalError:
                self.close()
                if mode == "immutable=1":
                    raise
            else:
                self.read_only = True
                return

    def _connect(self, mode: str) -> None:
        self._db = sqlite3.connect(
            f"file:{quote(str(self.path.absolute()))}?{mode}",
            uri=True, timeout=_BUSY, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        with suppress(OSError):
            self._inode = self.path.stat().st_ino

    def _prepare(self) -> None:
        db = self._connection
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        if self._is_empty():
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._use_wal()
        db.execute("PRAGMA synchronous = NORMAL")
        if self._is_empty():
            with self._transaction():
                if self._is_empty():  # still, for another process may have been quicker
                    for statement in _SCHEMA:
                        db.execute(statement)
        self._check_version()

    def _is_empty(self) -> bool:
        return not self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]

    def _use_wal(self) -> None:
        for attempt in range(50):
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:  # another process begins the file: no time-out holds
                if attempt == 49:  # noqa: PLR2004
                    raise
                time.sleep(0.05)
            else:
                return

    def _check_version(self) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version != _VERSION:
            raise sqlite3.DatabaseError(f"it is of version {version}, not {_VERSION}")
        self._connection.execute("SELECT 1 FROM entries JOIN contents USING (id) LIMIT 0")

    def _set_aside(self, exc: sqlite3.Error) -> None:
        """Keep a damaged file under another name, unless another process has done so."""
        mine = self._inode
        self.close()
        with suppress(OSError):
            if mine is not None and self.path.stat().st_ino != mine:
                return
            broken = self.path.with_name(f"{FILE}.broken")
            os.replace(self.path, broken)  # noqa: PTH105
            for ending in ("-wal", "-shm"):  # they would be taken for the new file's
                self.path.with_name(FILE + ending).unlink(missing_ok=True)
            logger.warning(
                "The response cache is damaged (%s): it is kept in %s, and begun anew", exc, broken
            )

    def close(self) -> None:
        """Close the file."""
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    def _keep_up(self) -> None:
        """Open the file that has the name now: the other one was set aside, or cleared."""
        if self.read_only or self._db is None:
            return
        try:
            inode: int | None = self.path.stat().st_ino
        except OSError:
            inode = None
        if inode != self._inode:
            self.close()
            self._open(create=True)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise CacheError(f"{self.path} is not open")
        return self._db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._connection
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    @contextmanager
    def using(self, what: str) -> Iterator[sqlite3.Connection]:
        """Give the connection; begin anew if the file turns out to be damaged."""
        try:
            with _reported(self.path, what):
                self._keep_up()
                yield self._connection
        except CacheError as exc:
            cause = exc.__cause__
            if isinstance(cause, sqlite3.DatabaseError) and _is_damage(cause):
                self._set_aside(cause)
                with suppress(sqlite3.Error, OSError):
                    self._open(create=True)
            raise

    # The crawl -----------------------------------------------------------------------------------
    def keys(self, scope: str) -> list[tuple[int, float]]:
        """Return each key of *scope* with the time of its newest entry, sorted."""
        with self.using("read") as db:
            rows = db.execute(
                "SELECT key, max(stored) FROM entries WHERE scope = ? GROUP BY key ORDER BY key",
                (scope,),
            ).fetchall()
            return [(int(key), float(stored)) for key, stored in rows]

    def find(self, wanted: Sequence[Asked]) -> list[Entry | CacheError | None]:
        """Return for each of *wanted* the newest entry that stands for it, its digest checked.

        Two queries for all of them: at each row a thread waits for its turn among Python's.
        """
        if not wanted:
            return []
        marks = ", ".join("?" * len(wanted))
        with self.using("read") as db:
            candidates: dict[tuple[str, int], list[tuple[int, str, bytes, bytes]]] = {}
            for scope, key, *row in db.execute(
                "SELECT scope, key, id, vary, variant, cookies FROM entries WHERE scope = ? AND "  # noqa: S608
                f"key IN ({marks}) ORDER BY stored DESC",
                (wanted[0].scope, *(asked.key for asked in wanted)),
            ).fetchall():
                candidates.setdefault((scope, key), []).append((row[0], row[1], row[2], row[3]))
            ids = [_chosen(asked, candidates.get((asked.scope, asked.key), ())) for asked in wanted]
            rows = db.execute(
                f"SELECT id, {_COLUMNS}, c.head, c.body, e.digest FROM entries e "  # noqa: S608
                f"JOIN contents c USING (id) WHERE id IN ({marks})", ids,
            ).fetchall()  # fmt: skip
        found = {row[0]: self._checked(row[1:]) for row in rows}
        return [None if id_ is None else found.get(id_) for id_ in ids]

    def _checked(self, row: Sequence[Any]) -> Entry | CacheError:
        *fields, digest = row
        entry = Entry(*fields)
        try:
            if entry.digest == digest:
                return entry
        except (AttributeError, TypeError, ValueError, struct.error):  # of other types by now
            pass
        return CacheError(f"an entry of {self.path} is damaged")

    def write(self, entries: Iterable[Entry]) -> None:
        """Store *entries* in one transaction; each replaces what stood for the same requests."""
        if self.read_only:
            raise CacheError(f"{self.path} cannot be written: it is read-only")
        with self.using("written"), self._transaction() as db:
            for one in entries:
                db.execute(
                    "DELETE FROM entries WHERE scope = ? AND key = ? AND "
                    "(variant = ? AND cookies = ? OR id NOT IN (SELECT id FROM entries WHERE "
                    "scope = ? AND key = ? ORDER BY stored DESC LIMIT ?))",
                    (one.scope, one.key, one.variant, one.cookies,
                     one.scope, one.key, _MAX_VARIANTS),
                )  # fmt: skip
                row = db.execute(
                    "INSERT INTO entries (scope, key, variant, vary, cookies, stored, domain, url, "
                    "status, size, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (one.scope, one.key, one.variant, one.vary, one.cookies, one.stored,
                     one.domain, one.url, one.status, one.size, one.digest),
                )  # fmt: skip
                db.execute(
                    "INSERT OR REPLACE INTO contents (id, head, body) VALUES (?, ?, ?)",
                    (row.lastrowid, one.head, one.body),
                )

    def drop(self, scope: str, keys: Iterable[int]) -> None:
        """Delete all entries of these keys."""
        if self.read_only:
            return
        with self.using("written"), self._transaction() as db:
            db.executemany(
                "DELETE FROM entries WHERE scope = ? AND key = ?", [(scope, key) for key in keys]
            )

    # Cookies that a site hands out to everybody --------------------------------------------------
    def ambient(self, scope: str) -> list[tuple[str, str]]:
        """Return pairs of domain and cookie name."""
        with self.using("read") as db:
            return db.execute(
                "SELECT domain, name FROM ambient WHERE scope = ?", (scope,)
            ).fetchall()

    def add_ambient(self, scope: str, pairs: Iterable[tuple[str, str]]) -> None:
        """Remember pairs of domain and cookie name."""
        if self.read_only:
            return
        with self.using("written"), self._transaction() as db:
            db.executemany(
                "INSERT OR IGNORE INTO ambient VALUES (?, ?, ?)", [(scope, *pair) for pair in pairs]
            )


def _chosen(asked: Asked, candidates: Iterable[tuple[int, str, bytes, bytes]]) -> int | None:
    """Return the id of the first of *candidates* that stands for *asked*."""
    for id_, vary, variant, cookies in candidates:
        if isinstance(vary, str) and isinstance(cookies, bytes):  # else it is damaged
            names = [name for name in vary.split(",") if name]
            if asked.variant(names) == variant and asked.has_cookies_of(cookies):
                return id_
    return None


@contextmanager
def _reported(path: Path, what: str) -> Iterator[None]:
    """Turn what SQLite and the disk raise into a CacheError: *path* cannot be *what*."""
    try:
        yield
    except (sqlite3.Error, OSError, OverflowError, UnicodeError, MemoryError) as exc:
        raise CacheError(f"{path} cannot be {what}: {exc}") from exc


def _is_damage(exc: sqlite3.DatabaseError) -> bool:
    """Tell whether the file itself is at fault, and not the disk, a lock or an access right."""
    return type(exc) is sqlite3.DatabaseError or "no such" in str(exc)
