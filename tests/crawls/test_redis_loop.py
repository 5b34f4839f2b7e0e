"""The event loop of a node goes on while Redis is slow, or hangs."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.crawling import MEMORY, PlainSpider, crawl, netspy_stats, rows
from tests.crawls.test_items import news
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from tests.servers.redis import Redis

SCHEDULER = "netspy_scrapy.redis.scheduler.RedisScheduler"

#: Seconds for which the loop may stand still: any wait for Redis takes longer here. (How long it
#: really does is measured in benchmarks/distributed.)
LIMIT = 0.15


class Probed(PlainSpider):
    """Notes for how long the loop stood still, from the first request on."""

    name = "probed"

    async def start(self) -> Any:
        self.stops: list[float] = []
        self.task = asyncio.ensure_future(self.probe())
        async for one in super().start():
            yield one
        await self.meanwhile()

    async def meanwhile(self) -> None:
        pass

    async def probe(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            self.stops.append(time.monotonic() - before - 0.005)

    def closed(self, reason: str) -> None:
        self.task.cancel()


class Family(Probed):
    """A page that yields many others, each of which gives an item."""

    def parse(self, response: Any) -> Any:
        for n in range(60):
            yield response.follow(f"/page/{n % 5}?n={n}", self.leaf)

    def leaf(self, response: Any) -> Any:
        yield news(response.url)


@pytest.mark.timed
def test_redis_is_slow(site: Any, redis_server: Redis) -> None:
    """Queue, request filter, item filter and pace: nobody waits for Redis on the event loop."""
    with Proxy(redis_server.port) as proxy:
        proxy.delay = 0.2
        settings = {
            **MEMORY, "SCHEDULER": SCHEDULER, "GLOBAL_THROTTLE": True, "ITEM_FILTER_ENABLE": True,
            "DEDUP_FILTER": "redis", "BUFFER_FLUSH_INTERVAL": 0.1,
            "REDIS_KEY_PREFIX": secrets.token_hex(4),  # also if the test is tried again
            "REDIS_URL": f"redis://127.0.0.1:{proxy.port}/0",
        }  # fmt: skip
        crawler = crawl(Family, settings, urls=(site.url("/page/1"),))

    assert len(rows(crawler)) == 60
    assert netspy_stats(crawler)["netspy/queue/done"] == 61
    assert "netspy/items/unfiltered_batches" not in netspy_stats(crawler)
    assert max(crawler.spider.stops) < LIMIT


@pytest.mark.timed
def test_redis_hangs(site: Any, own_redis: Any) -> None:
    """Not even until a time-out: the commands wait, and the loop does not."""
    server = own_redis()

    class Hangs(Family):
        async def meanwhile(self) -> None:
            await asyncio.sleep(0.3)
            server.freeze()
            self.stops.clear()
            await asyncio.sleep(1.5)
            self.worst = max(self.stops)
            server.thaw()

    settings = {
        **MEMORY, "SCHEDULER": SCHEDULER, "REDIS_URL": server.url,
        "REDIS_PARAMS": {"socket_timeout": 0.4},
    }  # fmt: skip
    crawler = crawl(Hangs, settings, urls=(site.url("/page/1"),))

    assert len(rows(crawler)) == 60
    assert crawler.spider.worst < LIMIT
