"""A sink that writes to MySQL or MariaDB."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from netspy_scrapy.pipelines import mysql_driver as driver
from netspy_scrapy.pipelines.mysql_table import Rows, Table, fold, insert, update
from netspy_scrapy.pipelines.mysql_values import ADAPTER
from netspy_scrapy.pipelines.servers import SqlServerPipeline
from netspy_scrapy.pipelines.sql import Dialect, sound_groups
from netspy_scrapy.settings import read_bool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbutils.pooled_db import PooledDB

    from netspy_scrapy.pipelines.servers import Fault
    from netspy_scrapy.pipelines.sql import Refused

_QUOTE = Dialect(quote_mark="`").quote


class MysqlPipeline(SqlServerPipeline):
    r"""Writes the rows of each table to the table of that name in the database MYSQL_DB.

    The tables are yours: nothing is made or altered. A row with a field that its table has not
    is refused. A field that a row has not gets the column's default.

    With MYSQL_UPDATE_ON_DUPLICATE (the default) a row whose key is there already (the primary
    key, or any unique index) overwrites its fields, other columns stay. Without it such a row is
    refused.

    An UpdateItem changes every row that its key finds (None finds NULL). If there is none it is
    refused; a row that has the new values already is found.

    A batch is one transaction (in tables of an engine that has them): LOAD DATA LOCAL into a
    temporary table, then INSERT ... SELECT. Where the server or the user's rights do not allow
    that, INSERT statements of many rows; this is tried at the start, and said in the log. A row
    that a type, a constraint or a trigger refuses is dumped with the server's reason, the others
    are stored. The session is strict: what does not fit is refused, not cut.

    Values: None is NULL; True and False 1 and 0; a Decimal keeps its digits; bytes are bytes;
    dicts and lists JSON. A datetime with a zone is the same moment in a TIMESTAMP column, and UTC
    in any other. NaN and infinities refuse their row; a lone surrogate is written out
    (``\udc80``). The connection is utf8mb4.

    Settings: MYSQL_HOST, MYSQL_PORT, MYSQL_USER, MYSQL_PASSWORD, MYSQL_DB, MYSQL_POOL_SIZE,
    MYSQL_UPDATE_ON_DUPLICATE, NETSPY_SINK_TIMEOUT, and those of every sink. Needs
    ``pip install "netspy-scrapy[mysql]"``.
    """

    prefix: ClassVar[str] = "MYSQL"
    errors = driver.ERRORS

    _pool: PooledDB | None = None
    _updates: bool
    _loads: bool | None = None
    """Whether LOAD DATA LOCAL is possible; None: the server has not been asked."""
    _limit: int
    """The longest statement in bytes that the server takes."""

    # Connection --------------------------------------------------------------------------------
    def start(self) -> None:
        """Read what becomes of duplicates; make the pool."""
        self._updates = read_bool(self.settings, "MYSQL_UPDATE_ON_DUPLICATE")
        self._pool = driver.new_pool(self.server)

    def greet(self) -> None:
        """Connect once, so that a refusal is raised as it is; see how fast rows can be sent."""
        db = driver.connect(self.server)
        try:
            if self._loads is None:
                ((self._limit,),) = db.rows("SELECT @@max_allowed_packet")
                why = driver.why_no_load(db)
                self._loads = why is None
                if why is not None:
                    self.logger.info(
                        "%s:%d does not take LOAD DATA LOCAL (%s): rows go in INSERT statements, "
                        "which is slower", self.server.host, self.server.port, why,
                    )  # fmt: skip
        finally:
            with suppress(*driver.ERRORS):
                db.close()

    @contextmanager
    def connection(self) -> Iterator[driver.Connection]:
        """Lend a connection."""
        assert self._pool is not None
        pooled = self._pool.connection()
        try:
            # Without the pool's own fail-over: a temporary table and a transaction die with it.
            db: driver.Connection = pooled.cursor().connection
            try:
                yield db
            except BaseException:
                with suppress(*driver.ERRORS):
                    db.rollback()
                raise
        finally:
            pooled.close()

    def close(self) -> None:
        """Close the connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def fault(self, exc: Exception) -> Fault:
        """Tell whose fault an error is."""
        return driver.fault(exc, self.server)

    # Writing -----------------------------------------------------------------------------------
    def insert_rows(
        self, db: driver.Connection, table: str, items: list[dict[str, Any]]
    ) -> Refused:
        """Write new rows, without committing."""
        target = Table(db, table)
        groups, refused = self._prepared(target, items, self.unique_keys)
        assert self._loads is not None
        insert(
            db, target, groups, refused,
            tail=self._tail, loads=self._loads, limit=self._limit, fault_of=self.fault,
        )  # fmt: skip
        return refused

    def update_rows(
        self, db: driver.Connection, table: str, items: list[dict[str, Any]], keys: list[str]
    ) -> Refused:
        """Change rows, without committing."""
        target = Table(db, table)
        groups, refused = self._prepared(target, items, keys)
        for rows in groups:
            missing = {fold(key) for key in keys} - {fold(one.name) for one in rows.fields}
            if missing:
                why = f"the row lacks a field of its update key: {', '.join(keys)}"
                refused |= dict.fromkeys(rows.positions, why)
            else:
                update(db, target, rows, keys, items, refused, self.fault)
        return refused

    def _prepared(
        self, target: Table, items: list[dict[str, Any]], keys: Any
    ) -> tuple[list[Rows], Refused]:
        rows, refused = ADAPTER.rows(items)
        groups = sound_groups(rows, refused, keys=keys, fold=fold)
        ready = [Rows.of(target, group, rows, refused) for group in groups]
        return [one for one in ready if one is not None], refused

    def _tail(self, rows: Rows) -> str:
        if not self._updates:
            return ""
        names = [field.name for field in rows.fields]
        keys = set(map(fold, self.unique_keys))
        changed = [name for name in names if fold(name) not in keys] or names[:1]
        quoted = map(_QUOTE, changed)
        return " ON DUPLICATE KEY UPDATE " + ", ".join(f"{one} = VALUES({one})" for one in quoted)
