"""A Scrapy spider over the same pages, with settings as JSON; started by run.py."""

from __future__ import annotations

import argparse
import cProfile
import json
import re

import scrapy
from child import crawl, tell

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


def main():
    crawl(PagesSpider, {"ITEM_PIPELINES": {Count: 900}, **options.settings})


if options.profile:
    cProfile.run("main()", options.profile)
else:
    main()
tell({"parsed": len(PARSED)})
