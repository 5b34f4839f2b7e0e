"""Crawls that fetch only what changed."""

from __future__ import annotations

import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import scrapy

import netspy_scrapy as mw
from netspy_scrapy import stats as keys
from netspy_scrapy.downloadermiddlewares.incremental import IncrementalMiddleware
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.incremental.sqlite import SqliteBackend
from tests.crawling import MEMORY, crawl, dumped, netspy_stats, rows
from tests.site import Site

ON = {"NETSPY_INCREMENTAL": True, **MEMORY}


class Pages(scrapy.Spider):
    """Fetches ``urls`` and yields a row of each page."""

    name = "pages"
    urls: tuple[str, ...] = ()
    meta: dict[str, Any] = {}
    headers: dict[str, str] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.errors: list[Any] = []

    async def start(self) -> Any:
        for url in self.urls:
            yield scrapy.Request(url, errback=self.failed, meta=dict(self.meta),
                                 headers=self.headers)  # fmt: skip

    def parse(self, response: Any) -> Any:
        yield {"url": response.url, "text": response.text}

    def failed(self, failure: Any) -> Any:
        self.errors.append(failure.value)


class Facade(mw.AirSpider):
    name = "facade"
    urls: tuple[str, ...] = ()
    validated: list[str]

    def start_requests(self) -> Any:
        self.validated = []
        for url in self.urls:
            yield mw.Request(url, tag="kept")

    def validate(self, request: Any, response: Any) -> Any:
        self.validated.append(request.url)

    def parse(self, request: Any, response: Any) -> Any:
        yield {"url": request.url, "text": response.text, "tag": request.tag}


def texts(crawler: Any) -> list[str]:
    return sorted(row["text"] for _, row, *_ in rows(crawler))


def conditions(site: Site, path: str) -> list[tuple[str | None, str | None]]:
    """Return the validators that arrived at a path, in order."""
    return [
        (one.headers.get("if-none-match"), one.headers.get("if-modified-since"))
        for one in site.log()
        if one.path == path
    ]


def entries(path: str = "netspy_incremental.db") -> dict[str, Any]:
    """Return what is stored, by the path of the URL."""
    backend = SqliteBackend(path, create=False)
    found = {"/" + one.url.split("/", 3)[3]: one for one in backend.entries()}
    backend.close()
    return found


def stat(crawler: Any, key: str) -> Any:
    return crawler.stats.get_value(key, 0)


@pytest.fixture(params=[Pages, Facade], ids=["scrapy", "netspy"])
def spider(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_the_second_run_fetches_only_what_changed(site: Site, spider: Any) -> None:
    """An unchanged page is neither sent, nor validated, nor parsed; a changed one is."""
    paths = [f"/p{n}" for n in range(5)]
    for path in paths:
        site.set(path, body=f"old {path}", headers={"ETag": f'"{path}"'}, conditional=True)
    urls = tuple(map(site.url, paths))
    first = crawl(spider, ON, urls=urls)
    site.set("/p3", body="new /p3", headers={"ETag": '"changed"'}, conditional=True)
    second = crawl(spider, ON, urls=urls)
    third = crawl(spider, ON, urls=urls)

    assert texts(first) == sorted(f"old {path}" for path in paths)
    assert texts(second) == ["new /p3"]
    assert texts(third) == []
    assert conditions(site, "/p0") == [(None, None), ('"/p0"', None), ('"/p0"', None)]
    assert conditions(site, "/p3") == [(None, None), ('"/p3"', None), ('"changed"', None)]
    assert stat(second, "downloader/response_status_count/304") == 4
    assert stat(second, "response_received_count") == 5
    if spider is Facade:
        assert second.spider.validated == [site.url("/p3")]
        assert third.spider.validated == []
    else:
        assert second.spider.errors == []
    kept = {key: value for key, value in netspy_stats(second).items() if "incremental" in key}
    assert kept == {
        keys.INCREMENTAL_ASKED: 5,
        keys.INCREMENTAL_NOT_MODIFIED: 4,
        keys.INCREMENTAL_FETCHED: 1,
        keys.INCREMENTAL_SAVED: 4 * len("old /p0"),
        keys.INCREMENTAL_STORED: 5,
    }


def test_switched_off_nothing_is_asked_or_kept(site: Site) -> None:
    """Without NETSPY_INCREMENTAL there is no middleware and no file."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    crawl(Pages, MEMORY, urls=(site.url("/p"),))
    crawler = crawl(Pages, MEMORY, urls=(site.url("/p"),))

    assert texts(crawler) == ["x"]
    assert not Path("netspy_incremental.db").exists()
    assert crawler.get_downloader_middleware(IncrementalMiddleware) is None
    assert conditions(site, "/p") == [(None, None)] * 2


@pytest.mark.usefixtures("downloader")
@pytest.mark.parametrize(
    "etag",
    [b'W/"abc"', b'"a,b*"', b"abc", b'"\xe9\xff"', b'"' + b"x" * 500 + b'"'],
    ids=["weak", "comma", "unquoted", "latin", "long"],
)
def test_validators_are_sent_byte_for_byte(site: Site, etag: bytes) -> None:
    """What the site sent is what it gets back, whatever it looks like."""
    site.set("/p", body="x", headers={"ETag": etag}, conditional=True)
    crawl(Pages, ON, urls=(site.url("/p"),))
    crawler = crawl(Pages, ON, urls=(site.url("/p"),))

    assert conditions(site, "/p")[1] == (etag.decode("latin-1"), None)
    assert stat(crawler, keys.INCREMENTAL_NOT_MODIFIED) == 1


def test_last_modified_counts_where_there_is_no_etag(site: Site) -> None:
    """If-Modified-Since is asked only without an ETag."""
    old = "Wed, 21 Oct 2015 07:28:00 GMT"
    site.set("/date", body="x", headers={"Last-Modified": old}, conditional=True)
    both = {"ETag": '"1"', "Last-Modified": old}
    site.set("/both", body="x", headers=both, conditional=True)
    urls = (site.url("/date"), site.url("/both"))
    crawl(Pages, ON, urls=urls)
    crawler = crawl(Pages, ON, urls=urls)

    assert conditions(site, "/date")[1] == (None, old)
    assert conditions(site, "/both")[1] == ('"1"', None)
    assert texts(crawler) == []


def test_a_304_never_changes_the_validator(site: Site) -> None:
    """Neither one without an ETag nor one with another takes the stored one away."""
    site.set("/p", body="x", headers={"ETag": '"1"'})
    site.set("/q", body="x", headers={"ETag": '"1"'})
    urls = (site.url("/p"), site.url("/q"))
    crawl(Pages, ON, urls=urls)
    site.set("/p", 304)
    site.set("/q", 304, headers={"ETag": '"other"'})
    for _ in range(2):
        crawl(Pages, ON, urls=urls)

    assert conditions(site, "/p") == [(None, None), ('"1"', None), ('"1"', None)]
    assert conditions(site, "/q") == [(None, None), ('"1"', None), ('"1"', None)]


def test_a_200_without_etag_drops_the_stale_one(site: Site) -> None:
    """A page that lost its ETag is no longer asked for by the old one."""
    site.set("/p", body="x", headers={"ETag": '"1"'})
    crawl(Pages, ON, urls=(site.url("/p"),))
    site.set("/p", body="y")
    crawl(Pages, ON, urls=(site.url("/p"),))
    crawler = crawl(Pages, ON, urls=(site.url("/p"),))

    assert conditions(site, "/p") == [(None, None), ('"1"', None), (None, None)]
    assert stat(crawler, keys.INCREMENTAL_PLAIN) == 1
    assert not entries()["/p"].has_validator


class Failing(Pages):
    """Its callback raises, or yields a row and raises."""

    def parse(self, response: Any) -> Any:
        yield {"url": response.url, "text": response.text}
        raise RuntimeError("broken")


def test_a_failed_callback_is_not_remembered(site: Site) -> None:
    """A page whose callback raised is fetched in full by the next run."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    crawl(Failing, ON, urls=(site.url("/p"),))
    crawler = crawl(Pages, ON, urls=(site.url("/p"),))

    assert conditions(site, "/p") == [(None, None)] * 2
    assert texts(crawler) == ["x"]


def test_items_of_a_feed_are_safe_when_it_is_closed(site: Site) -> None:
    """What was in a feed is remembered at the very end, and nothing if the feed failed."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    urls = (site.url("/p"),)
    feed = {"NETSPY_INCREMENTAL": True, "FEEDS": {"out.jsonl": {"format": "jsonlines"}}}
    broken = {**feed, "FEEDS": {"ftp://127.0.0.1:1/x.jsonl": {"format": "jsonlines"}}}
    crawl(Pages, broken, urls=urls)
    crawl(Pages, feed, urls=urls)
    crawl(Pages, feed, urls=urls)

    assert conditions(site, "/p") == [(None, None), (None, None), ('"1"', None)]


def test_a_page_that_goes_back_to_what_it_was(site: Site) -> None:
    """Rows of a version that is not remembered are replaced, though its forerunner is known."""
    site.set("/p", body="one", headers={"ETag": '"1"'}, conditional=True)
    crawl(Pages, ON, urls=(site.url("/p"),))
    site.set("/p", body="two", headers={"ETag": '"2"'}, conditional=True)
    broken = crawl(Failing, ON, urls=(site.url("/p"),))
    site.set("/p", body="one", headers={"ETag": '"1"'}, conditional=True)
    crawler = crawl(Pages, ON, urls=(site.url("/p"),))

    assert texts(broken) == ["two"]
    assert texts(crawler) == ["one"]


def test_retries_and_redirects_keep_no_foreign_validator(site: Site) -> None:
    """Each hop asks by what is known of its own page."""
    site.set("/a", body="a", headers={"ETag": '"a"'}, conditional=True)
    site.set("/b", body="b", headers={"ETag": '"b"'}, conditional=True)
    crawl(Pages, ON, urls=(site.url("/a"), site.url("/b")))
    # /a moved; what it says now is that of /b, of which another ETag is known
    site.set("/a", 302, headers={"Location": "/b"})
    site.set("/b", 503, times=1)
    crawler = crawl(Pages, ON, urls=(site.url("/a"),))

    assert conditions(site, "/a")[1] == ('"a"', None)
    assert conditions(site, "/b")[1:] == [('"b"', None), ('"b"', None)]
    assert texts(crawler) == []
    assert dumped() == []


def test_an_http_cache_never_keeps_a_304(site: Site) -> None:
    """Conditional requests go past Scrapy's cache; what it answers is parsed, and not learned."""
    cache = {**ON, "HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": "cache"}
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    urls = (site.url("/p"),)
    runs = [texts(crawl(Pages, cache, urls=urls)) for _ in range(3)]
    Path("netspy_incremental.db").unlink()
    cached = crawl(Pages, cache, urls=urls)

    assert runs == [["x"], [], []]
    assert conditions(site, "/p") == [(None, None), ('"1"', None), ('"1"', None)]
    assert texts(cached) == ["x"]
    assert entries() == {}


def test_beside_the_development_cache(site: Site) -> None:
    """A page goes to its callback from the cache, or is asked about at the site: never a 304."""
    both = {**ON, "RESPONSE_CACHE_ENABLE": True}
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    urls = (site.url("/p"),)
    first = crawl(Pages, both, urls=urls)
    second = crawl(Pages, both, urls=urls)
    past_it = crawl(Pages, both, urls=urls, meta={"netspy_cache": "refresh"})
    forgotten = crawl(Pages, {**both, "NETSPY_INCREMENTAL": False}, urls=urls)

    assert [texts(one) for one in (first, second, past_it, forgotten)] == [["x"], ["x"], [], ["x"]]
    assert conditions(site, "/p") == [(None, None), ('"1"', None)]


def test_a_retry_has_the_meta_that_the_spider_gave(site: Site) -> None:
    """Nothing of the attempt before is left on it."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    crawl(Pages, ON, urls=(site.url("/p"),))
    site.set("/p", 503, times=1)

    class Seeing(Pages):
        name = "pages"

        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            spider = super().from_crawler(crawler, *args, **kwargs)
            spider.seen = []
            crawler.signals.connect(spider.note, scrapy.signals.request_scheduled)
            return spider

        def note(self, request: Any) -> None:
            self.seen.append((dict(request.headers), request.meta.get("dont_cache")))

    crawler = crawl(Seeing, ON, urls=(site.url("/p"),), meta={"dont_cache": False})

    assert [cached for _, cached in crawler.spider.seen] == [False, False]
    assert not any(b"If-None-Match" in headers for headers, _ in crawler.spider.seen)
    assert conditions(site, "/p")[1:] == [('"1"', None), ('"1"', None)]


def test_a_dumped_request_has_no_validator(site: Site) -> None:
    """A request that failed for good is replayed in full, not answered with an empty 304."""
    site.set("/p", body="x", headers={"ETag": '"secret-validator"'})
    site.set("/gone", body="x", headers={"ETag": '"secret-validator"'})
    urls = (site.url("/p"), site.url("/gone"))
    crawl(Pages, ON, urls=urls)
    site.set("/p", 500)
    site.set("/gone", raw=b"")
    crawl(Pages, {**ON, "RETRY_ENABLED": False}, urls=urls)

    assert conditions(site, "/p")[1] == ('"secret-validator"', None)
    assert len(dumped()) == 2
    assert "secret-validator" not in Path("failed_requests.jsonl").read_text()


@pytest.mark.parametrize("header", ["If-None-Match", "If-Modified-Since", "Range"])
def test_a_request_with_conditions_of_its_own_is_left_alone(site: Site, header: str) -> None:
    """Its 304 is an ordinary answer, and nothing is remembered of it."""
    site.set("/p", 304)
    crawler = crawl(Pages, ON, urls=(site.url("/p"),), headers={header: "own"})

    assert texts(crawler) == [""]
    assert entries() == {}
    assert site.log()[0].headers[header.lower()] == "own"


def test_what_code_fetches_itself_is_left_alone(site: Site) -> None:
    """Who awaits a download gets the page, and not an empty 304."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)

    class Awaiting(Pages):
        async def parse(self, response: Any) -> Any:
            answer = await self.crawler.engine.download_async(scrapy.Request(response.url))
            yield {"text": answer.text}

    crawl(Pages, ON, urls=(site.url("/p"),))
    site.set("/q", body="y")
    crawler = crawl(Awaiting, ON, urls=(site.url("/q"),))
    other = crawl(Awaiting, ON, urls=(site.url("/p") + "?changed",))

    assert (texts(crawler), texts(other)) == (["y"], ["x"])
    assert [inm for inm, _ in conditions(site, "/p")] == [None]


def test_rendered_pages_are_fetched_each_time(site: Site) -> None:
    """Their validators say nothing of what a browser shows."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    for meta in ({}, {"playwright": True}):
        crawler = crawl(Pages, ON, urls=(site.url("/p"),), meta=meta)

    assert texts(crawler) == ["x"]
    assert conditions(site, "/p") == [(None, None)] * 2


def test_another_scheduler_switches_it_off(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A warning says so, and everything is fetched."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    settings = {**ON, "SCHEDULER": "scrapy.core.scheduler.Scheduler"}
    for _ in range(2):
        crawler = crawl(Pages, settings, urls=(site.url("/p"),))

    assert texts(crawler) == ["x"]
    assert "NETSPY_INCREMENTAL does nothing" in caplog.text


def test_a_304_that_nobody_asked_for_is_an_ordinary_answer(site: Site) -> None:
    """A site that answers so to a plain request is heard by the callback."""
    site.set("/p", 304, headers={"ETag": '"1"'})
    crawler = crawl(Pages, ON, urls=(site.url("/p"),))

    assert texts(crawler) == [""]
    assert entries() == {}


def test_pages_that_are_gone_are_forgotten(site: Site) -> None:
    """After a 404 or 410 nothing is known of the page, after a 403 all of it."""
    for path in ("/404", "/410", "/403"):
        site.set(path, body="x", headers={"ETag": '"1"'}, conditional=True)
    urls = tuple(map(site.url, ("/404", "/410", "/403")))
    crawl(Pages, ON, urls=urls)
    for path in ("/404", "/410", "/403"):
        site.set(path, int(path[1:]))
    crawler = crawl(Pages, ON, urls=urls)

    assert sorted(entries()) == ["/403"]
    assert stat(crawler, keys.INCREMENTAL_GONE) == 2


def test_two_spiders_do_not_read_each_other(site: Site) -> None:
    """What one spider has stored says nothing of the rows of another."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)

    class Other(Pages):
        name = "other"

    crawl(Pages, ON, urls=(site.url("/p"),))
    crawler = crawl(Other, ON, urls=(site.url("/p"),))

    assert texts(crawler) == ["x"]


def test_other_headers_are_another_page(site: Site) -> None:
    """A page in another language has an entry of its own."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    crawl(Pages, ON, urls=(site.url("/p"),))
    other = {"DEFAULT_REQUEST_HEADERS": {"Accept-Language": "de"}}
    german = crawl(Pages, {**ON, **other}, urls=(site.url("/p"),))
    again = crawl(Pages, {**ON, **other}, urls=(site.url("/p"),))

    assert (texts(german), texts(again)) == (["x"], [])


def test_a_domain_or_a_request_can_be_left_out(site: Site) -> None:
    """Policies and meta switch it off; a wrong word in meta fails that request alone."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    urls = (site.url("/p"),)
    crawl(Pages, ON, urls=urls)
    domain = {"NETSPY_DOMAIN_POLICIES": {"127.0.0.1:*": {"incremental": False}}}
    by_domain = crawl(Pages, {**ON, **domain}, urls=urls)
    by_meta = crawl(Pages, ON, urls=urls, meta={"netspy_incremental": False})
    wrong = crawl(Pages, ON, urls=urls, meta={"netspy_incremental": "skpi"})

    assert texts(by_domain) == texts(by_meta) == ["x"]
    assert "netspy_incremental" in str(wrong.spider.errors[0])


# Modes -----------------------------------------------------------------------------------------
class Shop(scrapy.Spider):
    """A list page whose detail pages are yielded with all that a request may carry."""

    name = "shop"
    url = ""

    async def start(self) -> Any:
        yield scrapy.Request(self.url)

    def parse(self, response: Any) -> Any:
        yield {"url": response.url, "text": "list"}
        for link in response.css("a"):
            yield response.follow(
                link, self.parse_detail, cb_kwargs={"name": link.css("::text").get()},
                meta={"tuple": (1, 2)}, priority=3,
            )  # fmt: skip

    def parse_detail(self, response: Any, name: str) -> Any:
        assert response.meta["tuple"] == (1, 2)
        assert response.request.priority == 3
        assert response.meta["depth"] == 1
        yield {"url": response.url, "text": f"{name}: {response.text}"}


class FacadeShop(mw.AirSpider):
    name = "facade-shop"
    url = ""

    def start_requests(self) -> Any:
        yield mw.Request(self.url)

    def parse(self, request: Any, response: Any) -> Any:
        yield {"url": request.url, "text": "list"}
        for link in response.css("a"):
            yield mw.Request(
                response.urljoin(link.attrib["href"]), callback="parse_detail", priority=7,
                title=link.css("::text").get(),
            )  # fmt: skip

    def parse_detail(self, request: Any, response: Any) -> Any:
        assert request.priority == 7
        yield {"url": request.url, "text": f"{request.title}: {response.text}"}


@pytest.fixture(params=[Shop, FacadeShop], ids=["scrapy", "netspy"])
def shop(request: pytest.FixtureRequest, site: Site) -> Any:
    links = "".join(f"<a href=/d{n}>book {n}</a>" for n in range(3))
    site.set("/list", body=links, headers={"ETag": '"list"'}, conditional=True)
    for n in range(3):
        site.set(f"/d{n}", body=f"text {n}", headers={"ETag": f'"{n}"'}, conditional=True)
    return request.param


def test_follow_visits_the_changed_pages_of_an_unchanged_list(site: Site, shop: Any) -> None:
    """An unchanged list page does not hide changed detail pages, however often it is unchanged."""
    follow = {**ON, "NETSPY_INCREMENTAL_ON_304": "follow"}
    url = site.url("/list")
    first = crawl(shop, follow, url=url)
    site.set("/d1", body="new", headers={"ETag": '"new"'}, conditional=True)
    second = crawl(shop, follow, url=url)
    site.set("/d2", body="newer", headers={"ETag": '"newer"'}, conditional=True)
    third = crawl(shop, follow, url=url)

    assert texts(first) == ["book 0: text 0", "book 1: text 1", "book 2: text 2", "list"]
    assert texts(second) == ["book 1: new"]
    assert texts(third) == ["book 2: newer"]
    assert stat(second, keys.INCREMENTAL_FOLLOWED) == 3
    assert conditions(site, "/list")[1:] == [('"list"', None)] * 2


def test_follow_with_callbacks_in_threads(site: Site, shop: Any) -> None:
    """NETSPY_CALLBACK_THREADS changes nothing of it."""
    follow = {**ON, "NETSPY_INCREMENTAL_ON_304": "follow", "NETSPY_CALLBACK_THREADS": 2}
    crawl(shop, follow, url=site.url("/list"))
    site.set("/d1", body="new", headers={"ETag": '"new"'}, conditional=True)
    second = crawl(shop, follow, url=site.url("/list"))

    assert texts(second) == ["book 1: new"]


def test_a_page_that_yields_what_cannot_be_kept(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """A function as a callback cannot be found again: the list is fetched in full, and says so."""
    site.set("/list", body="x", headers={"ETag": '"l"'}, conditional=True)
    site.set("/d", body="d", headers={"ETag": '"d"'}, conditional=True)

    class Lambdas(Pages):
        name = "lambdas"

        def parse(self, response: Any) -> Any:
            yield response.follow("/d", lambda answer: {"text": answer.text})

    follow = {**ON, "NETSPY_INCREMENTAL_ON_304": "follow"}
    for _ in range(2):
        crawl(Lambdas, follow, urls=(site.url("/list"),))

    assert conditions(site, "/list") == [(None, None)] * 2
    assert conditions(site, "/d") == [(None, None), ('"d"', None)]
    assert "a request that it yields cannot be kept: the callback" in caplog.text


def test_skip_does_not_visit_them(site: Site, shop: Any) -> None:
    """The default is that of the article: an unchanged page is skipped."""
    crawl(shop, ON, url=site.url("/list"))
    site.set("/d1", body="new", headers={"ETag": '"new"'}, conditional=True)
    second = crawl(shop, ON, url=site.url("/list"))

    assert texts(second) == []
    assert site.hits("/d1") == 1


def test_follow_by_domain_and_by_request(site: Site) -> None:
    """The mode can be another one for a domain, and for a request."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    policies = {"NETSPY_DOMAIN_POLICIES": {"127.0.0.1:*": {"on_304": "reparse"}}}
    for _ in range(2):
        by_domain = crawl(Pages, {**ON, **policies}, urls=(site.url("/p"),))
    by_meta = crawl(
        Pages, {**ON, **policies}, urls=(site.url("/p"),), meta={"netspy_incremental": "skip"}
    )

    assert texts(by_domain) == ["x"]
    assert stat(by_domain, keys.INCREMENTAL_NOT_MODIFIED) == 1
    assert texts(by_meta) == []


def test_a_mode_that_was_not_kept_for_fetches_in_full_once(site: Site, shop: Any) -> None:
    """Who changes to "follow" gets the list page once more, and follows it from then on."""
    follow = {**ON, "NETSPY_INCREMENTAL_ON_304": "follow"}
    crawl(shop, ON, url=site.url("/list"))
    crawl(shop, follow, url=site.url("/list"))
    crawl(shop, follow, url=site.url("/list"))

    assert conditions(site, "/list") == [(None, None), (None, None), ('"list"', None)]


def test_reparse_gives_the_kept_body_to_the_callback(site: Site, spider: Any) -> None:
    """The callback runs each time, as if the page had been sent."""
    reparse = {**ON, "NETSPY_INCREMENTAL_ON_304": "reparse"}
    text = "<meta charset=gbk>\u7ea2\u697c\u68a6"
    site.set("/p", body=text.encode("gbk"), headers={"ETag": '"1"', "Content-Type": "text/html"},
             conditional=True)  # fmt: skip
    first = crawl(spider, reparse, urls=(site.url("/p"),))
    second = crawl(spider, reparse, urls=(site.url("/p"),))

    assert texts(first) == texts(second) == [text]
    assert stat(second, "downloader/response_status_count/304") == 1
    if spider is Facade:
        assert second.spider.validated == [site.url("/p")]


@pytest.mark.parametrize("table", ["children", "bodies"])
@pytest.mark.parametrize("damage", ["deleted", "garbage"])
def test_a_damaged_entry_is_a_miss(
    site: Site, table: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where what was kept cannot be read, the page is fetched in full, with one line."""
    site.set("/p", body="x", headers={"ETag": '"1"'}, conditional=True)
    mode = {**ON, "NETSPY_INCREMENTAL_ON_304": "follow" if table == "children" else "reparse"}
    crawl(Pages, mode, urls=(site.url("/p"),))
    with sqlite3.connect("netspy_incremental.db") as database:
        column = "requests" if table == "children" else "body"
        change = "DELETE FROM" if damage == "deleted" else "UPDATE"
        database.execute(
            f"{change} {table}" + ("" if damage == "deleted" else f" SET {column}=x'00'")
        )
    database.close()
    caplog.clear()
    crawler = crawl(Pages, mode, urls=(site.url("/p"),))
    after = crawl(Pages, mode, urls=(site.url("/p"),))

    assert texts(crawler) == ["x"]
    assert caplog.text.count("but is fetched again") == 1
    assert conditions(site, "/p") == [(None, None), ('"1"', None), (None, None), ('"1"', None)]
    assert texts(after) == (["x"] if table == "bodies" else [])


# Pages that say little ---------------------------------------------------------------------------
def test_a_dynamic_etag_is_no_longer_asked_by(site: Site) -> None:
    """An ETag that changes although the body does not is given up; the page is still fetched."""
    settings = {**ON, "NETSPY_INCREMENTAL_DYNAMIC_AFTER": 2}
    for n in range(7):
        site.set("/p", body="same", headers={"ETag": f'"{n}"'})
        crawler = crawl(Pages, settings, urls=(site.url("/p"),))
        assert texts(crawler) == ["same"]

    asked = [inm for inm, _ in conditions(site, "/p")]
    assert asked == [None, '"0"', '"1"', '"2"', None, None, None]
    assert stat(crawler, keys.INCREMENTAL_DYNAMIC) == 1
    assert entries()["/p"].dynamic


def test_a_body_that_is_the_same_can_be_skipped(site: Site) -> None:
    """NETSPY_INCREMENTAL_COMPARE_BODY: sent again, but not parsed again; the new ETag is kept."""
    compare = {**ON, "NETSPY_INCREMENTAL_COMPARE_BODY": True}
    seen = []
    for body, etag in (("a", '"1"'), ("a", '"2"'), ("b", '"3"'), ("b", None)):
        site.set("/p", body=body, headers={"ETag": etag} if etag else {})
        seen.append(texts(crawl(Pages, compare, urls=(site.url("/p"),))))

    assert seen == [["a"], [], ["b"], []]
    assert [inm for inm, _ in conditions(site, "/p")] == [None, '"1"', '"2"', '"3"']


def test_pages_without_validators_wait_for_their_age(site: Site) -> None:
    """Within NETSPY_INCREMENTAL_MIN_AGE they are not asked for; with a validator they are."""
    old = {**ON, "NETSPY_INCREMENTAL_MIN_AGE": 3600}
    site.set("/plain", body="x")
    site.set("/etag", body="x", headers={"ETag": '"1"'}, conditional=True)
    urls = (site.url("/plain"), site.url("/etag"))
    crawl(Pages, old, urls=urls)
    crawler = crawl(Pages, old, urls=urls)
    later = crawl(Pages, {**old, "NETSPY_INCREMENTAL_MIN_AGE": 0}, urls=urls)

    assert (site.hits("/plain"), site.hits("/etag")) == (2, 3)
    assert stat(crawler, keys.INCREMENTAL_FRESH) == 1
    assert (texts(crawler), texts(later)) == ([], ["x"])


# What is seen ------------------------------------------------------------------------------------
def test_each_page_has_a_line_with_fields(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG: CACHE or FETCH, status, latency and bytes."""
    caplog.set_level(logging.DEBUG, "netspy_scrapy.downloadermiddlewares.incremental")
    site.set("/p", body="12345", headers={"ETag": '"1"'}, conditional=True)
    for _ in range(2):
        crawl(Pages, ON, urls=(site.url("/p"),))

    lines = [one for one in caplog.records if hasattr(one, "outcome")]
    assert [(one.outcome, one.status, one.bytes) for one in lines] == [
        ("FETCH", 200, 5), ("CACHE", 304, 0),
    ]  # fmt: skip
    assert all(0 < one.latency_ms < 10_000 for one in lines)
    assert "CACHE | 304 |" in caplog.text


def test_the_summary_tells_the_share(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Share of 304 and bytes saved; a warning where conditional requests are of no use."""
    site.set("/p", body="x" * 3000, headers={"ETag": '"1"'}, conditional=True)
    site.set("/q", body="y", headers={"ETag": '"1"'})
    crawl(Pages, ON, urls=(site.url("/p"), site.url("/q")))
    first = caplog.text
    caplog.clear()
    crawl(Pages, ON, urls=(site.url("/p"), site.url("/q")))
    shared = caplog.text
    caplog.clear()
    crawl(Pages, ON, urls=(site.url("/q"),))

    assert "unchanged 0  (no page was asked about)\n    fetched 2" in first
    assert "unchanged 1 of 2 pages that were asked about (50.0 %), 3.0 KB not sent" in shared
    assert "answered none of 1 conditional requests with 304" not in shared
    assert "answered none of 1 conditional requests with 304" in caplog.text


# Settings ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NETSPY_INCREMENTAL", "maybe"),
        ("NETSPY_INCREMENTAL_ON_304", "parse"),
        ("NETSPY_INCREMENTAL_STORE", "json"),
        ("NETSPY_INCREMENTAL_MIN_AGE", -1),
        ("NETSPY_INCREMENTAL_DYNAMIC_AFTER", 1.5),
        ("NETSPY_INCREMENTAL_HEADERS", [1]),
        ("NETSPY_INCREMENTAL_PATH", ""),
        ("NETSPY_DOMAIN_POLICIES", {"a": {"on_304": "no"}}),
    ],
)
def test_wrong_values_are_named(name: str, value: Any) -> None:
    """A wrong value ends the start, and says what is allowed."""
    with pytest.raises(ConfigError, match=name):
        crawl(Pages, {**ON, name: value})


def test_a_path_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    """Neither a folder nor a database of something else is taken for the store."""
    with sqlite3.connect("rows.db") as database:
        database.execute("CREATE TABLE items (a)")
    database.close()

    for path in (str(tmp_path), "rows.db", "missing/x.db"):
        with pytest.raises(ConfigError, match="NETSPY_INCREMENTAL_PATH"):
            crawl(Pages, {**ON, "NETSPY_INCREMENTAL_PATH": path})


def test_the_store_is_for_its_owner(site: Site) -> None:
    """It may hold headers of requests."""
    crawl(Pages, ON, urls=(site.url("/page/1"),))

    assert Path("netspy_incremental.db").stat().st_mode & 0o777 == 0o600


def test_jobdir(site: Site) -> None:
    """A crawl with a job directory remembers what was done, and nothing that is only queued."""
    for n in range(3):
        site.set(f"/p{n}", body=str(n), headers={"ETag": f'"{n}"'}, conditional=True)
    urls = tuple(site.url(f"/p{n}") for n in range(3))
    settings = {**ON, "JOBDIR": "job"}
    first = crawl(Pages, {**settings, "CLOSESPIDER_PAGECOUNT": 1, "CONCURRENT_REQUESTS": 1},
                  urls=urls)  # fmt: skip
    second = crawl(Pages, settings, urls=urls)

    assert sorted(texts(first) + texts(second)) == ["0", "1", "2"]
    assert json.dumps(sorted(entries())) == '["/p0", "/p1", "/p2"]'
