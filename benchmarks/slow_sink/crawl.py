"""One crawl whose sink takes its time; tells the pages per second."""

from __future__ import annotations

import argparse
import time

import scrapy
from child import crawl, tell
from common import ADDON

from netspy_scrapy.pipelines.base import BasePipeline

arguments = argparse.ArgumentParser()
arguments.add_argument("--url", required=True, help="with {n}")
arguments.add_argument("--pages", type=int, required=True)
arguments.add_argument("--seconds", type=float, required=True)
options = arguments.parse_args()


class SlowPipeline(BasePipeline):
    stored = 0

    def save_items(self, table, items):
        time.sleep(options.seconds)
        SlowPipeline.stored += len(items)
        return True


class Spider(scrapy.Spider):
    name = "slow_sink"
    held = seen = 0

    async def start(self):
        self.begun = time.monotonic()
        for n in range(options.pages):
            yield scrapy.Request(options.url.format(n=n))

    def parse(self, response):
        self.last = time.monotonic()
        self.seen += 1
        self.held = max(self.held, self.seen - SlowPipeline.stored)
        yield {"url": response.url, "title": response.css("title::text").get()}

    def closed(self, reason):
        rate = options.pages / (self.last - self.begun)
        tell({"rate": rate, "held": self.held, "stored": SlowPipeline.stored})


if __name__ == "__main__":
    at_once = {"CONCURRENT_REQUESTS": 32, "CONCURRENT_REQUESTS_PER_DOMAIN": 32}
    crawl(Spider, {**ADDON, **at_once, "ITEM_PIPELINES": {SlowPipeline: 300}})
