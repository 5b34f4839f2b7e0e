"""One pace for all nodes: each request's place in its domain's line is taken in Redis."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from netspy_scrapy.exceptions import RedisAwayError, RedisFailedError
from netspy_scrapy.redis.connection import script

if TYPE_CHECKING:
    from netspy_scrapy.domains import DomainRegistry, DomainState
    from netspy_scrapy.redis.connection import Connection

logger = logging.getLogger(__name__)

#: Seconds by which a place may be used late, or the gap to the next node's request gets too short.
#: Twice as many after each place that was missed, so that a busy process has its turn too.
_LATE: Final = 0.01
_MOST_MISSED: Final = 6
#: Seconds for which a domain without a delay is free to be asked once that was said.
_FREE: Final = 0.25
#: Seconds after which Redis is asked again, where it refused (no such command, out of memory).
_REFUSED: Final = 5.0


@dataclass(frozen=True)
class _Place:
    """When a request of a domain may go."""

    begins: float
    ends: float
    """Times of the registry's clock."""
    gap: float
    """The delay that follows it; 0: any number of requests may go."""


class Throttle:
    """Has the nodes keep DOWNLOAD_DELAY, Crawl-delay and rests together (GLOBAL_THROTTLE).

    Before a request of a domain may go, its place is taken in Redis: one question tells how long
    it has to wait, on Redis' clock, and many domains are asked about at once. Jitter only
    lengthens a delay. Rests and open circuits of one node are kept by all.

    While Redis is away each node keeps to the limits by itself, as without the setting.
    """

    def __init__(self, connection: Connection, registry: DomainRegistry) -> None:
        self._connection = connection
        self._registry = registry
        self._places: dict[str, _Place] = {}
        self._missed: dict[str, int] = {}
        """How many places in a row a domain has let pass."""
        self._wanted: dict[str, DomainState] = {}
        self._rests: list[tuple[str, float]] = []
        self._task: asyncio.Task[None] | None = None
        self._alone_until = 0.0
        self._is_alone = False
        self._script: Any = None
        self._text = script("throttle")

    async def check(self) -> None:
        """See whether Redis can be used; raises ConfigError if it never will be."""
        try:
            await self._connection.check()
        except RedisAwayError as exc:
            logger.debug("GLOBAL_THROTTLE: %s", exc)

    def allows(self, state: DomainState) -> bool:
        """Tell whether a request of the domain may go now; else it is told when that changes."""
        now = self._registry.clock()
        if self._is_on_its_own(now):
            return True
        place = self._places.get(state.name)
        if place is not None and place.begins <= now <= place.ends:
            return True
        if place is None or now > place.ends:
            if place is not None and place.gap > 0:
                del self._places[state.name]
                missed = self._missed.get(state.name, 0)
                self._missed[state.name] = min(missed + 1, _MOST_MISSED)
            self._wanted[state.name] = state
            self._start()
        return False

    def started(self, state: DomainState) -> None:
        """Note that the domain's place is used; one without a delay is good for more."""
        place = self._places.get(state.name)
        if place is not None and place.gap > 0:
            del self._places[state.name]
            self._missed.pop(state.name, None)

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await self._task

    # What happens to domains ---------------------------------------------------------------------
    def domain_rested(self, state: DomainState, seconds: float) -> None:
        """Let the other nodes keep the rest too."""
        self._rests.append((state.name, seconds))
        self._start()

    def circuit_opened(self, state: DomainState, failures: int) -> None:
        """Nothing to do: a rest follows."""

    def domain_changed(self, state: DomainState) -> None:
        """Nothing to do."""

    # Redis ---------------------------------------------------------------------------------------
    def _is_on_its_own(self, now: float) -> bool:
        alone = self._connection.is_away or now < self._alone_until
        if alone and not self._is_alone:
            logger.warning(
                "GLOBAL_THROTTLE: Redis does not answer; until it does this process keeps to its "
                "delays and rests by itself"
            )
            self._places.clear()
        elif self._is_alone and not alone:
            logger.info("GLOBAL_THROTTLE: all nodes keep to the delays together again")
        self._is_alone = alone
        return alone

    def _start(self) -> None:
        # It begins in the next turn of the loop: one question for all domains of this one.
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._ask_all())

    async def _ask_all(self) -> None:
        try:
            while self._wanted or self._rests:
                wanted, self._wanted = self._wanted, {}
                rests, self._rests = self._rests, []
                await self._ask(list(wanted.values()), rests)
        finally:
            self._task = None

    async def _ask(self, states: list[DomainState], rests: list[tuple[str, float]]) -> None:
        arguments: list[Any] = []
        for name, seconds in rests:
            arguments += ("rest", name, round(seconds * 1000))
        gaps = [self._registry.shared_gap(state) for state in states]
        for state, gap in zip(states, gaps, strict=True):
            arguments += ("take", state.name, f"{gap * 1000:.3f}")
        try:
            waits = await self._connection.run(lambda client: self._call(client, arguments))
        except RedisFailedError as exc:
            logger.debug("GLOBAL_THROTTLE: %s", exc)
            if not self._connection.is_away:
                self._alone_until = self._registry.clock() + _REFUSED
            self._is_on_its_own(self._registry.clock())
        else:
            now = self._registry.clock()
            for state, gap, wait in zip(states, gaps, waits, strict=True):
                begins = now + wait / 1e6
                late = _LATE * 2 ** self._missed.get(state.name, 0)
                ends = begins + (late if gap else _FREE)
                self._places[state.name] = _Place(begins, ends, gap)
                self._registry.place(state, begins, gap or None)
            self._forget(now)
        for state in states:
            self._registry.changed(state)

    def _call(self, client: Any, arguments: list[Any]) -> Any:
        if self._script is None:
            self._script = client.register_script(self._text)
        return self._script(keys=[self._connection.key("throttle")], args=arguments, client=client)

    def _forget(self, now: float) -> None:
        """Drop the places that nobody used."""
        if len(self._places) > 2 * len(self._registry) + 16:
            self._places = {name: one for name, one in self._places.items() if one.ends >= now}
            self._missed = {name: n for name, n in self._missed.items() if name in self._places}
