"""A sink that writes to PostgreSQL."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.pipelines import postgres_driver as driver
from netspy_scrapy.pipelines.postgres_table import STAGE, Batch, Table
from netspy_scrapy.pipelines.servers import Blame, Fault, SqlServerPipeline, choice
from netspy_scrapy.pipelines.sql import sound_groups
from netspy_scrapy.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg_pool import ConnectionPool
    from scrapy.settings import BaseSettings

    from netspy_scrapy.pipelines.sql import Refused

#: Seconds that the pool has for what should take milliseconds.
_LEND_TIMEOUT = 2.0
_MODES = ("nothing", "update", "error")


class PostgresPipeline(SqlServerPipeline):
    r"""Writes the rows of each table to the table of that name in the database POSTGRES_DB.

    The tables are yours: nothing is made or altered. A row with a field that its table has not
    is refused. A field that a row has not gets the column's default.

    POSTGRES_ON_CONFLICT says what becomes of a row whose key is there already (in any unique
    index): ``"nothing"``, it is skipped, and counts as stored; ``"update"``, its fields overwrite
    those of the row with the same POSTGRES_CONFLICT_TARGET columns, other columns stay (without
    that setting it is ``"nothing"``, with one warning); ``"error"``, it is refused.

    An UpdateItem changes every row that its key finds (None finds NULL). If there is none it is
    refused.

    A batch is one transaction: COPY into a temporary table, then INSERT ... SELECT. A row that a
    type, a constraint or a trigger refuses is dumped with the server's reason, the others are
    stored. If the connection breaks while a batch is being committed, the server is asked
    afterwards what became of it, so that it is not written twice.

    Values are written as the column's type reads them: None is NULL, dicts and lists JSON (lists
    an array in an array column), bytes a ``bytea`` or, if they are UTF-8, text. A datetime with a
    zone is stored in UTC in a ``timestamp`` column. Text with a NUL character refuses its row; a
    lone surrogate is written out (``\udc80``).

    Settings: POSTGRES_HOST, POSTGRES_PORT, POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB,
    POSTGRES_POOL_SIZE, POSTGRES_ON_CONFLICT, POSTGRES_CONFLICT_TARGET, NETSPY_SINK_TIMEOUT, and
    those of every sink. Needs ``pip install "netspy-scrapy[postgres]"``.
    """

    prefix: ClassVar[str] = "POSTGRES"
    errors = driver.ERRORS

    _pool: ConnectionPool[driver.Connection] | None = None
    _mode: str
    _target: tuple[str, ...]

    # Connection --------------------------------------------------------------------------------
    def start(self) -> None:
        """Read what becomes of conflicts; make the pool."""
        self._mode = choice(self.settings, "POSTGRES_ON_CONFLICT", _MODES)
        self._target = _columns(self.settings, "POSTGRES_CONFLICT_TARGET")
        if self._mode == "update" and not self._target:
            self._mode = "nothing"
            self.logger.warning(
                'POSTGRES_ON_CONFLICT = "update" needs POSTGRES_CONFLICT_TARGET, which is empty: '
                'rows whose key is there already are skipped, as with "nothing"'
            )
        self._pool = driver.new_pool(self.server)

    def greet(self) -> None:
        """Connect once, so that a refusal is raised as it is."""
        driver.connect(self.server).close()
        assert self._pool is not None
        if self._pool.closed:
            self._pool = driver.new_pool(self.server)
            self._pool.open(wait=True, timeout=self.server.connect_timeout)

    @contextmanager
    def connection(self) -> Iterator[driver.Connection]:
        """Lend a connection."""
        db = self._lent()
        try:
            yield db
        except BaseException:
            if db.info.transaction_status is driver.TransactionStatus.ACTIVE:
                db.close()  # it hangs: a rollback would as well
            else:
                with suppress(*driver.ERRORS):
                    db.rollback()
            raise
        finally:
            if self._pool is not None:
                self._pool.putconn(db)

    def _lent(self) -> driver.Connection:
        assert self._pool is not None
        try:
            return self._pool.getconn(_LEND_TIMEOUT)
        except driver.PoolTimeout:
            # The pool does not say why it could not connect.
            self.greet()
            return self._pool.getconn()

    def close(self) -> None:
        """Close the connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def fault(self, exc: Exception) -> Fault:
        """Tell whose fault an error is."""
        if getattr(exc, "sqlstate", None) == "42P10":
            names = ", ".join(self._target)
            return Fault(
                Blame.BATCH,
                f"POSTGRES_CONFLICT_TARGET = {list(self._target)!r}: the table has no unique index "
                f"on exactly ({names})",
            )
        return driver.fault(exc, self.server, STAGE)

    # Commits whose outcome is not known --------------------------------------------------------
    def transaction_id(self, db: driver.Connection) -> Any:
        """Return the transaction's number."""
        row = db.execute("SELECT txid_current()").fetchone()
        assert row is not None
        return row[0]

    def was_committed(self, db: driver.Connection, transaction: Any) -> bool | None:
        """Ask the server; it is still away if it has not decided yet."""
        try:
            row = db.execute("SELECT txid_status(%s)", [transaction]).fetchone()
        except driver.psycopg.DataError:  # it never gave that number: another server
            db.rollback()
            return None
        status = row[0] if row else None
        if status == "in progress":
            raise driver.psycopg.OperationalError("a batch is still being committed")
        return None if status is None else bool(status == "committed")

    # Writing -----------------------------------------------------------------------------------
    def insert_rows(
        self, db: driver.Connection, table: str, items: list[dict[str, Any]]
    ) -> Refused:
        """Write new rows, without committing."""
        refused: Refused = {}
        batch = Batch(db, Table.read(db, table), self.fault)
        keys = self._target if self._mode == "update" else self.unique_keys
        for group in sound_groups(dict(enumerate(items)), refused, keys=keys):
            batch.insert(group, items, refused, self._mode, self._target)
        return refused

    def update_rows(
        self, db: driver.Connection, table: str, items: list[dict[str, Any]], keys: list[str]
    ) -> Refused:
        """Change rows, without committing."""
        refused: Refused = {}
        batch = Batch(db, Table.read(db, table), self.fault)
        for group in sound_groups(dict(enumerate(items)), refused, keys=keys):
            batch.update(group, items, refused, keys)
        return refused


def _columns(settings: BaseSettings, name: str) -> tuple[str, ...]:
    """Read *name* as a list of columns: a list, or text with commas."""
    value = settings.get(name, SETTINGS[name].default)
    found = [one.strip() for one in value.split(",")] if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, str) for one in found):
        raise ConfigError(name, value, "a list of columns")
    return tuple(one for one in found if one)
