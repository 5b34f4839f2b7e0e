"""A Scrapy spider over the same pages, with settings as JSON; started by run.py."""

from __future__ import annotations

import argparse
import json
import re

import scrapy
from scrapy.crawler import AsyncCrawlerProcess

TITLE = re.compile(rb"<title>(.*?)</title>")
PARSED = []

parser = argparse.ArgumentParser()
parser.add_argument("--url", required=True)
parser.add_argument("--pages", type=int, required=True)
parser.add_argument("--settings", type=json.loads, default={})
parser.add_argument("--profile", help="write where the time goes to this file")
options = parser.parse_args()


class Count:
    def process_item(self, item):
        PARSED.append(item["url"])
        return item


class PagesSpider(scrapy.Spider):
    name = "pages"

    async def start(self):
        for number in range(options.pages):
            yield scrapy.Request(options.url.replace("{n}", str(number)))

    def parse(self, response):
        yield {"url": response.url, "title": TITLE.search(response.body)[1].decode()}


process = AsyncCrawlerProcess(
    {
        "LOG_LEVEL": "WARNING",
        "TELNETCONSOLE_ENABLED": False,
        "ITEM_PIPELINES": {Count: 900},
        **options.settings,
    }
)
process.crawl(PagesSpider)
if options.profile:
    import cProfile

    cProfile.run("process.start()", options.profile)
else:
    process.start()
print("BENCH " + json.dumps({"parsed": len(PARSED)}))
