"""What the nodes of the benchmark run: a list page and ``n`` pages, each of which gives a row."""

from __future__ import annotations

import time
from pathlib import Path

import scrapy

from netspy_scrapy import BasePipeline


class FileSink(BasePipeline):
    """Appends the URLs of rows to a file, in batches that take SINK_SECONDS."""

    def save_items(self, table, items):
        time.sleep(self.crawler.settings.getfloat("SINK_SECONDS"))
        append([one["url"] for one in items])
        return True


class BufferedSink:
    """For stock Scrapy: buffers, as pipelines usually do; writes at 50 rows, and at the end."""

    def __init__(self, crawler):
        self.rows = []

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_item(self, item):
        self.rows.append(item["url"])
        if len(self.rows) >= 50:
            self.flush()
        return item

    def close_spider(self):
        self.flush()

    def flush(self):
        append(self.rows)
        self.rows = []


def append(urls):
    with Path("rows.txt").open("a", encoding="utf-8") as file:
        file.writelines(url + "\n" for url in urls)


class Pages(scrapy.Spider):
    """Fetches a list page, and the pages that it leads to."""

    name = "pages"

    async def start(self):
        yield scrapy.Request(f"{self.base}/page/0?who=list", self.list)

    def list(self, response):
        for n in range(int(self.n)):
            yield scrapy.Request(f"{self.base}/page/1?ms={self.ms}&n={n}", self.parse)

    def parse(self, response):
        yield {"url": response.url}
