"""Callbacks in threads, and code that blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import scrapy

import netspy_scrapy as mw
from tests.crawling import MEMORY, PlainSpider, crawl, dumped, rows, times

THREADS = {"NETSPY_CALLBACK_THREADS": 2}


class Computes(PlainSpider):
    """Yields where it ran."""

    def parse(self, response: Any) -> Any:
        self.pages.append((threading.current_thread().name, response.status))
        yield {"url": response.url, "thread": threading.current_thread().name}
        yield response.follow("/page/9?leaf", self.leaf, cb_kwargs={"extra": 7})

    def leaf(self, response: Any, extra: int) -> Any:
        return [{"extra": extra, "thread": threading.current_thread().name}]


def test_callbacks_run_in_threads(site: Any) -> None:
    """Generators and functions run off the loop, and items and requests arrive as ever."""
    crawler = crawl(Computes, {**MEMORY, **THREADS}, urls=(site.url("/page/1"),))

    (first, leaf) = [row for _, row in rows(crawler)]
    assert crawler.spider.pages[0][0].startswith("callback")
    assert first["thread"].startswith("callback")
    assert leaf["extra"] == 7
    assert leaf["thread"].startswith("callback")


def test_callbacks_stay_where_they_are_without_the_setting(site: Any) -> None:
    """By default callbacks run on the loop, in the main thread."""
    crawler = crawl(Computes, MEMORY, urls=(site.url("/page/1"),))

    assert {row["thread"] for _, row in rows(crawler)} == {threading.current_thread().name}


def test_async_callbacks_stay_on_the_loop(site: Any) -> None:
    """An async callback may use the loop."""

    class Async(PlainSpider):
        async def parse(self, response: Any) -> Any:
            await asyncio.sleep(0)
            yield {"thread": threading.current_thread().name}

    crawler = crawl(Async, {**MEMORY, **THREADS}, urls=(site.url("/page/1"),))

    assert rows(crawler) == [("items", {"thread": threading.current_thread().name})]


def test_what_came_before_an_exception_counts(site: Any) -> None:
    """Items that a callback yielded before it raised are stored, and the page is a failure."""

    class Raises(PlainSpider):
        def parse(self, response: Any) -> Any:
            for n in range(250):
                yield {"n": n}
            raise ValueError("a fault")

    crawler = crawl(Raises, {**MEMORY, **THREADS}, urls=(site.url("/page/1"),))

    assert [row["n"] for _, row in rows(crawler)] == list(range(250))
    assert "ValueError: a fault" in dumped()[0]["reason"]
    assert crawler.stats.get_value("spider_exceptions/ValueError") == 1


def test_netspy_callbacks_run_in_threads(site: Any) -> None:
    """A netspy spider's callbacks do too, with validate and retries as ever."""

    class Spider(mw.AirSpider):
        __custom_setting__ = {**MEMORY, **THREADS}

        def start_requests(self) -> Any:
            yield mw.Request(site.url("/page/1"))

        def parse(self, request: Any, response: Any) -> Any:
            if not request.retry_times:
                raise ValueError("again")
            yield {"thread": threading.current_thread().name, "times": request.retry_times}

    crawler = crawl(Spider)

    ((_, row),) = rows(crawler)
    assert row["times"] == 1
    assert row["thread"].startswith("callback")


@pytest.mark.timed
def test_other_pages_move_meanwhile(site: Any) -> None:
    """While a callback computes, pages of another domain are fetched; on the loop they are not."""

    class Slow(PlainSpider):
        async def start(self) -> Any:
            yield scrapy.Request(site.url("/page/1"), callback=self.slow)
            for n in range(20):
                yield scrapy.Request(
                    site.url(f"/slow?ms=20&n={n}", host="127.0.0.2"), callback=self.leaf
                )

        def slow(self, response: Any) -> Any:
            self.began = time.monotonic()
            time.sleep(2)
            self.ended = time.monotonic()

        def leaf(self, response: Any) -> None:
            self.pages.append((response.url, response.status))

    settings = {"CONCURRENT_REQUESTS": 2, "NETSPY_BLOCK_WARNING": 0}
    crawler = crawl(Slow, {**settings, **THREADS})
    during = [
        one
        for one in times(site, "/slow", "127.0.0.2")
        if crawler.spider.began < one < crawler.spider.ended
    ]

    assert len(crawler.spider.pages) == 20
    assert len(during) >= 15


@pytest.mark.timed
@pytest.mark.parametrize("limit", [0.3, 0])
def test_code_that_blocks_the_loop_is_named(site: Any, caplog: Any, limit: float) -> None:
    """A callback that blocks the loop is named once, with its file and line, if that is wanted."""

    class Blocks(PlainSpider):
        def parse(self, response: Any) -> None:
            time.sleep(1.2)

    urls = (site.url("/page/1"), site.url("/page/2"))
    crawl(Blocks, {"NETSPY_BLOCK_WARNING": limit}, urls=urls)

    said = [one.getMessage() for one in caplog.records if "loop is blocked" in one.getMessage()]
    assert len(said) == (1 if limit else 0)
    if limit:
        assert f"by parse ({__file__}:" in said[0]


@pytest.mark.timed
def test_a_quiet_crawl_is_not_accused(site: Any, caplog: Any) -> None:
    """A crawl that only waits blocks nothing."""
    crawl(PlainSpider, {"NETSPY_BLOCK_WARNING": 0.3}, urls=(site.url("/slow?ms=1500"),))

    assert not [one for one in caplog.records if "loop is blocked" in one.getMessage()]
