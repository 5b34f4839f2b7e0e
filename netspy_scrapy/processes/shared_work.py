"""The work that the processes of a run share, in Redis, as the command sees it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from netspy_scrapy.dedup.redis_store import RUN_TTL, redis_store
from netspy_scrapy.processes import unfinished
from netspy_scrapy.redis.connection import Connection
from netspy_scrapy.redis.leases import IDLE_TTL
from netspy_scrapy.redis.options import RedisSettings
from netspy_scrapy.redis.queue import QueueNames, RedisQueue
from netspy_scrapy.redis.settings import QueueSettings, queue_base
from netspy_scrapy.redis.status import filter_keys
from netspy_scrapy.settings import DedupSettings
from netspy_scrapy.spiders.redis import Spider as SharingSpider

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

    from netspy_scrapy.processes.job import Node


class SharedWork:
    """What the command does in Redis beside its processes; all methods block for round trips.

    They raise :class:`~netspy_scrapy.exceptions.RedisFailedError`.
    """

    def __init__(
        self, settings: BaseSettings, spider: type[Spider], arguments: dict[str, str]
    ) -> None:
        self._connection = Connection(RedisSettings.from_settings(settings))
        self._dedup = DedupSettings.from_settings(settings)
        self._name = arguments.get("name") or spider.name
        queue = self._name
        if issubclass(spider, SharingSpider):
            queue = arguments.get("redis_key") or spider.redis_key or self._name
        template = QueueSettings.from_settings(settings).queue_key
        self.base = queue_base(self._connection, template, queue)
        """What the keys of the queue begin with."""
        self.run = ""
        """The name of the run, for what its processes share beside the queue."""

    @property
    def shown(self) -> str:
        """The server, without the password."""
        return self._connection.settings.shown

    def check(self) -> None:
        """Ask whether the server can be used; raises ConfigError if it never will be."""
        self._connection.check_here()

    def begin(self) -> None:
        """Begin a run, or go on with one that was stopped, or that others are at work on."""
        self._connection.call(self._begin)

    def _begin(self, client: Any) -> None:
        base = self.base
        seconds, micro = client.time()
        since = seconds * 1000 + micro / 1000 - IDLE_TTL * 1000
        goes_on = client.hlen(f"{base}:tasks") or client.zcount(f"{base}:nodes", since, "+inf")
        known = client.get(f"{base}:run") if goes_on else None
        self.run = known.decode() if known else secrets.token_hex(8)
        client.set(f"{base}:run", self.run, ex=RUN_TTL)
        if not goes_on and not self._dedup.run:
            # Those who come late are told for some seconds that the last run is over.
            client.delete(f"{base}:start")

    def abandon(self, node: Node) -> int:
        """Let the others have at once what a dead process held; return how many tasks."""
        queue = RedisQueue(QueueNames(node.base, start=node.start), None, "")
        return self._connection.call(lambda client: queue.abandon(client, node.name))

    def left(self) -> int:
        """Return how many tasks are in the queue."""
        return int(self._connection.call(lambda client: client.hlen(f"{self.base}:tasks")))

    def take_left(self) -> list[bytes]:
        """Take all tasks out of the queue; return their payloads."""
        return self._connection.call(lambda client: unfinished.take(client, self.base))

    def end(self) -> None:
        """Forget what only this run knew."""
        dedup = self._dedup
        keys: list[str] = [f"{self.base}:run"]
        if dedup.items and not dedup.shared:
            store = redis_store(dedup.of_run(self.run), self._connection, self._name, "items")
            keys += filter_keys(store.key)
        self._connection.call(lambda client: client.delete(*keys))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
