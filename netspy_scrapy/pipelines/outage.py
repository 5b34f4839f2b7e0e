"""What a batch does while the server of its sink is away: it waits, and is offered again."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 5.0


class Outage:
    """Knows since when a sink's server is away, and when rows are offered to it again.

    The delays between two attempts double from 0.5 s to 5 s, and are not shorter than the attempt
    took: a server that hangs does not hold up a full sink all the time. Rows wait for at least
    *wait* seconds since the server went away, and on while the sink has room for more and the crawl
    goes on. The first of them are dumped after one more attempt; a full sink that goes on dumping
    makes the attempts all the same, so that it notices a server that is back.
    """

    def __init__(self, name: str, wait: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._wait = wait
        self._clock = clock
        self._since: float | None = None
        """When the server was first found away; None: it is not away."""
        self._offered = 0.0
        """When rows were offered last."""
        self._last_try = 0.0
        """When that was found to have failed."""
        self._next_try = 0.0
        self._tries = 0
        self._closing = False
        self._owes_last_try = False
        self._woken = asyncio.Event()

    def begin(self, reason: str) -> bool:
        """Note that an attempt failed because of the server; tell whether an outage began."""
        now = self._clock()
        began = self._since is None
        if began:
            self._since = now
            self._tries = 0
            logger.warning(
                "%s: its server is away; rows wait, and are offered again: %s", self._name, reason
            )
        else:
            logger.debug("%s: its server is still away: %s", self._name, reason)
        took = 0.0 if began else now - self._offered
        self._last_try = now
        self._next_try = now + max(took, min(_FIRST_DELAY * 2.0**self._tries, _LONGEST_DELAY))
        self._tries += 1
        return began

    def end(self) -> None:
        """Note that the server answered."""
        if self._since is not None:
            seconds = self._clock() - self._since
            self._since = None
            logger.info("%s: its server is back after %.1f s", self._name, seconds)

    def close(self) -> None:
        """Note that the crawl closes: one more attempt is made, and *wait* counts from now on."""
        self._closing = True
        self._owes_last_try = self._since is not None
        self.wake()

    def wake(self) -> None:
        """Have :meth:`turn` look again whether the sink is full."""
        self._woken.set()

    async def turn(self, is_full: Callable[[], bool]) -> bool:
        """Wait until a batch may be offered; False: it has waited enough and is to be dumped."""
        while self._since is not None:
            now = self._offered = self._clock()
            if self._owes_last_try:
                self._owes_last_try = False
                return True
            until = self._next_try
            if now >= until:
                return True
            if self._closing or is_full():
                enough = self._since + self._wait
                if now >= enough:
                    return self._last_try < enough
                until = min(until, enough)
            self._woken.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._woken.wait(), until - now)
        return True
