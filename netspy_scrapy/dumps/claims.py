"""The part of a dump file that one replay took over; see :mod:`netspy_scrapy.dumps.files`."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from netspy_scrapy.dumps.locks import OPEN_FLAGS, reported, unlock
from netspy_scrapy.exceptions import DumpError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from netspy_scrapy.dumps.files import DumpFile
    from netspy_scrapy.dumps.locks import SharedPath

logger = logging.getLogger(__name__)

_Line = TypeVar("_Line", str, bytes)

JOURNAL = ".done"
_CHUNK_LINES = 1000
_CHUNK_BYTES = 1 << 20
# A range that was written whole ends with ";".
_DONE = re.compile(rb"(\d+)-(\d+);")


class ClaimedFile:
    """The lines that one replay took over, to be finished one by one.

    ::

        claimed = dump.claim()
        if claimed is not None:
            with claimed:
                for number, line in claimed.lines():
                    ...                                   # then one of
                    claimed.done([number])                # replayed, and its outcome is stored
                    claimed.put_back([(number, line)])    # for a later replay
                    claimed.set_aside(number, line)       # of no use to any replay

    Lines of which none was said go back to the file at the end, also after an exception. The
    methods may be called from several threads, in batches, and in any order.
    """

    def __init__(self, dump: DumpFile, shared: SharedPath, parts: list[Part]) -> None:
        self.broken = 0
        """Lines set aside so far."""
        self._dump = dump
        self._shared = shared
        self._parts = parts
        self._changes = threading.Lock()
        self._has_put_back = False
        first = 0
        for part in parts:
            part.load()
            part.first = first
            first += part.count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        held = ", ".join(str(part.path) for part in self._parts)
        try:
            self.close()
        except DumpError as exc:
            logger.error(  # noqa: TRY400 - the error under way is the one to see
                "%s; its lines stay in %s, and the next replay takes them from there",
                exc, held,
            )  # fmt: skip

    def remaining(self) -> int:
        """Count the lines that are not finished; reads no file."""
        return sum(part.done.count(0) for part in self._parts)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield each line that is not finished, with the number that names it here.

        Reads one line at a time. Half-written lines are set aside on the way, with a warning.
        """
        for part in list(self._parts):
            for index, raw in part.unfinished(part.count):
                number = part.first + index
                line = _whole(raw)
                if line is not None:
                    yield number, line
                    continue
                if not self.broken:
                    logger.warning(
                        "%s: line %d is not a JSON object (killed while writing?) and is kept "
                        "in %s: %r",
                        self._shared.path, index + 1, self._broken_path(), raw[:80],
                    )  # fmt: skip
                self._set_aside(number, raw)

    def done(self, numbers: Iterable[int]) -> None:
        """Note that the lines with these *numbers* are replayed; call it once a batch."""
        numbers = sorted(numbers)
        self._check(numbers)
        with self._changes:
            for part in self._parts:
                mine = [n - part.first for n in numbers if n - part.first in part]
                if not mine:
                    continue
                try:
                    self._shared.append(part.journal, part.finish(mine))
                except OSError as exc:
                    # Only a replay that follows a kill would miss it, and do these lines again.
                    logger.warning("%s cannot be written: %s", part.journal, exc.strerror or exc)

    def put_back(self, lines: Iterable[tuple[int, str]]) -> int:
        """Append *lines* to the file they came from, for a later replay; return how many.

        A line may differ from the one that was read (fewer sinks, another reason). Raises
        :exc:`~netspy_scrapy.exceptions.DumpError` if they cannot be written: those not yet
        written stay with this claim.
        """
        count = 0
        for chunk in _chunks(lines):
            self._check([number for number, _ in chunk])
            self._has_put_back = True
            self._dump.append([line for _, line in chunk])
            self.done(number for number, _ in chunk)
            count += len(chunk)
        return count

    def set_aside(self, number: int, line: str) -> None:
        """Move a line that no replay can use to ``<path>.broken``."""
        self._check([number])
        self._set_aside(number, line.encode("utf-8", "backslashreplace"))

    def close(self) -> int:
        """Put back what is not finished, then remove the claimed file; return how many lines.

        If they cannot be put back, :exc:`~netspy_scrapy.exceptions.DumpError` is raised, and the
        claimed file stays for the next replay.
        """
        count = 0
        try:
            while self._parts:
                part = self._parts[0]
                count += self._put_back_rest(part)
                with reported(part.path, "removed"), self._shared.locked():
                    self._sync()
                    part.remove()
                del self._parts[0]
        except BaseException:
            self.release()
            raise
        if self.broken > 1:
            logger.warning("%d lines were set aside in %s", self.broken, self._broken_path())
        return count

    def release(self) -> None:
        """Let go at once: the next claim goes on with what is not finished."""
        while self._parts:
            self._parts.pop().release()

    def _check(self, numbers: list[int]) -> None:
        for number in numbers:
            if not any(number - part.first in part for part in self._parts):
                raise DumpError(f"{self._shared.path}: line {number} is not held by this replay")

    def _put_back_rest(self, part: Part) -> int:
        # To the end of the file, past part.count: a writer that knows nothing of the lock may
        # have had the file open when it was renamed.
        count = 0
        for chunk in _chunks(part.unfinished(None)):
            data = b"".join(raw.rstrip(b"\r\n") + b"\n" for _, raw in chunk)
            self._has_put_back = True
            with reported(self._shared.path, "written"), self._shared.locked():
                self._shared.append(self._shared.path, data)
            self.done(part.first + index for index, _ in chunk if index in part)
            count += len(chunk)
        return count

    def _sync(self) -> None:
        """Have the lines put back on the disk before their other copy goes."""
        if not self._has_put_back:
            return
        # Not there: another replay has taken them over in the meantime.
        with suppress(FileNotFoundError):
            fd = os.open(self._shared.path, OPEN_FLAGS)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _set_aside(self, number: int, raw: bytes) -> None:
        path = self._broken_path()
        with reported(path, "written"), self._shared.locked():
            self._shared.append(path, raw.rstrip(b"\r\n") + b"\n")
        self.broken += 1
        self.done([number])

    def _broken_path(self) -> Path:
        return self._shared.beside(".broken")


class Part:
    """One claimed file, and which of its lines are finished."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.journal = path.with_name(path.name + JOURNAL)
        self.first = 0
        """The number of its first line."""
        self.done = bytearray()
        """A byte for each line: 1 if it is finished, or blank."""
        self._fd: int | None = fd
        """Holds the lock."""

    @property
    def count(self) -> int:
        """The lines that it had when it was taken over."""
        return len(self.done)

    def __contains__(self, index: int) -> bool:
        return 0 <= index < self.count

    def load(self) -> None:
        """Count the lines, and read which are finished."""
        with reported(self.path, "read"):
            with self.path.open("rb") as file:
                self.done.extend(not raw.strip() for raw in file)
            with suppress(FileNotFoundError), self.journal.open("rb") as file:
                for note in file:
                    match = _DONE.fullmatch(note.strip())
                    if match is not None:
                        self._mark(int(match[1]), min(int(match[2]) + 1, self.count))

    def finish(self, indexes: list[int]) -> bytes:
        """Mark lines (sorted) and return the note of them."""
        notes = []
        start = end = indexes[0]
        for index in [*indexes[1:], -1]:
            if index == end + 1:
                end = index
                continue
            self._mark(start, end + 1)
            notes.append(b"%d-%d;\n" % (start, end))
            start = end = index
        return b"".join(notes)

    def _mark(self, start: int, stop: int) -> None:
        self.done[start:stop] = b"\1" * max(0, stop - start)

    def unfinished(self, count: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not finished among the first *count* (None: to the end)."""
        with reported(self.path, "read"), self.path.open("rb") as file:
            for index, raw in enumerate(file):
                if count is not None and index >= count:
                    return
                if not (self.done[index] if index in self else not raw.strip()):
                    yield index, raw

    def remove(self) -> None:
        """Remove the file and its journal; the lock of the dump file must be held."""
        self.release()  # first, for Windows removes no file that is open
        self.path.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)

    def release(self) -> None:
        """Let another replay have it."""
        if self._fd is not None:
            unlock(self._fd)
            self._fd = None


def _whole(raw: bytes) -> str | None:
    """Return the text of *raw* if it is a JSON object, which no beginning of one is."""
    try:
        line = raw.rstrip(b"\r\n").decode()
        return line if isinstance(json.loads(line.lstrip("\ufeff")), dict) else None
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    except (RecursionError, ValueError):
        return line  # whole, but more than Python reads: for its reader to say so


def _chunks(lines: Iterable[tuple[int, _Line]]) -> Iterator[list[tuple[int, _Line]]]:
    chunk: list[tuple[int, _Line]] = []
    held = 0
    for pair in lines:
        chunk.append(pair)
        held += len(pair[1])
        if len(chunk) >= _CHUNK_LINES or held >= _CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk
