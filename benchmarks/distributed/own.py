"""What the processes of the benchmark of the pace run."""

from __future__ import annotations

import os

import scrapy


class Own(scrapy.Spider):
    """Fetches pages of its own, for the pace of several processes at one site."""

    name = "own"

    async def start(self):
        for n in range(int(self.n)):
            url = f"{self.base}/page/1?n={os.getpid()}-{n}"
            yield scrapy.Request(url, self.parse, dont_filter=True)

    def parse(self, response):
        pass
