"""Waiting, unfinished and unqueueable requests, in real crawls."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.exceptions import CloseSpider

import netspy_scrapy as mw
from netspy_scrapy import _scrapy
from tests.crawling import MEMORY, PlainSpider, crawl, dumped, netspy_stats, reason, rows


def test_meta_delay_holds_a_request(site: Any) -> None:
    """A request with meta["netspy_delay"] goes out after that many seconds, others at once."""

    class Delayed(PlainSpider):
        async def start(self) -> Any:
            yield scrapy.Request(site.url("/page/1"), meta={"netspy_delay": 0.5})
            yield scrapy.Request(site.url("/page/2"))

    crawl(Delayed)

    (second, first) = [(one.path, one.t) for one in site.log()]
    assert (second[0], first[0]) == ("/page/2", "/page/1")
    assert 0.4 <= first[1] - second[1] < 0.9


def test_queued_requests_are_dumped_at_a_stop(site: Any) -> None:
    """Without a job directory, what a stop leaves in the queue is in the dump."""

    class Stops(PlainSpider):
        async def start(self) -> Any:
            yield scrapy.Request(site.url("/page/99"), meta={"netspy_delay": 3600})
            for n in range(50):
                self.begun = n
                yield scrapy.Request(site.url(f"/slow?ms=10&n={n}"), cb_kwargs={"n": n})

        def parse(self, response: Any, n: int = 0) -> Any:
            self.pages.append((response.url, response.status))
            if len(self.pages) == 20:
                raise CloseSpider("enough")

    crawler = crawl(Stops, {"CONCURRENT_REQUESTS": 2})

    fetched = {url for url, _ in crawler.spider.pages}
    lines = dumped()
    left = {line["url"] for line in lines}
    assert crawler.spider.begun == 49
    expected = {site.url(f"/slow?ms=10&n={n}") for n in range(50)}
    assert fetched | left == {*expected, site.url("/page/99")}
    assert not fetched & left
    assert lines[0]["reason"] == "unfinished: enough"
    assert netspy_stats(crawler)["netspy/requests/unfinished_dumped"] == len(lines)


def test_dump_of_unfinished_requests_can_be_switched_off(site: Any) -> None:
    """DUMP_UNFINISHED_ON_EXIT = False writes nothing at a stop."""

    class Stops(PlainSpider):
        async def start(self) -> Any:
            for n in range(20):
                yield scrapy.Request(site.url(f"/page/{n}"))

        def parse(self, response: Any) -> Any:
            raise CloseSpider("enough")

    crawl(Stops, {"CONCURRENT_REQUESTS": 1, "DUMP_UNFINISHED_ON_EXIT": False})

    assert dumped() == []


class Resumed(PlainSpider):
    """Stops at the first page while a retry waits, when told to."""

    stop = False

    async def start(self) -> Any:
        if self.stop:
            yield scrapy.Request(site_url("/seq/job?codes=503,200&retry_after=2"))
            other = site_url("/page/1").replace("127.0.0.1", "127.0.0.2")
            yield scrapy.Request(other, meta={"netspy_delay": 0.3})

    def parse(self, response: Any) -> Any:
        super().parse(response)
        if self.stop:
            raise CloseSpider("enough")


def site_url(path: str) -> str:
    """Return a URL of the running site."""
    return Resumed.base + path  # type: ignore[attr-defined,no-any-return]


@pytest.mark.timed
def test_waiting_requests_survive_a_job_directory(site: Any, folder: Path) -> None:
    """A retry that waits when the crawl stops goes on in the next run, not before its time."""
    Resumed.base = site.url("").rstrip("/")
    settings = {"JOBDIR": str(folder / "job")}
    begun = time.monotonic()
    first = crawl(Resumed, settings, stop=True)
    second = crawl(Resumed, settings)

    assert [url.partition("?")[0] for url, _ in first.spider.pages] == [
        site.url("/page/1", host="127.0.0.2")
    ]
    assert [status for _, status in second.spider.pages] == [200]
    assert time.monotonic() - begun >= 2
    assert dumped() == []


class FacadeJob(mw.AirSpider):
    """A netspy spider with a job directory."""

    stop = False

    def start_requests(self) -> Any:
        if self.stop:
            yield mw.Request(self.base + "/page/1", callback=self.first)

    def first(self, request: Any, response: Any) -> Any:
        yield mw.Request(self.base + "/page/2", callback="second", batch_id=7, priority=9)
        raise CloseSpider("enough")

    def second(self, request: Any, response: Any) -> Any:
        yield {"batch": request.batch_id, "priority": request.priority, "url": request.url}


def test_netspy_requests_survive_a_job_directory(site: Any, folder: Path) -> None:
    """Callback names, own attributes and priorities of netspy requests are kept on disk."""
    FacadeJob.base = site.url("").rstrip("/")  # type: ignore[attr-defined]
    settings = {"JOBDIR": str(folder / "job"), **MEMORY, "NETSPY_RETRY_CALLBACK_ERRORS": False}
    crawl(FacadeJob, settings, stop=True)
    crawler = crawl(FacadeJob, settings)

    assert [row for _, row in rows(crawler)] == [
        {"batch": 7, "priority": 9, "url": site.url("/page/2")}
    ]


def test_what_cannot_be_queued_is_dumped(site: Any) -> None:
    """A request on which the filter fails is dumped, and the crawl goes on."""

    class Fingerprinter:
        def fingerprint(self, request: Any) -> bytes:
            if request.url.endswith("/1"):
                raise RuntimeError("no fingerprint")
            return request.url.encode()

    crawler = crawl(
        PlainSpider,
        {"REQUEST_FINGERPRINTER_CLASS": Fingerprinter},
        urls=(site.url("/page/1"), site.url("/page/2")),
    )

    assert [url for url, _ in crawler.spider.pages] == [site.url("/page/2")]
    (line,) = dumped()
    assert line["reason"] == "it cannot be queued: RuntimeError: no fingerprint"


def test_unwritable_request_dump_is_one_clear_line(
    site: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where FAILED_REQUEST_PATH cannot be written the crawl ends, and says what is lost."""
    (folder / "file").touch()
    crawler = crawl(
        PlainSpider, {"FAILED_REQUEST_PATH": "file/x.jsonl"}, urls=(site.url("/status/404"),)
    )

    assert reason(crawler) == "finished"
    assert netspy_stats(crawler)["netspy/requests/lost"] == 1
    lost = [record.getMessage() for record in caplog.records if "LOST" in record.getMessage()]
    assert len(lost) == 1
    assert "file/x.jsonl" in lost[0]


@pytest.mark.timed
def test_a_long_start_is_paced(site: Any) -> None:
    """start() runs ahead of the downloader by NETSPY_START_MAX_QUEUED requests at most."""
    ahead: list[int] = []

    class Long(PlainSpider):
        async def start(self) -> Any:
            for n in range(200):
                ahead.append(_scrapy.queued(self.crawler))
                yield scrapy.Request(site.url(f"/slow?ms=20&n={n}"))

    crawler = crawl(Long, {"NETSPY_START_MAX_QUEUED": 50, "CONCURRENT_REQUESTS": 4})

    assert len(crawler.spider.pages) == 200
    assert 40 <= max(ahead) <= 50 + 2


def test_an_endless_callback_is_held_back(site: Any) -> None:
    """A callback that yields requests without end waits for the queue, and the crawl can stop."""
    ahead: list[int] = []

    class Endless(PlainSpider):
        def parse(self, response: Any) -> Any:
            super().parse(response)
            if len(self.pages) == 1:
                for n in range(20_000):
                    if len(self.pages) < 200:
                        ahead.append(_scrapy.queued(self.crawler))
                    yield scrapy.Request(site.url(f"/page/{n}"), dont_filter=True)
            elif len(self.pages) == 200:
                raise CloseSpider("enough")

    crawl(
        Endless,
        {"NETSPY_START_MAX_QUEUED": 50, "CONCURRENT_REQUESTS": 4, "DUMP_UNFINISHED_ON_EXIT": False},
        urls=(site.url("/page/1"),),
    )

    assert 40 <= max(ahead) <= 50 + 20 + 10


@pytest.mark.timed
def test_no_limit_of_concurrency_per_domain(site: Any, caplog: Any) -> None:
    """CONCURRENT_REQUESTS_PER_DOMAIN = 0 means no limit; plain Scrapy would hang for ever."""
    urls = tuple(site.url(f"/slow?ms=1500&n={n}") for n in range(12))
    crawler = crawl(PlainSpider, {"CONCURRENT_REQUESTS_PER_DOMAIN": 0}, urls=urls)

    assert len(crawler.spider.pages) == 12
    times = [one.t for one in site.log()]
    # All of them have come before the first one is answered.
    assert max(times) - min(times) < 1.4
    # Twisted's pool would raise once per answer if it were told to keep 0 connections.
    assert [one for one in caplog.records if one.levelname in ("ERROR", "CRITICAL")] == []


class OwnScheduler(scrapy.core.scheduler.Scheduler):
    """A project's own scheduler."""


def test_a_scheduler_of_the_projects_own_stays(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The project's SCHEDULER stays, one warning names what does not work, and waits are kept."""
    url = site.url("/seq/own?codes=429,200&retry_after=1")
    crawler = crawl(PlainSpider, {"SCHEDULER": OwnScheduler}, urls=(url,))

    assert crawler.spider.pages == [(url, 200)]
    first, second = [one.t for one in site.log()]
    assert second - first >= 1
    warnings = [r.getMessage() for r in caplog.records if "SCHEDULER is" in r.getMessage()]
    assert len(warnings) == 1
    assert "wait in a download slot" in warnings[0]
