"""Faults that a review found, each as the crawl that showed it."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
import scrapy
from scrapy import signals
from scrapy.exceptions import IgnoreRequest

import netspy_scrapy as mw
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.scheduling.scheduler import Scheduler
from tests.crawling import MEMORY, MemorySink, PlainSpider, crawl, dumped, netspy_stats, rows

A, B = "127.0.0.1", "127.0.0.2"
OBEY = {"ROBOTSTXT_OBEY": True}


class Netspy(mw.AirSpider):
    """Fetches what it is given."""

    seeds: Any = ()
    __custom_setting__ = MEMORY

    def start_requests(self) -> Any:
        yield from self.seeds

    def parse(self, request: Any, response: Any) -> Any:
        yield {"url": response.url, "method": response.raw.request.method}


@pytest.mark.parametrize("repeat", [True, False])
def test_a_redirect_with_a_download_midware(site: Any, repeat: bool) -> None:
    """A redirect is followed once, and the page arrives, where download_midware runs each time."""

    class Midware(Netspy):
        def download_midware(self, request: Any) -> None:
            request.requests_kwargs.setdefault("headers", {})["X-Seen"] = "1"

    start = site.url("/redirect?to=" + site.url("/page/1"))
    crawler = crawl(Midware, seeds=[mw.Request(start, filter_repeat=repeat)])

    assert [one.path.partition("?")[0] for one in site.log()] == ["/redirect", "/page/1"]
    assert [row["url"] for _, row in rows(crawler)] == [site.url("/page/1")]


def test_a_retry_after_a_redirect_goes_on_where_it_was(site: Any) -> None:
    """A POST that was redirected and is retried stays the GET that the redirect made of it."""

    class Hook(Netspy):
        def exception_request(self, request: Any, response: Any, exception: Exception) -> None:
            """See the retry."""

    start = site.url("/redirect?to=" + site.url("/seq/post?codes=503,200"))
    crawl(Hook, seeds=[mw.Request(start, method="POST", data={"a": 1})])

    assert [(one.method, one.path.partition("?")[0], one.body) for one in site.log()] == [
        ("POST", "/redirect", b"a=1"), ("GET", "/seq/post", b""), ("GET", "/seq/post", b""),
    ]  # fmt: skip


def test_failures_in_process_response_are_failures(site: Any) -> None:
    """What a middleware raises in process_response, and too many redirects, are counted."""

    class Faulty:
        def process_response(self, request: Any, response: Any) -> Any:
            raise ValueError("a bug")

    failed: list[str] = []

    class Hook(Netspy):
        def failed_request(self, request: Any, response: Any) -> None:
            failed.append(request.url)

    settings = {"DOWNLOADER_MIDDLEWARES": {Faulty: 10}}
    crawler = crawl(Hook, settings, seeds=[mw.Request(site.url("/page/1"))])

    assert failed == [site.url("/page/1")]
    assert netspy_stats(crawler)["netspy/failures/ValueError"] == 1
    assert len(dumped()) == 1

    site.set("/loop", status=302, headers={"Location": site.url("/loop")})

    class Loop(PlainSpider):
        async def start(self) -> Any:
            yield scrapy.Request(site.url("/loop"), dont_filter=True)

    crawler = crawl(Loop, {"REDIRECT_MAX_TIMES": 2})
    assert netspy_stats(crawler)["netspy/failures/IgnoreRequest"] == 1
    assert len(dumped()) == 2


@pytest.mark.timed
def test_robots_and_media_do_not_wait_for_each_other(site: Any) -> None:
    """A redirected robots.txt comes although media downloads that need it hold all the slots."""
    site.set("/robots.txt", status=301, headers={"Location": site.url("/rules", host=B)},
             delay=0.3, host=B)  # fmt: skip
    site.set("/rules", body=b"User-agent: *\nDisallow: /page/2\n", host=B)

    class Media(PlainSpider):
        async def parse(self, response: Any) -> Any:
            yield scrapy.Request(site.url("/page/9", host=B), callback=self.leaf)
            await asyncio.sleep(0.1)
            wanted = [scrapy.Request(site.url(f"/page/{n}", host=B)) for n in (1, 2, 3, 4)]
            fetch = self.crawler.engine.download_async
            self.media = await asyncio.gather(*map(fetch, wanted), return_exceptions=True)

        def leaf(self, response: Any) -> Any:
            self.pages.append((response.url, response.status))

    begun = time.monotonic()
    settings = {**OBEY, "CONCURRENT_REQUESTS": 2, "CLOSESPIDER_TIMEOUT": 20}
    crawler = crawl(Media, settings, urls=(site.url("/page/1"),))

    assert time.monotonic() - begun < 8
    assert [type(one).__name__ for one in crawler.spider.media][1] == "RobotsDeniedError"
    assert len(crawler.spider.pages) == 1


def test_no_page_goes_out_before_robots_is_known(site: Any) -> None:
    """A second download slot of an origin does not slip past its robots.txt."""
    site.set("/robots.txt", body=b"User-agent: *\nDisallow: /page/2\n", delay=0.3)

    class Slots(PlainSpider):
        async def start(self) -> Any:
            yield scrapy.Request(site.url("/page/1"))
            yield scrapy.Request(site.url("/page/2"), meta={"download_slot": "other"})

    crawl(Slots, OBEY)

    assert "/page/2" not in [one.path for one in site.log()]


def test_dont_obey_robotstxt_is_a_truth_value(site: Any) -> None:
    """meta={"dont_obey_robotstxt": False} obeys."""
    site.set("/robots.txt", body=b"User-agent: *\nDisallow: /\n")
    crawler = crawl(
        PlainSpider, OBEY, urls=(site.url("/page/1"),), meta={"dont_obey_robotstxt": False}
    )

    assert crawler.spider.pages == []


def test_a_robots_redirect_that_is_refused_holds_nothing(site: Any) -> None:
    """Where a signal handler refuses the redirect of robots.txt the pages go all the same."""
    site.set("/robots.txt", status=302, headers={"Location": site.url("/rules")})

    class Refuses(PlainSpider):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.scheduled, signals.request_scheduled)
            return spider

        def scheduled(self, request: Any) -> None:
            if "/rules" in request.url:
                raise IgnoreRequest("not wanted")

    crawler = crawl(Refuses, {**OBEY, "CLOSESPIDER_TIMEOUT": 15}, urls=(site.url("/page/1"),))

    assert len(crawler.spider.pages) == 1


class ClosesBadly(MemorySink):
    """A sink whose close() fails."""

    def close(self) -> None:
        raise OSError("cannot close")


class Other(MemorySink):
    """Another sink."""


class Row(mw.Item):
    """A row."""


class Yields(mw.AirSpider):
    """Yields items."""

    items: Any = ()
    page = ""

    def start_requests(self) -> Any:
        yield mw.Request(self.page)

    def parse(self, request: Any, response: Any) -> Any:
        yield from self.items


def test_a_sink_that_fails_to_close_costs_others_nothing(site: Any) -> None:
    """Rows of sinks that items name are stored although another such sink's close() raises."""

    def items() -> Any:
        for n, sink in enumerate((ClosesBadly, Other, Other)):
            row = Row()
            row.n, row.pipelines = n, [sink]
            yield row

    settings = {"ITEM_PIPELINES": {MemorySink: 1}, "BUFFER_FLUSH_INTERVAL": 60}
    crawler = crawl(Yields, settings, items=items(), page=site.url("/page/1"))

    assert sorted(row["n"] for _, row in rows(crawler)) == [0, 1, 2]


def test_a_refusal_outside_the_batch_dumps_the_batch(site: Any) -> None:
    """A sink that refuses a row that does not exist loses none: the whole batch is dumped."""

    class Miscounts(mw.BasePipeline):
        def save_items(self, table: str, items: Any) -> Any:
            return {len(items): "off by one"}

    settings = {"ITEM_PIPELINES": {Miscounts: 1}, "ITEM_MAX_CACHED_COUNT": 2}
    crawl(Yields, settings, items=({"n": n} for n in range(6)), page=site.url("/page/1"))

    lines = dumped("failed_items.jsonl")
    assert sorted(line["data"]["n"] for line in lines) == list(range(6))
    assert "refused row 2 of a batch of 2" in lines[0]["reason"]


class SlowExtra(mw.BasePipeline):
    """A slow sink that only items name."""

    held = 0

    def save_items(self, table: str, items: Any) -> bool:
        time.sleep(0.02)
        held = self.batcher._rows + self.batcher._rows_in_flight
        SlowExtra.held = max(SlowExtra.held, held)
        return True


def test_sinks_that_items_name_are_bounded_too(site: Any) -> None:
    """A sink that only item.pipelines names makes the callback wait like any other."""

    def items() -> Any:
        for n in range(500):
            row = Row()
            row.n, row.pipelines = n, [SlowExtra]
            yield row

    settings = {"ITEM_PIPELINES": {MemorySink: 1}, "ITEM_MAX_CACHED_COUNT": 10}
    crawl(Yields, settings, items=items(), page=site.url("/page/1"))

    assert SlowExtra.held <= 20 + 5


def test_a_changed_retry_request_keeps_counting(site: Any) -> None:
    """get_retry_request of a request with another URL spends the budget, and so ends."""
    from scrapy.downloadermiddlewares.retry import get_retry_request

    class Token(PlainSpider):
        def parse(self, response: Any) -> Any:
            super().parse(response)
            changed = response.request.replace(url=site.url(f"/page/{len(self.pages) + 1}"))
            return get_retry_request(changed, spider=self, reason="expired")

    crawler = crawl(
        Token, {"RETRY_TIMES": 2, "CLOSESPIDER_PAGECOUNT": 50}, urls=(site.url("/page/1"),)
    )

    assert len(crawler.spider.pages) == 3


@pytest.mark.timed
def test_extensions_may_steer_slots(site: Any) -> None:
    """The delay that an extension writes into a download slot is kept to."""

    class Steers(PlainSpider):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.slow_down, signals.response_downloaded)
            return spider

        def slow_down(self) -> None:
            for slot in self.crawler.engine.downloader.slots.values():
                slot.delay = 0.4

    urls = tuple(site.url(f"/page/{n}") for n in range(6))
    crawl(Steers, {"CONCURRENT_REQUESTS": 1}, urls=urls)

    arrived = [one.t for one in site.log()]
    assert arrived[-1] - arrived[0] >= 0.7


@pytest.mark.timed
def test_crawl_delay_holds_for_a_slot_of_the_users_own(site: Any) -> None:
    """robots.txt's Crawl-delay paces requests with a ``download_slot`` of their own, too."""
    site.set("/robots.txt", body=b"User-agent: *\nCrawl-delay: 0.5\n")

    class Own(PlainSpider):
        async def start(self) -> Any:
            for n in (1, 2, 3):
                yield scrapy.Request(site.url(f"/page/{n}"), meta={"download_slot": "mine"})

    crawl(Own, OBEY)

    arrived = [one.t for one in site.log() if one.path != "/robots.txt"]
    assert len(arrived) == 3
    assert min(b - a for a, b in itertools.pairwise(arrived)) >= 0.45


def test_crawl_delay_is_the_longer_one_of_http_and_https(site: Any) -> None:
    """Both share a domain: the one read last does not undo the other's Crawl-delay."""

    class Knows(PlainSpider):
        def parse(self, response: Any) -> Any:
            super().parse(response)
            pace = CrawlContext.of(self.crawler).politeness
            host = site.url("").partition("://")[2].rstrip("/")
            pace.learn_robots(f"http://{host}", _robots(site, b"User-agent: *\nCrawl-delay: 7"))
            pace.learn_robots(f"https://{host}", _robots(site, b"User-agent: *\n"))
            self.pages.append(pace.registry.get(host).crawl_delay)

    crawler = crawl(Knows, OBEY, urls=(site.url("/page/1"),))
    assert crawler.spider.pages[-1] == 7


def _robots(site: Any, body: bytes) -> scrapy.http.Response:
    request = scrapy.Request(site.url("/robots.txt"))
    return scrapy.http.TextResponse(request.url, body=body, request=request)


@pytest.mark.timed
def test_downloads_after_the_cut_do_not_start(site: Any) -> None:
    """What a callback downloads after NETSPY_STOP_TIMEOUT does not keep the crawl from ending."""

    class Late(PlainSpider):
        async def parse(self, response: Any) -> Any:
            for _ in range(20):
                try:
                    request = scrapy.Request(site.url("/slow?ms=900"), dont_filter=True)
                    await self.crawler.engine.download_async(request)
                except IgnoreRequest as exc:
                    self.errors.append(exc)

    settings = {"SPIDER_MAX_RUNTIME": 0.5, "NETSPY_STOP_TIMEOUT": 0.5}
    begun = time.monotonic()
    crawler = crawl(Late, settings, urls=(site.url("/page/1"),))

    assert time.monotonic() - begun < 4
    assert isinstance(crawler.spider.errors[-1], mw.exceptions.CutOffError)


def test_naming_our_scheduler_brings_its_queue(site: Any) -> None:
    """SCHEDULER set to ours, or to a subclass, gets ReadyQueue too."""

    class Own(Scheduler):
        pass

    for cls in (Scheduler, Own):
        crawler = crawl(PlainSpider, {"SCHEDULER": cls}, urls=(site.url("/page/1"),))
        assert "ReadyQueue" in str(crawler.settings["SCHEDULER_PRIORITY_QUEUE"])
        assert len(crawler.spider.pages) == 1


def test_the_queue_works_under_scrapys_scheduler(site: Any) -> None:
    """ReadyQueue alone, without our scheduler, hands out requests."""
    settings = {
        "ADDONS": {},
        "SCHEDULER_PRIORITY_QUEUE": "netspy_scrapy.scheduling.queue.ReadyQueue",
    }
    crawler = crawl(PlainSpider, settings, urls=tuple(site.url(f"/page/{n}") for n in range(5)))

    assert len(crawler.spider.pages) == 5


@pytest.mark.timed
def test_concurrency_of_a_policy_may_be_higher(site: Any) -> None:
    """A policy's concurrency above CONCURRENT_REQUESTS_PER_DOMAIN is in effect."""
    policies = {f"{A}:*": {"concurrency": 12}}
    urls = tuple(site.url(f"/slow?ms=500&n={n}") for n in range(12))
    crawl(PlainSpider, {"NETSPY_DOMAIN_POLICIES": policies}, urls=urls)

    arrived = [one.t for one in site.log()]
    assert arrived[-1] - arrived[0] < 0.4


def test_bugs_of_the_spider_neither_open_circuits_nor_rest_domains(site: Any) -> None:
    """download_midware and callbacks that raise say nothing about the site."""

    class Bugs(Netspy):
        def download_midware(self, request: Any) -> None:
            if "/page/1" in request.url:
                raise KeyError("token")

        def parse(self, request: Any, response: Any) -> Any:
            raise ValueError("boom")

    settings = {"CIRCUIT_FAILURE_THRESHOLD": 1, "SPIDER_MAX_RETRY_TIMES": 1, "RETRY_BACKOFF": 0.1}
    seeds = [mw.Request(site.url(f"/page/{n}")) for n in (1, 2)]
    stats = netspy_stats(crawl(Bugs, settings, seeds=seeds))

    assert stats["netspy/failures"] == 2
    assert "netspy/circuits" not in stats


def test_an_errback_that_raises_does_not_fail_a_page_twice(site: Any) -> None:
    """A refused status whose errback raises is one failure, and one line."""

    class Raises(PlainSpider):
        def failed(self, failure: Any) -> Any:
            raise RuntimeError("in the errback")

    crawler = crawl(Raises, urls=(site.url("/status/404"),))

    assert netspy_stats(crawler)["netspy/failures"] == 1
    assert len(dumped()) == 1


def test_one_request_object_yielded_twice(site: Any) -> None:
    """The same Request object in flight twice leaves no domain full."""

    class Twice(PlainSpider):
        async def start(self) -> Any:
            request = scrapy.Request(site.url("/slow?ms=100"), dont_filter=True)
            for _ in range(3):
                yield request

    crawler = crawl(Twice)

    assert len(crawler.spider.pages) == 3
    states = list(CrawlContext.of(crawler).politeness.registry)
    assert [state.in_flight for state in states] == [0]
