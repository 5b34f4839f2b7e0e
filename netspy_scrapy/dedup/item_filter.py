"""The items that a run has stored, or is about to store."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from netspy_scrapy.dedup.bloom import KeyFilter, key_filter
from netspy_scrapy.settings import DedupSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from netspy_scrapy.pipelines.rows import Settlement


class ItemFilter:
    """The run's memory of item fingerprints.

    An item is remembered once its row is stored, not when it is yielded: a row that was dumped
    may come again. Until then its fingerprint is pending, so a twin is recognised before the
    first one's batch is written::

        if filter.seen(fp): skip the item
        filter.reserve(fp)      the row goes to the sinks
        filter.record(fp)       every sink that owed the row has stored it
        filter.release(fp)      or: a sink has dumped it

    Each reservation ends with one ``record`` or ``release``. Several at a time are counted: the
    fingerprint is pending until the last of them ends, and stored if any of them was recorded.
    Ending one that does not exist changes nothing but that ``record`` stores it.

    DEDUP_FILTER chooses between a bloom filter ("memory") and an exact set ("lite"); for
    "redis" and "redis-set" see :class:`~netspy_scrapy.dedup.shared_filter.SharedItemFilter`.
    Pending fingerprints are always held exactly, so it is safe to take them back. Call it on the
    event loop only; nothing waits or writes to disk.
    """

    decides_at_once: ClassVar[bool] = True
    """Whether ``seen`` knows of every stored item; else ``ask`` does, before a batch is written."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter that the crawler's settings ask for."""
        return cls(key_filter(DedupSettings.from_settings(crawler.settings)))

    def __init__(self, keys: KeyFilter) -> None:
        self._stored = keys
        self._pending: dict[bytes, int] = {}  # reservations that have not ended

    def __len__(self) -> int:
        """Return how many fingerprints are stored."""
        return len(self._stored)

    @property
    def pending(self) -> int:
        """How many fingerprints are reserved, and neither stored nor given back."""
        return len(self._pending)

    def seen(self, fingerprint: str | bytes) -> bool:
        """Tell whether the item is stored, or pending."""
        key = key_of(fingerprint)
        return key in self._pending or key in self._stored

    def reserve(self, fingerprint: str | bytes) -> None:
        """Note that a row is on its way to the sinks."""
        key = key_of(fingerprint)
        self._pending[key] = self._pending.get(key, 0) + 1

    def record(self, fingerprint: str | bytes) -> None:
        """Note that every sink that owed the row has stored it."""
        key = key_of(fingerprint)
        self._end_reservation(key)
        self._stored.add(key)

    def release(self, fingerprint: str | bytes) -> None:
        """Note that a row was not stored: its item may come again."""
        self._end_reservation(key_of(fingerprint))

    async def open(self) -> None:
        """Get ready, before the first item."""

    async def ask(self, settlements: Sequence[Settlement]) -> None:
        """Find out which items are duplicates, of those of which it is not known yet."""

    async def flush(self) -> None:
        """See to it that what was recorded so far is kept."""

    async def close(self) -> None:
        """End, after the last sink has settled its last row."""

    def _end_reservation(self, key: bytes) -> None:
        left = self._pending.get(key, 0) - 1
        if left > 0:
            self._pending[key] = left
        else:
            self._pending.pop(key, None)


def key_of(fingerprint: str | bytes) -> bytes:
    """Return *fingerprint* as bytes."""
    return fingerprint.encode() if isinstance(fingerprint, str) else fingerprint
