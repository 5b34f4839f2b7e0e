"""The same crawl as a netspy spider of this package."""

from __future__ import annotations

from typing import ClassVar

from meter import Meter, parser, profiled, settings_of

import netspy_scrapy as mw

options = parser().parse_args()
meter = Meter()


class CountPipeline(mw.BasePipeline):
    def save_items(self, table, items):
        meter.items += len(items)
        return True


class PagesSpider(mw.AirSpider):
    __custom_setting__: ClassVar = {
        "LOG_LEVEL": "WARNING",
        "ITEM_PIPELINES": [CountPipeline],
        **settings_of(options),
    }

    def start_requests(self):
        meter.begin()
        for number in range(options.pages):
            yield mw.Request(options.url.replace("{n}", str(number)))

    def parse(self, request, response):
        yield {"url": response.url, "title": response.css("title::text").get()}

    def failed_request(self, request, response):
        meter.failed += 1


profiled(options, PagesSpider().start)
meter.report()
