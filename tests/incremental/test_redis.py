"""Pages in Redis: what nodes share, and what an outage costs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
import scrapy
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.statscollectors import MemoryStatsCollector

from netspy_scrapy import stats as keys
from netspy_scrapy.commands.incremental import main
from netspy_scrapy.incremental.redis import RedisBackend
from netspy_scrapy.incremental.store import Changes, Store
from netspy_scrapy.redis.connection import Connection
from netspy_scrapy.redis.options import RedisSettings
from tests.crawling import crawl, reason
from tests.crawls.test_incremental import ON, Pages, Shop, conditions, stat, texts
from tests.incremental.test_store import page
from tests.servers.redis import Redis
from tests.site import Site


@pytest.fixture
def server(own_redis: Callable[..., Redis]) -> Redis:
    pytest.importorskip("redis", reason="pip install 'netspy-scrapy[redis]'")
    return own_redis()


def backend(server: Redis) -> RedisBackend:
    return RedisBackend(Connection(RedisSettings.from_settings(
        Settings({"REDIS_URL": server.url})
    )))  # fmt: skip


def on(server: Redis, **more: Any) -> dict[str, Any]:
    return {**ON, "NETSPY_INCREMENTAL_STORE": "redis", "REDIS_URL": server.url, **more}


def test_entries_children_and_bodies(server: Redis) -> None:
    """All comes back, is seen by another node, and is forgotten as a whole."""
    one, two = backend(server), backend(server)
    one.open("s")
    two.open("s")
    full = page(1, modified=b"\xff", digest=b"d", children=3, body=b"b" * 16, dynamic=True)
    changes = Changes()
    changes.put_body(full.key, b"b" * 16, b"body")
    changes.put(full.key, full, b"children")
    changes.put(page(2).key, page(2))
    one.write(changes)

    assert two.read([page(n).key for n in range(4)]) == {full.key: full, page(2).key: page(2)}
    assert two.read_children(full.key) == b"children"
    assert two.read_body(full.key, b"b" * 16) == b"body"
    assert two.read_body(full.key, b"c" * 16) is None
    assert sorted(one.url for one in two.entries()) == [full.url, page(2).url]
    changes = Changes()
    changes.put(full.key, None)
    two.write(changes)
    assert one.read([full.key]) == {}
    assert one.read_children(full.key) is one.read_body(full.key, b"b" * 16) is None
    one.close()
    two.close()


def test_nodes_that_crawl_at_once_are_in_one_run(server: Redis) -> None:
    """The next run begins when all of them are gone."""
    one, two = backend(server), backend(server)
    assert (one.open("s"), two.open("s")) == (1, 1)
    one.close()
    three = backend(server)
    assert three.open("s") == 1
    two.close()
    three.close()
    four = backend(server)
    assert four.open("s") == 2
    assert four.runs() == {"s": 2}
    four.close()


def test_an_entry_that_is_none_is_a_miss(server: Redis) -> None:
    """Whoever wrote it there."""
    store = backend(server)
    store.open("s")
    name = store._key("s", "pages")
    store._call(lambda client: client.hset(name, mapping={page(1).key: b"{", b"x": b"[]"}))

    assert store.read([page(1).key, b"x"]) == {}
    assert list(store.entries()) == []
    store.close()


def test_a_crawl_goes_on_while_redis_is_away(server: Redis, caplog: Any) -> None:
    """Nothing is known meanwhile, and what is learned is written when it is back."""
    stats = MemoryStatsCollector(Crawler(scrapy.Spider))

    async def run() -> None:
        store = Store(backend(server), stats)
        await store.open("s")
        store.put(page(0))
        await store.flush()
        server.kill()
        assert await store.get(page(7).key) is None
        store.put(page(1))
        await store.close()

    asyncio.run(run())

    assert stats.get_value(keys.INCREMENTAL_LOST) == 1
    assert caplog.text.count("fetched as if they were not known") == 1


def test_a_crawl_with_redis(site: Site, server: Redis, capsys: Any) -> None:
    """Two runs, in mode follow, and the command."""
    settings = on(server, NETSPY_INCREMENTAL_ON_304="follow")
    site.set("/list", body="<a href=/d>d</a>", headers={"ETag": '"l"'}, conditional=True)
    site.set("/d", body="old", headers={"ETag": '"d"'}, conditional=True)
    crawl(Shop, settings, url=site.url("/list"))
    site.set("/d", body="new", headers={"ETag": '"e"'}, conditional=True)
    second = crawl(Shop, settings, url=site.url("/list"))
    where = ["-s", "NETSPY_INCREMENTAL_STORE=redis", "-s", f"REDIS_URL={server.url}"]

    assert texts(second) == ["d: new"]
    assert conditions(site, "/list")[1] == ('"l"', None)
    assert main(["--list", *where]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert main(["--show", site.url("/list"), *where]) == 0
    assert "yielded       1 requests" in capsys.readouterr().out
    assert main(["--forget", "*/d", *where]) == 0
    third = crawl(Shop, settings, url=site.url("/list"))
    assert texts(third) == ["d: new"]


def test_redis_that_is_not_there_costs_only_the_saving(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The crawl fetches everything, with a line that says why."""
    site.set("/p", body="x", headers={"ETag": '"1"'})
    settings = {**ON, "NETSPY_INCREMENTAL_STORE": "redis", "REDIS_URL": "redis://127.0.0.1:1/0"}
    crawler = crawl(Pages, settings, urls=(site.url("/p"),))

    assert texts(crawler) == ["x"]
    assert stat(crawler, keys.INCREMENTAL_LOST) == 1
    assert any(
        one.levelno == logging.WARNING and "not known" in one.getMessage() for one in caplog.records
    )


def test_a_wrong_password_ends_the_crawl(
    own_redis: Callable[..., Redis], site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """It will never be right, and the message does not hold it."""
    pytest.importorskip("redis", reason="pip install 'netspy-scrapy[redis]'")
    server = own_redis("--requirepass", "right")
    url = server.url.replace("redis://", "redis://:wrong-secret@")
    crawler = crawl(
        Pages, {**ON, "NETSPY_INCREMENTAL_STORE": "redis", "REDIS_URL": url},
        urls=(site.url("/p"),),
    )  # fmt: skip

    assert reason(crawler) == "incremental_store"
    assert crawler.stats.get_value("netspy/exit_status") == 1
    assert "REDIS_URL" in caplog.text
    assert "wrong-secret" not in caplog.text
