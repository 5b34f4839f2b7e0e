"""Spiders whose callbacks compute: one of netspy's kind, one of Scrapy's."""

from __future__ import annotations

import time

import scrapy

import netspy_scrapy as mw

SETTINGS = {
    "CONCURRENT_REQUESTS": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 16, "LOG_LEVEL": "INFO",
    "ITEM_PIPELINES": {}, "TELNETCONSOLE_ENABLED": False, "NETSPY_BLOCK_WARNING": 0,
}  # fmt: skip


def compute(milliseconds):
    """Use the processor for so long, whoever else does."""
    end = time.thread_time() + float(milliseconds) / 1000
    while time.thread_time() < end:
        pass


class Air(mw.AirSpider):
    name = "air"
    __custom_setting__ = SETTINGS

    def start_requests(self):
        for n in range(int(self.pages)):
            yield mw.Request(self.url.format(n=n))

    def parse(self, request, response):
        compute(self.ms)


class Plain(scrapy.Spider):
    name = "plain"
    custom_settings = {"ADDONS": {"netspy_scrapy.Addon": 500}, **SETTINGS}  # noqa: RUF012

    async def start(self):
        for n in range(int(self.pages)):
            yield scrapy.Request(self.url.format(n=n))

    def parse(self, response):
        compute(self.ms)
