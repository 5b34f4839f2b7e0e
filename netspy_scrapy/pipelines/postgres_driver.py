"""How PostgresPipeline uses psycopg: connections with a time-out, and what errors mean."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, ClassVar

from netspy_scrapy.pipelines.servers import Blame, Fault

try:
    import psycopg
    from psycopg.pq import TransactionStatus
    from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout
except ImportError as exc:
    raise ImportError(
        f'PostgresPipeline needs psycopg: pip install "netspy-scrapy[postgres]" ({exc})'
    ) from exc

if TYPE_CHECKING:
    from collections.abc import Generator

    from netspy_scrapy.pipelines.servers import ServerSettings

__all__ = ["ERRORS", "IS_FAST", "Connection", "PoolTimeout", "TransactionStatus", "connect",
           "fault", "new_pool", "psycopg"]  # fmt: skip

#: Whether psycopg writes rows in C; in Python it is faster to make text of them.
IS_FAST = psycopg.pq.__impl__ != "python"

#: What is raised here.
ERRORS = (psycopg.Error, PoolTimeout, PoolClosed, OSError)

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_AWAY_CLASSES = ("08", "53", "57", "58")  # connection, resources, operator, system
_AWAY = {"25006", "55P03"}  # read-only (a failover), a lock that is not given
_AGAIN = {"40001", "40P01"}  # serialization failure, deadlock
_SETUP_CLASSES = ("28", "3D", "3F")  # authorization, database, schema
# The table, a column, a right, the statement: every row of the batch has that.
_BATCH_CLASSES = ("42", "0A", "25", "3B")
_ROW_IN_42 = {"42804", "42846"}  # a value of a type that the column does not take

# A connection that is refused has no code, only the server's words.
_SETUP_WORDS = {
    "POSTGRES_USER and POSTGRES_PASSWORD": re.compile(
        r"password authentication failed|no password supplied|authentication failed"
    ),
    "POSTGRES_USER": re.compile(
        r'role ".*" does not exist|not permitted to log in|permission denied for database'
    ),
    "POSTGRES_DB": re.compile(r'database ".*" does not exist'),
    "POSTGRES_HOST and POSTGRES_USER": re.compile(r"no pg_hba\.conf entry"),
}


class Connection(psycopg.Connection[Any]):
    """A connection on which no answer is waited for longer than :attr:`answer_timeout`.

    A server that hangs keeps its connections open, and psycopg has no time-out for that.
    """

    answer_timeout: ClassVar[float] = 60.0

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Consume *gen*, or raise OperationalError."""
        return super().wait(_limited(gen, self.answer_timeout), *args, **kwargs)


def _limited(gen: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    until = time.monotonic() + seconds
    ready = None
    while True:
        try:
            wanted = gen.send(ready)
        except StopIteration as exc:
            return exc.value
        ready = yield wanted
        if ready:
            until = time.monotonic() + seconds
        elif time.monotonic() > until:
            gen.close()
            raise psycopg.OperationalError(f"no answer for {seconds:g} s")


def connection_class(server: ServerSettings) -> type[Connection]:
    """Return the class of the connections to *server*."""
    return type("Connection", (Connection,), {"answer_timeout": server.timeout})


def connect(server: ServerSettings) -> Connection:
    """Connect outside the pool."""
    return connection_class(server).connect(**_arguments(server))


def new_pool(server: ServerSettings) -> ConnectionPool[Connection]:
    """Return a pool that is not open yet."""
    return ConnectionPool(
        connection_class=connection_class(server),
        kwargs=_arguments(server),
        min_size=1,
        max_size=server.pool_size,
        open=False,
        name="PostgresPipeline",
        check=ConnectionPool.check_connection,
        timeout=server.connect_timeout,
        # The batcher asks again; the pool has no need to.
        reconnect_timeout=0.0,
    )


def _arguments(server: ServerSettings) -> dict[str, Any]:
    return {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password or None,
        "dbname": server.database,
        "connect_timeout": max(2, round(server.connect_timeout)),
        "application_name": "netspy_scrapy",
        "client_encoding": "UTF8",
    }


def fault(exc: Exception, server: ServerSettings, stage: str) -> Fault:
    """Tell what an error means; *stage* is the name of the temporary table, as COPY gives it."""
    if isinstance(exc, (PoolTimeout, PoolClosed, OSError)):
        return Fault(Blame.AWAY, str(exc) or type(exc).__name__)
    if not isinstance(exc, psycopg.Error):
        return Fault(Blame.ROW, f"{type(exc).__name__}: {exc}")  # raised by a value
    code = exc.sqlstate
    if code is None:
        return _without_code(exc, server)
    reason = _reason(exc, stage)
    blame = _blame(code)
    if blame is Blame.SETUP:
        reason = f"{server}: {reason}"
    return Fault(blame, reason, _line(exc, stage) if blame is Blame.ROW else None)


def _blame(code: str) -> Blame:
    if code in _AGAIN:
        return Blame.AGAIN
    if code in _AWAY or code[:2] in _AWAY_CLASSES:
        return Blame.AWAY
    if code[:2] in _SETUP_CLASSES:
        return Blame.SETUP
    if code[:2] in _BATCH_CLASSES and code not in _ROW_IN_42:
        return Blame.BATCH
    return Blame.ROW


def _without_code(exc: psycopg.Error, server: ServerSettings) -> Fault:
    text = " ".join(str(exc).split())
    if isinstance(exc, psycopg.OperationalError):
        for names, words in _SETUP_WORDS.items():
            if words.search(text):
                return Fault(Blame.SETUP, f"{names} cannot be used ({server}): {text}")
        return Fault(Blame.AWAY, text)
    if isinstance(exc, (psycopg.DataError, psycopg.ProgrammingError)):
        return Fault(Blame.ROW, f"{type(exc).__name__}: {text}")  # psycopg itself refused a value
    return Fault(Blame.AWAY, text)


def _reason(exc: psycopg.Error, stage: str) -> str:
    text = exc.diag.message_primary or str(exc)
    if exc.diag.message_detail:
        text += f" ({exc.diag.message_detail})"
    column = re.search(rf"{stage}\D*\d+, \S+ ([^:\n]+)", exc.diag.context or "") if stage else None
    where = f"column {column[1]}: " if column else ""
    return f"{type(exc).__name__}: {where}{text}"


def _line(exc: psycopg.Error, stage: str) -> int | None:
    """Return the row that COPY was at: "COPY stage, line 3", in the server's language."""
    found = re.search(rf"{stage}\D*(\d+)", exc.diag.context or "") if stage else None
    return int(found[1]) - 1 if found else None
