"""GLOBAL_THROTTLE: several processes keep to one pace at each domain."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import scrapy

from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import ConfigError
from tests.crawling import MEMORY, PlainSpider, crawl, rows, times
from tests.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.redis import Redis

SCHEDULER = "netspy_scrapy.redis.scheduler.RedisScheduler"

SPIDER = """
import scrapy

class Own(scrapy.Spider):
    name = "own"

    async def start(self):
        for n in range(int(self.n)):
            yield scrapy.Request(f"{self.base}/page/1?{self.who}={n}", dont_filter=True)

    def parse(self, response):
        pass
"""


#: Its pages await other pages, and give files; all of one site.
MIXED = """
import asyncio
import scrapy

class Mixed(scrapy.Spider):
    name = "mixed"

    async def start(self):
        for n in range(int(self.n)):
            yield scrapy.Request(f"{self.base}/page/1?queue={self.who}{n}")

    async def parse(self, response):
        who = response.url.partition("=")[2]
        fetch = self.crawler.engine.download_async
        requests = [scrapy.Request(f"{self.base}/page/1?await={who}-{n}") for n in range(2)]
        await asyncio.gather(*map(fetch, requests))
        yield {"file_urls": [f"{self.base}/page/1?file={who}"]}
"""


def gaps(moments: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(moments)]


@pytest.mark.timed
def test_three_processes_keep_one_delay(site: Any, redis_server: Redis) -> None:
    """The site sees the delay between any two requests, whoever sends them."""
    nodes = Nodes(site, redis_server.url)
    Path("own.py").write_text(SPIDER)
    try:
        for who in "abc":
            nodes.run(
                "-m", "scrapy", "runspider", "own.py", "-a", f"base={site.url('')}", "-a", "n=9",
                "-a", f"who={who}", "-s", 'ADDONS={"netspy_scrapy.Addon": 500}',
                "-s", "GLOBAL_THROTTLE=True", "-s", f"REDIS_URL={redis_server.url}",
                "-s", "DOWNLOAD_DELAY=0.2", "-s", "RANDOMIZE_DOWNLOAD_DELAY=False",
            )  # fmt: skip
        assert [node.wait() for node in nodes.all] == [0, 0, 0]
    finally:
        nodes.close()
    moments = times(site, "/page/1")
    whose = [one.path.partition("?")[2][0] for one in site.log()]

    assert len(moments) == 27
    # The first requests of a process wait for their connection.
    warm = gaps(moments[6:])
    assert min(warm) >= 0.17, warm
    assert (moments[-1] - moments[0]) / 26 >= 0.2 - 0.005
    assert any(a != b for a, b in pairwise(whose))


@pytest.mark.timed
def test_the_queue_and_what_goes_past_it(site: Any, redis_server: Redis) -> None:
    """Pages, pages that callbacks await, and files of a media pipeline: one pace, three nodes."""
    nodes = Nodes(site, redis_server.url)
    Path("mixed.py").write_text(MIXED)
    settings = {
        "ADDONS": '{"netspy_scrapy.Addon": 500}', "SCHEDULER": SCHEDULER, "GLOBAL_THROTTLE": True,
        "REDIS_URL": redis_server.url, "DOWNLOAD_DELAY": 0.2, "RANDOMIZE_DOWNLOAD_DELAY": False,
        "ITEM_PIPELINES": '{"scrapy.pipelines.files.FilesPipeline": 1}', "FILES_STORE": "files",
        "REDIS_KEY_PREFIX": secrets.token_hex(4),
    }  # fmt: skip
    options = [part for name, value in settings.items() for part in ("-s", f"{name}={value}")]
    try:
        for who in "abc":
            nodes.run(
                "-m", "scrapy", "runspider", "mixed.py", "-a", f"base={site.url('')}", "-a", "n=3",
                "-a", f"who={who}", *options,
            )  # fmt: skip
        assert [node.wait() for node in nodes.all] == [0, 0, 0]
    finally:
        nodes.close()
    log = [one for one in site.log() if one.path.startswith("/page/")]
    kinds = Counter(one.path.partition("?")[2].partition("=")[0] for one in log)
    moments = [one.t for one in log]

    assert kinds == {"queue": 9, "await": 18, "file": 9}
    # The first requests of a process wait for their connection.
    assert min(gaps(moments[9:])) >= 0.17, gaps(moments)
    assert (moments[-1] - moments[0]) / 35 >= 0.2 - 0.005


class Pages(PlainSpider):
    """Fetches pages of a site."""

    name = "pages"

    def parse(self, response: Any) -> Any:
        yield {"url": response.url}


def run(server: Any, spider: Any = Pages, **settings: Any) -> Any:
    urls = settings.pop("urls")
    base = {
        **MEMORY, "GLOBAL_THROTTLE": True, "REDIS_URL": server.url,
        "REDIS_PARAMS": {"socket_timeout": 0.5, "socket_connect_timeout": 0.5},
        "RANDOMIZE_DOWNLOAD_DELAY": False,
    }  # fmt: skip
    return crawl(spider, {**base, **settings}, urls=urls)


@pytest.mark.timed
def test_a_rest_is_everybodys(site: Any, own_redis: Callable[..., Redis]) -> None:
    """A process that has not met the 429 keeps to the rest all the same, with no delay set."""
    server = own_redis()
    began = time.monotonic()
    first = run(server, urls=(site.url("/seq/a?codes=429,200&retry_after=3"),), RETRY_TIMES=0)
    second = run(server, urls=(site.url("/page/1"), site.url("/page/2")))

    assert first.stats.get_value("netspy/rests") == 1
    assert len(rows(second)) == 2
    assert min(times(site, "/page/")) - began >= 2.9


@pytest.mark.timed
def test_redis_away(site: Any, own_redis: Callable[..., Redis], caplog: Any) -> None:
    """The process keeps to the delay by itself, with one warning, and together again later."""
    server = own_redis()

    class Outage(Pages):
        async def start(self) -> Any:
            for n in range(4):
                yield scrapy.Request(site.url(f"/page/1?n={n}"))
            await asyncio.sleep(0.3)
            server.kill()
            for n in range(4, 9):
                yield scrapy.Request(site.url(f"/page/1?n={n}"))
            await asyncio.sleep(1.5)
            server.start()
            await asyncio.sleep(1.5)
            for n in range(9, 12):
                yield scrapy.Request(site.url(f"/page/1?n={n}"))

    crawler = run(server, Outage, urls=(), DOWNLOAD_DELAY=0.15)
    warnings = [one for one in caplog.records if "does not answer" in one.message]

    assert len(rows(crawler)) == 12
    assert min(gaps(times(site, "/page/1"))) >= 0.12
    assert len(warnings) == 1
    assert "together again" in caplog.text


@pytest.mark.timed
def test_two_domains_do_not_wait_for_each_other(site: Any, redis_server: Redis) -> None:
    """Each domain has its own line; many of one domain cost the other nothing."""
    urls = (
        *(site.url(f"/page/1?n={n}") for n in range(8)),
        *(site.url(f"/page/2?n={n}", host="127.0.0.2") for n in range(8)),
    )
    run(redis_server, urls=urls, DOWNLOAD_DELAY=0.15)
    one, other = times(site, "/page/1"), times(site, "/page/2")

    assert min(gaps(one) + gaps(other)) >= 0.12
    assert max(one[-1], other[-1]) - min(one[0], other[0]) < 2 * 7 * 0.15


@pytest.mark.timed
def test_downloads_past_the_queue(site: Any, redis_server: Redis) -> None:
    """engine.download_async keeps to the common pace too."""

    class Direct(Pages):
        async def parse(self, response: Any) -> Any:
            for n in range(3):
                await self.crawler.engine.download_async(
                    scrapy.Request(site.url(f"/page/1?direct={n}"))
                )

    run(redis_server, Direct, urls=(site.url("/page/1"),), DOWNLOAD_DELAY=0.2)

    assert len(times(site, "/page/1")) == 4
    assert min(gaps(times(site, "/page/1"))) >= 0.17


def test_a_wrong_password(site: Any, own_redis: Callable[..., Redis], caplog: Any) -> None:
    """The crawl does not start: it could not keep what it was asked to."""
    server = own_redis("--requirepass", "right")
    settings = {"REDIS_URL": f"redis://:wr0ng-secret@127.0.0.1:{server.port}/0"}
    with pytest.raises(ConfigError, match="REDIS_URL") as error:
        run(server, urls=(site.url("/page/1"),), **settings)

    assert site.log() == []
    assert "wr0ng-secret" not in str(error.value) + caplog.text


def test_off_costs_nothing(site: Any) -> None:
    """Without the setting nothing of Redis is touched."""
    crawler = crawl(Pages, MEMORY, urls=(site.url("/page/1"),))

    assert CrawlContext.of(crawler).politeness.throttle is None
    assert "redis" not in CrawlContext.of(crawler).__dict__
