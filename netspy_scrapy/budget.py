"""A budget of bytes for all bodies at once. Pure: knows nothing of Scrapy, sockets or clocks.

A body reserves what it is about to hold, a step ahead of what it has. Where that does not fit, it
waits until others are done. One body at a time, the *first*, need not fit, so something always
moves: the sum of all others never passes the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: One part in so many of the budget is left to bodies that are no larger than their share of it.
_SMALL_PART = 4


class Body:
    """One body that is being received or opened. Its fields belong to the budget."""

    __slots__ = ("reserved", "resume", "wanted", "was_held")

    def __init__(self) -> None:
        self.reserved = 0
        """Bytes that are set aside for it."""
        self.wanted = 0
        """Bytes that it waits for; 0: it does not wait."""
        self.was_held = False
        """Whether it ever had to wait."""
        self.resume: Callable[[], None] | None = None
        """Called once what it waits for is reserved."""


class Budget:
    """Shares *limit* bytes out among bodies.

    A body up to ``limit / 4 / sharers`` bytes never waits for larger ones: as long as there are no
    more than *sharers* of them, a quarter of the limit has room for all.
    """

    def __init__(self, limit: int, sharers: int) -> None:
        self.limit = limit
        self.share = limit // _SMALL_PART // max(1, sharers)
        self.held = 0
        """Bytes reserved by all bodies."""
        self.first: Body | None = None
        """The body that need not fit."""
        self.waiting: dict[Body, None] = {}
        """Bodies that wait, in the order in which they began to."""

    def reserve(self, body: Body, size: int) -> bool:
        """Reserve *size* bytes in all for *body*; False: it has to wait, and is called back."""
        if body in self.waiting:
            body.wanted = max(body.wanted, size)
            return False
        if size <= body.reserved or self._fits(body, size):
            self._grant(body, max(size, body.reserved))
            return True
        if self.first is None:  # and so nobody waits
            self.first = body
            self._grant(body, size)
            return True
        body.wanted = size
        body.was_held = True
        self.waiting[body] = None
        return False

    def room(self, body: Body) -> int | None:
        """Return how many bytes *body* could have in all right now; None: any number."""
        if self.first is None or self._fits(body, 1 << 62):
            return None
        others = self._others(body)
        small = min(self.share, self.limit - others)
        return max(small, self._ceiling(self.share + 1) - others, body.reserved)

    def shrink(self, body: Body, size: int) -> None:
        """Give back what *body* has reserved beyond *size* bytes."""
        if body.reserved > size:
            self.held += size - body.reserved
            body.reserved = size
            self.serve()

    def close(self, body: Body) -> None:
        """Give back all that *body* has: it is done, or failed, or is not wanted any more."""
        self.waiting.pop(body, None)
        body.wanted = 0
        self.held -= body.reserved
        body.reserved = 0
        if self.first is body:
            self.first = None
        self.serve()

    def pass_on(self) -> bool:
        """Let who waits longest be the first, because this one does not move.

        False: the others would then hold more than the limit, or nobody waits.
        """
        heir = next(iter(self.waiting), None)
        if heir is None or self.held - heir.reserved > self.limit:
            return False
        self.first = heir
        self._go_on(heir)
        self.serve()
        return True

    def serve(self) -> None:
        """Let those go on that fit by now; if there is no first, who waited longest becomes it."""
        for body in list(self.waiting):
            if body in self.waiting and self._fits(body, body.wanted):
                self._go_on(body)
        if self.first is None and self.waiting:
            self.first = next(iter(self.waiting))
            self._go_on(self.first)
            self.serve()  # what it holds no longer counts

    def _go_on(self, body: Body) -> None:
        del self.waiting[body]
        size, body.wanted = body.wanted, 0
        self._grant(body, size)
        if body.resume is not None:
            body.resume()

    def _fits(self, body: Body, size: int) -> bool:
        if body is self.first or self.limit == 0:  # 0: dissolved
            return True
        return self._others(body) + size <= self._ceiling(size)

    def _ceiling(self, size: int) -> int:
        """Return how much may be held in all for a body of *size* bytes to grow."""
        return self.limit if size <= self.share else self.limit - self.limit // _SMALL_PART

    def _others(self, body: Body) -> int:
        """Return what all hold but *body* and the first."""
        first = 0 if self.first is None or self.first is body else self.first.reserved
        return self.held - body.reserved - first

    def _grant(self, body: Body, size: int) -> None:
        self.held += size - body.reserved
        body.reserved = size

    def dissolve(self) -> None:
        """Let all go on: the crawl is over."""
        self.limit = 0
        self.serve()
