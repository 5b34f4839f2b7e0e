"""A plain Scrapy project in one file; with ``--set 'ADDONS=...'`` the same with the add-on."""

from __future__ import annotations

import scrapy
from child import crawl
from meter import Meter, parser, profiled, settings_of, urls

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
        for url in urls(options):
            yield scrapy.Request(url, errback=self.failed)

    def parse(self, response):
        yield {"url": response.url, "title": response.css("title::text").get()}

    def failed(self, failure):
        meter.failed += 1


settings = {"ITEM_PIPELINES": {CountPipeline: 900}, **settings_of(options)}
profiled(options, lambda: crawl(PagesSpider, settings))
meter.report()
