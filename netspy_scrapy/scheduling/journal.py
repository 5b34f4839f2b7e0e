"""What a job directory needs beside its queues, so that a killed crawl can go on."""

from __future__ import annotations

import marshal
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: Where in a queue of queuelib's a request was: chunk, place in the chunk, offset in its file.
Position = tuple[int, int, int]

#: The size in bytes from which the file is written anew, without what is done.
_BOUND = 4 << 20

#: Of :mod:`marshal`: the oldest that knows all that notes are made of; every Python reads it.
_FORMAT = 2

_TAKEN, _DONE, _READ, _CLOSED, _MEMORY = "taken", "done", "read", "closed", "memory"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_BINARY", 0)


@dataclass
class Left:
    """What the journal of a run says."""

    taken: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    """Requests that were taken out of a queue and are not done: the queue, the record in it."""
    positions: dict[str, Position] = field(default_factory=dict)
    """Where the last record was that was taken out of each queue, if the queue does not say."""
    memory: bool = False
    """Whether there was a request that could not be written to disk."""

    def take_in(self, kind: str, values: Iterable[Any]) -> None:
        """Add one note."""
        if kind == _TAKEN:
            number, queue, position, data = values
            self.taken[number] = queue, data
            if position is not None:
                self.positions[queue] = position
        elif kind == _DONE:
            (number,) = values
            self.taken.pop(number, None)
        elif kind == _READ:
            queue, position = values
            self.positions[queue] = position
        elif kind == _CLOSED:
            (queue,) = values
            self.positions.pop(queue, None)
        elif kind == _MEMORY:
            self.memory = True

    def notes(self) -> Iterator[tuple[Any, ...]]:
        """Return the fewest notes that say the same."""
        for number, (queue, data) in self.taken.items():
            yield _TAKEN, number, queue, None, data
        for queue, position in self.positions.items():
            yield _READ, queue, position
        if self.memory:
            yield (_MEMORY,)


class Journal:
    """A file of what was taken out of the queues of a job directory and is not done.

    A queue on disk forgets a request when it hands it out, and some know only in memory how far
    they were read. So each request is noted here before its queue forgets it, and again when what
    came of it is safe. Notes go to the operating system at once, so they outlive the process,
    though not a power cut. What cannot be read any more was cut short by a kill, and is the last.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, _FLAGS, 0o600)
        self._size = 0
        self._bound = _BOUND
        self._number = 0
        self._pending: list[bytes] = []
        self._now = Left()

    def taken(self, queue: str, position: Position | None, data: bytes) -> int:
        """Note that *queue* is about to hand out the record *data*; return its number."""
        self._number += 1
        self._note(_TAKEN, self._number, queue, position, data)
        self.flush()
        return self._number

    def done(self, number: int) -> None:
        """Note that what came of a request is safe; written with the next request, or flush."""
        if number in self._now.taken:
            self._note(_DONE, number)

    def closed(self, queue: str) -> None:
        """Note that *queue* was read to its end, and its files are gone.

        At once: what is pushed to that queue from now on is in a new file.
        """
        if queue in self._now.positions:
            self._note(_CLOSED, queue)
            self.flush()

    def memory(self) -> bool:
        """Note that a request could not be written to disk; False: that is noted already."""
        if self._now.memory:
            return False
        self._note(_MEMORY)
        return True

    def flush(self) -> None:
        """Hand all notes to the operating system; raises :exc:`OSError`, and keeps them then."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        try:
            _write(self._fd, data)
        except OSError:
            with suppress(OSError):  # what would follow half a note could not be read
                os.ftruncate(self._fd, self._size)
            raise
        self._pending.clear()
        self._size += len(data)
        if self._size > self._bound:
            self._rewrite()

    def close(self) -> None:
        """Remove the file: the queues have all that is left."""
        os.close(self._fd)
        self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Leave the file to the next run."""
        with suppress(OSError):
            self.flush()
        os.close(self._fd)

    def _note(self, kind: str, *values: Any) -> None:
        self._now.take_in(kind, values)
        self._pending.append(marshal.dumps((kind, *values), _FORMAT))

    def _rewrite(self) -> None:
        """Leave out what is done."""
        data = b"".join(marshal.dumps(note, _FORMAT) for note in self._now.notes())
        fresh = self._path.with_name(f"{self._path.name}.new")
        fd = os.open(fresh, _FLAGS, 0o600)
        try:
            _write(fd, data)
            fresh.replace(self._path)
        except OSError:  # the old one says all of it too
            os.close(fd)
            self._bound *= 2
            return
        os.close(self._fd)
        self._fd, self._size = fd, len(data)
        self._bound = max(_BOUND, 4 * len(data))


def read(path: Path) -> Left:
    """Return what the journal at *path* says; nothing where there is none."""
    left = Left()
    with suppress(FileNotFoundError), path.open("rb") as file:
        while True:
            try:
                kind, *values = marshal.load(file)  # noqa: S302 - tuples of texts, numbers, bytes
                left.take_in(kind, values)
            except (EOFError, TypeError, ValueError):  # the end, or what a kill cut short
                break
    return left


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
