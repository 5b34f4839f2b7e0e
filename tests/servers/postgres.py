"""A real PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

from tests.servers.base import Server, program

_USER = "postgres"  # PostgreSQL does not run as root
PASSWORD = "geheim:@/ %41 wört"


class Postgres(Server):
    """``postgres`` with one database, ``spider``, and a password.

    *options* are further ones of the server (``"-c", "max_connections=5"``).
    """

    name = "postgres"
    stop_signal: ClassVar[int] = signal.SIGQUIT

    def __init__(self, *options: str) -> None:
        super().__init__()
        self._options = options

    @property
    def url(self) -> str:
        """A postgresql:// URL."""
        where = f"postgres:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/spider"
        return self.given or f"postgresql://{where}"

    @property
    def settings(self) -> dict[str, Any]:
        """The POSTGRES_ settings of a project that uses it."""
        parts = urlsplit(self.url)
        return {
            "POSTGRES_HOST": parts.hostname,
            "POSTGRES_PORT": parts.port or 5432,
            "POSTGRES_USER": unquote(parts.username or ""),
            "POSTGRES_PASSWORD": unquote(parts.password or ""),
            "POSTGRES_DB": parts.path.lstrip("/"),
        }

    def connect(self, **options: Any) -> Any:
        """Return a connection of the test's own, in autocommit mode."""
        import psycopg

        of = self.settings
        return psycopg.connect(
            host=of["POSTGRES_HOST"], port=of["POSTGRES_PORT"], user=of["POSTGRES_USER"],
            password=of["POSTGRES_PASSWORD"],
            **{"dbname": of["POSTGRES_DB"], "connect_timeout": 5, "autocommit": True, **options},
        )  # fmt: skip

    def prepare(self) -> None:
        """Make the cluster."""
        secret = self.folder / "password"
        secret.write_text(PASSWORD, encoding="utf-8")
        give(self.folder, _USER)
        subprocess.run(
            [
                _program("initdb"), "-D", str(self.folder / "data"), "-U", "postgres",
                "-A", "scram-sha-256", "--pwfile", str(secret), "-E", "UTF8", "--no-locale",
                "--no-sync",
            ],
            check=True, stdout=subprocess.DEVNULL, **self.options(),
        )  # fmt: skip

    def options(self) -> dict[str, Any]:
        """Run it as a user that it accepts."""
        return run_as(_USER)

    def command(self) -> list[str]:
        """Run it without waiting for disks."""
        return [
            _program("postgres"), "-D", str(self.folder / "data"), "-h", "127.0.0.1",
            "-p", str(self.port), "-k", str(self.folder), "-c", "fsync=off",
            *self._options,
        ]  # fmt: skip

    def is_ready(self) -> bool:
        """Ask for an answer, and make the database once there is one."""
        with self.connect(dbname="postgres") as db:
            found = db.execute("SELECT 1 FROM pg_database WHERE datname = 'spider'").fetchone()
            if found is None:
                db.execute("CREATE DATABASE spider")
        return True

    # Each connection is served by a process of its own.
    def kill(self) -> None:
        """Kill it and the processes of its connections."""
        family = self._family()
        super().kill()
        _signal_all(family, signal.SIGKILL)

    def freeze(self) -> None:
        """Let it hang, and the processes of its connections."""
        super().freeze()  # first, so that it starts no more of them
        _signal_all(self._family(), signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        _signal_all(self._family(), signal.SIGCONT)

    def _family(self) -> list[int]:
        assert self.process is not None
        parent = self.process.pid
        family = [parent]
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                    family.append(int(stat.parent.name))
        return family


def run_as(user: str) -> dict[str, Any]:
    """Return arguments of Popen that run a server as *user*, where we are root."""
    if os.getuid() != 0:
        return {}
    return {"user": user, "group": user, "extra_groups": []}


def give(folder: Path, user: str) -> None:
    """Give *folder* and what is in it to *user*, where we are root."""
    if os.getuid() == 0:
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, user, user)


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _program(name: str) -> str:
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return program(name, folders=tuple(map(str, newest)))
