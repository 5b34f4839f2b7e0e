"""Crawls under NETSPY_MAX_INFLIGHT_BYTES: all comes, nothing fails because of it."""

from __future__ import annotations

import asyncio
import gzip
import random
import time
from typing import Any

import pytest
import scrapy

import netspy_scrapy as mw
from netspy_scrapy.budget import Body, Budget
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.downloader import missing
from tests.crawling import MEMORY, PlainSpider, crawl, dumped, netspy_stats

A, B = "127.0.0.1", "127.0.0.2"
KB = 1000
HANDLERS = {
    "http11": "",
    "aiohttp": "",
    "httpx": "scrapy.core.downloader.handlers._httpx.HttpxDownloadHandler",
}


@pytest.fixture(params=HANDLERS)
def handler(request: Any) -> dict[str, Any]:
    """The settings for each of Scrapy's download handlers that this Scrapy has."""
    path = HANDLERS[request.param]
    if not path:
        if request.param == "aiohttp" and (lacking := missing()):
            pytest.skip(f"needs {lacking}")
        return {"NETSPY_DOWNLOADER": request.param}
    pytest.importorskip("scrapy.core.downloader.handlers._base_streaming", reason="not in Scrapy")
    pytest.importorskip(request.param)
    return {"DOWNLOAD_HANDLERS": {"http": path}}


@pytest.fixture(autouse=True)
def most_held(monkeypatch: Any) -> list[int]:
    """Note what all bodies but the first held at most, as a share of the budget."""
    most = [0.0]
    grant = Budget._grant

    def noted(self: Budget, body: Body, size: int) -> None:
        grant(self, body, size)
        if self.limit:
            first = self.first.reserved if self.first else 0
            most[0] = max(most[0], (self.held - first) / self.limit)

    monkeypatch.setattr(Budget, "_grant", noted)
    return most


class Pages(PlainSpider):
    """Fetches ``urls`` at once, again and again if they are listed so."""

    async def start(self) -> Any:
        for url in self.urls:
            yield scrapy.Request(url, errback=self.failed, dont_filter=True)

    def parse(self, response: Any) -> None:
        self.pages.append((response.url, len(response.body)))


def fetch(urls: list[str], budget: int, **settings: Any) -> Any:
    """Fetch *urls*; return the spider, once it is sure that nothing is held any more."""
    spider = type("Many", (Pages,), {"urls": urls})
    values = {"NETSPY_MAX_INFLIGHT_BYTES": budget, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
    crawler = crawl(spider, {**values, **settings})
    bodies = CrawlContext.of(crawler).bodies
    assert bodies is not None
    assert (bodies.budget.held, len(bodies.budget.waiting)) == (0, 0)
    return crawler.spider


@pytest.mark.parametrize("budget", [1, 10 * KB, 10_000 * KB])
def test_many_small_pages(site: Any, handler: Any, budget: int, most_held: Any) -> None:
    """They all come under the tiniest budget, and none waits for a sensible one."""
    spider = fetch([site.url("/page/1")] * 500, budget, **handler)

    assert len(spider.pages) == 500
    assert spider.errors == []
    assert most_held[0] <= 1
    if budget > 1000 * KB:
        assert "netspy/bodies/held" not in netspy_stats(spider.crawler)


@pytest.mark.parametrize("budget", [1, 500 * KB, 3000 * KB])
def test_many_large_pages(site: Any, handler: Any, budget: int, most_held: Any) -> None:
    """Bodies larger than the budget, and more of them than fit: all come whole."""
    text = random.Random(1).randbytes(300 * KB)
    site.set("/zip", body=gzip.compress(text * 3), headers={"Content-Encoding": "gzip"})
    kinds = ["/chunked?kb=1000", "/big?mode=len&mb=1", "/zip"]
    spider = fetch([site.url(kinds[n % 3]) for n in range(45)], budget, **handler)

    sizes = sorted(size for _, size in spider.pages)
    assert sizes == [900 * KB] * 15 + [1_024_000] * 15 + [2**20] * 15
    assert spider.errors == []
    assert most_held[0] <= 1
    if budget < 3000 * KB:
        assert netspy_stats(spider.crawler)["netspy/bodies/held"] > 0


@pytest.mark.timed
def test_a_site_that_hangs(site: Any, handler: Any) -> None:
    """Half-sent bodies that fill the budget do not hold up pages of another site; all of it ends.

    Large pages of the other site wait, longer than their own time-out, and come all the same.
    """
    hung = [site.url(f"/drip?kb=1500&pieces=2&ms=10&end=hang&n={n}") for n in range(4)]
    large = [site.url(f"/chunked?kb=800&n={n}", host=B) for n in range(4)]
    small = [site.url(f"/page/{n}", host=B) for n in range(100)]
    when: dict[str, float] = {}
    begun = time.monotonic()

    class Timed(Pages):
        urls = (*hung, *large, *small)

        def parse(self, response: Any) -> None:
            super().parse(response)
            when[response.url] = time.monotonic() - begun

    settings = {"DOWNLOAD_TIMEOUT": 2, "RETRY_TIMES": 0, "NETSPY_MAX_INFLIGHT_BYTES": 2000 * KB}
    spider = crawl(Timed, {**handler, **settings}).spider

    assert len(spider.pages) == 104
    assert max(when[url] for url in small) < 2
    assert len(spider.errors) == 4
    assert {line["url"] for line in dumped()} == set(hung)
    assert time.monotonic() - begun < 30


@pytest.mark.timed
def test_a_silent_body_makes_way(site: Any, handler: Any) -> None:
    """The body that need not fit lets another one go on where its site falls silent."""
    hung = site.url("/drip?kb=100&pieces=2&ms=10&end=hang")
    site.set("/late", body=bytes(500 * KB), delay=0.5, host=B)
    when: list[float] = []
    begun = time.monotonic()

    class Timed(Pages):
        urls = (hung, site.url("/late", host=B))

        def parse(self, response: Any) -> None:
            when.append(time.monotonic() - begun)

    settings = {"NETSPY_MAX_INFLIGHT_BYTES": 110 * KB, "DOWNLOAD_TIMEOUT": 9, "RETRY_TIMES": 0}
    spider = crawl(Timed, {**settings, **handler}).spider

    assert len(when) == len(spider.errors) == 1
    assert when[0] < 6


@pytest.mark.timed
def test_a_wait_longer_than_the_time_out(site: Any, handler: Any) -> None:
    """A body that has to wait until its download times out is fetched again: it has not failed."""
    site.set("/late", body=bytes(700 * KB), delay=0.5)
    slow = site.url("/drip?kb=3000&pieces=16&ms=200")  # 3 s, in which it need not fit

    class Waits(Pages):
        async def start(self) -> Any:
            yield scrapy.Request(slow, errback=self.failed)
            timeout = {"download_timeout": 1.5}
            yield scrapy.Request(site.url("/late"), errback=self.failed, meta=timeout)

    settings = {"NETSPY_MAX_INFLIGHT_BYTES": 100 * KB, "RETRY_ENABLED": False}
    spider = crawl(Waits, {**settings, **handler}).spider

    assert spider.errors == []
    assert len(spider.pages) == 2
    again = "httpx" not in str(handler)  # its time-out is for each read, and nothing is read
    assert site.hits("/late") == 1 + again
    stats = netspy_stats(spider.crawler)
    assert (stats["netspy/bodies/held"], stats.get("netspy/bodies/again", 0)) == (1, again)


def test_nothing_is_reserved_for_a_body_that_is_too_large(site: Any, handler: Any) -> None:
    """Too large and refused bodies give back what they had, also while others wait."""
    settings = {"MAX_RESPONSE_SIZE": 500 * KB, "ALLOWED_CONTENT_TYPES": ["text/"]}
    site.set("/bomb", body=gzip.compress(bytes(10**7)), headers={"Content-Encoding": "gzip"})
    site.set("/film", body=bytes(400 * KB), headers={"Content-Type": "video/mp4"})
    paths = ["/big?mode=chunked&mb=5", "/big?mode=len&mb=5", "/bomb", "/film", "/chunked?kb=300"]
    spider = fetch([site.url(path) for path in paths * 6], 200 * KB, **settings, **handler)

    assert len(spider.pages) == 6
    assert len(spider.errors) == 24
    stats = netspy_stats(spider.crawler)
    assert (stats["netspy/failures"], stats["netspy/drops"]) == (18, 6)
    assert "netspy/bodies/again" not in stats


def test_redirects_retries_and_robots(site: Any) -> None:
    """Each attempt and each hop has a body of its own; robots.txt is one more."""
    large = b"x" * 300 * KB
    site.set("/robots.txt", body=b"User-agent: *\nAllow: /\n" + b"# comment\n" * 30_000)
    for n in range(8):
        site.set(f"/moved/{n}", 302, body=large, headers={"Location": f"/target/{n}"})
        site.set(f"/target/{n}", body=large)
        site.set(f"/target/{n}", 503, body=large, times=1)
    spider = fetch(
        [site.url(f"/moved/{n}") for n in range(8)], 100 * KB, ROBOTSTXT_OBEY=True,
    )  # fmt: skip

    assert [size for _, size in spider.pages] == [300 * KB] * 8
    assert spider.errors == []
    assert netspy_stats(spider.crawler)["netspy/retries/503"] == 8


def test_answers_without_a_body(site: Any, handler: Any) -> None:
    """HEAD, 204, 304 and an empty page hold nothing."""
    site.set("/none", 204)
    site.set("/empty")

    class Bodiless(Pages):
        async def start(self) -> Any:
            for n in range(20):
                url = site.url(f"/big?mode=len&mb=1&n={n}")
                yield scrapy.Request(url, method="HEAD", errback=self.failed)
                yield scrapy.Request(site.url(f"/none?{n}"), errback=self.failed)
                yield scrapy.Request(site.url(f"/empty?{n}"), errback=self.failed)

    spider = crawl(Bodiless, {"NETSPY_MAX_INFLIGHT_BYTES": 1, **handler}).spider

    assert [size for _, size in spider.pages] == [0] * 60
    assert spider.errors == []


def test_downloads_past_the_queue(site: Any) -> None:
    """engine.download_async side by side, from callbacks, under a budget for none of them."""

    class Fetches(Pages):
        urls = (site.url("/page/1"), site.url("/page/2"))

        async def parse(self, response: Any) -> None:
            wanted = [scrapy.Request(f"{site.url('/chunked')}?kb=400&n={n}") for n in range(10)]
            fetch = self.crawler.engine.download_async
            self.pages += [len(one.body) for one in await asyncio.gather(*map(fetch, wanted))]

    spider = crawl(Fetches, {"NETSPY_MAX_INFLIGHT_BYTES": 10 * KB}).spider

    assert spider.pages == [409_600] * 20


@pytest.mark.parametrize("order", [545, 595])
def test_a_download_that_needs_another(site: Any, order: int) -> None:
    """A middleware that fetches something for a body in hand does not wait for that body."""
    text = random.Random(1).randbytes(200 * KB)
    site.set("/zip", body=gzip.compress(text), headers={"Content-Encoding": "gzip"})

    class NeedsAnother:
        def __init__(self, crawler: Any) -> None:
            self.crawler = crawler

        @classmethod
        def from_crawler(cls, crawler: Any) -> Any:
            return cls(crawler)

        async def process_response(self, request: Any, response: Any) -> Any:
            if "/zip" in request.url:
                another = scrapy.Request(f"{site.url('/chunked')}?kb=300&for={request.url[-1]}")
                answer = await self.crawler.engine.download_async(another)
                assert len(answer.body) == 307_200
            return response

    spider = fetch(
        [site.url(f"/zip?{n}") for n in range(6)], 50 * KB,
        DOWNLOADER_MIDDLEWARES={NeedsAnother: order},
    )  # fmt: skip

    assert [size for _, size in spider.pages] == [200 * KB] * 6


@pytest.mark.timed
def test_a_stop_while_bodies_wait(site: Any) -> None:
    """What waits or hangs is cut off in time, and kept."""
    paths = [f"/drip?kb=900&pieces=2&ms=10&end=hang&n={n}" for n in range(8)]
    begun = time.monotonic()
    spider = fetch(
        [site.url(path) for path in paths], 500 * KB, SPIDER_MAX_RUNTIME=1, NETSPY_STOP_TIMEOUT=1,
        DOWNLOAD_TIMEOUT=60,
    )  # fmt: skip

    assert time.monotonic() - begun < 10
    assert spider.pages == []
    assert {line["url"] for line in dumped()} == {site.url(path) for path in paths}


def test_a_netspy_spider(site: Any) -> None:
    """The setting works in a netspy spider, beside its limit of 32 MiB."""

    class Large(mw.AirSpider):
        __custom_setting__ = {**MEMORY, "NETSPY_MAX_INFLIGHT_BYTES": "100000"}

        def start_requests(self) -> Any:
            for n in range(10):
                yield mw.Request(site.url(f"/chunked?kb=300&n={n}"))

        def parse(self, request: Any, response: Any) -> Any:
            yield {"size": len(response.content)}

    crawler = crawl(Large)

    assert netspy_stats(crawler)["netspy/items"] == 10
    assert netspy_stats(crawler)["netspy/bodies/held"] > 0


@pytest.mark.parametrize("value", [-1, "much", 1.5, True])
def test_a_budget_that_cannot_be_used(value: Any) -> None:
    """The start ends with the setting, the value and what is allowed."""
    with pytest.raises(mw.ConfigError, match="NETSPY_MAX_INFLIGHT_BYTES"):
        crawl(PlainSpider, {"NETSPY_MAX_INFLIGHT_BYTES": value})
