"""A redis-server for one run: it listens on a private socket file, and keeps nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.processes import guardian

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Programs that will do.
_PROGRAMS: Final = ("redis-server", "valkey-server")
#: Bytes of a socket file's path that all systems take.
_LONGEST: Final = 100
#: Seconds that the server may take to start, and to end.
_START: Final = 20.0
_END: Final = 10.0
_LOOK: Final = 0.02


class OwnRedis:
    """A server that ends with those who hold :attr:`hold_fd`, and leaves nothing behind.

    A process that is given that descriptor keeps the server alive with it: so one whose command
    was killed can still give back what it holds, and then the server ends.
    """

    def __init__(self) -> None:
        self._program = program()
        self._folder = Path(tempfile.mkdtemp(prefix="netspy-redis-"))
        if len(os.fsencode(self._socket)) > _LONGEST:
            self._folder.rmdir()
            self._folder = Path(tempfile.mkdtemp(prefix="netspy-redis-", dir="/tmp"))
        self._guardian: subprocess.Popen[bytes] | None = None
        self.hold_fd = -1

    @property
    def url(self) -> str:
        """What REDIS_URL is."""
        return f"unix://{quote(str(self._socket))}?db=0"

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._guardian is not None and self._guardian.poll() is None

    @property
    def _socket(self) -> Path:
        return self._folder / "redis.sock"

    async def start(self) -> None:
        """Start it, and wait until it answers; raises ConfigError if it does not."""
        reading, self.hold_fd = os.pipe()
        command = [
            self._program, "--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm",
            "700", "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir",
            str(self._folder), "--maxmemory-policy", "noeviction",
        ]  # fmt: skip
        self._guardian = _popen([guardian.__file__, str(self._folder), *command], reading)
        os.close(reading)
        deadline = time.monotonic() + _START
        while not self._answers():
            if not self.is_alive or time.monotonic() > deadline:
                why = self._last_words()
                await self.stop()
                raise ConfigError(
                    "REDIS_URL", None, f"a server: {self._program} was started for this run, and "
                    f"did not answer ({why})",
                )  # fmt: skip
            await asyncio.sleep(_LOOK)

    async def stop(self) -> None:
        """End it, unless a process that holds it is still there."""
        if self._guardian is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        if self.hold_fd >= 0:
            os.close(self.hold_fd)
            self.hold_fd = -1
        deadline = time.monotonic() + _END
        while self.is_alive and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK)
        if self.is_alive:
            self._guardian.terminate()
            self._guardian.wait()
        shutil.rmtree(self._folder, ignore_errors=True)  # a guardian that was killed leaves it

    def _answers(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(1)
            asking.connect(str(self._socket))
            asking.sendall(b"PING\r\n")
            return asking.recv(16).startswith(b"+PONG")
        return False

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = Path(self._folder, guardian.LOG).read_text(errors="replace").splitlines()
            return lines[-1] if lines else "it said nothing"
        return "it ended at once"


def program() -> str:
    """Return the path of a server; raises ConfigError where none is installed."""
    for name in _PROGRAMS:
        found = shutil.which(name)
        if found:
            return found
    raise ConfigError(
        "REDIS_URL", None,
        "a Redis server for --processes: set REDIS_URL to one that runs, or install redis-server "
        "(apt install redis-server, brew install redis), which is then started for the run",
    )  # fmt: skip


def _popen(arguments: Sequence[str], stdin: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", *arguments], stdin=stdin, stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C on the terminal is not for it
    )  # fmt: skip
