"""Downloads past the queue: ``engine.download_async``, as media pipelines and user code use it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.exceptions import CutOffError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy import Request
    from scrapy.crawler import Crawler

    from netspy_scrapy.domains import DomainState
    from netspy_scrapy.politeness import Politeness


class DirectDownloads:
    """Lets downloads that no queue hands out keep to their domain's pace.

    Scrapy counts such a request as being downloaded from the start. Here it first stands in its
    domain's line, without a download slot, until the domain may be asked; then it counts as in
    flight like one of the queue, before which it goes. One that another download waits for (a
    robots.txt, a token) keeps to rests and delays, but does not wait for a free place, which that
    other may hold.
    """

    def __init__(self, politeness: Politeness, crawler: Crawler) -> None:
        self._politeness = politeness
        self._registry = politeness.registry
        self._crawler = crawler
        self._lines: dict[str, deque[_Turn]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._pauses: set[asyncio.Future[None]] = set()
        self._waiting = 0

    def __len__(self) -> int:
        """Return how many requests wait."""
        return self._waiting

    def __contains__(self, domain: str) -> bool:
        """Tell whether requests of *domain* stand in line."""
        return domain in self._lines

    def admit(self, request: Request) -> Coroutine[Any, Any, None] | None:
        """Let *request* start now, or return what has to be awaited before."""
        politeness = self._politeness
        politeness.assign(request)
        origin = politeness.unknown_robots(request)
        if origin is None and metakeys.DELAY not in request.meta:
            state = politeness.state_of(request)
            nested = _scrapy.inside_a_download.get()
            if state.name not in self._lines and self._may_go(state, nested=nested):
                politeness.start_direct(request, state)
                return None
        return self._wait(request, origin)

    def serve(self, state: DomainState) -> None:
        """Let those of the line go that may go now."""
        line = self._lines.get(state.name)
        if line is None:
            return
        while line and self._may_go(state, nested=line[0].nested):
            turn = line.popleft()
            if not turn.ready.done():
                self._politeness.start_direct(turn.request, state)
                turn.ready.set_result(None)
        if not line:
            del self._lines[state.name]
            self._politeness.reconsider(state.name)
        elif state.ready_at > self._registry.clock():
            self._wake_at(state)

    def closing(self) -> None:
        """Give up those that wait for a rest: the crawl does not wait for it."""
        now = self._registry.clock()
        for name in list(self._lines):
            if self._registry.get(name).rest_until > now:
                self._give_up(name)
        self._end_pauses()

    def cut(self) -> None:
        """Give up all that wait."""
        for name in list(self._lines):
            self._give_up(name)
        self._end_pauses()

    # Own methods ---------------------------------------------------------------------------------
    async def _wait(self, request: Request, origin: str | None) -> None:
        nested = _scrapy.inside_a_download.get()
        self._waiting += 1
        try:
            seconds = request.meta.pop(metakeys.DELAY, 0.0)
            if seconds > 0:
                await self._pause(seconds)
            if origin is not None:
                await self._politeness.fetch_robots(origin, _scrapy.download)
            await self._stand_in_line(_Turn(request, nested=nested))
        finally:
            self._waiting -= 1

    async def _pause(self, seconds: float) -> None:
        if _scrapy.is_closing(self._crawler):
            raise _cut_off()
        loop = asyncio.get_running_loop()
        pause: asyncio.Future[None] = loop.create_future()
        self._pauses.add(pause)
        timer = loop.call_later(seconds, _end, pause)
        try:
            await pause
        finally:
            timer.cancel()
            self._pauses.discard(pause)

    async def _stand_in_line(self, turn: _Turn) -> None:
        state = self._politeness.state_of(turn.request)
        rests = state.rest_until > self._registry.clock()
        if self._politeness.is_cut or (rests and _scrapy.is_closing(self._crawler)):
            raise _cut_off()
        line = self._lines.setdefault(state.name, deque())
        if turn.nested:  # those before it may wait for the place that the outer one holds
            line.appendleft(turn)
        else:
            line.append(turn)
        self.serve(state)
        await turn.ready

    def _may_go(self, state: DomainState, *, nested: bool) -> bool:
        if state.is_full and not nested:
            return False
        if state.ready_at > self._registry.clock():
            return False
        return self._politeness.has_place(state)

    def _wake_at(self, state: DomainState) -> None:
        """Serve the line of a domain again once its rest or delay is over."""
        timer = self._timers.pop(state.name, None)
        if timer is not None:
            timer.cancel()
        seconds = max(0.0, state.ready_at - self._registry.clock())
        self._timers[state.name] = asyncio.get_running_loop().call_later(
            seconds, self._woken, state
        )

    def _woken(self, state: DomainState) -> None:
        self._timers.pop(state.name, None)
        self.serve(state)

    def _give_up(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        for turn in self._lines.pop(name):
            if not turn.ready.done():
                turn.ready.set_exception(_cut_off())

    def _end_pauses(self) -> None:
        for pause in list(self._pauses):
            if not pause.done():
                pause.set_exception(_cut_off())


class _Turn:
    """A request in its domain's line."""

    def __init__(self, request: Request, *, nested: bool) -> None:
        self.request = request
        self.nested = nested
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)


def _cut_off() -> CutOffError:
    return CutOffError("the crawl is being stopped")
