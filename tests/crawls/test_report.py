"""The report of real crawls."""

from __future__ import annotations

import html
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import scrapy

import netspy_scrapy as mw
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import ConfigError
from tests.crawling import MEMORY, PlainSpider, crawl, reason

REPORT = {"NETSPY_REPORT": "report.html"}


def text_of(path: str = "report.html") -> str:
    """Return what a report says, without its tags."""
    body = Path(path).read_text(encoding="utf-8").partition("<main>")[2].partition("<script>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


class Shop(PlainSpider):
    """Pages, a failure, a retry with a rest, a drop, rows of two tables, from two hosts."""

    name = "shop"

    def parse(self, response: Any) -> Any:
        super().parse(response)
        yield {"url": response.url}


def test_what_it_says_of_a_crawl(site: Any) -> None:
    """Pages, failures, retries, rests and drops of each domain, rows of each sink, what to do."""
    site.set("/robots.txt", body=b"User-agent: *\nDisallow: /forbidden\n")
    urls = [
        site.url("/page/1"), site.url("/page/2"), site.url("/forbidden"),
        site.url("/seq/x?codes=503,200&retry_after=1"),
        site.url("/status/404", host="127.0.0.2"),
        f"http://user:secret@localhost:{site.port}/status/403",
    ]  # fmt: skip
    crawler = crawl(Shop, {**MEMORY, **REPORT, "ROBOTSTXT_OBEY": True}, urls=urls)
    stats = crawler.stats.get_stats()
    history = CrawlContext.of(crawler).history
    one, two = f"127.0.0.1:{site.port}", f"127.0.0.2:{site.port}"
    text = Path("report.html").read_text(encoding="utf-8")
    said = text_of()

    assert sum(history.timeline.pages) == stats["response_received_count"]
    assert sum(history.timeline.failures) == stats["netspy/failures"] == 2
    assert sum(history.timeline.retries) == stats["netspy/retries"] == 1
    assert history.domains[one].drops == stats["netspy/drops"] == 1
    assert history.domains[two].failures == 1
    assert history.latencies.total() == stats["response_received_count"]
    assert f"{one} 1 rest, 1 s: 503 (Retry-After) 1" in said
    # Domain, pages, failures, retries, drops, rests, rested.
    assert f"{two} 1 1 0 0 0 \u2013" in said
    assert re.search(rf"localhost:{site.port} \d 1 0 0 0 \u2013", said)
    assert f"{one} 3 0 1 1 1 1 s 0" in said
    assert "MemorySink items 3 0 0" in said
    assert "netspy-retry --requests --spider " in said
    assert re.search(r"Half of \d pages within [\d.]+ m?s", said)
    assert "secret" not in text
    assert "user:" not in text


class Twice(mw.AirSpider):
    """Fetches one page again until it is good."""

    name = "twice"
    base = ""
    __custom_setting__ = {"NETSPY_REPORT": "%(name)s %(time)s.html"}

    def start_requests(self) -> Any:
        yield mw.Request(self.base + "/page/1")

    def parse(self, request: Any, response: Any) -> Any:
        if not request.meta.get("retry_times"):
            raise ValueError("once more")
        yield {"url": response.url}


def test_of_a_netspy_spider_that_is_started(site: Any) -> None:
    """MySpider().start() writes it too; %(name)s and %(time)s are filled in."""
    Twice(base=site.url("").rstrip("/")).start()
    (path,) = Path().glob("twice *.html")
    said = text_of(str(path))

    assert said.startswith("twice finished")
    assert "2 pages" in said
    assert "1 retry ValueError" in said


class Nameless(scrapy.Spider):
    """Gets its name when it is made."""

    async def start(self) -> Any:
        yield scrapy.Request("data:,x")

    def parse(self, response: Any) -> Any:
        pass


def test_of_a_spider_that_is_named_late() -> None:
    """%(name)s is the name of the spider that runs."""
    crawl(Nameless, {"NETSPY_REPORT": "%(name)s.html"}, name="late")

    assert text_of("late.html").startswith("late finished")
    assert "\u2013 1 0 0 0 0 \u2013" in text_of("late.html")  # a page without a host


def test_of_scrapy_crawl(site: Any) -> None:
    """`scrapy crawl` writes it where the command line says; `scrapy fetch`, a trial, does not."""
    Path("scrapy.cfg").write_text("[settings]\ndefault = shop\n")
    Path("shop.py").write_text(
        'SPIDER_MODULES = ["books"]\nADDONS = {"netspy_scrapy.Addon": 500}\n'
    )
    Path("books.py").write_text(
        "import scrapy\nclass Books(scrapy.Spider):\n    name = 'books'\n"
        f"    start_urls = [{site.url('/page/1')!r}]\n    def parse(self, response): pass\n"
    )
    done = scrapy_command("crawl", "books", "-s", "NETSPY_REPORT=out/books.html")
    fetch = ("fetch", "--spider", "books", site.url("/page/1"))
    tried = scrapy_command(*fetch, "-s", "NETSPY_REPORT=fetch.html")

    assert done.returncode == 0, done.stderr
    assert f"Report of the run: {Path('out/books.html').resolve()}" in done.stderr
    assert "1 page " in text_of("out/books.html")
    assert "Page 1" in tried.stdout
    assert not Path("fetch.html").exists()


def test_where_nothing_can_be_written_nothing_starts(site: Any) -> None:
    """The error names setting and value before a request is sent, with or without the add-on."""
    Path("taken").mkdir()
    for settings in ({}, {"ADDONS": {}, "EXTENSIONS": EXTENSION}):
        with pytest.raises(ConfigError, match="NETSPY_REPORT = 'taken' cannot be used"):
            crawl(Shop, {**settings, "NETSPY_REPORT": "taken"}, urls=[site.url("/page/1")])

    assert site.log() == []


EXTENSION = {"netspy_scrapy.extensions.report.RunReport": 0}


def test_alone(site: Any) -> None:
    """The extension works without the add-on, and leaves Scrapy's ways as they are."""
    settings = {**REPORT, "ADDONS": {}, "EXTENSIONS": EXTENSION}
    crawler = crawl(Shop, settings, urls=[site.url("/page/1"), site.url("/status/404")])

    assert reason(crawler) == "finished"
    assert "2 pages" in text_of()
    assert f"127.0.0.1:{site.port} 2 0" in text_of()


def test_off_it_leaves_nothing(site: Any) -> None:
    """By default there is no report, no component, and nothing collects."""
    crawler = crawl(Shop, urls=[site.url("/page/1")])

    assert "RunReport" not in [type(one).__name__ for one in crawler.extensions.middlewares]
    assert CrawlContext.of(crawler).history is None
    assert not list(Path().glob("*.html"))


def test_a_path_that_is_lost_on_the_way_costs_the_report_only(site: Any, caplog: Any) -> None:
    """What can no longer be written at the end is one error line; the crawl ends as ever."""

    class Spoils(Shop):
        def parse(self, response: Any) -> Any:
            Path("out").write_text("no folder any more")
            yield {"n": 1}

    settings = {**MEMORY, "NETSPY_REPORT": "out/report.html"}
    crawler = crawl(Spoils, settings, urls=[site.url("/page/1")])

    assert reason(crawler) == "finished"
    (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert re.fullmatch(
        r"NETSPY_REPORT: .*/out/report.html cannot be written: .+", line.getMessage()
    )


def test_the_doctor_knows_it() -> None:
    """netspy-doctor shows where the report goes."""
    Path("scrapy.cfg").write_text("[settings]\ndefault = shop\n")
    Path("shop.py").write_text(
        'SPIDER_MODULES = ["books"]\nADDONS = {"netspy_scrapy.Addon": 500}\n'
    )
    Path("books.py").write_text("import scrapy\nclass Books(scrapy.Spider):\n    name = 'books'\n")
    shown = scrapy_command("netspy-doctor", "-s", "NETSPY_REPORT=%(name)s.html")

    assert "%(name)s.html (new, writable)" in shown.stdout
    assert "RunReport" in shown.stdout


def scrapy_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scrapy", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_pages_from_the_cache_have_no_latency(site: Any) -> None:
    """A page from the response cache is a page, and says nothing of how fast its site is."""
    for _ in range(2):
        crawl(Shop, {**REPORT, "RESPONSE_CACHE_ENABLE": True}, urls=[site.url("/page/1")])

    assert "1 page " in text_of()
    assert "No answer was measured." in text_of()
