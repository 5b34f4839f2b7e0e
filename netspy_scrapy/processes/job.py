"""What a process is told to do, and what it tells of itself: lines of JSON through pipes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """What one process is to crawl."""

    target: str
    """The spider's name in the project, or its file."""
    arguments: dict[str, str]
    """Of the spider (``-a``)."""
    settings: dict[str, Any]
    """What counts as given on the command line."""
    path: list[str]
    """``sys.path`` of the command: the project may have been found from a folder below it."""
    label: str
    """What the process is called: its number, and its letter if it took another one's place."""
    report_fd: int
    """Where it writes what it tells of itself."""
    hold_fd: int | None
    """What keeps the run's own redis-server alive, with which the queue ends; None: it has none."""

    def encode(self) -> bytes:
        """Return the line that says so; raises TypeError for a setting that is not JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Job:
        """Return the job of a line."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class Node:
    """A process as the queue in Redis knows it."""

    name: str
    base: str
    """What the keys of the queue begin with."""
    start: str
    """The key that tells of the first requests."""


def tell(fd: int, kind: str, **fields: Any) -> None:
    """Write one message: ``node``, ``report``, ``closed`` or ``failed``."""
    line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
    with suppress(OSError):  # the command is gone: nobody asks any more
        while line:
            line = line[os.write(fd, line) :]
