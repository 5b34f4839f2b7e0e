"""What a node sends to the queue in Redis and gets from there, in batches, off the event loop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from netspy_scrapy.exceptions import ConfigError, RedisAwayError, RedisFailedError
from netspy_scrapy.redis.queue import Handed, Push, Settle
from netspy_scrapy.redis.recent import RecentPushes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy import Request

    from netspy_scrapy.processes.share import Share
    from netspy_scrapy.receipts import Receipt
    from netspy_scrapy.redis.connection import Connection
    from netspy_scrapy.redis.leases import Leases
    from netspy_scrapy.redis.queue import RedisQueue
    from netspy_scrapy.redis.settings import QueueSettings

logger = logging.getLogger(__name__)

#: What one turn sends at most.
_BATCH: Final = 1000
#: Seconds between two questions that brought nothing: more and more.
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.25
#: Seconds after a command that Redis refused (out of memory, a failover).
_REFUSED_PAUSE: Final = 1.0
#: Seconds in which a node that has work gathers what the next turn sends: a turn costs about 1 ms,
#: and callbacks that compute would have one for each page.
_GATHER: Final = 0.02


@dataclass(frozen=True, eq=False)
class Outgoing:
    """A request that is on its way into the queue, and whose it is."""

    push: Push
    request: Request
    receipt: Receipt | None


@dataclass(frozen=True)
class Question:
    """What a node wants."""

    wanted: int
    width: int
    unwanted: Sequence[str]
    share: Share
    places: int


class Side(Protocol):
    """The node, as the exchange sees it; called on the event loop."""

    @property
    def is_hungry(self) -> bool:
        """Whether the node has nothing to do before the next turn."""

    def question(self) -> Question | None:
        """Return what the node wants now; None: nothing."""

    def handed(self, answer: Handed) -> None:
        """Take in what came of a question."""

    def pushed(self, sent: Sequence[Outgoing], taken: Sequence[bool]) -> None:
        """Learn which requests the queue took; the filter knew the others."""

    def settled(self, sent: Sequence[Settle], still: Sequence[bool]) -> None:
        """Learn of which tasks the queue took note; others have the rest by now."""

    def refused(self, error: ConfigError) -> None:
        """Learn that the queue can never be used."""


class Exchange:
    """Carries requests, settled tasks and questions; one turn is one trip into a thread.

    What is on its way stays in memory until Redis confirmed it, so an outage costs time only. An
    answer that got lost is harmless: all may be sent again, and tasks that came with it are given
    back. A Redis that was restarted gets once more what it had confirmed right before, and one that
    is back empty gets all that this node holds.
    """

    def __init__(
        self,
        connection: Connection,
        queue: RedisQueue,
        leases: Leases,
        settings: QueueSettings,
        side: Side,
        come: Callable[[Any], None],
    ) -> None:
        """*come* is called, in a thread, before anything else is sent."""
        self._connection = connection
        self._queue = queue
        self._leases = leases
        self._settings = settings
        self._side = side
        self._come = come
        self._pushes: list[Outgoing] = []
        self._settles: list[Settle] = []
        self._rests: list[tuple[str, str, float]] = []
        self._asked = asyncio.Event()
        self._ask_from = 0.0
        self._pause = _FIRST_PAUSE
        self._task: asyncio.Task[None] | None = None
        self._missed_an_answer = False
        self._recent = RecentPushes()
        self._is_refused = False
        self._is_ended = False

    def start(self) -> None:
        """Begin to carry."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    # What the node gives -------------------------------------------------------------------------
    def push(self, one: Outgoing) -> None:
        """Take a request that is to be queued."""
        self._pushes.append(one)
        self._soon()

    def settle(self, one: Settle) -> None:
        """Take a task that the node is through with."""
        self._settles.append(one)
        self._soon()

    def rest(self, what: str, domain: str, number: float) -> None:
        """Take a domain's rest (``rest``, seconds) or width (``width``, tasks)."""
        self._rests.append((what, domain, number))
        self._asked.set()

    def ask(self) -> None:
        """Ask for tasks when it is time to."""
        self._asked.set()

    @property
    def unsent(self) -> int:
        """How many requests are not in the queue yet."""
        return len(self._pushes)

    @property
    def unsettled(self) -> int:
        """Of how many tasks the queue has not heard that they are done, or given back."""
        return len(self._settles)

    @property
    def is_busy(self) -> bool:
        """Whether something has not reached Redis yet."""
        return bool(self._pushes or self._settles)

    def take_unsent(self) -> list[Outgoing]:
        """Take out the requests that never reached the queue."""
        unsent, self._pushes = self._pushes, []
        return unsent

    async def end(self, seconds: float) -> None:
        """End after the turn that is under way, whose answer is taken in if it comes in time."""
        self._is_ended = True
        self._asked.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)
            if not self._task.done():
                self._task.cancel()
                self._missed_an_answer = True

    async def drain(self, seconds: float) -> bool:
        """Send all that is left, for *seconds* at most, after the end; return if that worked."""
        until = time.monotonic() + seconds
        is_told = False
        while self.is_busy and time.monotonic() < until:
            try:
                await asyncio.wait_for(self._turn(None), until - time.monotonic())
            except ConfigError:  # no waiting mends it, and it is told already
                break
            except (RedisAwayError, asyncio.TimeoutError):
                self._missed_an_answer = True
                await asyncio.sleep(0.1)
            except RedisFailedError as exc:
                if not is_told:
                    logger.warning("Redis refuses what is left of the queue: %s", exc)
                is_told = True
                await asyncio.sleep(0.1)
        return not self.is_busy

    # The task ------------------------------------------------------------------------------------
    def _soon(self) -> None:
        self._pause = _FIRST_PAUSE
        self._ask_from = 0.0
        self._asked.set()

    async def _run(self) -> None:
        while not self._is_ended:
            await self._until_asked()
            question = self._side.question() if time.monotonic() >= self._ask_from else None
            try:
                await self._turn(question)
            except RedisAwayError:
                self._missed_an_answer = True
                while self._connection.is_away and not self._is_ended:
                    await asyncio.sleep(0.05)
            except ConfigError as exc:
                self._side.refused(exc)
                return
            except RedisFailedError as exc:
                if not self._is_refused:
                    self._is_refused = True
                    logger.error("Redis refuses what the queue needs, so the node waits: %s", exc)  # noqa: TRY400
                await asyncio.sleep(_REFUSED_PAUSE)
            except Exception:
                # Whatever it is: without this task the crawl would hang.
                logger.exception("The exchange with the queue failed; it is tried again")
                await asyncio.sleep(_REFUSED_PAUSE)
            else:
                self._is_refused = False
                if not (self._side.is_hungry or self._is_ended):
                    await asyncio.sleep(_GATHER)

    async def _until_asked(self) -> None:
        """Wait until there is something to send, or it is time to ask."""
        while not (self.is_busy or self._rests or self._is_ended):
            wants = self._side.question() is not None
            seconds = max(0.0, self._ask_from - time.monotonic()) if wants else None
            if seconds == 0:
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._asked.wait(), seconds)
            self._asked.clear()
        self._asked.clear()

    async def _turn(self, question: Question | None) -> None:
        if self._missed_an_answer:
            await self._make_good()
            self._missed_an_answer = False
        pushes, settles, rests = self._pushes[:_BATCH], self._settles[:_BATCH], self._rests[:_BATCH]
        taken, still, answer = await self._connection.run(
            lambda client: self._send(client, pushes, settles, rests, question)
        )
        if answer is not None and answer.is_emptied:
            await self._restore()
            return
        self._recent.add([one.push for one in pushes])
        self._recent.remove([one.lease.id for one in settles if one.what == "done"])
        del self._pushes[: len(pushes)]
        del self._settles[: len(settles)]
        del self._rests[: len(rests)]
        if pushes:
            self._side.pushed(pushes, taken)
        if settles:
            self._side.settled(settles, still)
        if answer is not None:
            self._pace(answer)
            self._side.handed(answer)

    def _send(
        self,
        client: Any,
        pushes: list[Outgoing],
        settles: list[Settle],
        rests: list[tuple[str, str, float]],
        question: Question | None,
    ) -> tuple[list[bool], list[bool], Handed | None]:
        """Send one turn; runs in a thread."""
        queue = self._queue
        self._come(client)
        self._recent.learn_server(client)
        taken = queue.push(client, [one.push for one in pushes]) if pushes else []
        still = queue.settle(client, settles) if settles else []
        if still is None:
            return taken, [], Handed("", is_emptied=True)
        if rests:
            queue.rest(client, rests)
        if question is None:
            return taken, still, None
        answer = queue.pop(
            client,
            lease=self._settings.lease,
            wanted=question.wanted,
            width=question.width,
            allowed=self._settings.deliveries,
            next_epoch=secrets.token_hex(8),
            unwanted=question.unwanted,
            share=question.share,
            places=question.places,
        )
        if not answer.is_emptied:
            queue.epoch = answer.epoch
        return taken, still, answer

    async def _make_good(self) -> None:
        """After an outage: give back tasks whose answer got lost, and push again what may be."""
        held = [lease.id for lease in self._leases]

        def look(client: Any) -> list[Settle]:
            self._recent.push_again(client, self._queue.push)
            return self._queue.orphans(client, held)

        found = await self._connection.run(look)
        known = {one.lease.id for one in self._settles}
        self._settles += [one for one in found if one.lease.id not in known]

    def _pace(self, answer: Handed) -> None:
        """Decide when to ask next."""
        if answer.tasks or self.is_busy:  # what came up meanwhile may bring more
            self._pause = _FIRST_PAUSE
            self._ask_from = 0.0
            return
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        wait = self._pause if answer.wake is None else min(self._pause, answer.wake + 0.001)
        self._ask_from = time.monotonic() + wait

    async def _restore(self) -> None:
        """Give an emptied server what this node holds."""
        held = self._leases.all()
        known = {lease.id for lease in held}
        back = [one.lease for one in self._settles if one.what == "back" and one.lease.payload]
        held += [lease for lease in back if lease.id not in known]
        recent = self._recent.all()

        def restore(client: Any) -> tuple[str, int]:
            restored = self._queue.restore(client, held, self._settings.lease, secrets.token_hex(8))
            self._queue.push(client, recent)
            return restored

        epoch, count = await self._connection.run(restore)
        self._queue.epoch = epoch
        logger.error(
            "Redis has lost the queue %s: it was emptied, or restarted without its data. This node "
            "puts back the %d tasks that it holds (%d were not there yet), %d that it pushed a "
            "moment ago and %d that were on the way; other requests that waited in the queue, and "
            "what the request filter knew, are LOST. Keep Redis from that: appendonly yes, "
            "maxmemory-policy noeviction",
            self._queue.names.base, len(held), count, len(recent), len(self._pushes),
        )  # fmt: skip
