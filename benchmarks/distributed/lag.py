"""For how long the event loop of a node stands still; a child of run.py.

Crawls a page that yields 600 others, each of which gives an item: with Scrapy's own scheduler, or
with the queue, the request filter, the item filter and the pace in Redis. Reports the stops of the
loop from the first of these pages on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import scrapy
from scrapy.crawler import AsyncCrawlerProcess

import netspy_scrapy as mw

SHARED = {
    "SCHEDULER": "netspy_scrapy.redis.scheduler.RedisScheduler", "GLOBAL_THROTTLE": True,
    "ITEM_FILTER_ENABLE": True, "DEDUP_FILTER": "redis",
}  # fmt: skip


class Row(mw.Item):
    """What the item filter looks at."""

    __unique_key__ = ["url"]  # noqa: RUF012


class Sink(mw.BasePipeline):
    """Counts rows."""

    stored = 0

    def save_items(self, table, items):
        Sink.stored += len(items)
        return True


class Probed(scrapy.Spider):
    """Notes the stops."""

    name = "probed"
    stops = None

    async def start(self):
        yield scrapy.Request(f"{self.base}/page/0")

    def parse(self, response):
        for n in range(int(self.n)):
            yield response.follow(f"/page/1?ms=20&n={n}", self.leaf)

    def leaf(self, response):
        if self.stops is None:  # the loop stands still while a callback yields
            self.stops = []
            self.task = asyncio.ensure_future(self.probe())
        item = Row()
        item.url = response.url
        yield item

    async def probe(self):
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.002)
            self.stops.append(time.perf_counter() - before - 0.002)

    def closed(self, reason):
        self.task.cancel()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", required=True)
    parser.add_argument("--redis")
    parser.add_argument("--pages", type=int, default=600)
    given = parser.parse_args()
    settings = {
        "ADDONS": {mw.Addon: 500}, "ITEM_PIPELINES": {Sink: 300}, "LOG_LEVEL": "WARNING",
        "TELNETCONSOLE_ENABLED": False, "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "BUFFER_FLUSH_INTERVAL": 0.2,
    }  # fmt: skip
    if given.redis:
        settings |= {**SHARED, "REDIS_URL": given.redis}
    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(Probed)
    process.crawl(crawler, base=given.base, n=given.pages)
    process.start()
    stops = sorted(crawler.spider.stops)
    assert Sink.stored == given.pages, Sink.stored
    print(
        "BENCH",
        json.dumps({
            "worst_ms": stops[-1] * 1e3, "p999_ms": stops[len(stops) * 999 // 1000] * 1e3,
            "over_50_ms": sum(one > 0.05 for one in stops), "looks": len(stops),
        }),
    )  # fmt: skip


if __name__ == "__main__":
    main()
