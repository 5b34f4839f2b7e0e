"""Whole crawls into MongoDB, Elasticsearch and Kafka whose server is killed: no row is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import scrapy

import netspy_scrapy as mw
from netspy_scrapy.commands.retry import main
from tests.crawling import MEMORY, MemorySink, crawl, dumped, netspy_stats, reason, rows
from tests.servers.elasticsearch import Elasticsearch
from tests.servers.kafka import Kafka
from tests.servers.mongo import Mongo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.base import Server

ITEMS = "failed_items.jsonl"


@dataclass
class Store:
    """A sink with its server, and how to read what is stored."""

    server: Server
    sink: str
    settings: dict[str, Any]
    read: Callable[[str], list[dict[str, Any]]]
    settling: float = 0.0

    @property
    def path(self) -> str:
        module = self.sink.removesuffix("Pipeline").lower()
        return f"netspy_scrapy.pipelines.{module}.{self.sink}"

    def crawl(self, spider: type[scrapy.Spider], **settings: Any) -> Any:
        merged = {**self.settings, "ITEM_PIPELINES": {self.path: 300}, **settings}
        return crawl(spider, merged, store=self)

    def options(self) -> list[str]:
        """Return the settings as ``netspy-retry`` takes them."""
        pairs = {**self.settings, "LOG_LEVEL": "WARNING"}
        return [one for name, value in pairs.items() for one in ("-s", f"{name}={value}")]

    def numbers(self, table: str = "items") -> list[int]:
        return sorted(row["n"] for row in self.read(table))


def mongo() -> Store:
    from pymongo import MongoClient

    server = Mongo()

    def read(table: str) -> list[dict[str, Any]]:
        with MongoClient[dict](server.url) as client:
            return list(client.netspy[table].find())

    uri = f"{server.url}&serverSelectionTimeoutMS=500"
    return Store(server, "MongoPipeline", {"MONGO_URI": uri}, read)


def elasticsearch() -> Store:
    from elasticsearch import Elasticsearch as Client

    server = Elasticsearch()

    def read(table: str) -> list[dict[str, Any]]:
        with Client(server.url) as client:
            client.indices.refresh(index=table)
            hits = client.search(index=table, size=9999)["hits"]["hits"]
        return [hit["_source"] for hit in hits]

    settings = {"ELASTICSEARCH_HOSTS": server.url}
    return Store(server, "ElasticsearchPipeline", settings, read, server.settling)


def kafka() -> Store:
    from tests.pipelines.test_kafka import messages

    server = Kafka()
    settings = {
        "KAFKA_BOOTSTRAP_SERVERS": server.url,
        "NETSPY_KAFKA_OPTIONS": '{"message.timeout.ms": 2000}',
    }
    return Store(
        server, "KafkaPipeline", settings,
        lambda table: [row for _, row in messages(server, table)], server.settling,
    )  # fmt: skip


@pytest.fixture(params=[mongo, elasticsearch, kafka])
def store(request: Any) -> Iterator[Store]:
    """A sink whose server the test may kill."""
    driver = {mongo: "pymongo", elasticsearch: "elasticsearch", kafka: "confluent_kafka"}
    pytest.importorskip(driver[request.param])
    made = request.param()
    if made.server.given:
        pytest.skip("a server that was given is not killed")
    with made.server:
        yield made


class Yields(scrapy.Spider):
    """Yields 300 rows; at half of them it does what the test says."""

    name = "yields"
    start_urls = ["data:,"]
    store: Store

    async def parse(self, response: Any) -> Any:
        for n in range(150):
            yield {"n": n}
        await self.meanwhile()
        for n in range(150, 300):
            yield {"n": n}

    async def meanwhile(self) -> None:
        """Do nothing."""


class Killed(Yields):
    """The server is killed once the first half is stored, and starts again after 3 s."""

    async def meanwhile(self) -> None:
        while len(self.stored()) < 1:
            await asyncio.sleep(0.05)
        await asyncio.sleep(self.store.settling)
        await asyncio.to_thread(self.store.server.kill)
        timer = threading.Timer(3, self.store.server.start)
        timer.start()

    def stored(self) -> list[int]:
        stats = self.crawler.stats
        assert stats is not None
        key = f"netspy/rows/{self.store.sink}/stored"
        return [1] if stats.get_value(key, 0) == 150 else []


@pytest.mark.timed
def test_server_killed_in_the_middle(store: Store) -> None:
    """kill -9 and restart: the rows wait, and each is stored once; nothing is dumped."""
    crawler = store.crawl(Killed, ITEM_MAX_CACHED_COUNT=50)
    stats = netspy_stats(crawler)

    assert reason(crawler) == "finished"
    assert store.numbers() == list(range(300))
    assert stats[f"netspy/rows/{store.sink}/stored"] == 300
    assert stats[f"netspy/rows/{store.sink}/outages"] == 1
    assert f"netspy/rows/{store.sink}/dumped" not in stats
    assert dumped(ITEMS) == []


@pytest.mark.timed
def test_server_away_before_the_start(store: Store) -> None:
    """The crawl starts all the same, and stores everything once the server is there."""
    store.server.kill()
    threading.Timer(2, store.server.start).start()
    crawler = store.crawl(Yields)

    assert reason(crawler) == "finished"
    assert store.numbers() == list(range(300))
    assert dumped(ITEMS) == []


class News(mw.Item):
    __table_name__ = "news"
    __unique_key__ = ["n"]


class Change(mw.UpdateItem):
    __table_name__ = "changes"
    __update_key__ = ["n"]


class Mixed(Yields):
    """Rows for all sinks, rows for one sink, and updates."""

    async def parse(self, response: Any) -> Any:
        for n in range(10):
            yield News(n=n)
            yield Change(n=n % 5, value=n)
        only = News(n=99)
        only.pipelines = [f"{MemorySink.__module__}.MemorySink"]
        yield only


@pytest.mark.timed
def test_server_stays_away_and_the_replay(store: Store, capsys: Any) -> None:
    """All rows are dumped with routes and keys; a replay stores them once the server is back."""
    store.server.kill()
    chain = {store.path: 300, **dict.fromkeys(MEMORY["ITEM_PIPELINES"], 310)}
    crawler = store.crawl(Mixed, NETSPY_SINK_WAIT=0.5, ITEM_PIPELINES=chain)
    lines = dumped(ITEMS)
    updates = store.sink != "KafkaPipeline"

    assert reason(crawler) == "finished"
    assert len(rows(crawler)) == 21, "the other sink has them all"
    assert [line["pipelines"] for line in lines] == [[store.path]] * 20
    assert [line["data"]["n"] for line in lines if "update_keys" not in line] == list(range(10))
    changes = [line for line in lines if line.get("update_keys") == ["n"]]
    assert [line["data"]["value"] for line in changes] == list(range(10))
    waited = [line for line in lines if line["reason"].startswith("the server was away: ")]
    assert len(waited) == (20 if updates else 10)

    before = sorted(line["data"]["n"] for line in lines)
    status = main(["--items", *store.options()])
    assert status != 0
    assert "its server is away" in capsys.readouterr().out
    assert sorted(line["data"]["n"] for line in dumped(ITEMS)) == before

    store.server.start()
    status = main(["--items", *store.options()])
    assert store.numbers("news") == list(range(10))
    if updates:
        assert status == 0
        assert dumped(ITEMS) == []
        assert sorted((row["n"], row["value"]) for row in store.read("changes")) == [
            (n, n + 5) for n in range(5)
        ]
    else:
        assert [line["reason"] for line in dumped(ITEMS)] == [
            "KafkaPipeline stores new rows only"
        ] * 10


def test_kafka_takes_no_updates(kafka_server: Kafka) -> None:
    """An UpdateItem is dumped once, with the reason; it is never offered."""
    settings = {
        "KAFKA_BOOTSTRAP_SERVERS": kafka_server.url,
        "ITEM_PIPELINES": {"netspy_scrapy.pipelines.kafka.KafkaPipeline": 300},
    }
    pytest.importorskip("confluent_kafka")
    crawler = crawl(Mixed, settings, store=None)
    stats = netspy_stats(crawler)

    assert [line["reason"] for line in dumped(ITEMS)] == ["KafkaPipeline stores new rows only"] * 10
    assert stats["netspy/rows/KafkaPipeline/stored"] == 10
    assert stats["netspy/rows/KafkaPipeline/dumped"] == 10


class Endless(Yields):
    """Yields rows for 3 s."""

    yielded = 0

    async def parse(self, response: Any) -> Any:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            for _ in range(20):
                self.yielded += 1
                yield {"n": self.yielded}
            await asyncio.sleep(0.005)


@pytest.mark.timed
def test_kill_while_batches_are_written() -> None:
    """kill -9 at any moment: each row is stored exactly once, for rows keep their _id."""
    pytest.importorskip("pymongo")
    store = mongo()
    if store.server.given:
        pytest.skip("a server that was given is not killed")

    def torment() -> None:
        for _ in range(2):
            time.sleep(0.8)
            store.server.kill()
            store.server.start()

    with store.server:
        thread = threading.Thread(target=torment)
        thread.start()
        crawler = store.crawl(Endless, ITEM_MAX_CACHED_COUNT=200, BUFFER_FLUSH_INTERVAL=0.01)
        thread.join()

        yielded = crawler.spider.yielded
        assert yielded > 1000
        assert store.numbers() == list(range(1, yielded + 1))
        assert dumped(ITEMS) == []
