"""The item filter in a real Redis, in real crawls: away, frozen, emptied, shared."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

import netspy_scrapy as mw
from netspy_scrapy.exceptions import ConfigError
from tests.crawling import MEMORY, MemorySink, PlainSpider, crawl, netspy_stats, rows
from tests.crawls.test_items import NewsItem, PriceItem, SecondSink, news

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.redis import Redis

QUICK = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}
WARNING = "The item filter is down"
NINE = [(table, n) for table in ("a", "b", "c") for n in range(3)]


class Pages(PlainSpider):
    """Yields the items of one page after the other."""

    name = "news"
    batches: Any = ()
    between: Any = None

    async def start(self) -> Any:
        for number, items in enumerate(self.batches):
            if self.between is not None:
                await asyncio.sleep(0)
                self.between(number)
            for item in items:
                yield item
            await asyncio.sleep(0.15)  # the batch is written meanwhile


def run(server: Redis, *pages: Any, between: Any = None, **settings: Any) -> Any:
    """Crawl *pages*, with the item filter in *server*."""
    return crawl(
        Pages,
        {
            **MEMORY,
            "ITEM_FILTER_ENABLE": True,
            "DEDUP_FILTER": "redis",
            "REDIS_URL": server.url,
            "REDIS_PARAMS": QUICK,
            "BUFFER_FLUSH_INTERVAL": 0.02,
            **settings,
        },
        batches=pages,
        between=between,
    )


def numbers(crawler: Any) -> list[Any]:
    return [row[1].get("n", row[1]["url"]) for row in rows(crawler)]


def many(*numbers: int) -> list[Any]:
    return [news(f"u{n}", n=n) for n in numbers]


def nine() -> list[Any]:
    """Nine rows of three tables."""
    found = []
    for table, n in NINE:
        item = news(f"{table}{n}", n=n)
        item.table_name = table
        found.append(item)
    return found


@pytest.fixture
def server(own_redis: Callable[..., Redis]) -> Redis:
    """A Redis that a test may kill."""
    return own_redis()


@pytest.fixture(autouse=True)
def _in_a_folder(folder: Any) -> None:
    """Dump files go to a folder of the test's own."""


@pytest.mark.parametrize("kind", ["redis", "redis-set"])
def test_the_next_run_knows_what_was_stored(server: Redis, kind: str) -> None:
    """A second crawl, of a process that knows nothing, stores only what is new."""
    first = run(server, many(1, 2, 2), many(1, 3), DEDUP_FILTER=kind)
    second = run(server, many(2, 3, 4), many(4, 1, 5), DEDUP_FILTER=kind)

    assert numbers(first) == [1, 2, 3]
    assert numbers(second) == [4, 5]
    assert netspy_stats(first) == {
        "netspy/items": 5,
        "netspy/items/duplicate": 2,
        "netspy/rows/MemorySink/batches": 2,
        "netspy/rows/MemorySink/stored": 3,
    }
    assert netspy_stats(second) == {
        "netspy/items": 6,
        "netspy/items/duplicate": 4,
        "netspy/rows/MemorySink/batches": 2,
        "netspy/rows/MemorySink/stored": 2,
    }


def test_netspy_spiders_too(server: Redis) -> None:
    """A netspy spider needs no more than DEDUP_FILTER and REDIS_URL."""

    class Starts(mw.AirSpider):
        __custom_setting__ = {
            "ITEM_PIPELINES": [MemorySink], "DEDUP_FILTER": "redis", "REDIS_URL": server.url
        }  # fmt: skip

        def start_requests(self) -> Any:
            yield mw.Request("data:,x")

        def parse(self, request: Any, response: Any) -> Any:
            yield from many(1, 2)

    assert [numbers(crawl(Starts)) for _ in range(2)] == [[1, 2], []]


def test_updates_and_dicts(server: Redis) -> None:
    """An update passes when a value has changed; dicts always pass."""

    def price(value: int) -> PriceItem:
        item = PriceItem()
        item.sku, item.price = "s", value
        return item

    def prices(*values: int) -> list[Any]:
        return [*(price(value) for value in values), {"n": 1}]

    run(server, prices(1))
    crawler = run(server, prices(1, 2))

    assert [row[1] for row in rows(crawler)] == [{"sku": "s", "price": 2}, {"n": 1}]


def test_a_row_that_was_dumped_may_come_again(server: Redis) -> None:
    """A fingerprint is recorded when every sink has stored the row, and no sooner."""
    both = {"ITEM_PIPELINES": {MemorySink: 300, SecondSink: 310}}
    first = [news("good"), news("bad", bad=1)]
    run(server, first, **both)
    crawler = run(server, [news("good"), news("bad", bad=0)], **both)

    assert [row[1]["url"] for row in rows(crawler)] == ["bad"]
    assert [row["url"] for row in crawler._second] == ["bad"]
    assert netspy_stats(crawler)["netspy/items/duplicate"] == 1


def test_every_sink_is_told_the_same(server: Redis) -> None:
    """Of two sinks with batches of their own, both skip an item or none does."""

    class Slow(SecondSink):
        def save_items(self, table: str, items: list[dict[str, Any]]) -> Any:
            time.sleep(0.05)
            return super().save_items(table, items)

    both = {"ITEM_PIPELINES": {MemorySink: 300, Slow: 310}, "ITEM_MAX_CACHED_COUNT": 3}
    run(server, many(*range(0, 40, 3)), **both)
    crawler = run(server, many(*range(40)), **both)

    fresh = [n for n in range(40) if n % 3]
    assert numbers(crawler) == fresh
    assert [row["n"] for row in crawler._second] == fresh
    assert netspy_stats(crawler)["netspy/items/duplicate"] == 14


def test_a_run_of_its_own(server: Redis) -> None:
    """With a RUN_ID the filter is the run's; DEDUP_SCOPE = "spider" brings all runs together."""
    stored = [
        numbers(run(server, many(1), **settings))
        for settings in (
            {"RUN_ID": "monday"},
            {"RUN_ID": "monday"},
            {"RUN_ID": "tuesday"},
            {"RUN_ID": "monday", "DEDUP_SCOPE": "spider"},
            {"RUN_ID": "tuesday", "DEDUP_SCOPE": "spider"},
        )
    ]

    assert stored == [[1], [], [1], [1], []]


def test_a_batch_costs_one_round_trip(server: Redis) -> None:
    """300 rows of three tables are looked up, and recorded, by a few commands."""
    import redis

    items = []
    for n in range(300):
        item = news(f"u{n}", n=n)
        item.table_name = f"t{n % 3}"
        items.append(item)
    with redis.Redis.from_url(server.url) as client:
        before = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
        crawler = run(server, items, BUFFER_FLUSH_INTERVAL=1)
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before

    assert len(rows(crawler)) == 300
    # at the start (twice: the script had to be sent), two for 300 keys, and the same to record
    assert calls <= 7


# Redis in trouble --------------------------------------------------------------------------------
def test_nine_rows_of_three_groups_when_the_filter_cannot_be_asked(
    server: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis dies before the batch: all nine rows are stored, and one warning says so."""
    run(server, nine()[:4])
    caplog.clear()
    crawler = run(server, [], nine(), between=lambda n: server.kill() if n == 1 else None)

    assert [(table, row["n"]) for table, row in rows(crawler)] == NINE
    stats = netspy_stats(crawler)
    assert stats["netspy/items/unfiltered_batches"] == 1
    assert stats["netspy/filter/degraded"] == 9
    assert stats["netspy/rows/MemorySink/stored"] == 9
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert sum(WARNING in one for one in said) == 1
    assert "a batch of 9 items is stored without looking for duplicates" in str(said)
    assert "the fingerprints of 9 stored items could not be recorded" in str(said).lower()
    summary = next(one.getMessage() for one in caplog.records if "Run summary" in one.getMessage())
    assert "! the item filter was down: 1 batch may hold rows that were stored before" in summary


def test_nine_rows_of_three_groups_when_nothing_can_be_recorded(server: Redis) -> None:
    """Redis dies while the first group is written: all three groups are stored."""

    class Kills(MemorySink):
        def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
            if table == "a":
                server.kill()
            return super().save_items(table, items)

    crawler = run(server, nine(), ITEM_PIPELINES={Kills: 300})

    assert [(table, row["n"]) for table, row in rows(crawler)] == NINE
    stats = netspy_stats(crawler)
    assert "netspy/items/unfiltered_batches" not in stats
    assert stats["netspy/filter/degraded"] == 9


@pytest.mark.timed
def test_killed_in_the_middle_and_back(server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """Redis is killed and comes back (empty): no row is missing, no twin of this run is stored."""

    def between(number: int) -> None:
        if number == 3:
            server.kill()
        if number == 6:
            server.start()

    pages = [many(n, n - 1) for n in range(1, 16)]
    crawler = run(server, *pages, between=between)
    again = run(server, many(*range(16)))

    assert sorted(set(numbers(crawler))) == list(range(16))
    # Page 3 asks for row 2, which Redis knew and this process does not hold any more.
    assert len(numbers(crawler)) <= 17
    stats = netspy_stats(crawler)
    assert stats["netspy/items/unfiltered_batches"] >= 3
    assert "netspy/filter/degraded" not in stats
    said = caplog.text
    assert said.count(" is away: ") >= 1
    assert "is back after" in said
    assert "it was emptied" in said
    # What was stored during the outage was recorded after it.
    assert set(numbers(again)) <= {0, 1, 2}


@pytest.mark.timed
def test_frozen_in_the_middle(server: Redis) -> None:
    """Redis hangs: the loop goes on, each batch waits a time-out at most, all rows are stored."""
    lags: list[float] = []

    class Watched(Pages):
        async def start(self) -> Any:
            async def watch() -> None:
                while True:
                    begun = time.monotonic()
                    await asyncio.sleep(0.01)
                    lags.append(time.monotonic() - begun - 0.01)

            task = asyncio.get_running_loop().create_task(watch())
            async for one in super().start():
                yield one
            task.cancel()

    def between(number: int) -> None:
        if number == 2:
            server.freeze()
        if number == 10:
            server.thaw()

    begun = time.monotonic()
    crawler = crawl(
        Watched,
        {**MEMORY, "ITEM_FILTER_ENABLE": True, "DEDUP_FILTER": "redis-set", "REDIS_URL": server.url,
         "REDIS_PARAMS": QUICK, "BUFFER_FLUSH_INTERVAL": 0.02},
        batches=[many(n) for n in range(20)],
        between=between,
    )  # fmt: skip

    assert numbers(crawler) == list(range(20))
    assert netspy_stats(crawler)["netspy/items/unfiltered_batches"] >= 1
    assert time.monotonic() - begun < 15
    assert max(lags) < 0.3
    assert numbers(run(server, many(*range(20)), DEDUP_FILTER="redis-set")) == []


def test_emptied_in_the_middle(server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """FLUSHALL: the crawl goes on, and it is said that earlier rows may be stored again."""
    import redis

    def between(number: int) -> None:
        if number == 2:
            with redis.Redis.from_url(server.url) as client:
                client.flushall()

    crawler = run(server, many(1, 2), many(3), many(1, 4), many(4, 5), between=between)

    assert numbers(crawler) == [1, 2, 3, 1, 4, 5]
    assert sum("it was emptied" in one.getMessage() for one in caplog.records) == 1


def test_redis_that_is_not_there_at_the_start(
    server: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The crawl starts without it, and records what it stored once it comes."""
    server.kill()
    crawler = run(
        server, many(1), many(1, 2), [], between=lambda n: server.start() if n == 2 else None
    )

    assert numbers(crawler) == [1, 2]  # its own twin is known without Redis
    assert "cannot be asked yet" in caplog.text
    assert "netspy/filter/degraded" not in netspy_stats(crawler)
    assert numbers(run(server, many(1, 2, 3))) == [3]


def test_a_redis_that_refuses(server: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """A key of another kind in the filter's place costs the filter, and no row."""
    import redis

    with redis.Redis.from_url(server.url) as client:
        client.set("netspy:{news}:seen:items:set", "not a set")
    crawler = run(server, many(1), many(2), DEDUP_FILTER="redis-set")

    assert numbers(crawler) == [1, 2]
    assert netspy_stats(crawler)["netspy/items/unfiltered_batches"] == 2
    assert "WRONGTYPE" in caplog.text


def test_a_wrong_password_ends_the_start(
    own_redis: Callable[..., Redis], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is crawled with a password that is wrong, and the error shows none."""
    server = own_redis("--requirepass", "right")
    url = f"redis://:geheim@127.0.0.1:{server.port}/0"
    with pytest.raises(ConfigError, match="REDIS_URL = 'redis://\\*\\*\\*@127") as caught:
        run(server, many(1), REDIS_URL=url)

    assert "geheim" not in str(caught.value) + caplog.text


@pytest.mark.parametrize(
    "settings",
    [{"REDIS_URL": "http://x"}, {"DEDUP_FILTER": "redis-bloom"}, {"DEDUP_SCOPE": "run"}],
)
def test_wrong_values_end_the_start(server: Redis, settings: dict[str, Any]) -> None:
    """Values that cannot be used are named before anything is crawled."""
    with pytest.raises(ConfigError, match=next(iter(settings))):
        run(server, many(1), **settings)


def test_without_the_filter_redis_is_not_asked(server: Redis) -> None:
    """A plain project that did not switch the item filter on does not connect."""
    import redis

    with redis.Redis.from_url(server.url) as client:
        before = client.info("stats")["total_connections_received"]
        crawler = run(server, many(1, 1), ITEM_FILTER_ENABLE=False)
        after = client.info("stats")["total_connections_received"]

    assert numbers(crawler) == [1, 1]
    assert after == before


def test_items_that_were_named_by_hand(server: Redis) -> None:
    """item.pipelines: a sink that only items name asks the filter too."""

    def routed() -> NewsItem:
        item = news("x", n=1)
        item.pipelines = ["tests.crawls.test_items.SecondSink"]
        return item

    first = run(server, [routed()])
    second = run(server, [routed()])

    assert len(first._second) == 1
    assert "_second" not in second.__dict__
