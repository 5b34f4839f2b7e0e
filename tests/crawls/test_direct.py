"""Downloads past the queue (``engine.download_async``) keep to their domain's pace."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
import scrapy
from scrapy import signals

from netspy_scrapy.exceptions import CutOffError
from tests.crawling import PlainSpider, crawl, dumped, netspy_stats, times

A, B = "127.0.0.1", "127.0.0.2"


class Fetches(PlainSpider):
    """Fetches ``wanted`` side by side from the callback of the first page."""

    wanted: Any = ()
    others: Any = ()

    async def parse(self, response: Any) -> Any:
        super().parse(response)
        for url in self.others:
            yield scrapy.Request(url, callback=self.leaf)
        await asyncio.sleep(0)
        fetch = self.crawler.engine.download_async
        requests = [scrapy.Request(url) for url in self.wanted]
        answers = await asyncio.gather(*map(fetch, requests), return_exceptions=True)
        self.answers = [getattr(one, "status", one) for one in answers]

    def leaf(self, response: Any) -> None:
        self.pages.append((response.url, response.status))


def fetched(site: Any, path: str, count: int, host: str = A) -> tuple[str, ...]:
    """Return the URLs of *count* pages."""
    return tuple(site.url(f"{path}{'&' if '?' in path else '?'}n={n}", host=host)
                 for n in range(count))  # fmt: skip


@pytest.mark.timed
def test_a_rest_is_obeyed_and_holds_no_slot(site: Any) -> None:
    """Downloads of a resting domain wait, and the only two slots serve another domain meanwhile."""
    site.set("/rest", body=b"page", host=A)
    site.set("/rest", status=429, headers={"Retry-After": "3"}, times=1, host=A)
    crawler = crawl(
        Fetches, {"CONCURRENT_REQUESTS": 2, "CONCURRENT_REQUESTS_PER_DOMAIN": 2},
        urls=(site.url("/rest"), site.url("/page/1", host=B)),
        wanted=fetched(site, "/rest", 6), others=fetched(site, "/page/2", 30, host=B),
    )  # fmt: skip

    arrived = times(site, "/rest", A)
    assert crawler.spider.answers == [200] * 6
    assert all(one - arrived[0] >= 2.9 for one in arrived[1:])
    assert max(times(site, "/page/2", B)) - arrived[0] < 2.5


@pytest.mark.timed
def test_a_retry_waits_without_a_slot(site: Any) -> None:
    """A download that is answered 503 with Retry-After is tried again in time, without a slot."""
    wanted = (site.url("/seq/d?codes=503,200&retry_after=2"),)
    crawler = crawl(
        Fetches, {"CONCURRENT_REQUESTS": 1}, urls=(site.url("/page/1", host=B),),
        wanted=wanted, others=fetched(site, "/slow?ms=50", 20, host=B),
    )  # fmt: skip

    first, second = times(site, "/seq/d")
    assert crawler.spider.answers == [200]
    assert second - first >= 1.9
    assert sum(first < one < second for one in times(site, "/slow", B)) >= 15


@pytest.mark.timed
@pytest.mark.parametrize("robots", [False, True])
def test_the_delay_is_kept(site: Any, *, robots: bool) -> None:
    """DOWNLOAD_DELAY and Crawl-delay hold for queued pages and direct downloads together."""
    site.set("/robots.txt", body=b"User-agent: *\nCrawl-delay: 0.3\n", host=A)
    settings = {"ROBOTS_OBEY": True} if robots else {
        "NETSPY_DOMAIN_POLICIES": {f"{A}:{site.port}": {"delay": 0.3, "jitter": 0}}
    }  # fmt: skip
    crawler = crawl(
        Fetches, settings, urls=(site.url("/page/0", host=A),),
        wanted=fetched(site, "/page/1", 4), others=fetched(site, "/page/2", 4),
    )  # fmt: skip

    arrived = times(site, "/page/", A)
    assert crawler.spider.answers == [200] * 4
    assert len(arrived) == 9
    assert all(later - earlier >= 0.28 for earlier, later in pairwise(arrived))


def test_a_full_domain_holds_no_slot(site: Any) -> None:
    """Many downloads of a domain with few places leave the others theirs, and all of them come."""
    settings = {"CONCURRENT_REQUESTS": 4, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    crawler = crawl(
        Fetches, settings, urls=(site.url("/page/1", host=B),),
        wanted=fetched(site, "/slow?ms=150", 12), others=fetched(site, "/page/2", 30, host=B),
    )  # fmt: skip

    slow = times(site, "/slow", A)
    assert crawler.spider.answers == [200] * 12
    assert len(crawler.spider.pages) == 31
    # One at a time, and the other domain did not wait for them.
    assert all(later - earlier >= 0.14 for earlier, later in pairwise(slow))
    assert sum(one < slow[-1] for one in times(site, "/page/2", B)) == 30


class Token:
    """A middleware that needs another page of the same domain for each request."""

    def __init__(self, crawler: Any) -> None:
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Any) -> Token:
        return cls(crawler)

    async def process_request(self, request: Any) -> None:
        if "/token" not in request.url:
            url = request.url.partition("/page")[0] + "/token"
            await self.crawler.engine.download_async(scrapy.Request(url, dont_filter=True))


def test_a_middleware_may_need_another_page(site: Any) -> None:
    """A download inside a download does not wait for the place that the outer one holds."""
    settings = {
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1, "DOWNLOADER_MIDDLEWARES": {Token: 10},
        "CLOSESPIDER_TIMEOUT": 20,
    }  # fmt: skip
    crawler = crawl(
        Fetches, settings, urls=(site.url("/page/0"),),
        wanted=fetched(site, "/page/1", 5), others=fetched(site, "/page/2", 5),
    )  # fmt: skip

    assert crawler.spider.answers == [200] * 5
    assert len(crawler.spider.pages) == 6
    assert site.hits("/token") == 11


def test_those_who_give_up_hold_nothing(site: Any) -> None:
    """A download that is no longer awaited leaves the line, and takes no place from the others."""

    class Impatient(Fetches):
        async def parse(self, response: Any) -> Any:
            fetch = self.crawler.engine.download_async
            many = [
                asyncio.wait_for(fetch(scrapy.Request(url)), 0.05 * n)
                for n, url in enumerate(self.wanted, start=1)
            ]
            self.answers = await asyncio.gather(*many, return_exceptions=True)
            for url in self.others:
                yield scrapy.Request(url, callback=self.leaf)

    settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1, "CLOSESPIDER_TIMEOUT": 20}
    crawler = crawl(
        Impatient, settings, urls=(site.url("/page/1"),),
        wanted=fetched(site, "/slow?ms=120", 10), others=fetched(site, "/page/2", 10),
    )  # fmt: skip

    assert len(crawler.spider.pages) == 10
    assert any(isinstance(one, TimeoutError | asyncio.TimeoutError)
               for one in crawler.spider.answers)  # fmt: skip


@pytest.mark.timed
def test_a_stop_does_not_wait_for_a_rest(site: Any) -> None:
    """What waits for a rest when the crawl stops fails at once; it is awaited, so in no dump."""
    site.set("/rest", status=429, headers={"Retry-After": "50"}, host=A)
    settings = {"SPIDER_MAX_RUNTIME": 1, "RETRY_TIMES": 3}
    crawler = crawl(
        Fetches, settings, urls=(site.url("/page/1", host=B), site.url("/rest")),
        wanted=fetched(site, "/rest", 3),
    )  # fmt: skip

    assert [type(one) for one in crawler.spider.answers] == [CutOffError] * 3
    assert [line["url"] for line in dumped()] == [site.url("/rest")]


@pytest.mark.timed
def test_the_crawl_stays_open_for_them(site: Any) -> None:
    """An extension's download that waits for a rest keeps the crawl from ending before it."""

    class Extension(PlainSpider):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.heard, signals.response_received)
            return spider

        def heard(self, response: Any) -> None:
            if response.status == 429:
                self.task = asyncio.ensure_future(self.fetch())

        async def fetch(self) -> None:
            answer = await self.crawler.engine.download_async(scrapy.Request(site.url("/page/2")))
            self.pages.append((answer.url, answer.status))

    site.set("/rest", status=429, headers={"Retry-After": "1"}, host=A)
    crawler = crawl(Extension, {"RETRY_TIMES": 0}, urls=(site.url("/rest"),))

    assert crawler.spider.pages == [(site.url("/page/2"), 200)]
    assert netspy_stats(crawler)["netspy/rests"] == 1


class Polls(PlainSpider):
    """Yields ten pages, and then downloads 30 others, one after the other."""

    async def parse(self, response: Any) -> Any:
        for n in range(10):
            yield scrapy.Request(response.urljoin(f"/page/2?n={n}"), callback=super().parse)
        await asyncio.sleep(0)
        for n in range(30):
            request = scrapy.Request(response.urljoin(f"/page/3?n={n}"))
            await self.crawler.engine.download_async(request)


@pytest.mark.parametrize(
    "settings",
    [{"DOWNLOAD_DELAY": 0.05}, {"CONCURRENT_REQUESTS_PER_DOMAIN": 1}],
    ids=["delay", "concurrency"],
)
def test_a_loop_of_downloads_does_not_starve_the_queue(site: Any, settings: dict[str, Any]) -> None:
    """Code that downloads one page after the other takes turns with the queue of the domain."""
    crawler = crawl(Polls, settings, urls=(site.url("/page/1"),))

    order = "".join(one.path[6] for one in site.log())
    assert len(crawler.spider.pages) == 10
    assert order.count("3") == 30
    assert order[: order.rindex("2")].count("3") <= 18


class Files(PlainSpider):
    """Downloads four files of each page while it is handled."""

    async def parse(self, response: Any) -> None:
        super().parse(response)
        fetch = self.crawler.engine.download_async
        urls = [response.urljoin(f"/page/9?{len(self.pages)}.{n}") for n in range(4)]
        await asyncio.gather(*(fetch(scrapy.Request(url)) for url in urls))


def test_the_files_of_a_page_go_before_the_next_page(site: Any) -> None:
    """A line is served to its end before the queue has its turn, so pages do not pile up."""
    urls = [site.url(f"/page/1?n={n}") for n in range(5)]
    crawl(Files, {"DOWNLOAD_DELAY": 0.1}, urls=urls)

    order = "".join("F" if "/page/9" in one.path else "P" for one in site.log())
    # A page or two may be gone before the first one is handled, and asks for its files.
    assert len(order) == 25
    assert max(order[:n].count("P") * 4 - order[:n].count("F") for n in range(25)) <= 12


def test_callbacks_that_fill_the_scraper_do_not_hold_up_their_downloads(site: Any) -> None:
    """The line does not wait for the queue when the engine takes nothing from it."""
    settings = {"SCRAPER_SLOT_MAX_ACTIVE_SIZE": 1, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    crawler = crawl(Files, settings, urls=[site.url(f"/page/1?n={n}") for n in range(5)])

    assert len(crawler.spider.pages) == 5
    assert len(times(site, "/page/9")) == 20


class Slow(Token):
    """Fetches a token for one page, after a while."""

    async def process_request(self, request: Any) -> None:
        if "outer" in request.url:
            await asyncio.sleep(0.4)
            url = request.url.replace("outer", "token")
            await self.crawler.engine.download_async(scrapy.Request(url))


class Outer(PlainSpider):
    async def parse(self, response: Any) -> Any:
        super().parse(response)
        meta = {"dont_obey_robotstxt": True}
        url = response.urljoin("/page/1?outer").replace(B, A)
        yield scrapy.Request(url, meta=meta, callback=super().parse)
        await asyncio.sleep(0.1)
        request = scrapy.Request(url.replace("outer", "direct"))
        self.pages.append(await self.crawler.engine.download_async(request))


def test_a_robots_txt_waits_for_no_place(site: Any) -> None:
    """The page that has the only place may itself wait for the robots.txt that others fetch."""
    settings = {
        "ROBOTS_OBEY": True,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        "DOWNLOADER_MIDDLEWARES": {Slow: 10},
    }
    crawler = crawl(Outer, settings, urls=(site.url("/page/1", host=B),))

    assert len(crawler.spider.pages) == 3
    assert len(times(site, "/page/1?token", A)) == 1


class Twice(PlainSpider):
    async def parse(self, response: Any) -> None:
        request = scrapy.Request(response.urljoin("/slow?ms=100"))
        fetch = self.crawler.engine.download_async
        both = asyncio.gather(fetch(request), fetch(request), return_exceptions=True)
        self.answers = await asyncio.wait_for(both, 10)


def test_one_request_twice_at_a_time(site: Any) -> None:
    """As with Scrapy alone, the first gets its answer; nobody waits for ever."""
    crawler = crawl(Twice, urls=(site.url("/page/1"),))

    first, second = crawler.spider.answers
    assert first.status == 200
    assert isinstance(second, KeyError) or second.status == 200


class OnResponse:
    """Downloads two other pages for each one that comes, from a signal."""

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler
        self._tasks: list[Any] = []
        crawler.signals.connect(self._came, signals.response_received)

    @classmethod
    def from_crawler(cls, crawler: Any) -> OnResponse:
        return cls(crawler)

    def _came(self, response: Any) -> None:
        if "/page/" in response.url:
            for _ in range(2):
                request = scrapy.Request(response.urljoin("/slow?ms=150"))
                download = self._crawler.engine.download_async(request)
                self._tasks.append(asyncio.ensure_future(download))


def test_a_signal_is_outside_the_download_that_woke_the_engine(site: Any) -> None:
    """Downloads from handlers of signals keep to the domain's limit, whoever woke the engine."""
    settings = {
        "ROBOTS_OBEY": True,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        "EXTENSIONS": {OnResponse: 1},
    }
    crawl(PlainSpider, settings, urls=[site.url(f"/page/1?n={n}") for n in range(6)])

    slow = times(site, "/slow")
    assert len(slow) == 12
    assert all(later - earlier >= 0.14 for earlier, later in pairwise(slow))
