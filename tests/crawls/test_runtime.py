"""How crawls end before they are done: limits of time and signals, in processes of their own."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest
import scrapy

import netspy_scrapy as mw
from netspy_scrapy.pipelines.base import BasePipeline
from tests.crawling import PlainSpider, crawl, dumped, netspy_stats, reason
from tests.stops import Process

SPIDER = """
import time
import netspy_scrapy as mw
from netspy_scrapy.pipelines.base import BasePipeline


class Rows(BasePipeline):
    def save_items(self, table, items):
        print("SAVING", flush=True)
        time.sleep({sleep})
        with open("rows.txt", "a") as file:
            file.writelines(item["url"] + "\\n" for item in items)
        return True


class S(mw.AirSpider):
    __custom_setting__ = dict(
        ITEM_PIPELINES=[Rows], SPIDER_MAX_RETRY_TIMES=5, LOG_LEVEL="INFO", **{settings}
    )

    def start_requests(self):
        for path in {paths}:
            yield mw.Request("{site}" + path)
        print("ALL", flush=True)

    def parse(self, request, response):
        print("GOT", request.url, flush=True)
        yield {{"url": request.url}}

    def end_callback(self):
        print("END_CALLBACK", flush=True)


if __name__ == "__main__":
    S().start()
    print("ENDED", flush=True)
"""


COMMANDS = [["spider.py"], ["-m", "scrapy", "runspider", "spider.py"]]


def script(site: Any, paths: list[str], *, sleep: float = 0, **settings: Any) -> str:
    """Return the text of a spider."""
    base = site.url("").rstrip("/")
    return SPIDER.format(site=base, paths=paths, sleep=sleep, settings=settings)


def accounted(folder: Any) -> list[str]:
    """Return every path that is stored, in the dump of rows, or in the dump of requests."""
    rows = folder / "rows.txt"
    urls = rows.read_text().split() if rows.exists() else []
    urls += [line["data"]["url"] for line in dumped(str(folder / "failed_items.jsonl"))]
    urls += [line["url"] for line in dumped(str(folder / "failed_requests.jsonl"))]
    return sorted("/" + url.partition("/")[2].partition("/")[2].partition("/")[2] for url in urls)


@pytest.mark.timed
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_long_rest(
    site: Any, folder: Any, command: list[str], number: int
) -> None:
    """A first signal while the domain rests for a minute ends the crawl in seconds, all kept."""
    site.set("/busy", status=429, headers={"Retry-After": "50"})
    paths = ["/busy", *(f"/page/{n}" for n in range(30))]
    crawl_ = Process(folder, script(site, paths, CONCURRENT_REQUESTS=1), command)
    crawl_.wait_for("ALL")
    time.sleep(0.5)
    crawl_.process.send_signal(number)
    seconds, _, err = crawl_.end(within=20)

    assert seconds < 3
    assert crawl_.process.returncode == 0
    assert accounted(folder) == sorted(paths)
    assert "shutdown" in err


@pytest.mark.timed
@pytest.mark.parametrize("command", COMMANDS)
def test_downloads_that_take_too_long_are_cut(site: Any, folder: Any, command: list[str]) -> None:
    """After NETSPY_STOP_TIMEOUT the downloads in flight are cut off, and their requests kept."""
    paths = ["/page/1", "/hang", "/slow?ms=20000"]
    crawl_ = Process(folder, script(site, paths, NETSPY_STOP_TIMEOUT=1), command)
    crawl_.wait_for("GOT")
    crawl_.process.send_signal(signal.SIGINT)
    seconds, _, err = crawl_.end(within=20)

    assert 0.8 < seconds < 4
    assert accounted(folder) == sorted(paths)
    assert "2 downloads were not done within NETSPY_STOP_TIMEOUT = 1 s" in err


@pytest.mark.timed
@pytest.mark.parametrize("command", COMMANDS)
def test_a_second_signal_dumps_what_sinks_hold(site: Any, folder: Any, command: list[str]) -> None:
    """A second signal ends the process at once; what was not stored or done yet is dumped."""
    paths = [*(f"/page/{n}" for n in range(20)), "/hang"]
    crawl_ = Process(folder, script(site, paths, sleep=60, BUFFER_FLUSH_INTERVAL=600), command)
    for _ in range(20):
        crawl_.wait_for("GOT")
    crawl_.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    crawl_.process.send_signal(signal.SIGINT)
    seconds, out, _ = crawl_.end(within=20)

    assert seconds < 3
    assert "ENDED" not in out
    lines = dumped(str(folder / "failed_items.jsonl"))
    assert len(lines) == 20
    assert lines[0]["reason"] == "the crawl was cut off before it was stored"
    (line,) = dumped(str(folder / "failed_requests.jsonl"))
    assert line["url"] == site.url("/hang")
    assert line["reason"] == "unfinished: cut off"


@pytest.mark.timed
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_while_the_last_batch_is_written(
    site: Any, folder: Any, command: list[str]
) -> None:
    """A first signal while sinks close lets them finish: rows are stored once, and none dumped."""
    paths = [f"/page/{n}" for n in range(5)]
    crawl_ = Process(folder, script(site, paths, sleep=2, BUFFER_FLUSH_INTERVAL=600), command)
    crawl_.wait_for("SAVING")
    time.sleep(0.3)
    crawl_.process.send_signal(signal.SIGINT)
    _, out, err = crawl_.end(within=20)

    assert crawl_.process.returncode == 0
    assert len((folder / "rows.txt").read_text().split()) == 5
    assert not (folder / "failed_items.jsonl").exists()
    assert "END_CALLBACK" in out
    assert "Spider closed (finished)" in err


@pytest.mark.timed
@pytest.mark.parametrize("command", COMMANDS)
def test_a_sink_that_hangs_does_not_keep_the_process(
    site: Any, folder: Any, command: list[str]
) -> None:
    """A second signal dumps what a sink holds that hangs for ever, and ends the process."""
    paths = [f"/page/{n}" for n in range(5)]
    crawl_ = Process(folder, script(site, paths, sleep=3600, BUFFER_FLUSH_INTERVAL=600), command)
    crawl_.wait_for("SAVING")
    for _ in range(2):
        time.sleep(0.5)
        crawl_.process.send_signal(signal.SIGINT)
    seconds, _, _ = crawl_.end(within=20)

    assert seconds < 3
    assert len(dumped(str(folder / "failed_items.jsonl"))) == 5


class Items(PlainSpider):
    """Yields an item for each page."""

    def parse(self, response: Any) -> Any:
        yield {"url": response.url}


@pytest.mark.timed
def test_a_sink_that_hangs_is_given_up_after_a_stop(
    site: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a stop a sink that hangs is given up: its rows, and what still comes, are dumped."""
    monkeypatch.setattr("netspy_scrapy.extensions.runtime._SINK_GRACE", 0.0)
    monkeypatch.setattr("netspy_scrapy.extensions.runtime._SINK_HANGS", 0.3)

    class Hangs(BasePipeline):
        def save_items(self, table: str, items: Any) -> Any:
            threading.Event().wait()

    class Late(Items):
        async def parse(self, response: Any) -> Any:
            if "late" in response.url:
                await asyncio.sleep(2)
            yield {"url": response.url}

    settings = {
        "ITEM_PIPELINES": {Hangs: 300}, "SPIDER_MAX_RUNTIME": 0.5, "NETSPY_STOP_TIMEOUT": 0.2
    }  # fmt: skip
    urls = (site.url("/page/1"), site.url("/page/2?late"), site.url("/hang"))
    crawler = crawl(Late, settings, urls=urls)

    assert reason(crawler) == "max_runtime"
    assert [line["data"]["url"] for line in dumped("failed_items.jsonl")] == [*urls[:2]]
    assert "Hangs is given up after the stop" in caplog.text
    assert netspy_stats(crawler)["netspy/rows/Hangs/dumped"] == 2


@pytest.mark.timed
def test_a_slow_sink_is_not_given_up(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop a sink that gets on stores all it holds, however long that takes."""
    monkeypatch.setattr("netspy_scrapy.extensions.runtime._SINK_GRACE", 0.0)
    monkeypatch.setattr("netspy_scrapy.extensions.runtime._SINK_HANGS", 1.5)

    class Slow(BasePipeline):
        def save_items(self, table: str, items: Any) -> Any:
            time.sleep(0.4)
            return True

    settings = {
        "ITEM_PIPELINES": {Slow: 300}, "SPIDER_MAX_RUNTIME": 1.0, "NETSPY_STOP_TIMEOUT": 0.2,
        "ITEM_MAX_CACHED_COUNT": 1, "CONCURRENT_REQUESTS": 1,
    }  # fmt: skip
    urls = (site.url("/page/1"),)

    class Many(Items):
        def parse(self, response: Any) -> Any:
            yield from ({"url": response.url, "n": n} for n in range(8))

    begun = time.monotonic()
    crawler = crawl(Many, settings, urls=urls)
    stats = netspy_stats(crawler)

    assert time.monotonic() - begun > 1 + 0.2 + 1.5
    assert stats["netspy/rows/Slow/stored"] == stats["netspy/items"]
    assert dumped("failed_items.jsonl") == []


@pytest.mark.timed
def test_sinks_of_a_crawl_that_may_take_its_time(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With NETSPY_STOP_TIMEOUT = 0 sinks store what comes however late; one that hangs ends."""
    monkeypatch.setattr("netspy_scrapy.extensions.runtime._SINK_TIMEOUT", 0.5)

    class Stores(BasePipeline):
        def save_items(self, table: str, items: Any) -> Any:
            return True

    class Hangs(BasePipeline):
        def save_items(self, table: str, items: Any) -> Any:
            threading.Event().wait()

    class Late(Items):
        async def parse(self, response: Any) -> Any:
            await asyncio.sleep(1.5)
            yield {"url": response.url}

    settings = {
        "ITEM_PIPELINES": {Stores: 300, Hangs: 400}, "SPIDER_MAX_RUNTIME": 0.3,
        "NETSPY_STOP_TIMEOUT": 0,
    }  # fmt: skip
    crawler = crawl(Late, settings, urls=(site.url("/page/1"),))
    stats = netspy_stats(crawler)

    assert reason(crawler) == "max_runtime"
    assert stats["netspy/rows/Stores/stored"] == 1
    assert stats["netspy/rows/Hangs/dumped"] == 1


@pytest.mark.timed
def test_max_runtime(site: Any) -> None:
    """SPIDER_MAX_RUNTIME closes the crawl with a reason of its own, also during a long rest."""
    site.set("/busy", status=429, headers={"Retry-After": "50"})
    urls = (site.url("/busy"), *(site.url(f"/page/{n}") for n in range(20)))
    settings = {"SPIDER_MAX_RUNTIME": 1, "RETRY_TIMES": 5, "CONCURRENT_REQUESTS": 1}
    begun = time.monotonic()
    crawler = crawl(PlainSpider, settings, urls=urls)

    assert 1 <= time.monotonic() - begun < 3
    assert reason(crawler) == "max_runtime"
    assert len(crawler.spider.pages) + len(dumped()) == 21
    assert netspy_stats(crawler)["netspy/requests/unfinished_dumped"] == len(dumped())


@pytest.mark.timed
def test_max_runtime_cuts_what_hangs(site: Any) -> None:
    """A download that hangs does not keep SPIDER_MAX_RUNTIME from ending the crawl."""
    settings = {"SPIDER_MAX_RUNTIME": 0.5, "NETSPY_STOP_TIMEOUT": 0.5}
    begun = time.monotonic()
    crawler = crawl(PlainSpider, settings, urls=(site.url("/hang"), site.url("/page/1")))

    assert time.monotonic() - begun < 4
    assert [url for url, _ in crawler.spider.pages] == [site.url("/page/1")]
    (line,) = dumped()
    assert line["url"] == site.url("/hang")
    assert line["reason"] == "unfinished: max_runtime"


def test_cut_requests_go_on_in_the_next_run_of_a_job(site: Any, folder: Any) -> None:
    """With a job directory what was cut off is fetched by the next run."""
    site.set("/once", body=b"page")
    site.set("/once", delay=30.0, times=1)

    class Job(PlainSpider):
        async def start(self) -> Any:
            if self.urls:
                yield scrapy.Request(self.urls[0])

    settings = {
        "JOBDIR": str(folder / "job"), "SPIDER_MAX_RUNTIME": 0.5, "NETSPY_STOP_TIMEOUT": 0.3
    }  # fmt: skip
    crawl(Job, settings, urls=(site.url("/once"),))
    crawler = crawl(Job, {"JOBDIR": str(folder / "job")})

    assert crawler.spider.pages == [(site.url("/once"), 200)]
    assert dumped() == []


def test_start_that_is_not_exhausted_is_said(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Where start() was not at its end at the stop, one line says that the rest is nowhere."""

    class Long(PlainSpider):
        async def start(self) -> Any:
            for n in range(100_000):
                yield scrapy.Request(site.url(f"/slow?ms=50&n={n}"))

    settings = {"SPIDER_MAX_RUNTIME": 0.5, "NETSPY_START_MAX_QUEUED": 10}
    crawl(Long, settings)

    lines = [r for r in caplog.records if "start() was not at its end" in r.getMessage()]
    assert len(lines) == 1


@pytest.mark.timed
def test_an_endless_callback_cannot_keep_the_crawl(site: Any) -> None:
    """A callback that yields for ever is cut off after the stop, and its request is kept."""

    class Endless(mw.AirSpider):
        __custom_setting__ = {"ITEM_PIPELINES": {}}

        def start_requests(self) -> Any:
            yield mw.Request(site.url("/page/1"))

        def parse(self, request: Any, response: Any) -> Any:
            while True:
                yield mw.Request(site.url("/page/2"))

    begun = time.monotonic()
    crawler = crawl(Endless, {"SPIDER_MAX_RUNTIME": 0.5, "NETSPY_STOP_TIMEOUT": 0.5})

    assert time.monotonic() - begun < 5
    assert reason(crawler) == "max_runtime"
    assert site.url("/page/1") in {line["url"] for line in dumped()}
