"""When what came of a request is safe: its rows are stored or dumped."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Seconds between two looks at the sinks while something waits for them.
_LOOK = 0.2


class Keeper(Protocol):
    """Numbers what it takes, and knows up to which number all of it is durable."""

    accepted: int
    mark: int


class Receipts:
    """Tells when everything that the sinks and dumps held at some moment is stored or dumped.

    A request that is done may have rows in a batch, or a line of the request dump, that only
    memory holds. Each keeper numbers what it takes and raises its mark after each durable write,
    so it is enough to note the numbers; no row has to remember its request.
    """

    def __init__(self, keepers: Callable[[], Iterable[Keeper]]) -> None:
        self._keepers = keepers
        self._open: deque[tuple[list[tuple[Keeper, int]], Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def when_safe(self, function: Callable[[], None]) -> None:
        """Call *function* once all that has been taken so far is durable; at once if it is."""
        if self._open:
            self.settle()
        owed = [(one, one.accepted) for one in self._keepers() if one.mark < one.accepted]
        if not owed and not self._open:
            function()
            return
        self._open.append((owed, function))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def settle(self) -> None:
        """Call the functions whose time has come."""
        while self._open:
            owed, function = self._open[0]
            if any(one.mark < number for one, number in owed):
                break
            self._open.popleft()
            function()

    def close(self) -> None:
        """Look for the last time."""
        self.settle()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        self.settle()
        if self._open:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)
