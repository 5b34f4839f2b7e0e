"""A JSON lines file that crawlers append to while a replay takes its lines out.

Appending and taking over exclude each other through ``<path>.lock``, which is never removed. A
replay takes the file over by renaming it to ``<path>.replaying-<pid>-<time>`` and holds a lock on
it for as long as it lives; the lock, not the process id, tells whether it does. What was finished
is noted in ``<path>.replaying-....done``, so the file of a killed replay is gone on with where it
ended.

A line is replayed at least once: a kill between a line's effect and the note of it lets the next
replay do the line again; no kill loses one. Lines that are no JSON object (half written) go to
``<path>.broken``. All these files are for their owner only (0600).

A file system without locks is refused.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from netspy_scrapy.dumps.claims import JOURNAL, ClaimedFile, Part
from netspy_scrapy.dumps.locks import OPEN_FLAGS, SharedPath, lock, reported
from netspy_scrapy.exceptions import DumpError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["ClaimedFile", "DumpFile"]

_CLAIMED = re.compile(r"\d+-(\d+)")  # process id, time in ns


class DumpFile:
    """A file of lines, shared by threads and processes on one machine.

    It is opened anew for each append, so a file that a replay renamed, or a person moved, is
    never written to by mistake.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False) -> None:
        self._shared = SharedPath(path)
        self._fsync = fsync

    @property
    def path(self) -> Path:
        """Where the lines are: absolute, links followed."""
        return self._shared.path

    def append(self, lines: Sequence[str]) -> None:
        """Write *lines* (without newlines) at the end; all of them or none.

        Creates the file and its folders. Blocks for the disk and for other writers, so call it in
        a thread. Raises :exc:`~netspy_scrapy.exceptions.DumpError` if they cannot be written; no
        half line stays then.
        """
        if not lines:
            return
        for line in lines:
            if "\n" in line:
                raise DumpError(f"{self.path}: a line with a newline in it: {line[:80]!r}")
        try:
            data = "".join(f"{line}\n" for line in lines).encode()
        except UnicodeEncodeError as exc:
            raise DumpError(f"{self.path}: cannot be written as UTF-8: {exc}") from exc
        with reported(self.path, "written"), self._shared.locked():
            self._shared.append(self.path, data, sync=self._fsync)

    def check_writable(self) -> str | None:
        """Return why :meth:`append` would fail, or None; leaves nothing behind."""
        try:
            if self.path.exists():
                if not self.path.is_file():
                    return f"{self.path} is not a regular file"
                os.close(os.open(self.path, os.O_WRONLY | os.O_APPEND))
            folder = self.path.parent
            while not folder.exists():
                folder = folder.parent
            if self._shared.lock_path.exists():
                with self._shared.locked():
                    return None
            with tempfile.TemporaryFile(dir=folder) as file:
                lock(file.fileno(), wait=True)
        except OSError as exc:
            return f"{self.path} cannot be written: {exc.strerror or exc}"
        return None

    def claim(self) -> ClaimedFile | None:
        """Take over every line that is there now, and what killed replays left; None: nothing.

        Lines appended from now on (those put back too) are for the next claim. Files that a
        living replay holds are left to it. Blocks, so call it in a thread.
        """
        if not self.path.is_file() and not self._left_behind():
            return None
        parts: list[Part] = []
        try:
            with reported(self.path, "taken over"), self._shared.locked():
                self._remove_orphans()
                for left in self._left_behind():
                    fd = os.open(left, OPEN_FLAGS)
                    if lock(fd, wait=False):
                        parts.append(Part(left, fd))
                    else:
                        os.close(fd)
                if self.path.is_file() and self.path.stat().st_size:
                    fresh = self._shared.beside(f".replaying-{os.getpid()}-{time.time_ns()}")
                    self.path.rename(fresh)
                    fd = os.open(fresh, OPEN_FLAGS)
                    parts.append(Part(fresh, fd))
                    lock(fd, wait=True)
            return ClaimedFile(self, self._shared, parts) if parts else None
        except BaseException:
            for part in parts:
                part.release()
            raise

    def _left_behind(self, suffix: str = "") -> list[Path]:
        """Return the claimed files that exist, or their journals, the oldest first."""
        prefix = f"{self.path.name}.replaying-"
        found = []
        with suppress(FileNotFoundError):
            for entry in os.scandir(self.path.parent):
                name = entry.name
                if name.startswith(prefix) and name.endswith(suffix):
                    claim = _CLAIMED.fullmatch(name[len(prefix) : len(name) - len(suffix)])
                    if claim is not None:
                        found.append((int(claim[1]), self.path.with_name(name)))
        return [path for _, path in sorted(found)]

    def _remove_orphans(self) -> None:
        # The claimed file goes before its journal, so a kill may leave the journal alone.
        for journal in self._left_behind(JOURNAL):
            if not journal.with_suffix("").exists():
                journal.unlink()
