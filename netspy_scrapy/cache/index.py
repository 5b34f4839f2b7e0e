"""Which pages the cache may have, without asking the disk."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Index:
    """The time of the newest entry of each key.

    What was there at the start stands in two sorted arrays, 16 bytes an entry (a dict takes six
    times as much), what came since in a dict.
    """

    def __init__(self, rows: Iterable[tuple[int, float]] = ()) -> None:
        """Take in pairs of key and time, sorted by key."""
        self._keys = array("q")
        self._times = array("d")
        for key, stored in rows:
            self._keys.append(key)
            self._times.append(stored)
        self._since: dict[int, float | None] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def times(self) -> Iterable[float]:
        """Return the times of what was there at the start."""
        return self._times

    def stored(self, key: int) -> float | None:
        """Return when the newest entry of *key* was stored; None: there is none."""
        if key in self._since:
            return self._since[key]
        place = bisect_left(self._keys, key)
        if place < len(self._keys) and self._keys[place] == key:
            return self._times[place]
        return None

    def add(self, key: int, stored: float) -> None:
        """Note an entry."""
        self._since[key] = stored

    def discard(self, key: int) -> None:
        """Note that *key* has no entry any more."""
        if self.stored(key) is not None:
            self._since[key] = None
