"""The same crawl with netspy itself (the package ``netspy`` has to be installed)."""

from __future__ import annotations

import os
import sys
from typing import ClassVar

from meter import Meter, parser, profiled, settings_of

os.environ.setdefault("NETSPY_LOG_LEVEL", "WARNING")

import netspy as mw  # it reads the environment when it is imported
from netspy.pipelines.base import BasePipeline

options = parser().parse_args()
meter = Meter()

# netspy wants the path of a pipeline, and this file is __main__.
sys.modules["netspy_client"] = sys.modules["__main__"]


class CountPipeline(BasePipeline):
    def save_items(self, table, items):
        meter.items += len(items)
        return True


class PagesSpider(mw.AirSpider):
    __custom_setting__: ClassVar = {
        "ITEM_PIPELINES": ["netspy_client.CountPipeline"],
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
