"""A Scrapy project in one file, whose settings say what is on; started by ``run.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import scrapy
from scrapy.crawler import AsyncCrawlerProcess

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "throughput"))
# Settings name classes of this file by a path.
sys.modules["crawl"] = sys.modules["__main__"]

from meter import Meter, parser, profiled, settings_of  # noqa: E402

options = parser().parse_args()
meter = Meter()


class Count:
    def process_item(self, item):
        meter.items += 1
        return item


class ReceiptsOn:
    """Switches receipts on, as a feature does that needs them."""

    @classmethod
    def from_crawler(cls, crawler):
        from netspy_scrapy.context import CrawlContext  # noqa: PLC0415

        assert CrawlContext.of(crawler).receipts is not None
        return cls()


class PagesSpider(scrapy.Spider):
    name = "pages"

    async def start(self):
        meter.begin()
        for number in range(options.pages):
            yield scrapy.Request(options.url.replace("{n}", str(number)), errback=self.failed)

    def parse(self, response):
        yield {"url": response.url, "title": response.css("title::text").get()}

    def failed(self, failure):
        meter.failed += 1


process = AsyncCrawlerProcess(
    {
        "LOG_LEVEL": "CRITICAL",
        "TELNETCONSOLE_ENABLED": False,
        "CONCURRENT_REQUESTS": 32,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 32,
        "CONCURRENT_ITEMS": 4,
        "ITEM_PIPELINES": {Count: 900},
        **settings_of(options),
    }
)
process.crawl(PagesSpider)
profiled(options, process.start)
meter.report()
