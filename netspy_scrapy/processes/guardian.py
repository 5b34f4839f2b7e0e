"""Runs a redis-server for as long as somebody holds the other end of this program's stdin.

A program of its own, for nobody is sure to stop the server otherwise: the command, and its
processes, may be killed. It is run by its path, with Python's library alone::

    python -I guardian.py FOLDER redis-server --port 0 ...

Nothing of it stays: with the server goes the folder that it works in.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_SECONDS = 5.0
LOG = "redis.log"


def main() -> int:
    """Run the server; return 0 if it was stopped, and 1 if it ended by itself."""
    folder, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with Path(folder, LOG).open("ab") as log:
        server = subprocess.Popen(  # noqa: S603
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - there is one thread
        )  # fmt: skip
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(_SECONDS)
            return
        server.kill()

    def watch() -> None:
        while os.read(0, 1):
            pass
        stop()

    def terminated(_number: int, _frame: object) -> None:
        stopped.set()
        server.terminate()

    signal.signal(signal.SIGTERM, terminated)
    threading.Thread(target=watch, daemon=True).start()
    server.wait()
    if not stopped.is_set():
        sys.stderr.write(Path(folder, LOG).read_text(errors="replace")[-2000:])
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if stopped.is_set() else 1


def _end_with_parent() -> None:
    """Have the server end if this program is killed itself (Linux; elsewhere it stays)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
