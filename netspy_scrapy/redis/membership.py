"""How a node comes to a queue, shows that it lives, and leaves."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from netspy_scrapy._scrapy.reactor import last_end, note_end, process_start
from netspy_scrapy.dedup.redis_store import RUN_TTL
from netspy_scrapy.exceptions import ConfigError, RedisAwayError, RedisFailedError
from netspy_scrapy.redis.leases import IDLE_TTL, Lease, Leases, Renewal
from netspy_scrapy.redis.settings import LEGACY_QUEUE, rendered
from netspy_scrapy.redis.status import purge
from netspy_scrapy.settings import DedupSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider

    from netspy_scrapy.redis.connection import Connection
    from netspy_scrapy.redis.queue import RedisQueue
    from netspy_scrapy.redis.request_filter import RedisRequestFilter
    from netspy_scrapy.redis.settings import QueueSettings

logger = logging.getLogger(__name__)

#: Seconds for which nodes that were on their way are told that the run is over.
_TOLD: Final = 30.0
#: Seconds that a process may take until its crawl begins.
_STARTING: Final = 60.0


class Membership:
    """One node of a queue.

    The first node of all empties what a dead run left (the request filter, if it went with the
    run); the last one ends the run. Which node yields the first requests is decided here too.
    """

    def __init__(
        self,
        connection: Connection,
        queue: RedisQueue,
        leases: Leases,
        settings: QueueSettings,
        request_filter: RedisRequestFilter | None,
        spider: Spider,
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._leases = leases
        self._settings = settings
        self._filter = request_filter
        self._spider = spider
        self._forgets = request_filter is not None and request_filter.ends_with_run
        self._run = DedupSettings.from_settings(spider.crawler.settings).run
        self._renewal: Renewal | None = None
        self._has_come = False
        now, free = time.monotonic(), max(process_start(), last_end())
        self._began = free if now - free < _STARTING else now
        """Since when this node is on its way: its process, unless that has run for long already."""

    # Coming --------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Come to the queue; if Redis is away, that is done at the first contact.

        Raises ConfigError if the server or the queue can never be used.
        """
        try:
            await self._connection.check()
            await self._connection.run(self.come)
        except RedisAwayError as exc:
            logger.warning("%s: the node waits for it", exc, extra={"spider": self._spider})

    def come(self, client: Any) -> None:
        """Come to the queue, once; runs in a thread. Raises ConfigError if it cannot be used."""
        if self._has_come:
            return
        template = self._settings.queue_key or LEGACY_QUEUE
        old = rendered("SCHEDULER_QUEUE_KEY", template, self._spider.name)
        if client.type(old) in (b"list", b"zset"):
            raise ConfigError(
                "SCHEDULER_QUEUE_KEY", old,
                "a key without a queue of scrapy-redis: its pickled requests are not read. Let "
                "scrapy-redis' own scheduler finish them, or delete the key (redis-cli DEL "
                f"{old}), or set another SCHEDULER_QUEUE_KEY",
            )  # fmt: skip
        self._check_filter(client)
        others, left, late = self._queue.begin(
            client, forget=self._forgets, named=bool(self._run), node_ttl=IDLE_TTL, age=self._age()
        )
        if self._settings.flush and others:
            logger.warning("SCHEDULER_FLUSH_ON_START: not done, %d other nodes are at work", others,
                           extra={"spider": self._spider})  # fmt: skip
        elif self._settings.flush:
            key = self._filter.store.key if self._filter is not None else ""
            purge(client, self._queue.names, key)
            left = 0
        elif late:
            logger.info("The run was over before this node had come: what it fetched is known",
                        extra={"spider": self._spider})  # fmt: skip
        logger.info("Node %s: %d tasks in %s, %d other nodes", self._queue.node, left,
                    self._queue.names.base, others, extra={"spider": self._spider})  # fmt: skip
        self._has_come = True

    def _check_filter(self, client: Any) -> None:
        """Refuse a filter whose key holds something else; each push would be refused later on."""
        if self._filter is None:
            return
        store = self._filter.store
        kind = client.type(store.key).decode()
        if kind not in ("none", store.kind):
            raise ConfigError(
                "SCHEDULER_DUPEFILTER_KEY", store.key,
                f"a key without data, or with a request filter of ours (a {store.kind}), and this "
                f"is a {kind}: DEDUP_FILTER was another, or it is somebody else's",
            )  # fmt: skip

    def _age(self) -> float:
        """Return for how many seconds this node has been on its way.

        One that was started before a run was over, and came after, does not begin it anew. A run
        with a RUN_ID knows by its name.
        """
        return 0.0 if self._run else time.monotonic() - self._began

    def live(self, on_lost: Callable[[list[Lease]], None]) -> None:
        """Show that the node lives from now on; *on_lost* gets leases that it has lost."""
        loop = asyncio.get_running_loop()

        def lost(leases: list[Lease]) -> None:
            loop.call_soon_threadsafe(on_lost, leases)

        self._renewal = Renewal(
            self._connection, self._queue, self._leases, self._settings.lease, lost, self._about
        )
        self._renewal.start()

    def _about(self) -> str:
        """Return what this node says of itself."""
        return json.dumps(
            {
                "host": socket.gethostname(), "pid": os.getpid(), "held": len(self._leases),
                "unacknowledged": self._leases.started,
            }
        )  # fmt: skip

    # The first requests --------------------------------------------------------------------------
    async def first_requests(self, what: str, seconds: float) -> str:
        """Claim the first requests, or be done with them; see :meth:`RedisQueue.first`."""
        age = self._age()
        return await self._connection.run(
            lambda client: self._queue.first(client, what, seconds, age)
        )

    def keep_claim(self, seconds: float) -> Callable[[], None]:
        """Renew the claim of the first requests from now on; return what ends that."""

        def renew() -> None:
            self._connection.call(lambda client: self._queue.first(client, "claim", seconds))

        assert self._renewal is not None
        also = self._renewal.also
        also.append(renew)
        return lambda: also.remove(renew)

    # Leaving -------------------------------------------------------------------------------------
    async def leave(self, reason: str) -> None:
        """Leave the queue; if nothing is left in it, and nobody else at work, the run is over."""
        if self._renewal is not None:
            self._renewal.end()
        try:
            over, left = await self._connection.run(
                lambda client: self._queue.leave(
                    client, is_done=reason == "finished", forget=self._forgets,
                    node_ttl=IDLE_TTL, told=_TOLD, named=RUN_TTL if self._run else 0.0,
                )
            )  # fmt: skip
        except RedisFailedError as exc:
            logger.warning("The queue was not told that this node leaves: %s", exc)
            return
        finally:
            note_end()
        base = self._queue.names.base
        if over:
            logger.info("The run is over: nothing is left in %s", base)
        else:
            logger.info("This node leaves %s, %d others are at work", base, left)
