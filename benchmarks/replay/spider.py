"""The spider whose requests are replayed; its settings come from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import scrapy
from scrapy import signals
from scrapy.http import HtmlResponse

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from memory import Peak

from netspy_scrapy.pipelines.base import BasePipeline


class CountSink(BasePipeline):
    """Counts rows."""

    rows = 0

    def save_items(self, table, items):
        CountSink.rows += len(items)
        return True


class AtOnceHandler:
    """Answers every request at once (``--bare``): what is left is the replay itself."""

    lazy = False

    async def download_request(self, request):
        return HtmlResponse(request.url, body=b"<title>x</title>", request=request)

    async def close(self):
        pass


class Replayed(scrapy.Spider):
    """Reports how far the peak of its memory rose over what it was when it was opened."""

    name = "replayed"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.opened, signals.spider_opened)
        crawler.signals.connect(spider.stopped, signals.engine_stopped)
        return spider

    async def start(self):
        for _ in ():
            yield _

    def parse(self, response, number):
        yield {"number": number, "title": response.css("title::text").get()}

    def opened(self):
        self.peak = Peak()
        self.peak.begin()

    def stopped(self):
        found = {"growth_mb": self.peak.growth_mb(), "rows": CountSink.rows}
        print("BENCH", json.dumps(found), flush=True)
