"""A plain Scrapy project in one file, with the add-on if the plan's settings have it."""

from __future__ import annotations

import asyncio
import gc

import scrapy
from child import crawl
from plan import Outcome, read, urls

plan = read()
outcome = Outcome(plan)


class PauseSlotMiddleware:
    """Rests a domain the way Scrapy allows for: its download slot waits."""

    @classmethod
    def from_crawler(cls, crawler):
        middleware = cls()
        middleware.crawler = crawler
        return middleware

    def process_response(self, request, response):
        if response.status == 429:
            slot = self.crawler.engine.downloader.slots[request.meta["download_slot"]]
            slot.delay = float(response.headers["Retry-After"])
            slot.jitter = 0.0
        return response


class PagesSpider(scrapy.Spider):
    name = "pages"

    async def start(self):
        *queued, last = plan["parts"]
        for part in queued:
            for url in urls(part):
                self.crawler.engine.crawl(self.request(url))
            gc.collect()  # or what queueing left to do falls into what is measured
            await asyncio.sleep(plan["settle"])
        for url in urls(last):
            yield self.request(url)

    def request(self, url):
        return scrapy.Request(url, errback=self.failed, dont_filter=True)

    def parse(self, response):
        outcome.page(response.url)

    def failed(self, failure):
        outcome.failure()


crawl(
    PagesSpider,
    {
        "LOG_LEVEL": "ERROR",
        "DOWNLOADER_MIDDLEWARES": {PauseSlotMiddleware: 560} if plan["pause"] else {},
        **plan["settings"],
    },
)
outcome.report()
