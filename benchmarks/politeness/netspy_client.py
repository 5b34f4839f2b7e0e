"""The same with netspy itself (the package ``netspy`` has to be installed)."""

from __future__ import annotations

import os

os.environ.setdefault("NETSPY_LOG_LEVEL", "CRITICAL")

import netspy as mw
from plan import Outcome, read, urls

plan = read()
outcome = Outcome(plan)


class PagesSpider(mw.AirSpider):
    __custom_setting__ = plan["settings"]

    def start_requests(self):
        for part in plan["parts"]:
            for url in urls(part):
                yield mw.Request(url)

    def parse(self, request, response):
        outcome.page(response.url)

    def failed_request(self, request, response):
        outcome.failure()


PagesSpider().start()
outcome.report()
