"""When all that sinks and dumps held at some moment is stored or dumped."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from netspy_scrapy.receipts import Durable


class WhenDurable:
    """Calls functions once what sinks and dumps held is durable.

    For the job directory, which has to know of every request, and of no more than that. (Receipts
    know of few, and all about them.) What a dump has lost is waited for no more.
    """

    def __init__(self, durables: Callable[[], Iterable[Durable]]) -> None:
        self._durables = durables
        self._open: deque[tuple[list[tuple[Durable, int]], Callable[[], None]]] = deque()

    def call(self, function: Callable[[], None]) -> None:
        """Call *function* once all that has been taken so far is durable; at once if it is."""
        owed = [(one, one.accepted) for one in self._durables() if one.mark < one.accepted]
        self._open.append((owed, function))
        self.look()

    def look(self) -> None:
        """Call the functions whose time has come; to be called when a mark rose."""
        while self._open:
            owed, function = self._open[0]
            if any(one.mark < number and not _is_broken(one) for one, number in owed):
                break
            self._open.popleft()
            function()


def _is_broken(durable: Durable) -> bool:
    return bool(getattr(durable, "is_broken", False))
