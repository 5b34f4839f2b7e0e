"""A plain Scrapy project in one file; with ADDONS in the settings the same with the add-on."""

from __future__ import annotations

import scrapy
from client import Client
from scrapy.crawler import AsyncCrawlerProcess

client = Client()


class BigSpider(scrapy.Spider):
    name = "big"

    async def start(self):
        for url in client.urls():
            yield scrapy.Request(url, errback=self.failed)

    def parse(self, response):
        client.pages += 1

    def failed(self, failure):
        client.failures += 1


process = AsyncCrawlerProcess(
    {"LOG_LEVEL": "CRITICAL", "TELNETCONSOLE_ENABLED": False, **client.settings}
)
process.crawl(BigSpider)
process.start()
client.report()
