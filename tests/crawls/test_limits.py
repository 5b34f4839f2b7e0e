"""Crawls of sites that send too much, or something else than wanted."""

from __future__ import annotations

import gc
import gzip
import logging
import random
import tracemalloc
import zlib
from typing import Any

import pytest
import scrapy
from scrapy.downloadermiddlewares.httpcompression import ACCEPTED_ENCODINGS
from scrapy.exceptions import IgnoreRequest
from scrapy.http.request import NO_CALLBACK

import netspy_scrapy as mw
from netspy_scrapy._scrapy.opening import MAX_LAYERS, MAX_PARTS
from netspy_scrapy.exceptions import ContentTypeRejectedError, ResponseTooLargeError
from tests.crawling import MEMORY, PlainSpider, crawl, dumped, netspy_stats, reason

pytestmark = pytest.mark.usefixtures("downloader")

MB = 1_000_000
LIMITED = {"MAX_RESPONSE_SIZE": MB, "CIRCUIT_FAILURE_THRESHOLD": 1, "RETRY_TIMES": 2}

#: 3 MB of zeros.
BROTLI = bytes.fromhex("9bbfc62df82700e2b14020cfb705")
ZSTD = bytes.fromhex(
    "28b52ffda0c0c62d004c000008000100fcff39100202"
    "001000020010000200100002001000020010000200100002001000020010000200100002"
    "001000020010000200100002001000020010000200100002001000020010000200100002"
)
ZEROS = bytes(3 * MB)


def deflated(wbits: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    return packer.compress(ZEROS) + packer.flush()


BOMBS = {
    "gzip": gzip.compress(ZEROS),
    "x-gzip": gzip.compress(ZEROS),
    "gzip, of many members": gzip.compress(bytes(10_000)) * 300,
    "gzip, gzip": gzip.compress(gzip.compress(ZEROS)),
    "gzip, deflate": zlib.compress(gzip.compress(ZEROS)),
    "deflate": deflated(15),
    "deflate, raw": deflated(-15),
    "br": BROTLI,
    "zstd": ZSTD,
    "gzip, of empty members": gzip.compress(b"") * (MAX_PARTS + 1),
    ", ".join(["gzip"] * (MAX_LAYERS + 1)): b"not looked at",
}


class Page(mw.AirSpider):
    """Fetches ``url`` and notes what its hooks see."""

    __custom_setting__ = MEMORY
    url = ""
    keywords: dict[str, Any] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[Any] = []

    def start_requests(self) -> Any:
        yield mw.Request(self.url, **self.keywords)

    def parse(self, request: Any, response: Any) -> None:
        self.seen.append(("page", len(response.content)))

    def failed_request(self, request: Any, response: Any) -> None:
        self.seen.append(("failed", response and response.status_code))


def fetch(url: str, settings: dict[str, Any], **attributes: Any) -> Any:
    """Fetch *url* with a plain spider; return the spider."""
    spider = type("One", (PlainSpider,), {"urls": (url,), **attributes})
    return crawl(spider, settings).spider


# Size ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["/big?mode=len&mb=20", "/big?mode=chunked&mb=20"])
@pytest.mark.parametrize("kind", ["plain", "netspy"])
def test_too_large(site: Any, caplog: Any, path: str, kind: str) -> None:
    """A failure at the first attempt: hook or errback, one line, a dump; no circuit opens."""
    url = site.url(path)
    if kind == "plain":
        spider = fetch(url, LIMITED)
        (error,) = spider.errors
        assert isinstance(error, ResponseTooLargeError)
        assert error.limit == MB
        assert spider.pages == []
    else:
        spider = crawl(Page, LIMITED, url=url).spider
        assert spider.seen == [("failed", None)]

    assert site.hits(path) == 1
    stats = netspy_stats(spider.crawler)
    for name in ("netspy/exit_status", "netspy/nothing_stored"):  # a netspy spider has a sink
        stats.pop(name, None)
    assert stats == {
        "netspy/failures": 1, "netspy/failures/ResponseTooLargeError": 1,
        "netspy/requests/dumped": 1,
    }  # fmt: skip
    (line,) = dumped()
    assert line["url"] == url
    assert line["status"] is None
    assert "download_maxsize" not in str(line)
    assert "MAX_RESPONSE_SIZE = 1000000" in line["reason"]
    told = [
        one for one in caplog.records
        if one.levelno >= logging.WARNING and not one.name.endswith(".exit_status")
    ]  # fmt: skip
    assert len(told) == 1
    assert "MAX_RESPONSE_SIZE = 1000000 bytes" in told[0].getMessage()
    assert url in told[0].getMessage()


@pytest.mark.parametrize("mode", ["chunked", "gzip"])
def test_nothing_is_left_of_what_was_too_large(site: Any, mode: str) -> None:
    """Its memory is free at once, and not when the garbage collector comes by."""
    urls = [site.url(f"/big?mode={mode}&mb=20&n={n}") for n in range(5)]
    fetch(urls[0], LIMITED)  # what is imported on the way does not count
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        spider = fetch("", {"MAX_RESPONSE_SIZE": 8 * MB, "CONCURRENT_REQUESTS": 1}, urls=urls)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()

    assert len(spider.errors) == 5
    assert peak < 16 * MB


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(site: Any, name: str) -> None:
    """Small bodies that open to much, or that take long to open, end while they open."""
    encoding = name.partition(", of")[0].partition(", raw")[0]
    if encoding.encode() not in {*ACCEPTED_ENCODINGS, b"x-gzip"} and "," not in encoding:
        pytest.skip(f"Scrapy opens {encoding} here only with brotli and zstandard installed")
    site.set("/bomb", body=BOMBS[name], headers={"Content-Encoding": encoding})
    spider = fetch(site.url("/bomb"), LIMITED)

    (error,) = spider.errors
    assert isinstance(error, ResponseTooLargeError)
    assert f"{len(BOMBS[name])} bytes were received" in str(error)
    assert site.hits("/bomb") == 1
    assert [line["reason"] for line in dumped()] == [f"ResponseTooLargeError: {error}"]


def test_the_last_byte_that_fits(site: Any) -> None:
    """A body of exactly the limit passes, declared, in chunks and opened; one byte more fails."""
    for extra in (0, 1):
        body = random.Random(1).randbytes(MB + extra)
        site.set(f"/plain{extra}", body=body)
        site.set(f"/zip{extra}", body=gzip.compress(bytes(MB + extra)),
                 headers={"Content-Encoding": "gzip"})  # fmt: skip
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        site.set(f"/chunked{extra}", raw=head + chunks)
    names = ("plain", "zip", "chunked")
    fitting = fetch(site.url("/plain0"), LIMITED, urls=[site.url(f"/{one}0") for one in names])
    over = fetch(site.url("/plain1"), LIMITED, urls=[site.url(f"/{one}1") for one in names])

    assert len(fitting.pages) == 3
    assert [type(one) for one in over.errors] == [ResponseTooLargeError] * 3


@pytest.mark.parametrize(
    ("headers", "sent", "passes"),
    [
        ({"Content-Length": "2000000"}, 1000, False),  # more declared than sent: not even asked for
        ({"Content-Length": "1000"}, 2 * MB, True),  # less declared: HTTP ends the body there
        ({"Content-Length": None}, 2 * MB, False),  # until the connection closes
        ({"Content-Length": None}, 1000, True),
    ],
)
def test_lengths_that_lie(site: Any, headers: Any, sent: int, passes: bool) -> None:
    """What is declared is not believed to be small, and is believed to be large."""
    site.set("/lie", body=bytes(sent), headers={**headers, "Connection": "close"})
    spider = fetch(site.url("/lie"), {**LIMITED, "RETRY_ENABLED": False})

    assert len(spider.pages) == passes
    assert [type(one) for one in spider.errors] == [ResponseTooLargeError] * (not passes)


@pytest.mark.parametrize("length", ["-1", "1000, 2000", "much"])
def test_lengths_that_are_none(site: Any, length: str) -> None:
    """A Content-Length that cannot be read is a failed download, as in Scrapy, not a page."""
    site.set("/odd", body=b"page", headers={"Content-Length": length})
    spider = fetch(site.url("/odd"), {**LIMITED, "RETRY_TIMES": 0, "DOWNLOAD_TIMEOUT": 3})

    assert reason(spider.crawler) == "finished"
    assert len(spider.pages) + len(spider.errors) == 1


def test_answers_without_a_body(site: Any) -> None:
    """A HEAD, a 204 and a 304 may speak of a body that would be too large: none comes."""
    big = {"Content-Length": str(5 * MB), "Content-Type": "video/mp4", "Content-Encoding": "gzip"}
    site.set("/head", headers=big)
    for status in (204, 304):
        site.set(f"/{status}", status=status, headers=big)

    class Bodiless(PlainSpider):
        async def start(self) -> Any:
            yield scrapy.Request(site.url("/head"), method="HEAD", errback=self.failed)
            for path in ("/204", "/304"):
                yield scrapy.Request(site.url(path), errback=self.failed)

    spider = crawl(Bodiless, {**LIMITED, "ALLOWED_CONTENT_TYPES": ["text/"]}).spider

    assert spider.errors == []
    assert sorted(status for _, status in spider.pages) == [200, 204, 304]


def test_an_encoding_nobody_knows(site: Any) -> None:
    """It is left as it is, and its size counts as it came."""
    site.set("/odd", body=b"odd" * 100, headers={"Content-Encoding": "compress"})
    site.set("/large", body=bytes(2 * MB), headers={"Content-Encoding": "compress"})
    spider = fetch("", LIMITED, urls=[site.url("/odd"), site.url("/large")])

    assert len(spider.pages) == 1
    assert [type(one) for one in spider.errors] == [ResponseTooLargeError]


def test_half_a_gzip(site: Any) -> None:
    """Of a body that breaks off the page gets what there is, as in Scrapy."""
    text = random.Random(1).randbytes(50_000)
    site.set("/half", body=gzip.compress(text)[:30_000], headers={"Content-Encoding": "gzip"})
    spider = crawl(Page, LIMITED, url=site.url("/half")).spider

    assert spider.seen[0][0] == "page"
    assert 20_000 < spider.seen[0][1] < 50_000


def test_a_redirect_is_followed_whatever_its_body(site: Any) -> None:
    """Where it leads counts, not what it carries; and what it leads to counts in full."""
    kind = {"Content-Type": "video/mp4"}
    site.set("/there", 302, body=bytes(2 * MB), headers={"Location": "/page/1", **kind})
    site.set("/here", 302, body=b"moved", headers={"Location": "/film"})
    site.set("/film", body=b"film", headers=kind)
    settings = {**LIMITED, "ALLOWED_CONTENT_TYPES": ["text/html"]}
    followed = fetch(site.url("/there"), settings)
    refused = fetch(site.url("/here"), settings)

    assert followed.pages == [(site.url("/page/1"), 200)]
    assert [type(one) for one in refused.errors] == [ContentTypeRejectedError]
    assert netspy_stats(refused.crawler) == {"netspy/drops": 1, "netspy/drops/content_type": 1}


def test_a_status_goes_before_size_and_type(site: Any) -> None:
    """A 503 is fetched again and a 404 fails as one, be they large or of another type."""
    film = {"Content-Type": "video/mp4"}
    site.set("/busy", body=b"page")
    site.set("/busy", 503, body=bytes(2 * MB), headers=film, times=1)
    site.set("/busy", 503, body=b"wait", headers=film, times=1)
    site.set("/gone", 404, body=gzip.compress(ZEROS), headers={"Content-Encoding": "gzip"})
    site.set("/nofilm", 404, body=b"gone", headers=film)
    paths = ("/busy", "/gone", "/nofilm")
    spider = fetch(
        "", {**LIMITED, "ALLOWED_CONTENT_TYPES": "text/html"}, urls=[*map(site.url, paths)]
    )

    assert spider.pages == [(site.url("/busy"), 200)]
    assert site.hits("/busy") == 3
    assert [one.response.status for one in spider.errors] == [404, 404]
    stats = netspy_stats(spider.crawler)
    assert (stats["netspy/failures/404"], stats["netspy/retries/503"]) == (2, 2)
    assert "netspy/drops" not in stats


def test_an_accepted_error_counts_like_a_page(site: Any) -> None:
    """What reaches the callback keeps to the limits, also a 404 that does."""
    site.set("/large", 404, body=bytes(2 * MB))
    site.set("/film", 404, body=b"film", headers={"Content-Type": "video/mp4"})
    settings = {**LIMITED, "ACCEPT_STATUS_CODES": [404], "ALLOWED_CONTENT_TYPES": ["text/"]}
    spider = fetch("", settings, urls=[site.url("/large"), site.url("/film")])

    assert spider.pages == []
    assert {type(one) for one in spider.errors} == {ResponseTooLargeError, ContentTypeRejectedError}


def test_a_redirect_that_reaches_the_callback(site: Any) -> None:
    """Its type does not count, since it is wanted for its Location."""
    site.set("/there", 302, headers={"Location": "/page/1", "Content-Type": "video/mp4"})
    spider = fetch(
        site.url("/there"), {"ALLOWED_CONTENT_TYPES": ["text/"]}, meta={"dont_redirect": True}
    )

    assert spider.pages == [(site.url("/there"), 302)]


# Types -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        ("text/html", True),
        ("TEXT/HTML ; Charset=utf-8", True),
        (" application/JSON", True),
        ("application/xhtml+xml", False),
        (b"text/html; name=\xff\xfe", True),
        (b"\xff\xfe", False),
        ("", True),
        (None, True),
        ("video/mp4; text/html", False),
    ],
)
def test_types(site: Any, kind: Any, passes: bool) -> None:
    """Prefixes without regard to case; parameters do not count; who says nothing passes."""
    site.set("/typed", body=b"what it is", headers={"Content-Type": kind})
    spider = fetch(site.url("/typed"), {"ALLOWED_CONTENT_TYPES": ["text/", "Application/json"]})

    assert len(spider.pages) == passes
    assert len(spider.errors) == (not passes)
    assert dumped() == []


def test_no_body_is_read_of_a_refused_type(site: Any) -> None:
    """A drop: no hook, no dump, one attempt; the crawl does not wait for a body that drips."""
    path = "/drip?kb=100&pieces=100&ms=500"
    spider = crawl(Page, {"ALLOWED_CONTENT_TYPES": ["application/json"]}, url=site.url(path)).spider

    assert spider.seen == []
    assert dumped() == []
    assert site.hits(path) == 1
    assert spider.crawler.stats.get_value("elapsed_time_seconds") < 20
    assert netspy_stats(spider.crawler) == {"netspy/drops": 1, "netspy/drops/content_type": 1}


@pytest.mark.parametrize("value", [{"a": 1}, 5, ["text/", 3], ["text/", ""]])
def test_types_that_cannot_be_used(value: Any) -> None:
    """The start ends with the setting, the value and what is allowed; an empty prefix is a slip."""
    with pytest.raises(mw.ConfigError, match="ALLOWED_CONTENT_TYPES"):
        crawl(PlainSpider, {"ALLOWED_CONTENT_TYPES": value})


# One request -----------------------------------------------------------------------------------
def test_a_request_with_limits_of_its_own(site: Any) -> None:
    """download_maxsize and netspy_allowed_content_types go before the settings, both ways."""
    site.set("/large", body=b"x" * 2 * MB, headers={"Content-Type": "video/mp4"})
    allowed = {"download_maxsize": 0, "netspy_allowed_content_types": []}
    settings = {**LIMITED, "ALLOWED_CONTENT_TYPES": ["text/"]}
    free = fetch(site.url("/large"), settings, meta=allowed)
    small = fetch(site.url("/page/1"), settings, meta={"download_maxsize": 1000})
    typed = fetch(site.url("/page/1"), settings, meta={"netspy_allowed_content_types": "video/"})

    assert free.pages == [(site.url("/large"), 200)]
    assert "MAX_RESPONSE_SIZE (the request's download_maxsize) = 1000" in str(small.errors[0])
    assert "(the request's netspy_allowed_content_types)" in str(typed.errors[0])


def test_a_request_with_types_that_cannot_be_used(site: Any) -> None:
    """It fails alone, with an error that names the key."""
    spider = fetch(
        site.url("/page/1"), LIMITED, meta={"netspy_allowed_content_types": 5}
    )  # fmt: skip

    assert "netspy_allowed_content_types = 5" in str(spider.errors[0])
    assert len(dumped()) == 1


class Media(PlainSpider):
    """Downloads ``wanted`` as media pipelines do."""

    wanted: Any = ()

    async def parse(self, response: Any) -> None:
        super().parse(response)
        self.answers: list[Any] = []
        for url, meta in self.wanted:
            request = scrapy.Request(url, callback=NO_CALLBACK, meta=meta)
            try:
                answer = await self.crawler.engine.download_async(request)
                self.answers.append(len(answer.body))
            except IgnoreRequest as exc:
                self.answers.append(type(exc))


def test_media_have_limits_only_if_they_ask(site: Any, caplog: Any) -> None:
    """Images are neither too large nor of a wrong type, unless their request says what it takes."""
    site.set("/image", body=bytes(2 * MB), headers={"Content-Type": "image/png"})
    url = site.url("/image")
    wanted = [
        (url, {}),
        (url, {"download_maxsize": MB}),
        (url, {"netspy_allowed_content_types": ["image/jpeg"]}),
        (url, {"netspy_allowed_content_types": ["image/"], "download_maxsize": 3 * MB}),
    ]
    settings = {**LIMITED, "ALLOWED_CONTENT_TYPES": ["text/"]}
    spider = crawl(Media, settings, urls=(site.url("/page/1"),), wanted=wanted).spider

    assert spider.answers == [2 * MB, ResponseTooLargeError, ContentTypeRejectedError, 2 * MB]
    assert "netspy/failures" not in netspy_stats(spider.crawler)
    assert "image>: the body is larger than" in caplog.text


def test_robots_txt_keeps_its_own_limit(site: Any) -> None:
    """Neither the size nor the types of pages stop robots.txt, and a huge one is an error."""
    rules = "User-agent: *\nDisallow: /page/2\n" + "# comment\n" * 20_000
    site.set("/robots.txt", body=rules, headers={"Content-Type": "text/plain"})
    settings = {
        "MAX_RESPONSE_SIZE": 100_000, "ALLOWED_CONTENT_TYPES": ["text/html"],
        "ROBOTSTXT_OBEY": True,
    }  # fmt: skip
    obeyed = fetch("", settings, urls=[site.url("/page/1"), site.url("/page/2")])
    bomb = gzip.compress(b"User-agent: *\nDisallow: /\n" + bytes(20 * MB))
    site.set("/robots.txt", body=bomb, headers={"Content-Encoding": "gzip"})
    huge = fetch(site.url("/page/1"), {**settings, "NETSPY_ROBOTS_ON_ERROR": "disallow"})
    site.set("/robots.txt", body=bytes(20 * MB))
    large = fetch(site.url("/page/1"), {**settings, "NETSPY_ROBOTS_ON_ERROR": "disallow"})

    assert obeyed.pages == [(site.url("/page/1"), 200)]
    for spider in (huge, large):
        assert spider.pages == []
        assert netspy_stats(spider.crawler)["netspy/robots/errors"] == 1


# Whose value counts ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"DOWNLOAD_MAXSIZE": 1000}, "DOWNLOAD_MAXSIZE = 1000"),
        ({"MAX_RESPONSE_SIZE": 1000}, "MAX_RESPONSE_SIZE = 1000"),
        ({"MAX_RESPONSE_SIZE": 1000, "DOWNLOAD_MAXSIZE": 10}, "MAX_RESPONSE_SIZE = 1000"),
        ({"MAX_RESPONSE_SIZE": 3000, "DOWNLOAD_MAXSIZE": 10}, None),
        ({"MAX_RESPONSE_SIZE": 0, "DOWNLOAD_MAXSIZE": 10}, None),
    ],
)
def test_whose_limit_counts(site: Any, settings: dict[str, int], limit: str | None) -> None:
    """Ours if it is set, else Scrapy's, else 32 MiB; the error names the one that counted."""
    site.set("/page", body=b"x" * 2000)
    spider = crawl(Page, settings, url=site.url("/page")).spider

    assert spider.seen == [("page", 2000)] if limit is None else [("failed", None)]
    assert [limit in line["reason"] for line in dumped()] == [True] * (limit is not None)


def test_a_plain_project_has_scrapys_limit(site: Any) -> None:
    """It keeps Scrapy's limit and its errors, and each of them is a failure, not a drop."""
    site.set("/large", body=b"x" * 2000)
    site.set("/zip", body=gzip.compress(bytes(2000)), headers={"Content-Encoding": "gzip"})
    spider = fetch("", {"DOWNLOAD_MAXSIZE": 1000}, urls=[site.url("/large"), site.url("/zip")])

    assert not any(isinstance(one, ResponseTooLargeError) for one in spider.errors)
    assert netspy_stats(spider.crawler) == {
        "netspy/failures": 2, "netspy/failures/ResponseTooLargeError": 2,
        "netspy/requests/dumped": 2,
    }  # fmt: skip
    names = {type(one).__name__ for one in spider.crawler.engine.downloader.middleware.middlewares}
    assert not names & {"LimitsMiddleware", "ReceivingMiddleware", "CompressionMiddleware"}


def test_an_attribute_of_the_spider(site: Any) -> None:
    """Scrapy's older download_maxsize of a spider counts where DOWNLOAD_MAXSIZE would."""
    site.set("/zip", body=gzip.compress(bytes(2000)), headers={"Content-Encoding": "gzip"})
    own = fetch(site.url("/zip"), {"ALLOWED_CONTENT_TYPES": []}, download_maxsize=1000)
    ours = fetch(site.url("/page/1"), {"MAX_RESPONSE_SIZE": 5000}, download_maxsize=1100)

    assert [type(one) for one in own.errors] == [ResponseTooLargeError]
    assert len(ours.pages) == 1


def test_a_page_cut_short_is_not_in_the_cache(site: Any, folder: Any) -> None:
    """Scrapy's HTTP cache does not keep an answer without its body."""
    site.set("/film", body=b"film", headers={"Content-Type": "video/mp4"})
    site.set("/bomb", body=BOMBS["gzip"], headers={"Content-Encoding": "gzip"})
    urls = [site.url("/film"), site.url("/bomb")]
    cached = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(folder / "cache")}
    fetch("", {**cached, **LIMITED, "ALLOWED_CONTENT_TYPES": ["text/"]}, urls=urls)
    spider = crawl(type("Two", (Media,), {"urls": urls, "parse": sizes}), cached).spider

    assert sorted(spider.sizes) == [4, 3 * MB]


def sizes(self: Any, response: Any) -> None:
    self.__dict__.setdefault("sizes", []).append(len(response.body))


def test_what_came_past_the_network_counts_too(site: Any) -> None:
    """A page that a middleware answers is held to the limits as well."""

    class Answers:
        def process_request(self, request: Any) -> Any:
            return scrapy.http.HtmlResponse(request.url, body=bytes(2000))

    spider = fetch(
        site.url("/x"), {"MAX_RESPONSE_SIZE": 1000, "DOWNLOADER_MIDDLEWARES": {Answers: 700}}
    )

    assert [type(one) for one in spider.errors] == [ResponseTooLargeError]
    assert site.hits("/x") == 0
