"""The same crawl as a netspy spider: of this package, or of netspy (``--package netspy``)."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import ClassVar

from meter import Meter, parser, profiled, settings_of, urls

arguments = parser()
arguments.add_argument("--package", choices=["netspy_scrapy", "netspy"], default="netspy_scrapy")
options = arguments.parse_args()
meter = Meter()

os.environ.setdefault("NETSPY_LOG_LEVEL", "WARNING")  # netspy reads it when it is imported
mw = import_module(options.package)
pipelines = import_module(f"{options.package}.pipelines.base")

# netspy wants the path of a pipeline, and this file is __main__.
sys.modules["spider_client"] = sys.modules["__main__"]


class CountPipeline(pipelines.BasePipeline):
    def save_items(self, table, items):
        meter.items += len(items)
        return True


class PagesSpider(mw.AirSpider):
    __custom_setting__: ClassVar = {
        "ITEM_PIPELINES": ["spider_client.CountPipeline"],
        **settings_of(options),
    }

    def start_requests(self):
        meter.begin()
        for url in urls(options):
            yield mw.Request(url)

    def parse(self, request, response):
        yield {"url": response.url, "title": response.css("title::text").get()}

    def failed_request(self, request, response):
        meter.failed += 1


profiled(options, PagesSpider().start)
meter.report()
