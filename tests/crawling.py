"""Runs real crawls within a test."""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.exceptions import ScrapyDeprecationWarning
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from netspy_scrapy import _scrapy
from netspy_scrapy.pipelines.base import BasePipeline

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

ADDON = {"ADDONS": {"netspy_scrapy.Addon": 500}}


class MemorySink(BasePipeline):
    """Keeps rows in a list of the crawler."""

    def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        rows(self.crawler).extend((table, dict(item)) for item in items)
        return True

    def update_items(self, table: str, items: list[dict[str, Any]], update_keys: list[str]) -> bool:
        rows(self.crawler).extend((table, dict(item), tuple(update_keys)) for item in items)
        return True


MEMORY = {"ITEM_PIPELINES": {MemorySink: 300}}


def rows(crawler: Crawler) -> list[Any]:
    """Return what MemorySink stored in a crawl."""
    kept: list[Any] = crawler.__dict__.setdefault("_test_rows", [])
    return kept


def crawl(
    spider: type[scrapy.Spider], settings: dict[str, Any] | None = None, **arguments: Any
) -> Crawler:
    """Run *spider* to its end and return the crawler. Nothing of ours may be deprecated."""
    merged = Settings({**ADDON, "TELNETCONSOLE_ENABLED": False, **(settings or {})})
    loop = _scrapy.reactor_loop(merged)
    asyncio.set_event_loop(loop)
    runner = AsyncCrawlerRunner(merged)

    async def run() -> Crawler:
        crawler = runner.create_crawler(spider)
        await runner.crawl(crawler, **arguments)
        return crawler

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ScrapyDeprecationWarning)
        crawler = loop.run_until_complete(asyncio.wait_for(run(), 60))
    ours = [str(one.message) for one in seen if "netspy" in str(one.message)]
    assert not ours, ours
    return crawler


def idle_crawler(settings: dict[str, Any] | None = None) -> Crawler:
    """Return a crawler with the add-on that has its settings and stats, and does not crawl."""
    _scrapy.reactor_loop(Settings())  # old Scrapy wants a reactor even so
    return get_crawler(scrapy.Spider, {**ADDON, **(settings or {})})


def netspy_stats(crawler: Crawler) -> dict[str, Any]:
    """Return every stat of this package."""
    stats = crawler.stats
    assert stats is not None
    return {key: value for key, value in stats.get_stats().items() if key.startswith("netspy/")}


def times(site: Any, prefix: str, host: str | None = None) -> list[float]:
    """Return when requests arrived at paths that begin with *prefix*."""
    return [
        one.t
        for one in site.log()
        if one.path.startswith(prefix) and host in (None, one.host.partition(":")[0])
    ]


def reason(crawler: Crawler) -> str:
    """Return the finish reason."""
    stats = crawler.stats
    assert stats is not None
    return str(stats.get_value("finish_reason"))


def dumped(path: str = "failed_requests.jsonl") -> list[dict[str, Any]]:
    """Return the lines of a dump file as plain JSON."""
    file = Path(path)
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


class PlainSpider(scrapy.Spider):
    """A Scrapy spider that fetches ``urls`` and records what came of them."""

    name = "plain"
    urls: tuple[str, ...] = ()
    meta: dict[str, Any] = {}
    custom_settings: dict[str, Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pages: list[tuple[str, int]] = []
        self.errors: list[BaseException] = []

    async def start(self) -> Any:
        for url in self.urls:
            yield scrapy.Request(url, errback=self.failed, meta=dict(self.meta))

    def parse(self, response: Any) -> Any:
        self.pages.append((response.url, response.status))

    def failed(self, failure: Any) -> Any:
        self.errors.append(failure.value)
