"""A real MariaDB."""

from __future__ import annotations

import subprocess
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tests.servers.base import Server, program
from tests.servers.postgres import PASSWORD, give, run_as

_USER = "mysql"


class MariaDB(Server):
    """``mariadbd`` with one database, ``spider``, and a password.

    *options* are further ones of the server (``--local-infile=0``).
    """

    name = "mariadb"

    def __init__(self, *options: str) -> None:
        super().__init__()
        self._options = options

    @property
    def url(self) -> str:
        """A mysql:// URL."""
        where = f"crawler:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/spider"
        return self.given or f"mysql://{where}"

    @property
    def settings(self) -> dict[str, Any]:
        """The MYSQL_ settings of a project that uses it."""
        parts = urlsplit(self.url)
        return {
            "MYSQL_HOST": parts.hostname,
            "MYSQL_PORT": parts.port or 3306,
            "MYSQL_USER": unquote(parts.username or ""),
            "MYSQL_PASSWORD": unquote(parts.password or ""),
            "MYSQL_DB": parts.path.lstrip("/"),
        }

    def connect(self, **options: Any) -> Any:
        """Return a connection of the test's own, in autocommit mode."""
        import pymysql

        of = self.settings
        given = {
            "host": of["MYSQL_HOST"], "port": of["MYSQL_PORT"], "user": of["MYSQL_USER"],
            "password": of["MYSQL_PASSWORD"].encode(), "database": of["MYSQL_DB"],
        }  # fmt: skip
        defaults = {"charset": "utf8mb4", "autocommit": True, "connect_timeout": 5}
        return pymysql.connect(**{**defaults, **given, **options})

    def prepare(self) -> None:
        """Make the data."""
        give(self.folder, _USER)
        subprocess.run(
            [
                program("mariadb-install-db"), "--no-defaults", f"--datadir={self.folder}/data",
                "--auth-root-authentication-method=normal", "--skip-test-db",
            ],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self.options(),
        )  # fmt: skip

    def options(self) -> dict[str, Any]:
        """Run it as a user that it accepts."""
        return run_as(_USER)

    def command(self) -> list[str]:
        """Run it without the machine's configuration."""
        return [
            program("mariadbd"), "--no-defaults", f"--datadir={self.folder}/data",
            f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={self.folder}/s.sock",
            f"--pid-file={self.folder}/pid", "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=2", *self._options,
        ]  # fmt: skip

    def is_ready(self) -> bool:
        """Ask for an answer, and make the database and its user once there is one."""
        root = {"user": "root", "password": b"", "database": None}
        with self.connect(**root) as db, db.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS spider CHARACTER SET utf8mb4")
            cursor.execute(
                "CREATE USER IF NOT EXISTS crawler@'127.0.0.1' IDENTIFIED BY %s", [PASSWORD]
            )
            cursor.execute("GRANT ALL ON spider.* TO crawler@'127.0.0.1'")
        return True
