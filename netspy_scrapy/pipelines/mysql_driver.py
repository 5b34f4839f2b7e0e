"""How MysqlPipeline uses PyMySQL and DBUtils: connections, LOAD DATA, and what errors mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from netspy_scrapy.pipelines.servers import Blame, Fault
from netspy_scrapy.pipelines.staging import escaped, joined, lines

try:
    import pymysql
    from dbutils.pooled_db import PooledDB
    from pymysql.connections import MySQLResult
    from pymysql.constants import CLIENT
except ImportError as exc:
    raise ImportError(
        'MysqlPipeline needs PyMySQL and DBUtils: pip install "netspy-scrapy[mysql]"'
    ) from exc

if TYPE_CHECKING:
    from netspy_scrapy.pipelines.servers import ServerSettings

#: What is raised here.
ERRORS = (pymysql.Error, OSError, EOFError)

# https://mariadb.com/kb/en/mariadb-error-codes/, https://dev.mysql.com/doc/mysql-errors/8.0/en/
_AGAIN = {1205, 1213}  # lock wait, deadlock
_AWAY = {
    1021, 1037, 1038, 1040, 1041, 1042, 1053, 1077, 1114, 1129, 1152, 1158, 1159, 1160, 1161,
    1180, 1184, 1189, 1190, 1203, 1205, 1226, 1290, 1317, 1792, 1836, 1927, 1969, 3024, 3100, 3159,
    4031,
}  # fmt: skip
_CLIENT_ERRORS = range(2000, 3000)  # the connection's; of no server
_SETUP = {
    1045: "MYSQL_USER and MYSQL_PASSWORD",
    1698: "MYSQL_USER and MYSQL_PASSWORD",
    1049: "MYSQL_DB",
    1044: "MYSQL_USER or MYSQL_DB",
    1130: "MYSQL_HOST and MYSQL_USER",
    1251: "MYSQL_USER",
    1862: "MYSQL_PASSWORD",
    2059: "MYSQL_USER",
}
# The table, a column, a right, the statement: every row of the batch has that.
_BATCH = {1054, 1064, 1109, 1142, 1143, 1146, 1149, 1227, 1288, 1347, 1348, 1356, 1393, 1394, 1471}

_AT_ROW = re.compile(r"\s+at row (\d+)")
_PACKET = 1 << 20


class _Result(MySQLResult):  # type: ignore[misc]
    """Answers a request for a local file with the connection's own text.

    A server may ask for any file: it never gets one.
    """

    connection: Connection

    def _read_load_local_packet(self, first_packet: Any) -> None:
        del first_packet
        db = self.connection
        text, db.text = memoryview(db.text), b""
        try:
            for start in range(0, len(text), _PACKET):
                db.write_packet(bytes(text[start : start + _PACKET]))
        finally:
            db.write_packet(b"")
            answer = db._read_packet()  # noqa: SLF001
        self._read_ok_packet(answer)


class Connection(pymysql.Connection):  # type: ignore[misc]
    """A connection whose ``LOAD DATA LOCAL`` reads :attr:`text`."""

    text: bytes = b""

    def _read_query_result(self, unbuffered: bool = False) -> Any:  # noqa: FBT001, FBT002
        del unbuffered
        self._result = None
        result = _Result(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows

    def run(self, statement: str | bytes) -> int:
        """Run a statement; return how many rows it found or made."""
        return int(self.query(statement))

    def rows(self, statement: str) -> list[Any]:
        """Run a query and return its rows."""
        self.query(statement)
        assert self._result is not None
        return list(self._result.rows or ())

    def load(self, statement: str, text: bytes) -> int:
        """Run ``LOAD DATA LOCAL`` with *text* as the file; return how many rows were read."""
        self.text = text
        return self.run(statement)

    @property
    def warnings(self) -> int:
        """Warnings of the last statement."""
        return 0 if self._result is None else int(self._result.warning_count)


def connect(server: ServerSettings) -> Connection:
    """Connect."""
    return Connection(
        host=server.host,
        port=server.port,
        user=server.user,
        # As MySQL's own clients send it; PyMySQL would take Latin-1.
        password=server.password.encode(),
        database=server.database,
        charset="utf8mb4",
        connect_timeout=max(1, round(server.connect_timeout)),
        read_timeout=server.timeout,
        write_timeout=server.timeout,
        local_infile=True,
        client_flag=CLIENT.FOUND_ROWS,  # a row that an update does not change is found all the same
        # Without it the server cuts what is too long.
        init_command="SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
        autocommit=False,
    )


def new_pool(server: ServerSettings) -> PooledDB:
    """Return a pool, which has no connection yet."""

    def creator() -> Connection:
        return connect(server)

    creator.dbapi = pymysql  # type: ignore[attr-defined]
    creator.threadsafety = 1  # type: ignore[attr-defined]
    return PooledDB(
        creator, mincached=0, maxcached=server.pool_size, maxconnections=server.pool_size,
        blocking=True, ping=1,
    )  # fmt: skip


def fault(exc: Exception, server: ServerSettings) -> Fault:
    """Tell what an error means."""
    number = exc.args[0] if exc.args and isinstance(exc.args[0], int) else None
    text = str(exc.args[1]) if number is not None and len(exc.args) > 1 else str(exc)
    if not isinstance(exc, pymysql.Error) or number is None or number == 0:
        if isinstance(
            exc, (pymysql.ProgrammingError, pymysql.DataError, pymysql.NotSupportedError)
        ):
            return Fault(Blame.ROW, f"{type(exc).__name__}: {text}")  # PyMySQL refused a value
        return Fault(Blame.AWAY, text if number is None and text else "the connection is lost")
    if number in _SETUP:
        return Fault(Blame.SETUP, f"{_SETUP[number]} cannot be used ({server}): {text}")
    at_row = _AT_ROW.search(text)
    reason = f"{type(exc).__name__} {number}: {_AT_ROW.sub('', text)}"
    blame = _blame(number)
    row = int(at_row[1]) - 1 if at_row and blame is Blame.ROW else None
    return Fault(blame, reason, row)


def _blame(number: int) -> Blame:
    if number in _AGAIN:
        return Blame.AGAIN
    if number in _AWAY or number in _CLIENT_ERRORS:
        return Blame.AWAY
    return Blame.BATCH if number in _BATCH else Blame.ROW


def why_no_load(db: Connection) -> str | None:
    """Try LOAD DATA LOCAL; return why it cannot be used, or None.

    Raises what :func:`fault` says is no answer of the server.
    """
    sent = "a\tb\\c\nd 😀"
    try:
        db.run("CREATE TEMPORARY TABLE netspy_stage (a INT PRIMARY KEY, b LONGTEXT, c LONGBLOB)"
               " CHARACTER SET utf8mb4")  # fmt: skip
        text = joined(lines([["1"], escaped([sent]), ["00ff"]]))
        db.load(
            "LOAD DATA LOCAL INFILE 'netspy' INTO TABLE netspy_stage CHARACTER SET utf8mb4"
            " (a, b, @c) SET c = UNHEX(@c)",
            text,
        )
        found = db.rows("SELECT b, c FROM netspy_stage")
    except ERRORS as exc:
        number = exc.args[0] if exc.args else 0
        if number in _CLIENT_ERRORS or not isinstance(exc, pymysql.Error):
            raise
        return str(exc.args[-1])
    except Exception as exc:  # noqa: BLE001 - another PyMySQL may not have what is used of it here
        return f"{type(exc).__name__}: {exc}"
    return None if found == [(sent, b"\0\xff")] else f"it read {found!r}"
