"""One crawl of as many domains as asked for, whose pages come from nowhere; reports its CPU time.

Everything is queued before the first request goes out, so that the queue is as full as it gets.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import time

import scrapy
from child import crawl, tell
from scrapy.http import HtmlResponse

arguments = argparse.ArgumentParser()
arguments.add_argument("--domains", type=int, required=True)
arguments.add_argument("--queued", type=int, required=True)
arguments.add_argument("--handled", type=int, required=True, help="the crawl ends after so many")
arguments.add_argument("--settings", type=json.loads, default={}, metavar="JSON")
arguments.add_argument("--profile", metavar="FILE", help="write cProfile's table by own time")
options = arguments.parse_args()


class NullHandler:
    """Answers every request with an empty page at once."""

    lazy = False

    async def download_request(self, request):
        return HtmlResponse(request.url, body=b"", request=request)

    async def close(self):
        pass


class PagesSpider(scrapy.Spider):
    name = "pages"
    handled = 0

    async def start(self):
        engine = self.crawler.engine
        began = time.process_time()
        for number in range(options.queued):
            url = f"http://d{number % options.domains}.example/{number}"
            engine.crawl(scrapy.Request(url, dont_filter=True))
        self.queue_s = time.process_time() - began
        gc.collect()  # or what queueing left to do falls into the crawl
        self.profile = cProfile.Profile()
        if options.profile:
            self.profile.enable()
        self.began, self.began_wall = time.process_time(), time.monotonic()
        return
        yield

    def parse(self, response):
        self.handled += 1
        if self.handled == options.handled:
            self.report()

    def report(self):
        cpu = time.process_time() - self.began
        wall = time.monotonic() - self.began_wall
        if options.profile:
            self.profile.disable()
            with open(options.profile, "w", encoding="utf-8") as file:  # noqa: PTH123
                pstats.Stats(self.profile, stream=file).sort_stats("tottime").print_stats(70)
        found = {
            "queue_us": self.queue_s / options.queued * 1e6,
            "crawl_us": cpu / options.handled * 1e6,
            "wall_us": wall / options.handled * 1e6,
        }
        tell(found)
        os._exit(0)  # what is queued is nobody's any more


crawl(
    PagesSpider,
    {
        "LOG_LEVEL": "ERROR",
        "CONCURRENT_ITEMS": 4,  # the add-on's value, also for plain Scrapy
        "DOWNLOAD_HANDLERS": {"http": NullHandler},
        **options.settings,
    },
)
