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


#: Seconds in which the engine may take a request of the queue, when it is the queue's turn.
_TURN = 0.002


class DirectDownloads:
    """Lets downloads that no queue hands out keep to their domain's pace.

    Scrapy counts such a request as being downloaded from the start. Here it first stands in its
    domain's line, without a download slot, until the domain may be asked; then it counts as in
    flight like one of the queue. One that another download waits for (a robots.txt, a token) keeps
    to rests and delays, but does not wait for a free place, which that other may hold.

    Line and queue of a domain take turns: all that stood in the line go, then one of the queue. So
    the files of a page go before the next page, and code that downloads in a loop does not keep
    the queue waiting for ever. An engine that takes nothing from the queue holds up no line: it may
    be full of callbacks that wait for the line.
    """

    def __init__(self, politeness: Politeness, crawler: Crawler) -> None:
        self._politeness = politeness
        self._registry = politeness.registry
        self._crawler = crawler
        self._lines: dict[str, deque[_Turn]] = {}
        self._rounds: dict[str, int] = {}
        """By domain, how many of the line still go before the queue. Not there: the queue has had
        its turn since, or there was none to have it."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._yields: dict[str, asyncio.TimerHandle] = {}
        """Domains whose queue has its turn now."""
        self._pauses: set[asyncio.Future[None]] = set()
        self._waiting = 0

    def __len__(self) -> int:
        """Return how many requests wait."""
        return self._waiting

    def holds(self, domain: str) -> bool:
        """Tell whether requests in line go before the queue of *domain*."""
        return domain in self._lines and self._rounds.get(domain, 1) > 0

    def admit(self, request: Request) -> Coroutine[Any, Any, None] | None:
        """Let *request* start now, or return what has to be awaited before."""
        politeness = self._politeness
        politeness.assign(request)
        origin = politeness.unknown_robots(request)
        if origin is None and metakeys.DELAY not in request.meta:
            state = politeness.state_of(request)
            nested = _is_nested(request)
            if (
                state.name not in self._lines
                and self._may_go(state, self._registry.clock(), nested=nested)
                and (nested or not self._is_turn_of_queue(state.name))
            ):
                self._start(request, state, nested=nested)
                return None
        return self._wait(request, origin)

    def serve(self, state: DomainState, *, asked: bool = False) -> None:
        """Let those of the line go that may go now. *asked*: the queue has just had its chance."""
        name = state.name
        line = self._lines.get(name)
        if line is None:
            return
        now = self._registry.clock()
        while line and self._may_go(state, now, nested=line[0].nested):
            turn = line[0]
            if turn.ready.done():  # it was given up
                line.popleft()
                continue
            if not turn.nested and not asked and self._is_turn_of_queue(name):
                self._yield(state)
                return
            line.popleft()
            asked = False
            self._start(turn.request, state, nested=turn.nested)
            turn.ready.set_result(None)
        if not line:
            del self._lines[name]
            self._politeness.reconsider(name)
        elif state.ready_at > now:
            self._wake_at(state)

    def queue_started(self, domain: str) -> None:
        """Note that the queue of *domain* has had its turn."""
        if domain in self._rounds:
            line = self._lines.get(domain)
            if line:
                self._rounds[domain] = len(line)
            else:
                del self._rounds[domain]

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
    def _start(self, request: Request, state: DomainState, *, nested: bool) -> None:
        self._politeness.start_direct(request, state)
        name = state.name
        if nested:
            return
        if not self._politeness.has_queued(name):
            self._rounds.pop(name, None)
            return
        # The first of a round is gone already.
        left = self._rounds.get(name, 1 + len(self._lines.get(name, ())))
        self._rounds[name] = max(0, left - 1)
        if left == 1:
            self._politeness.reconsider(name)

    def _is_turn_of_queue(self, name: str) -> bool:
        return self._rounds.get(name) == 0 and self._politeness.may_take_turn(name)

    def _yield(self, state: DomainState) -> None:
        """Let the engine look at the queue, and only then go on with the line."""
        if state.name not in self._yields:
            self._politeness.reconsider(state.name)
            self._yields[state.name] = asyncio.get_running_loop().call_later(
                _TURN, self._yielded, state
            )

    def _yielded(self, state: DomainState) -> None:
        self._yields.pop(state.name, None)
        self.serve(state, asked=True)

    async def _wait(self, request: Request, origin: str | None) -> None:
        nested = _is_nested(request)
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

    def _may_go(self, state: DomainState, now: float, *, nested: bool) -> bool:
        if state.ready_at > now or (state.is_full and not nested):
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
        for timer in (self._timers.pop(name, None), self._yields.pop(name, None)):
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


def _is_nested(request: Request) -> bool:
    """Tell whether another download may wait for *request*, and hold a place meanwhile."""
    return metakeys.ROBOTS in request.meta or _scrapy.inside_a_download.get()


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)


def _cut_off() -> CutOffError:
    return CutOffError("the crawl is being stopped")
