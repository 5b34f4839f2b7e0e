"""A job directory (JOBDIR) whose queues survive a kill."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from queuelib import queue as queuelib
from scrapy.utils.misc import build_from_crawler, load_object

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy import stats as keys
from netspy_scrapy.dedup.request_filter import forget_last
from netspy_scrapy.dumps.locks import OPEN_FLAGS, lock, unlock
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.scheduling import recovery
from netspy_scrapy.scheduling.journal import Journal, read

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from netspy_scrapy.durable import WhenDurable
    from netspy_scrapy.scheduling.journal import Position

logger = logging.getLogger(__name__)

#: In a job directory while a crawl is running, which holds a lock on it.
RUNNING_FILE = "netspy_running"
JOURNAL_FILE = "netspy_requests.taken"
_QUEUES = "requests.queue"

#: Seconds after which it is written what is done, if no other note is written before.
_FLUSH_INTERVAL = 0.5


class Job:
    """Keeps what was queued and is not done through a kill of the process.

    The queues are Scrapy's. What they have in memory only is worked out from their files when a
    crawl starts after a kill; what was taken out of them stays in a :class:`Journal` until its
    rows and dump lines are safe, and is queued again then. So a page may be fetched twice, and
    none is lost, save for requests that cannot be written to disk.

    Raises :exc:`ConfigError` if another crawl is running in the folder.
    """

    def __init__(self, crawler: Crawler, folder: Path, when_durable: WhenDurable) -> None:
        self._crawler = crawler
        self._folder = folder
        self._when_durable = when_durable
        self._numbers: dict[Request, int] = {}
        """What was taken out of a queue and is not done, as the journal numbers it."""
        self._timer: asyncio.TimerHandle | None = None
        self.was_recovered = False
        """Whether the last run was killed, and its queues were made readable."""
        self.seen_file: IO[Any] | None = None
        """The request filter's file, if it has a buffer that a kill would lose."""
        self._is_degraded = False
        self._classes: dict[str, Any] = {"": load_object(crawler.settings["SCHEDULER_DISK_QUEUE"])}
        """The class of the queues whose names end so; ``s``: start requests."""
        if start := crawler.settings["SCHEDULER_START_DISK_QUEUE"]:
            self._classes["s"] = load_object(start)
        self._fd, was_killed = self._lock()
        try:
            if was_killed or recovery.is_unfinished(folder / _QUEUES):
                self._recover()
            self._journal = Journal(folder / JOURNAL_FILE)
        except BaseException:
            unlock(self._fd)
            raise

    def watched(self, queue_class: Any) -> Any:
        """Return *queue_class* (a disk queue) in a form that tells what is taken out of it.

        A class that is not made of a queue of queuelib's is returned as it is.
        """
        base = _base(queue_class)
        if base is None:
            logger.warning(
                "%s.%s is not made of a queue of queuelib's: a killed crawl loses what is in it",
                queue_class.__module__, queue_class.__qualname__,
            )  # fmt: skip
            return queue_class
        return _watched(queue_class, base, self)

    # What the queues and the scheduler tell ------------------------------------------------------
    def name_of(self, path: str) -> str:
        """Return the name of the queue at *path*: its place in the folder of queues."""
        return Path(os.path.relpath(path, self._folder / _QUEUES)).as_posix()

    def taking(self, queue: str, position: Position | None, data: bytes) -> int | None:
        """Note that *queue* is about to hand out the record *data*; return its number."""
        try:
            if self.seen_file is not None:
                self.seen_file.flush()
            return self._journal.taken(queue, position, data)
        except OSError as exc:
            self._degrade(exc)
            return None

    def handed_out(self, number: int | None, request: Request | None) -> None:
        """Note which request came of a record; None: it could not be read."""
        if number is None:
            return
        if request is None:
            self._journal.done(number)
        else:
            self._numbers[request] = number

    def emptied(self, queue: str) -> None:
        """Note that the files of a queue are gone."""
        try:
            self._journal.closed(queue)
        except OSError as exc:
            self._degrade(exc)

    def kept_in_memory(self) -> None:
        """Note that a request could not be written to disk."""
        if self._journal.memory():
            self._flush()

    def finished(self, request: Request) -> None:
        """Note that the crawl is through with *request*."""
        number = self._numbers.pop(request, None)
        if number is not None:
            self._when_durable.call(partial(self._done, number))

    def close(self, *, queues_are_closed: bool) -> None:
        """End the run; what the queues do not hold stays in the journal for the next one."""
        if self._timer is not None:
            self._timer.cancel()
        if queues_are_closed:
            self._journal.close()
            (self._folder / RUNNING_FILE).unlink(missing_ok=True)
        else:
            self._journal.abandon()
        unlock(self._fd)

    # Own methods ---------------------------------------------------------------------------------
    def _done(self, number: int) -> None:
        self._journal.done(number)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_INTERVAL, self._flush_later)

    def _flush_later(self) -> None:
        self._timer = None
        self._flush()

    def _flush(self) -> None:
        try:
            self._journal.flush()
        except OSError as exc:
            self._degrade(exc)

    def _degrade(self, exc: OSError) -> None:
        if not self._is_degraded:
            self._is_degraded = True
            logger.error(
                "%s cannot be written (%s): if the process is killed, requests that are under way "
                "are lost", self._folder / JOURNAL_FILE, exc.strerror or exc,
                extra={"spider": self._crawler.spider},
            )  # fmt: skip

    def _lock(self) -> tuple[int, bool]:
        """Return the locked file that says that a crawl is running, and whether it was there."""
        path = self._folder / RUNNING_FILE
        while True:
            was_there = path.exists()
            fd = os.open(path, OPEN_FLAGS | os.O_CREAT, 0o600)
            try:
                if not lock(fd, wait=False):
                    raise ConfigError(
                        "JOBDIR", str(self._folder), "a folder in which no other crawl is running"
                    )
                if os.path.samestat(os.fstat(fd), os.stat(path)):  # noqa: PTH116
                    return fd, was_there
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(fd)
                raise
            unlock(fd)  # the crawl that had it has just ended

    # After a kill --------------------------------------------------------------------------------
    def _recover(self) -> None:
        left = read(self._folder / JOURNAL_FILE)
        queues = self._folder / _QUEUES
        spider = {"spider": self._crawler.spider}
        if any(_base(one) is None for one in self._classes.values()):
            logger.error(
                "The last run of the job in %s was killed: requests that it had queued are lost, "
                "since SCHEDULER_DISK_QUEUE is not made of a queue of queuelib's, and the request "
                "filter drops their pages when they are yielded again. To fetch them, delete "
                "*requests.seen there and start anew.", self._folder, extra=spider,
            )  # fmt: skip
            return
        found = recovery.recover(queues, left, put=self._put, domain_of=self._domain_of)
        forget_last(self._folder)
        self.was_recovered = True
        logger.warning(
            "The last run of the job in %s was killed. The crawl goes on with %d requests that "
            "were queued and %d that were under way, some of which may be done twice",
            self._folder, found.queued, found.under_way, extra=spider,
        )  # fmt: skip
        if left.memory:
            found.lost.append(
                "requests that could not be written to disk (a callback that is no method of the "
                "spider, say) were in memory only; how many is not known"
            )
        for what in found.lost:
            logger.error("Lost by the kill: %s", what, extra=spider)
        assert self._crawler.stats is not None
        self._crawler.stats.inc_value(keys.REQUESTS_RECOVERED, found.queued + found.under_way)

    def _put(self, path: Path, data: bytes) -> None:
        base = _base(self._class_of(path.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        queue = base(str(path))
        try:
            queue.push(data)
        finally:
            queue.close()

    def _domain_of(self, folder: Path, names: list[str]) -> str | None:
        """Return the domain that *folder* is named after, from the first request that says it."""
        for name in names:
            queue: Any = None
            try:
                queue = build_from_crawler(self._class_of(name), self._crawler, str(folder / name))
                request = queue.peek()
            except Exception:  # noqa: BLE001 - e.g. its callback is gone; another may say it
                request = None
            finally:
                if queue is not None:
                    queue.close()
            if request is not None:
                for key in (metakeys.DOMAIN, "download_slot"):
                    domain = request.meta.get(key)
                    if domain and _scrapy.queue_folder(domain) == folder.name:
                        return str(domain)
        return None

    def _class_of(self, name: str) -> Any:
        return self._classes.get("s" if name.endswith("s") else "", self._classes[""])


def _base(queue_class: Any) -> Any:
    """Return the queue of queuelib's that a disk queue is made of, or None."""
    for one in queue_class.__mro__:
        if one in (queuelib.FifoDiskQueue, queuelib.LifoDiskQueue, queuelib.FifoSQLiteQueue,
                   queuelib.LifoSQLiteQueue):  # fmt: skip
            return one
    return None


def _watched(queue_class: Any, base: Any, job: Job) -> Any:
    is_fifo = base is queuelib.FifoDiskQueue
    is_lifo = base is queuelib.LifoDiskQueue

    class Records(base):  # type: ignore[misc]
        """Next to the file: sees the bytes of each record."""

        def __init__(self, path: str, *args: Any, **kwargs: Any) -> None:
            self.netspy_name = job.name_of(path)
            self.netspy_number: int | None = None
            super().__init__(path, *args, **kwargs)

        def push(self, record: bytes) -> None:
            super().push(record)
            if is_lifo:  # or a part of it would be in this process only
                self.f.flush()

        def pop(self) -> Any:
            position = tuple(self.info["tail"]) if is_fifo else None
            # A record of a FIFO queue stays in its file, save for the last one of a chunk.
            stays = position is not None and position[1] + 1 < self.chunksize
            record = super().pop() if stays else super().peek()
            if record is not None:
                self.netspy_number = job.taking(self.netspy_name, position, record)
                if not stays:
                    super().pop()
            return record

        def close(self) -> None:
            is_empty = not len(self)
            super().close()
            if is_empty:
                job.emptied(self.netspy_name)

    class Watched(queue_class, Records):  # type: ignore[misc]
        """Next to the scheduler: sees the request of each record."""

        def pop(self) -> Any:
            request = None
            self.netspy_number = None
            try:
                request = super().pop()
            finally:
                job.handed_out(self.netspy_number, request)
            return request

    return Watched
