"""The response cache, in real crawls: what a second run sends, and what it does not."""

from __future__ import annotations

import gzip
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

import netspy_scrapy as mw
from netspy_scrapy.cache.answers import manner_of
from netspy_scrapy.cache.crawl import ResponseCache
from netspy_scrapy.cache.entries import Entry
from netspy_scrapy.cache.file import _COLUMNS, FILE, CacheFile
from netspy_scrapy.cache.listing import use_by_domain
from netspy_scrapy.context import CrawlContext
from tests.crawling import MEMORY, PlainSpider, crawl, dumped, netspy_stats, rows

A, B = "127.0.0.1", "127.0.0.2"
ON = {"RESPONSE_CACHE_ENABLE": True}


class Pages(PlainSpider):
    """Keeps what it got of each page."""

    headers: Any = None
    cookies: Any = None
    dont_filter = False

    async def start(self) -> Any:
        for url in self.urls:
            yield scrapy.Request(
                url, errback=self.failed, meta=dict(self.meta), headers=self.headers,
                cookies=self.cookies, dont_filter=self.dont_filter,
            )  # fmt: skip

    def parse(self, response: Any) -> Any:
        self.pages.append((response.url, response.status))
        self.__dict__.setdefault("bodies", []).append(response.body)
        self.__dict__.setdefault("texts", []).append(getattr(response, "text", None))
        self.__dict__.setdefault("flags", []).append(list(response.flags))


class Netspy(mw.AirSpider):
    """Fetches what it is given, and is stopped by what its hooks say."""

    seeds: Any = ()
    __custom_setting__ = MEMORY

    def start_requests(self) -> Any:
        for url in self.seeds:
            yield mw.Request(url)

    def parse(self, request: Any, response: Any) -> Any:
        yield {"url": response.url, "text": response.text[:20]}


class AtOnce(Pages):
    """Queues all its pages in one go."""

    async def start(self) -> Any:
        yield scrapy.Request("data:,", callback=self.all)

    def all(self, response: Any) -> Any:
        self.crawler.engine.pause()
        for url in self.urls:
            yield scrapy.Request(url, callback=self.page, errback=self.failed)
        self.crawler.engine.unpause()

    def page(self, response: Any) -> Any:
        return super().parse(response)


def sent(site: Any, spider: Any, settings: Any = None, **arguments: Any) -> tuple[Any, list[str]]:
    """Crawl; return the crawler and the paths that the site was asked for meanwhile."""
    before = len(site.log())
    crawler = crawl(spider, {**ON, **(settings or {})}, **arguments)
    return crawler, [one.path for one in site.log()[before:]]


def hits(crawler: Any) -> int:
    return int(netspy_stats(crawler).get("netspy/cache/hits", 0))


# What a second run sends -------------------------------------------------------------------------
def test_a_second_run_asks_the_site_for_nothing(site: Any) -> None:
    """Each page comes from the disk, and is the same page."""
    urls = tuple(site.url(f"/page/{n}") for n in range(50))
    first, asked = sent(site, Pages, urls=urls)
    again, asked_again = sent(site, Pages, urls=urls)

    assert len(asked) == 50
    assert asked_again == []
    assert sorted(again.spider.bodies) == sorted(first.spider.bodies)
    assert netspy_stats(first) == {"netspy/cache/misses": 50, "netspy/cache/stored": 50}
    assert netspy_stats(again) == {"netspy/cache/hits": 50}
    assert again.spider.flags == [["cached"]] * 50
    assert again.stats.get_value("response_received_count") == 50


@pytest.mark.timed
def test_a_hit_waits_for_nothing(site: Any) -> None:
    """Neither the delay nor the concurrency of the domain holds up what is on the disk."""
    urls = tuple(site.url(f"/page/{n}") for n in range(40))
    sent(site, Pages, urls=urls)
    slow = {"DOWNLOAD_DELAY": 5, "CONCURRENT_REQUESTS_PER_DOMAIN": 1, "AUTOTHROTTLE_ENABLED": True}
    begun = time.monotonic()
    crawler, asked = sent(site, Pages, slow, urls=urls)

    assert time.monotonic() - begun < 5
    assert asked == []
    assert len(crawler.spider.pages) == 40


@pytest.mark.timed
def test_a_hit_needs_no_download_slot(site: Any) -> None:
    """With every download slot taken by a slow site, cached pages of another one go through."""
    cached = tuple(site.url(f"/page/{n}") for n in range(30))
    sent(site, Pages, urls=cached)
    slow = tuple(site.url(f"/slow?ms=3000&n={n}", host=B) for n in range(2))
    done: dict[str, float] = {}

    class Timed(Pages):
        def parse(self, response: Any) -> Any:
            done[response.url] = time.monotonic()

    begun = time.monotonic()
    sent(site, Timed, {"CONCURRENT_REQUESTS": 2}, urls=(*slow, *cached))

    assert max(done[url] for url in cached) - begun < 2
    assert min(done[url] for url in slow) - begun >= 3


@pytest.mark.timed
def test_many_hits_do_not_keep_the_site_waiting(site: Any) -> None:
    """The site is asked for new pages while the old ones are read."""
    cached = tuple(site.url(f"/page/{n}") for n in range(600))
    sent(site, Pages, urls=cached)
    new = tuple(site.url(f"/page/{n}", host=B) for n in range(20))
    order: list[str] = []

    class Ordered(AtOnce):
        def page(self, response: Any) -> Any:
            order.append(response.url)

    sent(site, Ordered, urls=(*cached, *new))

    assert len(order) == 620
    assert max(order.index(url) for url in new) < 400
    assert min(order.index(url) for url in cached) < 20


def test_redirects_come_from_the_disk_too(site: Any) -> None:
    """Each hop is an entry, cookies that it sets included."""
    site.set("/secret", body=b"for members")
    target = site.url("/cookie/show")
    url = site.url(f"/redirect?to={target}&cookie=member%3D1")
    first, asked = sent(site, Pages, urls=(url,))
    again, asked_again = sent(site, Pages, urls=(url,))

    assert len(asked) == 2
    assert asked_again == []
    assert again.spider.bodies == first.spider.bodies == [b'{"member": "1"}']
    assert hits(again) == 2


def test_compressed_binary_and_encoded_answers(site: Any) -> None:
    """Bodies are kept as they came, and are read as they were the first time."""
    zipped = gzip.compress(b"<html><body>" + b"x" * 5000)
    site.set("/zipped", body=zipped, headers={"Content-Encoding": "gzip"})
    site.set("/raw", body=bytes(range(256)) * 20, headers={"Content-Type": "image/png"})
    site.set("/empty", body=b"")
    site.set("/odd", body=b"x", headers=[("X-Odd", b"\xff\xfe"), ("X-Two", "a"), ("X-Two", "b")])
    paths = ["/zipped", "/raw", "/empty", "/odd", "/chunked?kb=64", "/encoding/gbk",
             "/encoding/gbk?where=meta", "/encoding/latin-1"]  # fmt: skip
    urls = tuple(site.url(path) for path in paths)
    first, _ = sent(site, Pages, urls=urls)
    again, asked = sent(site, Pages, urls=urls)

    def seen(crawler: Any) -> Any:
        spider = crawler.spider
        return sorted(zip(spider.pages, spider.bodies, map(str, spider.texts), strict=True))

    assert asked == []
    assert seen(again) == seen(first)
    assert len(seen(again)) == len(paths)


class Links(CrawlSpider):
    """Follows links five pages deep."""

    name = "links"
    rules = (Rule(LinkExtractor(allow=r"/page/"), callback="page", follow=True),)
    custom_settings = {"DEPTH_LIMIT": 3}

    def page(self, response: Any) -> Any:
        self.__dict__.setdefault("seen", []).append(response.url)


def test_a_crawl_spider(site: Any) -> None:
    """A spider that finds its pages by links finds the same ones."""
    first, asked = sent(site, Links, start_urls=[site.url("/page/1")])
    again, asked_again = sent(site, Links, start_urls=[site.url("/page/1")])

    assert len(asked) > 10
    assert asked_again == []
    assert sorted(again.spider.seen) == sorted(first.spider.seen)


def test_robots_txt_is_not_fetched_for_hits(site: Any) -> None:
    """What sends nothing asks for no permission; what does, asks first."""
    site.set("/robots.txt", body="User-agent: *\nDisallow: /private\n")
    urls = (site.url("/page/1"), site.url("/page/2"))
    _, asked = sent(site, Pages, {"ROBOTS_OBEY": True}, urls=urls)
    _, asked_again = sent(site, Pages, {"ROBOTS_OBEY": True}, urls=urls)
    more, asked_more = sent(
        site, Pages, {"ROBOTS_OBEY": True}, urls=(*urls, site.url("/private/1"))
    )

    assert sorted(asked) == ["/page/1", "/page/2", "/robots.txt"]
    assert asked_again == []
    assert asked_more == ["/robots.txt"]
    assert netspy_stats(more)["netspy/drops/robots"] == 1


def test_a_cached_page_is_served_whatever_robots_txt_says_by_now(site: Any) -> None:
    """robots.txt is about asking the site, and a copy asks nobody."""
    site.set("/robots.txt", body="User-agent: *\nDisallow: /\n")
    urls = (site.url("/page/1"),)
    sent(site, Pages, urls=urls)
    crawler, asked = sent(site, Pages, {"ROBOTS_OBEY": True}, urls=urls)

    assert asked == []
    assert crawler.spider.pages == [(urls[0], 200)]


# What is kept ------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", [401, 403, 404, 410, 429, 500, 503])
def test_refused_answers_are_not_kept(site: Any, status: int) -> None:
    """What the status policy does not take is asked for again."""
    settings = {"SPIDER_MAX_RETRY_TIMES": 0}
    urls = (site.url(f"/status/{status}"),)
    sent(site, Pages, settings, urls=urls)
    _, asked = sent(site, Pages, settings, urls=urls)

    assert asked == [f"/status/{status}"]


@pytest.mark.parametrize(
    "settings",
    [
        {"ACCEPT_STATUS_CODES": [403, 404, 429, 503]}, {"CHECK_STATUS_CODE": False},
        {"HTTPERROR_ALLOW_ALL": True, "RETRY_ENABLED": False},
    ],
)  # fmt: skip
def test_busy_and_refused_answers_are_never_kept(site: Any, settings: Any) -> None:
    """403, 429 and 5xx are asked for again even where the spider takes them."""
    urls = tuple(site.url(f"/status/{status}") for status in (403, 429, 503))
    first, _ = sent(site, Pages, settings, urls=urls)
    _, asked = sent(site, Pages, settings, urls=urls)

    assert len(first.spider.pages) == 3
    assert len(asked) == 3


def test_an_accepted_404_is_kept_as_long_as_it_is_accepted(site: Any) -> None:
    """The policy of the present run decides on entries of former ones."""
    urls = (site.url("/status/404"),)
    sent(site, Pages, {"ACCEPT_STATUS_CODES": [404]}, urls=urls)
    again, asked = sent(site, Pages, {"ACCEPT_STATUS_CODES": [404]}, urls=urls)
    strict, asked_strict = sent(site, Pages, urls=urls)

    assert asked == []
    assert again.spider.pages == [(urls[0], 404)]
    assert asked_strict == ["/status/404"]
    assert netspy_stats(strict)["netspy/failures/404"] == 1


def test_only_get_is_kept(site: Any) -> None:
    """A POST is sent each time."""

    class Posts(Pages):
        async def start(self) -> Any:
            for method in ("POST", "PUT", "HEAD"):
                yield scrapy.Request(self.urls[0], method=method, body=b"x=1")

    urls = (site.url("/echo"),)
    sent(site, Posts, urls=urls)
    _, asked = sent(site, Posts, urls=urls)

    assert len(asked) == 3


def test_the_answer_that_ends_the_retries_is_kept(site: Any) -> None:
    """503, 503, 200: the next run reads the 200."""
    urls = (site.url("/seq/a?codes=503,503,200"),)
    _, asked = sent(site, Pages, urls=urls)
    again, asked_again = sent(site, Pages, urls=urls)

    assert len(asked) == 3
    assert asked_again == []
    assert again.spider.pages == [(urls[0], 200)]


def test_parts_and_unchanged_are_not_kept(site: Any) -> None:
    """A 206 and a 304 are no page, and neither is a body that broke off."""
    site.set("/part", status=206, body=b"part", headers={"Content-Range": "bytes 0-3/10"})
    site.set("/same", body=b"", headers={"ETag": '"a"'}, conditional=True)
    urls = (site.url("/part"), site.url("/same"), site.url("/truncate?declared=2000&sent=1000"))
    settings = {"DOWNLOAD_FAIL_ON_DATALOSS": False}
    first, _ = sent(site, Pages, settings, urls=urls, headers={"If-None-Match": '"a"'})
    _, asked = sent(site, Pages, settings, urls=urls)

    assert sorted(status for _, status in first.spider.pages) == [200, 206, 304]
    assert len(asked) == 3


def test_meta_skips_and_refreshes(site: Any) -> None:
    """One request may pass the cache by, or have its entry renewed."""
    site.set("/news", body=b"old")
    urls = (site.url("/news"),)
    sent(site, Pages, urls=urls, meta={"netspy_cache": False})
    _, asked = sent(site, Pages, urls=urls)
    site.set("/news", body=b"new")
    skipped, _ = sent(site, Pages, urls=urls, meta={"netspy_cache": False})
    skipped_as_scrapy_does, _ = sent(site, Pages, urls=urls, meta={"dont_cache": True})
    old, _ = sent(site, Pages, urls=urls)
    fresh, _ = sent(site, Pages, urls=urls, meta={"netspy_cache": "refresh"})
    again, asked_last = sent(site, Pages, urls=urls)

    assert asked == ["/news"]
    assert skipped.spider.bodies == skipped_as_scrapy_does.spider.bodies == [b"new"]
    assert old.spider.bodies == [b"old"]
    assert fresh.spider.bodies == again.spider.bodies == [b"new"]
    assert asked_last == []


def test_a_wrong_wish_is_named_once(site: Any, caplog: Any) -> None:
    """A value that means nothing is not looked at, and the log says what is allowed."""
    urls = (site.url("/page/1"), site.url("/page/2"))
    sent(site, Pages, urls=urls, meta={"netspy_cache": "no"})
    _, asked = sent(site, Pages, urls=urls, meta={"netspy_cache": "no"})

    warnings = [r.getMessage() for r in caplog.records if "is not looked at" in r.getMessage()]
    assert asked == []
    assert len(warnings) == 2
    assert "'no'" in warnings[0]
    assert "expected False" in warnings[0]
    assert "'refresh'" in warnings[0]


# Which entry stands for which request ------------------------------------------------------------
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"Accept-Language": "de"}, {"Accept-Language": "en"}), ({"Accept": "text/html"}, {}),
        ({"Authorization": "Basic YQ=="}, {"Authorization": "Basic Yg=="}),
        ({}, {"X-Api-Key": "k"}), ({}, {"Cookie": "a=1"}),
    ],
)  # fmt: skip
def test_headers_that_make_another_page(site: Any, first: Any, second: Any) -> None:
    """Two languages or two users do not read each other's entries, and each reads its own."""
    urls = (site.url("/echo"),)
    settings = {"COOKIES_ENABLED": False}
    one, _ = sent(site, Pages, settings, urls=urls, headers=first)
    two, asked = sent(site, Pages, settings, urls=urls, headers=second)
    one_again, asked_one = sent(site, Pages, settings, urls=urls, headers=first)
    two_again, asked_two = sent(site, Pages, settings, urls=urls, headers=second)

    assert asked == ["/echo"]
    assert asked_one == asked_two == []
    assert one_again.spider.bodies == one.spider.bodies
    assert two_again.spider.bodies == two.spider.bodies != one.spider.bodies


def test_vary_says_what_else_counts(site: Any) -> None:
    """A header that Vary names counts, one that it does not name does not, and * is never kept."""
    site.set("/vary", body=b"v", headers={"Vary": "X-Tenant, User-Agent"})
    site.set("/star", body=b"v", headers={"Vary": "*"})
    urls = (site.url("/vary"),)

    def asks(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return len(sent(site, Pages, urls=urls, headers=named)[1])

    assert asks(X_Tenant="a") == 1
    assert asks(X_Tenant="a", X_Other="1") == 0
    assert asks(X_Tenant="b") == 1
    assert asks(X_Tenant="a", User_Agent="Other") == 1
    assert asks(X_Tenant="b") == 0
    sent(site, Pages, urls=(site.url("/star"),))
    assert sent(site, Pages, urls=(site.url("/star"),))[1] == ["/star"]


def test_cookies_of_another_session_do_not_count_as_the_same(site: Any) -> None:
    """The page behind a cookie is that of the cookie's value."""

    class Session(Pages):
        value = ""

        async def start(self) -> Any:
            yield scrapy.Request(site.url(f"/cookie/set?user={self.value}"), callback=self.then)

        def then(self, response: Any) -> Any:
            yield scrapy.Request(site.url("/cookie/show"))

    shown = [sent(site, Session, value=value)[0].spider.bodies for value in ("a", "b", "a")]
    _, asked = sent(site, Session, value="b")

    assert shown == [[b'{"user": "a"}'], [b'{"user": "b"}'], [b'{"user": "a"}']]
    assert asked == []


def test_session_numbers_of_visitors_do_not_spoil_the_cache(site: Any) -> None:
    """A site that gives each first visitor another cookie is read from the disk all the same."""
    for n in range(40):
        cookie = {"Set-Cookie": f"sid={n}; Path=/"} if n < 8 else {}
        site.set(f"/shop/{n}", body=b"page", headers=cookie, delay=0.05)
    urls = tuple(site.url(f"/shop/{n}") for n in range(40))
    _, asked = sent(site, Pages, urls=urls)
    _, again = sent(site, Pages, urls=urls)

    assert len(asked) == 40
    assert again == []


def test_after_a_login_session_numbers_count(site: Any) -> None:
    """What a POST may have made the site show is not given to another session."""
    for n in range(10):
        site.set(f"/shop/{n}", body=b"page", headers={"Set-Cookie": f"sid={n}"}, delay=0.05)

    class Member(Pages):
        user = ""

        async def start(self) -> Any:
            for n in range(10):
                yield scrapy.Request(site.url(f"/shop/{n}"), callback=self.shop)

        def shop(self, response: Any) -> Any:
            self.count = getattr(self, "count", 0) + 1
            if self.count == 10:
                yield scrapy.Request(site.url("/login"), method="POST", callback=self.account)

        def account(self, response: Any) -> Any:
            yield scrapy.Request(site.url("/account"))

    for user in ("a", "b"):
        site.set("/login", body=b"in", headers={"Set-Cookie": f"sid=of-{user}"})
        site.set("/account", body=f"account of {user}".encode())
        crawler, _ = sent(site, Member)
        assert crawler.spider.bodies == [f"account of {user}".encode()]


def test_spiders_do_not_read_each_others_entries(site: Any) -> None:
    """Nor does one spider under other default headers, or another User-Agent."""

    class Other(Pages):
        name = "other"

    urls = (site.url("/page/1"),)
    sent(site, Pages, urls=urls)

    assert sent(site, Other, urls=urls)[1] == ["/page/1"]
    assert sent(site, Pages, {"USER_AGENT": "mobile"}, urls=urls)[1] == ["/page/1"]
    assert sent(site, Pages, {"DEFAULT_REQUEST_HEADERS": {"X-A": "1"}}, urls=urls)[1] == ["/page/1"]
    assert sent(site, Pages, urls=urls)[1] == []


def test_rendered_pages_are_entries_of_their_own(site: Any) -> None:
    """A page from a browser is not given for one that is not rendered, nor in another manner."""
    urls = (site.url("/page/1"),)
    sent(site, Pages, urls=urls)

    assert sent(site, Pages, urls=urls, meta={"playwright": True})[1] == ["/page/1"]
    assert sent(site, Pages, urls=urls, meta={"playwright": True})[1] == []
    assert sent(site, Pages, urls=urls)[1] == []
    manners = [
        manner_of(scrapy.Request(urls[0], meta={"netspy_render": how}))
        for how in (None, True, {"time": 1}, {"time": 2}, {"script": "x", "time": 1})
    ]
    assert len(set(manners)) == 5


# Time --------------------------------------------------------------------------------------------
def test_an_old_entry_is_fetched_anew(site: Any) -> None:
    """RESPONSE_CACHE_EXPIRE is how long an entry is used; 0 is for ever."""
    urls = (site.url("/page/1"),)
    sent(site, Pages, urls=urls)
    age_all(3700)

    assert sent(site, Pages, {"RESPONSE_CACHE_EXPIRE": 0}, urls=urls)[1] == []
    assert sent(site, Pages, {"RESPONSE_CACHE_EXPIRE": 4000}, urls=urls)[1] == []
    assert sent(site, Pages, urls=urls)[1] == ["/page/1"]
    assert sent(site, Pages, urls=urls)[1] == []


def age_all(seconds: float) -> None:
    """Make all entries older (or, below 0, of the future), as if the clock had been changed."""
    file = CacheFile(".netspy_cache")
    file.open()
    with file.using("read") as db:
        found = db.execute(
            f"SELECT {_COLUMNS}, c.head, c.body FROM entries e JOIN contents c USING (id)"
        ).fetchall()
        db.execute("DELETE FROM entries")
    entries = [Entry(*row) for row in found]
    file.write([replace(one, stored=one.stored - seconds) for one in entries])
    file.close()


def test_a_clock_that_went_back(site: Any) -> None:
    """An entry of the near future is used, one of the far future is not."""
    urls = (site.url("/page/1"),)
    sent(site, Pages, urls=urls)
    age_all(-600)
    assert sent(site, Pages, urls=urls)[1] == []
    age_all(-1_000_000)
    assert sent(site, Pages, urls=urls)[1] == ["/page/1"]


@pytest.mark.timed
def test_entries_that_expire_during_the_run_go_to_the_site_at_its_pace(site: Any) -> None:
    """What is too old when its turn comes waits for its domain like any other request."""
    urls = tuple(site.url(f"/page/{n}") for n in range(6))
    sent(site, Pages, urls=urls)
    clock = {"offset": 0.0}

    class Later(AtOnce):
        def all(self, response: Any) -> Any:
            cache = CrawlContext.of(self.crawler).cache
            assert cache is not None
            cache._clock = lambda: time.time() + clock["offset"]
            yield from super().all(response)
            clock["offset"] = 4000.0

    before = len(site.log())
    crawler, asked = sent(
        site, Later, {"DOWNLOAD_DELAY": 0.3, "DOWNLOAD_DELAY_JITTER": 0,
                      "RANDOMIZE_DOWNLOAD_DELAY": False}, urls=urls,
    )  # fmt: skip
    arrived = [one.t for one in site.log()[before:]]

    assert len(crawler.spider.pages) == 6
    assert len(asked) >= 1
    assert all(later - earlier >= 0.25 for earlier, later in pairwise(arrived))


# What goes wrong ---------------------------------------------------------------------------------
def test_a_missed_entry_goes_back_to_the_queue_and_keeps_the_delay(site: Any) -> None:
    """Entries that turn out to be another language's are fetched at the domain's pace, once."""
    urls = tuple(site.url(f"/page/{n}") for n in range(5))
    sent(site, Pages, urls=urls, headers={"Accept-Language": "de"})
    before = len(site.log())
    crawler, asked = sent(
        site, Pages, {"DOWNLOAD_DELAY": 0.2, "RANDOMIZE_DOWNLOAD_DELAY": False}, urls=urls
    )
    arrived = [one.t for one in site.log()[before:]]

    assert sorted(asked) == sorted(f"/page/{n}" for n in range(5))
    assert len(crawler.spider.pages) == 5
    assert all(later - earlier >= 0.15 for earlier, later in pairwise(arrived))
    assert netspy_stats(crawler) == {"netspy/cache/misses": 5, "netspy/cache/stored": 5}
    assert crawler.stats.get_value("dupefilter/filtered") is None


def test_damaged_entries_are_fetched_and_replaced(site: Any, caplog: Any) -> None:
    """A byte that changed on the disk is a miss, and the next run has the page again."""
    urls = tuple(site.url(f"/page/{n}") for n in range(3))
    sent(site, Pages, urls=urls)
    file = CacheFile(".netspy_cache")
    file.open()
    with file.using("written") as db:
        db.execute("UPDATE contents SET body = substr(body, 2) || 'x' WHERE id = 2")
    file.close()
    crawler, asked = sent(site, Pages, urls=urls)
    _, asked_again = sent(site, Pages, urls=urls)

    assert len(asked) == 1
    assert asked_again == []
    assert len(crawler.spider.pages) == 3
    assert netspy_stats(crawler)["netspy/cache/errors"] == 1


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_file_that_is_no_cache_is_kept_aside(site: Any, caplog: Any, content: bytes) -> None:
    """The crawl runs, the cache begins anew, one line says so."""
    Path(".netspy_cache").mkdir()
    Path(".netspy_cache", FILE).write_bytes(content)
    urls = (site.url("/page/1"),)
    crawler, asked = sent(site, Pages, urls=urls)
    _, asked_again = sent(site, Pages, urls=urls)

    damaged = [r.getMessage() for r in caplog.records if "is damaged" in r.getMessage()]
    assert (asked, asked_again) == (["/page/1"], [])
    assert len(crawler.spider.pages) == 1
    assert len(damaged) == 1
    assert Path(".netspy_cache", f"{FILE}.broken").read_bytes()[:100] == content[:100]


def test_a_folder_that_cannot_be_used(site: Any, caplog: Any) -> None:
    """Every page is fetched, and a warning says why."""
    Path("file").write_text("not a folder")
    urls = (site.url("/page/1"),)
    crawler, asked = sent(site, Pages, {"RESPONSE_CACHE_PATH": "file/cache"}, urls=urls)

    assert asked == ["/page/1"]
    assert len(crawler.spider.pages) == 1
    assert any(
        "the cache cannot be used" in r.getMessage() and "file/cache" in r.getMessage()
        for r in caplog.records
    )


def test_a_cleared_cache_is_missed_during_the_run(site: Any) -> None:
    """What somebody deletes while a crawl runs is fetched."""
    urls = tuple(site.url(f"/page/{n}") for n in range(5))
    sent(site, Pages, urls=urls)

    class Clears(Pages):
        async def start(self) -> Any:
            file = CacheFile(".netspy_cache")
            file.open()
            with file.using("written") as db:
                db.execute("DELETE FROM entries")
            file.close()
            async for one in super().start():
                yield one

    crawler, asked = sent(site, Clears, urls=urls)
    assert len(asked) == len(crawler.spider.pages) == 5
    assert sent(site, Pages, urls=urls)[1] == []


def test_a_smaller_limit_of_size_counts_for_entries(site: Any) -> None:
    """An entry over MAX_RESPONSE_SIZE is no answer; the site is asked, and the limit decides."""
    urls = (site.url("/chunked?kb=64"),)
    sent(site, Pages, urls=urls)
    crawler, asked = sent(site, Pages, {"MAX_RESPONSE_SIZE": 1000}, urls=urls)

    assert len(asked) >= 1
    assert crawler.spider.pages == []


@pytest.mark.parametrize(
    "limit", [{"MAX_RESPONSE_SIZE": 1000}, {"ALLOWED_CONTENT_TYPES": ["application/json"]}]
)
def test_an_answer_that_was_not_received_is_not_kept(site: Any, limit: Any) -> None:
    """Of one that is too large, or of a refused type, no empty body is given later."""
    urls = (site.url("/chunked?kb=64"),)
    sent(site, Pages, limit, urls=urls)
    crawler, asked = sent(site, Pages, urls=urls)

    assert len(asked) == 1
    assert len(crawler.spider.bodies[0]) >= 60_000


# What hits do not count for ----------------------------------------------------------------------
def test_a_hit_does_not_reset_the_circuit(site: Any) -> None:
    """Failures on both sides of a cached page are failures in a row."""
    good = site.url("/page/1")
    bad = [site.url(f"/status/500?n={n}") for n in range(4)]
    settings = {"CIRCUIT_FAILURE_THRESHOLD": 4, "SPIDER_MAX_RETRY_TIMES": 0,
                "CIRCUIT_COOLDOWN": 0.1, "CONCURRENT_REQUESTS": 1}  # fmt: skip

    class InOrder(Netspy):
        def parse(self, request: Any, response: Any) -> Any:
            yield mw.Request(bad[3])

        def failed_request(self, request: Any, response: Any) -> Any:
            self.count = getattr(self, "count", 0) + 1
            if self.count == 3:
                yield mw.Request(good)

    sent(site, InOrder, seeds=[good])
    crawler, _ = sent(site, InOrder, settings, seeds=bad[:3])

    assert hits(crawler) == 1
    assert netspy_stats(crawler)["netspy/circuits"] == 1


@pytest.mark.timed
def test_cached_pages_of_a_resting_domain(site: Any) -> None:
    """While a domain rests its cached pages are read."""
    good = tuple(site.url(f"/page/{n}") for n in range(10))
    sent(site, Pages, urls=good)
    site.set("/limited", status=429, headers={"Retry-After": "3"}, times=1)
    done: dict[str, float] = {}

    class Timed(Pages):
        async def start(self) -> Any:
            yield scrapy.Request(site.url("/limited"), errback=self.failed)
            while not CrawlContext.of(self.crawler).stats.get_value("netspy/rests"):
                import asyncio

                await asyncio.sleep(0.05)
            self.rested = time.monotonic()
            for url in good:
                yield scrapy.Request(url)

        def parse(self, response: Any) -> Any:
            done[response.url] = time.monotonic()

    crawler, _ = sent(site, Timed, {"ACCEPT_STATUS_CODES": [404]})
    assert max(done[url] for url in good) - crawler.spider.rested < 2


# Jobs and stops ----------------------------------------------------------------------------------
def test_a_job_directory(site: Any) -> None:
    """A stopped job leaves no cached request behind, and goes on with the cache or without."""
    urls = tuple(site.url(f"/page/{n}") for n in range(200))
    sent(site, Pages, urls=urls)
    stop = {"JOBDIR": "job", "CLOSESPIDER_PAGECOUNT": 5, "CONCURRENT_REQUESTS": 2}
    first, asked = sent(site, AtOnce, stop, urls=urls)
    second, asked_second = sent(site, AtOnce, {**stop, "RESPONSE_CACHE_ENABLE": False})
    third, asked_third = sent(site, AtOnce, {"JOBDIR": "job", "DOWNLOAD_DELAY": 3})

    pages = [*first.spider.pages, *second.spider.pages, *third.spider.pages]
    assert sorted(pages) == sorted((url, 200) for url in urls)
    assert asked == asked_third == []
    assert 0 < len(asked_second) < 100
    assert hits(third) > 0


def test_a_stop_keeps_what_was_not_read(site: Any) -> None:
    """Requests in the cache's hands at a stop are dumped, not lost."""
    urls = tuple(site.url(f"/page/{n}") for n in range(200))
    sent(site, Pages, urls=urls)
    crawler, asked = sent(site, AtOnce, {"CLOSESPIDER_PAGECOUNT": 3}, urls=urls)

    assert asked == []
    assert 0 < len(dumped()) < 200
    assert len(crawler.spider.pages) + len(dumped()) == 200


# Netspy spiders ----------------------------------------------------------------------------------
def test_a_netspy_spider(site: Any) -> None:
    """A random User-Agent and cookies of its own for each request do not keep it from hits."""
    site.set("/agent", body=b"x", headers={"Vary": "User-Agent", "Set-Cookie": "sid=1"})
    target = site.url("/agent")
    seeds = [site.url(f"/page/{n}") for n in range(20)] + [
        target, site.url(f"/redirect?to={target}&cookie=a%3D1")
    ]  # fmt: skip
    first, asked = sent(site, Netspy, seeds=seeds)
    again, asked_again = sent(site, Netspy, {"DOWNLOAD_DELAY": 5}, seeds=seeds)

    assert len(asked) == 23
    assert asked_again == []
    assert sorted(map(str, rows(again))) == sorted(map(str, rows(first)))


def test_what_validate_refuses_is_not_kept(site: Any) -> None:
    """A challenge page that validate recognises is fetched again, in this run and the next."""
    site.set("/guarded", body=b"the page")
    site.set("/guarded", body=b"captcha", times=1)
    calls: list[str] = []

    class Careful(Netspy):
        def validate(self, request: Any, response: Any) -> Any:
            calls.append(response.text)
            if "captcha" in response.text:
                raise mw.ValidationError("challenge")

    seeds = [site.url("/guarded")]
    crawler, asked = sent(site, Careful, seeds=seeds)
    again, asked_again = sent(site, Careful, seeds=seeds)

    assert asked == ["/guarded"] * 2
    assert calls == ["captcha", "the page", "the page"]
    assert asked_again == []
    assert netspy_stats(crawler)["netspy/cache/discarded"] == 1
    assert len(rows(again)) == 1


@pytest.mark.parametrize("spider", [Pages, Netspy])
def test_challenge_pages_are_not_kept(site: Any, spider: Any) -> None:
    """One with a good status is asked for again, whether the spider minds it (netspy) or not."""
    body = gzip.compress(b"<html>Just a moment...<script src=/cdn-cgi/challenge-platform/x>")
    site.set("/page/1", body=body, headers={"Content-Encoding": "gzip"}, times=1)
    url = site.url("/page/1")
    arguments = {"urls": (url,)} if spider is Pages else {"seeds": [url]}
    settings = {"SPIDER_MAX_RETRY_TIMES": 0}
    sent(site, spider, settings, **arguments)

    assert sent(site, spider, settings, **arguments)[1] == ["/page/1"]
    assert sent(site, spider, settings, **arguments)[1] == []


@pytest.mark.parametrize("outcome", ["drop", "false", "callback"])
def test_given_up_pages_are_asked_for_in_the_next_run(site: Any, outcome: str) -> None:
    """NotRetryError and False say that this is not the page: no run reads it from the disk."""

    class Blocked(Netspy):
        blocked = True

        def validate(self, request: Any, response: Any) -> Any:
            if self.blocked and outcome == "drop":
                raise mw.NotRetryError("blocked")
            return not (self.blocked and outcome == "false")

        def parse(self, request: Any, response: Any) -> Any:
            if self.blocked:
                raise mw.NotRetryError("blocked")
            yield {"url": response.url}

    seeds = [site.url("/page/1")]
    sent(site, Blocked, seeds=seeds)

    assert sent(site, Blocked, seeds=seeds, blocked=False)[1] == ["/page/1"]
    assert sent(site, Blocked, seeds=seeds, blocked=False)[1] == []


def test_an_entry_that_cannot_be_deleted_is_deleted_with_the_next_write(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses once does not bring back a page that the spider gave up."""
    write = ResponseCache._write
    refused: list[set[int]] = []

    def refuse_once(self: Any, batch: Any, dropped: set[int], found: Any) -> None:
        if dropped and not refused:
            refused.append(dropped)
            raise OSError(28, "No space left on device")
        write(self, batch, dropped, found)

    class Blocked(Netspy):
        blocked = True

        def parse(self, request: Any, response: Any) -> Any:
            if self.blocked and response.url.endswith("/1"):
                raise mw.NotRetryError("blocked")
            yield {"url": response.url}

    monkeypatch.setattr(ResponseCache, "_write", refuse_once)
    monkeypatch.setattr("netspy_scrapy.cache.crawl._WRITE_AFTER", 0.05)
    page, slow = site.url("/page/1"), site.url("/slow?ms=900")
    sent(site, Blocked, seeds=[page], blocked=False)
    sent(site, Blocked, seeds=[page, slow])  # the page comes from the disk, and is given up

    assert refused
    assert sent(site, Blocked, seeds=[page], blocked=False)[1] == ["/page/1"]


def test_a_callback_that_raises_has_its_page_fetched_again(site: Any) -> None:
    """Further attempts ask the site; mended, the callback reads the page from the disk."""

    class Broken(Netspy):
        broken = True

        def parse(self, request: Any, response: Any) -> Any:
            if self.broken:
                raise KeyError("selector")
            yield {"url": response.url}

    seeds = [site.url("/page/1")]
    settings = {"SPIDER_MAX_RETRY_TIMES": 1}
    _, asked = sent(site, Broken, settings, seeds=seeds)
    _, asked_again = sent(site, Broken, settings, seeds=seeds)
    mended, asked_mended = sent(site, Broken, settings, seeds=seeds, broken=False)

    assert len(asked) == 2
    assert len(asked_again) == 1
    assert asked_mended == []
    assert len(rows(mended)) == 1


def test_download_midware_may_change_the_request(site: Any) -> None:
    """A page is kept under what was asked for; what was sent has to be the same."""
    calls: list[str] = []

    class Signs(Netspy):
        token = "a"

        def download_midware(self, request: Any) -> Any:
            calls.append(request.url)
            request.url = f"{request.url}?token={self.token}"

    seeds = [site.url("/page/1")]
    _, asked = sent(site, Signs, seeds=seeds)
    _, asked_again = sent(site, Signs, {"DOWNLOAD_DELAY": 5}, seeds=seeds)
    calls.clear()
    _, asked_other = sent(site, Signs, seeds=seeds, token="b")

    assert asked == ["/page/1?token=a"]
    assert asked_again == []
    assert asked_other == ["/page/1?token=b"]
    assert len(calls) == 1


# Downloads past the queue ------------------------------------------------------------------------
class Direct(Pages):
    """Awaits its pages itself, as media pipelines do."""

    async def start(self) -> Any:
        yield scrapy.Request("data:,", callback=self.all)

    async def all(self, response: Any) -> Any:
        for url in self.urls:
            answer = await self.crawler.engine.download_async(
                scrapy.Request(url, headers=self.headers)
            )
            self.pages.append((answer.url, answer.status))


@pytest.mark.timed
def test_downloads_past_the_queue_are_read_too(site: Any) -> None:
    """They wait for nothing, ask for no robots.txt, and are fetched if there is no entry."""
    site.set("/robots.txt", body="User-agent: *\nDisallow: /none\n")
    urls = tuple(site.url(f"/page/{n}") for n in range(4))
    settings = {"ROBOTS_OBEY": True, "DOWNLOAD_DELAY": 0.2}
    _, asked = sent(site, Direct, settings, urls=urls)
    again, asked_again = sent(site, Direct, {**settings, "DOWNLOAD_DELAY": 9}, urls=urls)
    other, asked_other = sent(site, Direct, settings, urls=urls, headers={"Accept": "a/b"})

    assert len(asked) == 5
    assert asked_again == []
    assert len(again.spider.pages) == len(other.spider.pages) == 4
    assert len(asked_other) == 5


# Receipts ----------------------------------------------------------------------------------------
def test_receipts_follow_what_the_cache_could_not_answer(site: Any) -> None:
    """A request that goes back to the queue is one page, and is safe once."""
    urls = tuple(site.url(f"/page/{n}") for n in range(3))
    sent(site, Pages, urls=urls[:2])
    sent(site, Pages, urls=urls[:1], headers={"Accept-Language": "de"})
    safe: list[str] = []

    class Followed(Pages):
        async def start(self) -> Any:
            for url in self.urls:
                request = scrapy.Request(url, headers={"Accept-Language": "fr"})
                self.receipts.lasting(request, lambda verdict, url=url: safe.append(url))
                yield request

    class Extension:
        def __init__(self, crawler: Any) -> None:
            crawler.spider.receipts = CrawlContext.of(crawler).receipts

        @classmethod
        def from_crawler(cls, crawler: Any) -> Any:
            return cls(crawler)

    crawler, asked = sent(site, Followed, {"EXTENSIONS": {Extension: 0}}, urls=urls)

    assert len(asked) == 3
    assert len(CrawlContext.of(crawler).receipts) == 0
    assert sorted(safe) == sorted(urls)
    assert len(crawler.spider.pages) == 3


# Beside Scrapy's cache ---------------------------------------------------------------------------
def test_scrapys_cache_stays_as_it_is(site: Any) -> None:
    """A project that uses Scrapy's HTTP cache keeps it, and ours is not there."""
    urls = (site.url("/page/1"),)
    settings = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(Path("scrapys").absolute())}
    crawl(PlainSpider, settings, urls=urls)
    crawler = crawl(PlainSpider, settings, urls=urls)

    assert crawler.stats.get_value("httpcache/hit") == 1
    assert site.hits("/page/1") == 1
    assert not Path(".netspy_cache").exists()


def test_ours_counts_where_both_are_set(site: Any, caplog: Any) -> None:
    """Both on: ours is used. Ours off and Scrapy's on: none is, and a warning says so."""
    urls = (site.url("/page/1"),)
    settings = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(Path("scrapys").absolute())}
    both = crawl(PlainSpider, {**settings, **ON}, urls=urls)
    off = crawl(PlainSpider, {**settings, "RESPONSE_CACHE_ENABLE": False}, urls=urls)

    assert both.stats.get_value("httpcache/store") is None
    assert netspy_stats(both)["netspy/cache/stored"] == 1
    assert off.stats.get_value("httpcache/store") is None
    assert netspy_stats(off) == {}
    assert any(
        "RESPONSE_CACHE_ENABLE = False and HTTPCACHE_ENABLED = True contradict" in r.getMessage()
        for r in caplog.records
    )


# What a person sees ------------------------------------------------------------------------------
def test_start_and_summary_say_that_a_cache_is_in_use(site: Any, caplog: Any) -> None:
    """Nobody mistakes yesterday's pages for today's."""
    urls = tuple(site.url(f"/page/{n}") for n in range(3))
    sent(site, Pages, urls=urls)
    age_all(600)
    caplog.clear()
    sent(site, Pages, urls=(*urls, site.url("/page/9")))

    lines = [line for r in caplog.records for line in r.getMessage().splitlines()]
    start = next(line for line in lines if line.startswith("RESPONSE_CACHE_ENABLE is on"))
    assert "it has 3 pages for this spider, up to 10 minutes old" in start
    assert "  cached   3  (fetched 1, stored 1)" in lines
    assert any(
        "3 answers are copies from .netspy_cache, up to 10 minutes old: netspy-cache --clear" in x
        for x in lines
    )


def test_a_crawl_without_the_cache_leaves_nothing(site: Any) -> None:
    """It is off by default, and then in no chain."""
    crawler = crawl(PlainSpider, urls=(site.url("/page/1"),))

    assert CrawlContext.of(crawler).cache is None
    assert not Path(".netspy_cache").exists()


def test_entries_are_the_owners_alone(site: Any) -> None:
    """Answers may be from behind a login."""
    sent(site, Pages, urls=(site.url("/page/1"),))

    assert Path(".netspy_cache", FILE).stat().st_mode & 0o077 == 0
    file = CacheFile(".netspy_cache")
    file.open(create=False)
    assert [one.entries for one in use_by_domain(file)] == [1]
    file.close()
