"""The store of a crawl: look-ups and updates in batches, off the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from netspy_scrapy import stats as keys
from netspy_scrapy.exceptions import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from scrapy.statscollectors import StatsCollector

    from netspy_scrapy.incremental.entry import Entry

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Seconds that an update may wait until it is written, and how many or how much may.
FLUSH_INTERVAL = 10.0
_BATCH = 5_000
_BATCH_BYTES = 8 * 1024 * 1024
#: Pages that are looked up ahead, about half a kilobyte each.
_MAX_AHEAD = 20_000
#: What is held at most while the store cannot be written.
_MAX_HELD = 50_000
_MAX_HELD_BYTES = 64 * 1024 * 1024


@dataclass
class Changes:
    """What is to be written, the newest word on each page."""

    entries: dict[bytes, Entry | None] = field(default_factory=dict)
    """By key; None: forget the page and all that is kept of it."""
    children: dict[bytes, bytes] = field(default_factory=dict)
    bodies: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)
    """By key and digest."""
    size: int = 0
    """Bytes of children and bodies."""

    def __len__(self) -> int:
        return len(self.entries) + len(self.bodies)

    def take(self, other: Changes) -> None:
        """Add *other*, which is newer."""
        for key, entry in other.entries.items():
            self.put(key, entry, other.children.get(key))
        for (key, digest), body in other.bodies.items():
            self.put_body(key, digest, body)

    def put(self, key: bytes, entry: Entry | None, children: bytes | None = None) -> None:
        """Remember *entry*, with the requests that its callback yielded."""
        self.entries[key] = entry
        if entry is None:
            self._drop(self.children, key)
            for one in [one for one in self.bodies if one[0] == key]:
                self._drop(self.bodies, one)
        elif children is not None:
            self._drop(self.children, key)
            self.children[key] = children
            self.size += len(children)

    def put_body(self, key: bytes, digest: bytes, body: bytes) -> None:
        """Keep a body; it counts once an entry names it."""
        self._drop(self.bodies, (key, digest))
        self.bodies[key, digest] = body
        self.size += len(body)

    def shrink(self) -> int:
        """Drop the oldest until no more is held than may be; return how many pages that were."""
        dropped = 0
        while len(self) > _MAX_HELD or self.size > _MAX_HELD_BYTES:
            if self.bodies:
                self._drop(self.bodies, next(iter(self.bodies)))
            else:
                key = next(iter(self.entries))
                del self.entries[key]
                self._drop(self.children, key)
            dropped += 1
        return dropped

    def _drop(self, kept: dict[T, bytes], key: T) -> None:
        self.size -= len(kept.pop(key, b""))


class Backend(Protocol):
    """Where entries are kept. Its methods block, and are called by one thread at a time.

    They raise :class:`~netspy_scrapy.exceptions.StoreError` if it cannot be reached or written.
    """

    def open(self, spider: str) -> int:
        """Begin a run of *spider*; return its number, from 1 on."""

    def read(self, wanted: list[bytes]) -> dict[bytes, Entry]:
        """Return the entries that are known of these keys."""

    def read_children(self, key: bytes) -> bytes | None:
        """Return the requests that a page's callback yielded, as they were given."""

    def read_body(self, key: bytes, digest: bytes) -> bytes | None:
        """Return a body as it was given."""

    def write(self, changes: Changes) -> None:
        """Write all of *changes*, or nothing."""

    def entries(self) -> Iterator[Entry]:
        """Yield everything, for a command."""

    def runs(self) -> dict[str, int]:
        """Return the number of the last run of each spider."""

    def close(self) -> None:
        """Give everything back."""

    def abandon(self) -> None:
        """Wake a call that hangs, for good; the one method that another thread may call."""


class Store:
    """Stands between the event loop and a :class:`Backend`, which it calls in a thread of its own.

    Look-ups that come while one is under way go together in the next. Updates are written every
    ten seconds, or when there are many, and by :meth:`close`; a killed process loses what was not
    written yet, and those pages are fetched in full again. A store that cannot be read knows
    nothing; one that cannot be written is tried again later, and only so much is held for it.
    Each is said once, and the crawl goes on.

    Stats: ``netspy/incremental/stored``, ``netspy/incremental/lost``.
    """

    def __init__(
        self, backend: Backend, stats: StatsCollector, *, interval: float | None = None
    ) -> None:
        self.run = 0
        """The number of the spider's run."""
        self._backend = backend
        self._stats = stats
        self._interval = FLUSH_INTERVAL if interval is None else interval
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="netspy-incremental")
        self._held = Changes()
        self._writing = Changes()
        self._wanted: dict[bytes, list[asyncio.Future[Entry | None]]] = {}
        """Who waits for a page; nobody, where it is looked up ahead."""
        self._ahead: dict[bytes, Entry | None] = {}
        """What was looked up ahead and not asked for yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._trouble: set[str] = set()
        """What was said of the present trouble: reading, writing."""

    # Reading -------------------------------------------------------------------------------------
    async def open(self, spider: str) -> None:
        """Begin a run of *spider*; raises ConfigError if the store never can be used."""
        self.run = await self._call(self._backend.open, spider)

    def look_ahead(self, key: bytes) -> None:
        """Look a page up that will be asked for, so that nobody has to wait for it then."""
        if key not in self._wanted and key not in self._ahead:
            self._want(key)

    def has(self, key: bytes) -> bool:
        """Tell whether :meth:`known` can answer for a page."""
        return any(key in one for one in (self._held.entries, self._writing.entries, self._ahead))

    def known(self, key: bytes) -> Entry | None:
        """Return what is known of a page that was looked up ahead, or changed a moment ago."""
        ahead = self._ahead.pop(key, None)
        for changes in (self._held, self._writing):
            if key in changes.entries:
                return changes.entries[key]
        return ahead

    async def get(self, key: bytes) -> Entry | None:
        """Return what is known of a page."""
        if self.has(key):
            return self.known(key)
        future: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
        self._want(key).append(future)
        return await future

    async def children(self, key: bytes) -> bytes | None:
        """Return what was given to :meth:`put` as the children of a page."""
        for changes in (self._held, self._writing):
            if key in changes.children:
                return changes.children[key]
        return await self._read(self._backend.read_children, key)

    async def body(self, key: bytes, digest: bytes) -> bytes | None:
        """Return what was given to :meth:`put_body`."""
        for changes in (self._held, self._writing):
            if (key, digest) in changes.bodies:
                return changes.bodies[key, digest]
        return await self._read(self._backend.read_body, key, digest)

    def _want(self, key: bytes) -> list[asyncio.Future[Entry | None]]:
        waiting = self._wanted.setdefault(key, [])
        if self._reader is None:
            self._reader = self._start(self._look_up())
        return waiting

    async def _look_up(self) -> None:
        while self._wanted:
            await asyncio.sleep(0)  # what else comes in this turn of the loop goes along
            wanted, self._wanted = self._wanted, {}
            found = await self._read(self._backend.read, list(wanted))
            for key, futures in wanted.items():
                entry = None if found is None else found.get(key)
                if not futures and found is not None:
                    self._ahead[key] = entry
                for future in futures:
                    if not future.done():
                        future.set_result(entry)
            while len(self._ahead) > _MAX_AHEAD:
                del self._ahead[next(iter(self._ahead))]
        self._reader = None

    async def _read(self, function: Callable[..., T], *args: object) -> T | None:
        try:
            result = await self._call(function, *args)
        except (ConfigError, StoreError) as exc:
            if "read" not in self._trouble:
                self._trouble.add("read")
                logger.warning("%s: pages are fetched as if they were not known", exc)
            return None
        self._trouble.discard("read")
        return result

    # Writing -------------------------------------------------------------------------------------
    def put(self, entry: Entry, children: bytes | None = None) -> None:
        """Remember *entry*, and the requests that its callback yielded."""
        self._ahead.pop(entry.key, None)
        self._held.put(entry.key, entry, children)
        self._changed()

    def put_body(self, key: bytes, digest: bytes, body: bytes) -> None:
        """Keep a body, for an entry that may follow."""
        self._held.put_body(key, digest, body)
        self._changed()

    def forget(self, key: bytes) -> None:
        """Forget a page."""
        self._ahead.pop(key, None)
        self._held.put(key, None)
        self._changed()

    async def flush(self) -> None:
        """Write what is held; what cannot be written stays held."""
        if self._writer is None:
            self._write_soon()
        else:
            await asyncio.wait([self._writer])
            if self._held:
                self._write_soon()
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def close(self, seconds: float = math.inf) -> None:
        """Write what is held, once more where that failed, and close the store.

        One that is not done within *seconds* is abandoned.
        """
        closing = self._start(self._write_and_close())
        await asyncio.wait({closing}, timeout=None if math.isinf(seconds) else seconds)
        if closing.done():
            closing.result()
        else:
            for task in list(self._tasks):
                task.cancel()
            self._backend.abandon()
            self._lose(len(self._held) + len(self._writing))
        self._thread.shutdown(wait=False)

    async def _write_and_close(self) -> None:
        await self.flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._lose(len(self._held))
            self._held = Changes()
        with suppress(StoreError):  # it is away, and said so
            await self._call(self._backend.close)

    def _changed(self) -> None:
        if len(self._held) >= _BATCH or self._held.size >= _BATCH_BYTES:
            if "write" not in self._trouble:
                self._write_soon()
                return
            if lost := self._held.shrink():
                self._lose(lost)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval, self._write_soon)

    def _write_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writer is None and self._held:
            self._writer = self._start(self._write())

    async def _write(self) -> None:
        self._writing, self._held = self._held, Changes()
        try:
            await self._call(self._backend.write, self._writing)
        except (ConfigError, StoreError) as exc:
            if "write" not in self._trouble:
                self._trouble.add("write")
                logger.warning("%s: what is new about pages is held, and tried again", exc)
            self._writing.take(self._held)
            self._held = self._writing
        else:
            self._trouble.discard("write")
            count = sum(entry is not None for entry in self._writing.entries.values())
            self._stats.inc_value(keys.INCREMENTAL_STORED, count)
        self._writing = Changes()
        self._writer = None
        if self._held:
            self._changed()

    def _lose(self, count: int) -> None:
        self._stats.inc_value(keys.INCREMENTAL_LOST, count)
        logger.warning(
            "What is new about %d pages could not be stored: the next run fetches them as if "
            "they were not known", count,
        )  # fmt: skip

    # The thread ----------------------------------------------------------------------------------
    async def _call(self, function: Callable[..., T], *args: object) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, function, *args)
        except (ConfigError, StoreError):
            raise
        except Exception as exc:
            # A driver may raise anything, and downloads wait for this.
            raise StoreError(f"the store of pages failed: {type(exc).__name__}: {exc}") from exc

    def _start(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
