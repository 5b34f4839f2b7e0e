"""How much time the parts of a crawl have once it was told to end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that a step of the end (Redis, a browser) has, however late it begins.
_LEAST = 1.0


class Stop:
    """The one clock of a stop.

    It is for those that wait for others at the end: together they keep to NETSPY_STOP_TIMEOUT and a
    second or two, in place of each having a time-out of its own that comes after all the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: float | None = None
        self.has_begun = False
        """Whether the crawl was told to end; one that is done by itself has all the time."""

    def begin(self, seconds: float) -> None:
        """Note that the crawl is to end within *seconds*; 0: it may take any time."""
        self.has_begun = True
        self._until = self._clock() + seconds if seconds > 0 else None

    def left(self, otherwise: float) -> float:
        """Return the seconds that a step of the end has; *otherwise*: where nothing presses."""
        if self._until is None:
            return otherwise
        return min(otherwise, max(_LEAST, self._until - self._clock()))
