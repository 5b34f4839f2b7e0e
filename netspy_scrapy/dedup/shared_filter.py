"""The items that all processes of a spider, or of a run, have stored: their memory is in Redis."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

from netspy_scrapy import stats as keys
from netspy_scrapy.dedup.bloom import ExactFilter
from netspy_scrapy.dedup.item_filter import ItemFilter, key_of
from netspy_scrapy.exceptions import RedisAwayError, RedisFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.statscollectors import StatsCollector

    from netspy_scrapy.dedup.redis_store import Answer, RedisStore
    from netspy_scrapy.pipelines.rows import Settlement
    from netspy_scrapy.redis.connection import Connection

logger = logging.getLogger(__name__)

#: Fingerprints that wait for Redis at most; each costs about 130 bytes.
_MAX_UNRECORDED: Final = 250_000
#: Fingerprints that are recorded in one go.
_BATCH: Final = 5_000


class SharedItemFilter(ItemFilter):
    """An item filter whose stored fingerprints are in Redis.

    What this process has on its way, or has stored without Redis knowing it yet, is in memory and
    known at once. All else is asked for when a sink writes a batch: one round trip a batch, in a
    thread (:meth:`ask`). What was stored is recorded in the background, one round trip for all
    that a batch settles.

    Redis away, or in trouble: the batch is let pass, for a row that is stored twice can be mended,
    and one that is not stored cannot. One warning a batch says so, and it is counted
    (``netspy/items/unfiltered_batches``). Fingerprints wait in memory, 250,000 at most, until
    Redis is back; those that never get there are counted (``netspy/filter/degraded``).

    Two processes that store equal items in the same moment both store them: a fingerprint is
    recorded after the write, never before.
    """

    decides_at_once = False

    def __init__(self, store: RedisStore, connection: Connection, stats: StatsCollector) -> None:
        super().__init__(ExactFilter())
        self._store = store
        self._connection = connection
        self._stats = stats
        self._unrecorded: dict[bytes, None] = {}  # stored, and Redis does not know it yet
        self._asking = asyncio.Lock()
        self._recording: asyncio.Task[None] | None = None
        self._count = 0
        """Keys that the store had when it last answered."""
        self._is_full = False

    def __len__(self) -> int:
        """Return how many fingerprints Redis has, as far as is known."""
        return self._count

    @property
    def unrecorded(self) -> int:
        """How many rows are stored whose fingerprints are not in Redis yet."""
        return len(self._unrecorded)

    def seen(self, fingerprint: str | bytes) -> bool:
        """Tell whether an equal item is under way, or was stored a moment ago."""
        key = key_of(fingerprint)
        return key in self._pending or key in self._unrecorded

    def record(self, fingerprint: str | bytes) -> None:
        """Note that every sink that owed the row has stored it."""
        key = key_of(fingerprint)
        self._end_reservation(key)
        self._unrecorded[key] = None
        if len(self._unrecorded) > _MAX_UNRECORDED:
            del self._unrecorded[next(iter(self._unrecorded))]
            self._stats.inc_value(keys.FILTER_DEGRADED)
        self._start_recording()

    # Redis ---------------------------------------------------------------------------------------
    async def open(self) -> None:
        """See whether Redis can be used; raises ConfigError if its settings are wrong."""
        try:
            await self._connection.check()
            self._note(await self._store.known([]))
        except RedisFailedError as exc:
            logger.warning(
                "The item filter in Redis cannot be asked yet: until it can, items that an earlier "
                "run or another process has stored are stored again (%s)", exc,
            )  # fmt: skip
        else:
            logger.info(
                "The item filter in Redis (%s) knows %d items", self._store.key, self._count
            )

    async def ask(self, settlements: Sequence[Settlement]) -> None:
        """Find out which items are duplicates, of those of which it is not known yet."""
        # One at a time: sinks that write the same item must be told the same.
        async with self._asking:
            asked = [one for one in settlements if one.duplicate is None]
            if not asked:
                return
            try:
                answer = await self._store.known([one.mark for one in asked])
            except Exception as exc:  # noqa: BLE001 - no fault of a filter may cost a row
                for one in asked:
                    one.duplicate = False
                self._stats.inc_value(keys.UNFILTERED_BATCHES)
                logger.warning(
                    "The item filter is down: a batch of %d items is stored without looking for "
                    "duplicates (%s)", len(asked), exc,
                )  # fmt: skip
                return
            self._note(answer)
            for one, known in zip(asked, answer.flags, strict=True):
                one.duplicate = known
                if known:
                    self.release(one.mark)
                    self._stats.inc_value(keys.ITEMS_DUPLICATE)
        if self._unrecorded:
            self._start_recording()

    async def flush(self) -> None:
        """Record what has been stored so far, if Redis is there."""
        self._start_recording()
        if self._recording is not None:
            await self._recording

    async def close(self) -> None:
        """Record what is left, and say what could not be."""
        await self.flush()
        if self._unrecorded and await self._is_back():
            await self._record_all()
        lost = len(self._unrecorded)
        if lost:
            self._unrecorded.clear()
            self._stats.inc_value(keys.FILTER_DEGRADED, lost)
            logger.warning(
                "The fingerprints of %d stored items could not be recorded in Redis: a later run "
                "stores equal items again", lost,
            )  # fmt: skip

    async def _is_back(self) -> bool:
        try:
            return await self._connection.is_back()
        except RedisAwayError:
            return False

    def _start_recording(self) -> None:
        # The task begins after the caller has settled all rows of its batch.
        if self._recording is None and self._unrecorded:
            self._recording = asyncio.get_running_loop().create_task(self._record_all())
            self._recording.add_done_callback(self._recorded)

    def _recorded(self, task: asyncio.Task[None]) -> None:
        self._recording = None
        if not task.cancelled() and task.exception() is not None:
            logger.error("The item filter failed to record", exc_info=task.exception())

    async def _record_all(self) -> None:
        while self._unrecorded:
            batch = list(islice(self._unrecorded, _BATCH))
            try:
                answer = await self._store.add(batch)
            except RedisFailedError as exc:
                logger.debug("%d fingerprints wait for Redis: %s", len(self._unrecorded), exc)
                return
            self._note(answer)
            for key in batch:
                self._unrecorded.pop(key, None)

    def _note(self, answer: Answer) -> None:
        if answer.total < self._count:
            logger.warning(
                "The item filter in Redis (%s) had %d items and has %d: it was emptied. Items that "
                "were stored before may be stored again",
                self._store.key, self._count, answer.total,
            )  # fmt: skip
        self._count = answer.total
        if answer.full and not self._is_full:
            logger.warning(
                "The item filter in Redis (%s) is full: %d items. From here on it takes more and "
                "more new items for duplicates. Raise DEDUP_INITIAL_CAPACITY or DEDUP_MAX_LAYERS, "
                'or set DEDUP_FILTER = "redis-set"', self._store.key, answer.total,
            )  # fmt: skip
        self._is_full = answer.full
