"""A netspy spider of this package."""

from __future__ import annotations

from typing import ClassVar

from client import Client

import netspy_scrapy as mw

client = Client()


class BigSpider(mw.AirSpider):
    __custom_setting__: ClassVar = {"LOG_LEVEL": "CRITICAL", **client.settings}

    def start_requests(self):
        for url in client.urls():
            yield mw.Request(url)

    def parse(self, request, response):
        client.pages += 1

    def failed_request(self, request, response):
        client.failures += 1


BigSpider().start()
client.report()
