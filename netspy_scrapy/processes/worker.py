"""One process of a run, as the command sees it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from netspy_scrapy.processes.job import Job, Node
from netspy_scrapy.processes.merge import Part
from netspy_scrapy.processes.output import relay

if TYPE_CHECKING:
    from netspy_scrapy.processes.output import LogOutput, PlainOutput

logger = logging.getLogger(__name__)

_PROGRAM: Final = "netspy_scrapy.processes.child"
#: Bytes of one message at most.
_LONGEST: Final = 64 * 1024 * 1024
#: Seconds for which pipes are read on when the process is gone: a browser may hold them.
_LINGER: Final = 2.0


class Worker:
    """Starts a process, listens to it, and knows how it ended."""

    def __init__(self, number: int, place: int) -> None:
        self.number = number
        self.place = place
        """How many processes had the number before."""
        self.label = f"{number}{chr(ord('a') + place) if place else ''}"
        self.node: Node | None = None
        """How the queue knows it; None: it has not come to it."""
        self.record: dict[str, Any] = {}
        """What it told last of its crawl."""
        self.reason: str | None = None
        """Why its crawl was closed; None: it was not."""
        self.error: str | None = None
        """What kept it from crawling."""
        self.status: int | None = None
        """Its exit status; None: it runs. Minus the signal that killed it."""
        self.fate = ""
        """How it ended, where the status alone does not say."""
        self._process: subprocess.Popen[bytes] | None = None
        self._listening: list[asyncio.Task[None]] = []

    # Running -------------------------------------------------------------------------------------
    async def run(self, job: Job, report: int, log: LogOutput, out: PlainOutput) -> None:
        """Run the process to its end; *report* is the other end of what it tells of itself."""
        loop = asyncio.get_running_loop()
        process = self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - it takes milliseconds
            [sys.executable, "-m", _PROGRAM, job.target, self.label],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=[fd for fd in (job.report_fd, job.hold_fd) if fd is not None],
            start_new_session=True,  # Ctrl-C on the terminal is for the command, which passes it on
            env={**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace"},
        )  # fmt: skip
        os.close(job.report_fd)
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(job.encode())
            process.stdin.flush()  # and stays open: it is what tells that the command lives
        readers = [await _reader(one) for one in (process.stderr, process.stdout, report)]
        self._listening = [
            loop.create_task(relay(readers[0], self.label, log)),
            loop.create_task(relay(readers[1], self.label, out)),
            loop.create_task(self._listen(readers[2])),
        ]
        self.status = await _exit_of(process)
        _, late = await asyncio.wait(self._listening, timeout=_LINGER)
        for one in late:
            one.cancel()
        process.stdin.close()

    def signal(self, number: int) -> None:
        """Send a signal, if it is there."""
        if self._process is not None and self.status is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            with suppress(ValueError):  # cut off by a kill
                self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "record" in message:
            self.record = message["record"]
        if message["kind"] == "node":
            self.node = Node(**message["node"])
        elif message["kind"] == "closed":
            self.reason = message["reason"]
        elif message["kind"] == "failed":
            self.error = message["error"]

    # What became of it ---------------------------------------------------------------------------
    @property
    def is_well(self) -> bool:
        """Whether it ended as it should."""
        return self.reason is not None and self.status == 0

    @property
    def has_died(self) -> bool:
        """Whether it was killed, or ended in the midst of its crawl."""
        if self.reason is not None or self.error is not None or self.status is None:
            return False
        return self.status < 0 or self.node is not None

    def ending(self) -> str:
        """Say how it ended."""
        assert self.status is not None
        if self.error is not None:
            return f"failed: {self.error}"
        if self.reason is not None:
            why = {"finished": "finished", "shutdown": "stopped"}.get(self.reason)
            text = why or f"ended: {self.reason}"
            return text if self.status == 0 else f"{text}, with exit status {self.status}"
        if self.status < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended with exit status {self.status} in the midst of its work"

    def part(self) -> Part:
        """Return its part of the summary."""
        return Part(self.number, self.label, self.fate or self.ending(), self.is_well, self.record)


async def _reader(pipe: Any) -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LONGEST)
    file = os.fdopen(pipe, "rb", buffering=0) if isinstance(pipe, int) else pipe
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


async def _exit_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process itself: programs that it started may hold its pipes for longer."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def wait() -> None:
        status = process.wait()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended.set_result, status)

    threading.Thread(target=wait, name="netspy-process", daemon=True).start()
    return await ended
