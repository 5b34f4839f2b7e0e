"""The same with netspy itself (the package ``netspy`` has to be installed)."""

from __future__ import annotations

import os
from typing import ClassVar

os.environ.setdefault("NETSPY_LOG_LEVEL", "CRITICAL")

import netspy as mw
from client import Client

client = Client()


class BigSpider(mw.AirSpider):
    __custom_setting__: ClassVar = client.settings

    def start_requests(self):
        for url in client.urls():
            yield mw.Request(url)

    def parse(self, request, response):
        client.pages += 1

    def failed_request(self, request, response):
        client.failures += 1


BigSpider().start()
client.report()
