"""The SQL servers of the tests, as the tests of both sinks use them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

if TYPE_CHECKING:
    from netspy_scrapy.pipelines.servers import SqlServerPipeline
    from tests.servers.mariadb import MariaDB
    from tests.servers.postgres import Postgres


class Case:
    """A server, its sink, and a connection of the test's own."""

    name: str
    path: str
    commit: bytes
    """A COMMIT as the client sends it."""

    def __init__(self, server: Postgres | MariaDB) -> None:
        self.server = server
        self._sinks: list[SqlServerPipeline] = []
        self._db: Any = None

    @property
    def db(self) -> Any:
        """A connection in autocommit mode."""
        if self._db is None:
            self._db = self.server.connect()
        return self._db

    def forget(self) -> None:
        """Leave the connection: the server was killed."""
        self._db = None

    def sink(self, **settings: Any) -> SqlServerPipeline:
        """Return an open sink."""
        sink = self.kind()()
        sink.bind(SimpleNamespace(settings=Settings({**self.server.settings, **settings})))
        sink.open()
        self._sinks.append(sink)
        return sink

    def kind(self) -> type[SqlServerPipeline]:
        """Return the class of the sink."""
        from scrapy.utils.misc import load_object

        cls: type[SqlServerPipeline] = load_object(self.path)
        return cls

    def close(self) -> None:
        """Close what was opened."""
        for sink in self._sinks:
            sink.close()
        if self._db is not None:
            self._db.close()

    def table(self, columns: str, name: str = "t") -> None:
        """Make a table anew; *columns* is in the words that both databases have."""
        self.run(f"DROP TABLE IF EXISTS {self.quote(name)}")
        self.run(f"CREATE TABLE {self.quote(name)} ({self.translate(columns)})")

    def translate(self, columns: str) -> str:
        return columns

    def quote(self, name: str) -> str:
        raise NotImplementedError

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""
        cursor = self.db.cursor()
        cursor.execute(sql)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


class PostgresCase(Case):
    """PostgreSQL."""

    name = "POSTGRES"
    path = "netspy_scrapy.pipelines.postgres.PostgresPipeline"
    commit = b"COMMIT\0"
    update = {"POSTGRES_ON_CONFLICT": "update", "POSTGRES_CONFLICT_TARGET": ["url"]}
    refuse = {"POSTGRES_ON_CONFLICT": "error"}

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'


class MysqlCase(Case):
    """MariaDB."""

    name = "MYSQL"
    path = "netspy_scrapy.pipelines.mysql.MysqlPipeline"
    commit = b"\x03COMMIT"
    update: dict[str, Any] = {}
    refuse = {"MYSQL_UPDATE_ON_DUPLICATE": False}

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def translate(self, columns: str) -> str:
        return columns.replace("SERIAL", "INT AUTO_INCREMENT")


CASES = {"postgres": PostgresCase, "mysql": MysqlCase}
