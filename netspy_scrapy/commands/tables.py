"""The structure of a table in a database: columns, comments, keys. Reads only."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from netspy_scrapy.exceptions import NetspyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Seconds.
_CONNECT_TIMEOUT: Final = 10
_ANSWER_TIMEOUT: Final = 30

#: The option, the schemes of its URL (the first is shown) and the port of each kind of server.
_SERVERS: Final = {
    "MySQL": ("--mysql", ("mysql", "mysql+pymysql", "mariadb"), 3306),
    "PostgreSQL": ("--postgres", ("postgresql", "postgres", "postgresql+psycopg"), 5432),
}


class TableError(NetspyError):
    """A table cannot be read; the message says why, without a password."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    type: str
    """As the database calls it, in lower case."""
    nullable: bool
    comment: str = ""
    numbered: bool = False
    """Whether the database gives each row a number here."""
    generated: bool = False
    """Whether the database computes it, so that nothing can be stored in it."""


@dataclass(frozen=True)
class Table:
    """A table of a database."""

    name: str
    columns: Sequence[Column]
    primary: Sequence[str] = ()
    """The columns of the primary key."""
    unique: Sequence[Sequence[str]] = ()
    """Those of each unique index, partial ones and those over expressions left out."""
    comment: str = ""

    @property
    def key(self) -> Sequence[str]:
        """The columns by which a crawler knows a row.

        The primary key, unless that is a number which only the database knows and there is
        another unique one.
        """
        numbered = {column.name for column in self.columns if column.numbered}
        others = sorted((key for key in self.unique if not numbered & {*key}), key=len)
        if (not self.primary or numbered & {*self.primary}) and others:
            return others[0]
        return self.primary


class Place(NamedTuple):
    """Where a server's database is, and who asks."""

    host: str
    port: int
    user: str
    password: str
    database: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"


def place_of(url: str, kind: str) -> Place:
    """Return what the URL of a MySQL or PostgreSQL server says.

    Raises ValueError, which does not quote it.
    """
    option, schemes, port = _SERVERS[kind]
    form = f"{option} expects {schemes[0]}://user:password@host:port/database"
    try:
        parts = urlsplit(url)
        port = parts.port or port
    except ValueError:
        raise ValueError(
            f"{form}; characters like @ : / # of a password are written as %40 %3A %2F %23"
        ) from None
    database = unquote(parts.path.lstrip("/"))
    if parts.scheme not in schemes or not parts.hostname or not database:
        raise ValueError(form)
    return Place(
        unquote(parts.hostname), port, unquote(parts.username or ""),
        unquote(parts.password or ""), database,
    )  # fmt: skip


def _chosen(wanted: str, names: Iterable[str], where: str) -> str:
    """Return the table that is meant: of that name, or the only one that differs in case."""
    there = sorted(names)
    if wanted in there:
        return wanted
    alike = [name for name in there if name.lower() == wanted.lower()]
    if len(alike) == 1:
        return alike[0]
    near = get_close_matches(wanted, there, n=3, cutoff=0.6) or there[:10]
    hint = f"; there are: {', '.join(map(repr, near))}" if near else "; it has no table at all"
    raise TableError(f"there is no table {wanted!r} in {where}{hint}")


# SQLite ----------------------------------------------------------------------------------------
def read_sqlite(path: str, name: str) -> Table:
    """Read a table or view of a SQLite file."""
    file = Path(path)
    if not file.is_file():
        raise TableError(f"there is no file {path}")
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as db:
            return _sqlite_table(db, path, name)
    except sqlite3.Error as exc:
        raise TableError(f"{path} cannot be read: {exc}") from exc


def _sqlite_table(db: sqlite3.Connection, path: str, wanted: str) -> Table:
    found = db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    name = _chosen(wanted, [one for (one,) in found], path)
    columns, primary = [], {}
    info = 'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?)'
    rows = db.execute(info, [name]).fetchall()
    keys = sum(row[3] > 0 for row in rows)
    for column, kind, not_null, place, hidden in rows:
        if place:
            primary[place] = column
        columns.append(
            Column(
                column,
                kind.lower(),
                nullable=not (not_null or place),
                # This, and only this, is an alias of the row's number.
                numbered=keys == 1 and place == 1 and kind.upper() == "INTEGER",
                generated=hidden > 1,
            )
        )
    unique = []
    listed = (
        "SELECT name FROM pragma_index_list(?) WHERE \"unique\" AND NOT partial AND origin != 'pk'"
    )
    for (index,) in db.execute(listed, [name]).fetchall():
        parts = db.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", [index])
        unique.append([part for (part,) in parts])
    return Table(
        name,
        columns,
        [primary[place] for place in sorted(primary)],
        [key for key in unique if None not in key],
    )


# MySQL -----------------------------------------------------------------------------------------
def read_mysql(place: Place, name: str) -> Table:
    """Read a table or view of a MySQL or MariaDB database."""
    try:
        import pymysql  # noqa: PLC0415 - an extra
    except ImportError as exc:
        raise TableError("MySQL needs a driver: pip install 'netspy-scrapy[mysql]'") from exc
    try:
        db = pymysql.connect(
            host=place.host, port=place.port, user=place.user, database=place.database,
            password=place.password.encode(), charset="utf8mb4",
            connect_timeout=_CONNECT_TIMEOUT, read_timeout=_ANSWER_TIMEOUT,
        )  # fmt: skip
        with closing(db), db.cursor() as cursor:
            return _mysql_table(cursor, place, name)
    except (pymysql.err.Error, OSError, RuntimeError) as exc:
        raise TableError(f"MySQL at {place} cannot be read: {_reason(exc, place)}") from exc


def _mysql_table(cursor: Any, place: Place, wanted: str) -> Table:
    cursor.execute(
        "SELECT table_name, table_comment, table_type FROM information_schema.tables "
        "WHERE table_schema = DATABASE()"
    )
    # A view's comment is the word VIEW.
    comments = {
        name: comment if kind == "BASE TABLE" else "" for name, comment, kind in cursor.fetchall()
    }
    name = _chosen(wanted, comments, f"MySQL at {place}")
    cursor.execute(
        "SELECT table_name, column_name, column_type, is_nullable, column_comment, extra "
        "FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s "
        "ORDER BY ordinal_position",
        [name],
    )
    columns = [
        Column(
            column,
            str(kind).lower(),
            nullable=nullable == "YES",
            comment=comment or "",
            numbered="auto_increment" in extra.lower(),
            # "DEFAULT_GENERATED" is something else: a default that is computed.
            generated=bool(re.search(r"\b(virtual|stored|persistent) generated\b", extra.lower())),
        )
        for table, column, kind, nullable, comment, extra in cursor.fetchall()
        if table == name  # servers compare without regard to case, and tables may differ by it
    ]
    cursor.execute(
        "SELECT table_name, index_name, column_name, sub_part "
        "FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = %s "
        "AND non_unique = 0 ORDER BY index_name, seq_in_index",
        [name],
    )
    keys: dict[str, list[str]] = {}
    unusable = set()
    for table, index, column, part in cursor.fetchall():
        if table != name:
            continue
        keys.setdefault(index, []).append(column)
        if column is None or part is not None:
            unusable.add(index)
    primary = keys.pop("PRIMARY", [])
    unique = [key for index, key in keys.items() if index not in unusable]
    return Table(name, columns, primary, unique, comments[name] or "")


# PostgreSQL ------------------------------------------------------------------------------------
def read_postgres(place: Place, name: str) -> Table:
    """Read a table or view of a PostgreSQL database, in a schema of the search path."""
    try:
        import psycopg  # noqa: PLC0415 - an extra
    except ImportError as exc:
        raise TableError(
            "PostgreSQL needs a driver: pip install 'netspy-scrapy[postgres]'"
        ) from exc
    try:
        with psycopg.connect(
            host=place.host, port=place.port, user=place.user, dbname=place.database,
            password=place.password or None, connect_timeout=_CONNECT_TIMEOUT,
            client_encoding="UTF8",
        ) as db:  # fmt: skip
            db.execute(f"SET statement_timeout = {1000 * _ANSWER_TIMEOUT}")
            return _postgres_table(db, place, name)
    except (psycopg.Error, OSError) as exc:
        raise TableError(f"PostgreSQL at {place} cannot be read: {_reason(exc, place)}") from exc


def _postgres_table(db: Any, place: Place, wanted: str) -> Table:
    found = db.execute(
        "SELECT c.relname, c.oid, obj_description(c.oid, 'pg_class') FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND pg_table_is_visible(c.oid) "
        "AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
    ).fetchall()
    oids = {name: (oid, comment) for name, oid, comment in found}
    name = _chosen(wanted, oids, f"PostgreSQL at {place}")
    oid, comment = oids[name]
    numbers, columns = {}, []
    for number, column, kind, not_null, said, identity, generated, default in db.execute(
        "SELECT a.attnum, a.attname, format_type(a.atttypid, NULL), a.attnotnull, "
        "col_description(a.attrelid, a.attnum), a.attidentity::text, a.attgenerated::text, "
        "pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a "
        "LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
        "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        [oid],
    ):
        numbers[number] = column
        columns.append(
            Column(
                column,
                str(kind).lower(),
                nullable=not not_null,
                comment=said or "",
                numbered=bool(identity) or str(default or "").startswith("nextval("),
                generated=bool(generated),
            )
        )
    primary: list[str] = []
    unique = []
    for is_primary, places in db.execute(
        "SELECT indisprimary, (indkey::int2[])[0:indnkeyatts - 1] FROM pg_index "
        "WHERE indrelid = %s AND indisunique AND indpred IS NULL AND indexprs IS NULL "
        "ORDER BY indexrelid",
        [oid],
    ):
        key = [numbers[number] for number in places]
        if is_primary:
            primary = key
        else:
            unique.append(key)
    return Table(name, columns, primary, unique, comment or "")


def _reason(exc: BaseException, place: Place) -> str:
    """Return what a driver says, in one line and without the password."""
    code_and_text = 2  # as pymysql has it
    said = exc.args[1] if len(exc.args) == code_and_text else exc
    text = " ".join(str(said).split())
    return text.replace(place.password, "***") if place.password else text
