"""Files that several threads and processes write under one lock.

The lock is ``flock``, on Windows ``msvcrt.locking``; both end with the process that holds them,
however it ends.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from netspy_scrapy.exceptions import DumpError

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.platform == "win32":
    import msvcrt
    import time
else:
    import fcntl

logger = logging.getLogger(__name__)

OPEN_FLAGS = os.O_RDWR | getattr(os, "O_BINARY", 0)
_PRIVATE = 0o600
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


class SharedPath:
    """A path, and the files beside it that are named after it, under one lock.

    Files are opened anew for each write, so one that another process renamed is never written to
    by mistake.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        #: Absolute, links followed, so that all processes share one lock.
        self.path = Path(os.path.realpath(path))
        self.lock_path = self.beside(".lock")
        # On some network file systems flock is a lock of the process, not of the descriptor.
        self._threads = threading.Lock()
        self._told_mode = False

    def beside(self, suffix: str) -> Path:
        """Return the file of the same name with *suffix* added."""
        return self.path.with_name(self.path.name + suffix)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock; creates the folders."""
        with self._threads:
            fd = self._open_lock()
            try:
                yield
            finally:
                unlock(fd)

    def _open_lock(self) -> int:
        # A file in the place of the folder is best told by what open() says to it.
        with suppress(FileExistsError):
            self.lock_path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            fd = os.open(self.lock_path, OPEN_FLAGS | os.O_CREAT, _PRIVATE)
            try:
                lock(fd, wait=True)
                # Somebody who tidied up may have removed the file while we waited.
                if os.path.samestat(os.fstat(fd), os.stat(self.lock_path)):  # noqa: PTH116
                    return fd
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(fd)
                raise
            unlock(fd)

    def append(self, path: Path, data: bytes, *, sync: bool = False) -> None:
        """Write *data* at the end of *path* or leave it as it was; the lock must be held."""
        fd = os.open(path, OPEN_FLAGS | os.O_APPEND | os.O_CREAT, _PRIVATE)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("not a regular file")
            self._keep_private(path, status)
            if status.st_size:
                os.lseek(fd, -1, os.SEEK_END)
                if os.read(fd, 1) != b"\n":
                    # Its writer was killed: the broken line must not swallow the next one.
                    data = b"\n" + data
            try:
                _write_all(fd, data)
                if sync:
                    os.fsync(fd)
            except BaseException:
                os.ftruncate(fd, status.st_size)
                raise
        finally:
            os.close(fd)

    def _keep_private(self, path: Path, status: os.stat_result) -> None:
        if sys.platform != "win32" and status.st_mode & _READABLE_BY_OTHERS:
            try:
                path.chmod(stat.S_IMODE(status.st_mode) & stat.S_IRWXU)
                outcome = "now only its owner can"
            except OSError as exc:
                outcome = f"and that cannot be changed: {exc.strerror}"
            if not self._told_mode:
                self._told_mode = True
                logger.warning(
                    "%s may hold cookies and authorization headers, and others could read it: %s",
                    path, outcome,
                )  # fmt: skip


@contextmanager
def reported(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError into a DumpError: *path* cannot be *what*."""
    try:
        yield
    except OSError as exc:
        raise DumpError(f"{path} cannot be {what}: {exc.strerror or exc}") from exc


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if sys.platform == "win32":
    # Far behind the end: a locked range cannot be read by others there.
    _BYTE = 0x7FFF_FFFE

    def lock(fd: int, *, wait: bool) -> bool:
        """Lock the open file *fd*; False: somebody else has it, and *wait* was False."""
        while True:
            os.lseek(fd, _BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    return False
                time.sleep(0.01)
            else:
                return True

    def unlock(fd: int) -> None:
        """Unlock the open file *fd*, and close it."""
        os.lseek(fd, _BYTE, os.SEEK_SET)
        with suppress(OSError):
            msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
        os.close(fd)

else:

    def lock(fd: int, *, wait: bool) -> bool:
        """Lock the open file *fd*; False: somebody else has it, and *wait* was False."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(fd: int) -> None:
        """Unlock the open file *fd*, and close it."""
        # Explicitly: a fork under way in another thread holds a copy of the descriptor.
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)
