"""A Scrapy project in one file; the settings say whether it has the add-on."""

from __future__ import annotations

import scrapy
from child import crawl
from client import begin, links, options, report, row


class DocsSpider(scrapy.Spider):
    name = "docs"

    async def start(self):
        begin()
        yield scrapy.Request(options.url)

    def parse(self, response):
        yield row(response)
        for url in links(response):
            yield scrapy.Request(url)


crawl(DocsSpider, options.settings)
report()
