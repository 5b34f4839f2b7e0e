"""A plain Scrapy project in one file; with ``--set 'ADDONS=...'`` the same with the add-on."""

from __future__ import annotations

import scrapy
from meter import Meter, parser, profiled, settings_of
from scrapy.crawler import AsyncCrawlerProcess

options = parser().parse_args()
meter = Meter()


class CountPipeline:
    def process_item(self, item):
        meter.items += 1
        return item


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
        "LOG_LEVEL": "WARNING",
        "TELNETCONSOLE_ENABLED": False,
        "ITEM_PIPELINES": {CountPipeline: 900},
        **settings_of(options),
    }
)
process.crawl(PagesSpider)
profiled(options, process.start)
meter.report()
