"""What all servers of the tests have in common."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

if TYPE_CHECKING:
    from typing_extensions import Self

#: Set by tests/run.py: a server that is missing is a failure, not a reason to skip.
REQUIRED = "NETSPY_TEST_SERVERS_REQUIRED"

_START_TIMEOUT = 60.0


class Server(ABC):
    """A server process with a folder and a port of its own.

    >>> with Redis() as server:
    ...     server.kill()
    ...     server.start()
    """

    name: ClassVar[str]
    """As in NETSPY_TEST_<NAME>_URL."""

    def __init__(self) -> None:
        self.given = os.environ.get(f"NETSPY_TEST_{self.name.upper()}_URL")
        """The URL of a server that runs already: it is not started, stopped or killed."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"netspy-{self.name}-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    # What a server is ----------------------------------------------------------------------------
    @property
    @abstractmethod
    def url(self) -> str:
        """What a client connects to."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Tell whether the server answers; may raise whatever a client raises."""

    def prepare(self) -> None:  # noqa: B027 - most servers need none
        """Make the data that the server needs before its first start."""

    def options(self) -> dict[str, Any]:
        """Return further arguments of Popen (user, environment)."""
        return {}

    stop_signal: ClassVar[int] = signal.SIGTERM

    # Running it ----------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        if self.given is None:
            self.prepare()
            self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server, at the same port as before, and wait until it answers."""
        assert self.given is None, f"{self.name} was given by its URL"
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self.options()
            )
        until = time.monotonic() + _START_TIMEOUT
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                text = (self.folder / "log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{self.name} did not start:\n{text}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server in order."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """Kill the server (SIGKILL); :meth:`start` brings it back with its data."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Let the server hang with its connections open (SIGSTOP)."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        # On a busy machine a thread may serve one more request before it stops.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    # Own methods ---------------------------------------------------------------------------------
    def _answers(self) -> bool:
        try:
            return self.is_ready()
        except Exception:  # noqa: BLE001 - clients raise what they like while a server starts
            return False

    def _end(self, number: int) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens at now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def program(*names: str, folders: tuple[str, ...] = ()) -> str:
    """Return the path of the first of the programs that is there; else skip, or fail in CI."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", *folders])
    for name in names:
        found = shutil.which(name, path=path)
        if found:
            return found
    missing(f"{names[0]} is not installed")
    raise AssertionError


def scripts() -> str:
    """Return the folder of the programs that came with Python packages."""
    return str(Path(sys.executable).parent)


def missing(what: str) -> None:
    """Skip the test, or fail it where every server has to be there."""
    if os.environ.get(REQUIRED):
        pytest.fail(what)
    pytest.skip(what)
