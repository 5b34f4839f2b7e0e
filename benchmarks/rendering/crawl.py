"""One crawl with rendered and plain pages; reports memory, open pages and the plain ones' speed."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import scrapy
from scrapy import signals
from scrapy.crawler import AsyncCrawlerProcess

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.servers.browser import browser_settings  # noqa: E402

arguments = argparse.ArgumentParser()
arguments.add_argument("--url", required=True, help="with {n}")
arguments.add_argument("--rendered", type=int, default=0)
arguments.add_argument("--marks", default="", help="numbers of rendered pages, with commas")
arguments.add_argument("--plain", type=int, default=0)
arguments.add_argument("--first", choices=["none", "rendered"], default="none",
                       help="what is fetched before the plain pages")  # fmt: skip
options = arguments.parse_args()
marks = [int(mark) for mark in options.marks.split(",") if mark]


def children_of(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children_of(int(child))]
    return found


def resident_mb(pids):
    """Return the memory of processes; what several share counts as its part (PSS)."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


class Measured(scrapy.Spider):
    name = "measured"
    rendered = plain = 0
    begun = ended = 0.0

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.look_at_the_end, signals.spider_closed)
        spider.memory = {}
        spider.open = None
        spider.errors = []
        return spider

    async def start(self):
        first = options.first == "rendered"
        if first:
            yield self.page(-1, self.warm)
        for n in range(options.rendered):
            yield self.page(n, self.seen)
        if not first:
            for one in self.plain_pages():
                yield one

    def page(self, n, callback):
        meta = {"netspy_render": True}
        if n % 2:  # as a netspy spider's requests without a session: a context of its own
            meta["cookiejar"] = f"netspy-{n}"
        return scrapy.Request(options.url.replace("{n}", str(n)) + "?js", callback, meta=meta,
                              errback=self.failed)  # fmt: skip

    def plain_pages(self):
        self.begun = time.monotonic()
        for n in range(options.plain):
            yield scrapy.Request(options.url.replace("{n}", str(n)), self.seen_plain)

    def warm(self, response):
        yield from self.plain_pages()

    def seen(self, response):
        assert response.css("#text::text").get() == "after", response.text[:300]
        self.rendered += 1
        if self.rendered in marks:
            crawler = os.getpid()
            self.memory[self.rendered] = [
                resident_mb([crawler]), resident_mb(children_of(crawler))
            ]  # fmt: skip

    def failed(self, failure):
        self.errors.append(repr(failure.value))

    def seen_plain(self, response):
        self.plain += 1
        self.ended = time.monotonic()

    def look_at_the_end(self):
        handler = next(
            one._handler for one in self.crawler.extensions.middlewares  # noqa: SLF001
            if type(one).__name__ == "Rendering"
        )  # fmt: skip
        if handler is not None:
            wrappers = handler.context_wrappers.values()
            # The contexts that requests share stay until the browser is closed.
            self.open = [
                sum(len(one.context.pages) for one in wrappers),
                sum(name.startswith("netspy-") for name in handler.context_wrappers),
            ]


def main():
    process = AsyncCrawlerProcess(
        {
            "LOG_LEVEL": "WARNING", "TELNETCONSOLE_ENABLED": False,
            "ADDONS": {"netspy_scrapy.Addon": 500}, "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
            "NETSPY_RENDER_PAGES": 4, **browser_settings(),
        }
    )  # fmt: skip
    crawler = process.create_crawler(Measured)
    process.crawl(crawler)
    process.start()
    spider = crawler.spider
    found = {
        "rendered": spider.rendered, "errors": spider.errors,
        "memory": spider.memory, "open": spider.open,
        "plain_per_second": spider.plain / (spider.ended - spider.begun) if spider.plain else None,
    }  # fmt: skip
    print("BENCH", json.dumps(found), flush=True)


main()
