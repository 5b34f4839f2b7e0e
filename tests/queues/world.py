"""A queue's surroundings: a crawl with a clock to set."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.squeues import (
    FifoMemoryQueue,
    LifoMemoryQueue,
    PickleFifoDiskQueue,
    PickleLifoDiskQueue,
)
from scrapy.utils.reactor import is_reactor_installed

from netspy_scrapy import meta as metakeys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.scheduling.queue import ReadyQueue

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

A, B, C = "a.example", "b.example", "c.example"
QUEUES = {
    "fifo": (FifoMemoryQueue, PickleFifoDiskQueue),
    "lifo": (LifoMemoryQueue, PickleLifoDiskQueue),
}


class Plain(Spider):
    name = "plain"

    def page(self, response: Any) -> None:
        """Handle a page."""


class World:
    """What a queue sees of a crawl, with a clock to set: *due* is when the engine is woken."""

    def __init__(self, folder: Path | str = "", *, order: str = "fifo", **settings: Any) -> None:
        crawler = Crawler(
            Plain,
            {
                "TWISTED_REACTOR": None,
                "TWISTED_REACTOR_ENABLED": is_reactor_installed(),
                "TELNETCONSOLE_ENABLED": False,
                "CONCURRENT_REQUESTS_PER_DOMAIN": 0,
                "DOWNLOAD_DELAY_JITTER": 0,
                **settings,
            },
        )
        crawler._apply_settings()
        crawler.spider = crawler._create_spider()
        self.crawler = crawler
        self.folder = str(folder)
        self.memory_class, self.disk_class = QUEUES[order]
        self.now = 1000.0
        self.begin()

    def begin(self) -> None:
        """Begin a crawl, with nothing known of any domain."""
        self.crawler.__dict__.pop("_netspy_context", None)
        self.due: float | None = None
        self.politeness = CrawlContext.of(self.crawler).politeness
        self.politeness.parked = self._parked
        self.registry = self.politeness.registry
        self.registry.clock = lambda: self.now
        self.registry.uniform = random.Random(0).uniform
        if self.politeness.robots is not None:
            self.politeness.robots._clock = self.registry.clock

    def _parked(self, ready: float) -> None:
        assert ready > self.now
        self.due = ready if self.due is None else min(self.due, ready)

    def memory(self) -> ReadyQueue:
        return ReadyQueue.from_crawler(self.crawler, self.memory_class, "")

    def disk(self, state: Any = None) -> ReadyQueue:
        return ReadyQueue.from_crawler(self.crawler, self.disk_class, self.folder, state)

    def request(self, url: str, **keywords: Any) -> Request:
        """Return a request as the scheduler pushes it."""
        request = Request(f"http://{url}", **keywords)
        self.politeness.assign(request)
        return request

    def fill(self, queue: ReadyQueue, *urls: str, **keywords: Any) -> None:
        for url in urls:
            queue.push(self.request(url, **keywords))

    def done(self, request: Request, result: Any = None) -> None:
        """Let the downloader be through with *request*."""
        self.politeness._done(request, Response(request.url) if result is None else result)

    def moved(self, request: Request, url: str, queue: ReadyQueue | None) -> Request:
        """Let a redirect to *url* be what came of *request*; no *queue*: somebody refuses it."""
        other = self.request(url, meta=request.meta)

        async def run() -> None:
            self.politeness._done(request, other)
            if queue is not None:
                queue.push(other)
            await asyncio.sleep(0)

        in_a_loop(run())
        return other

    def sleep(self) -> None:
        """Let the engine sleep until it is woken."""
        assert self.due is not None
        self.now, self.due = self.due, None

    def may_go(self, domain: str) -> bool:
        state = self.registry.get(domain)
        return (
            state.ready_at <= self.now and not state.is_full and domain not in self.politeness.held
        )


def in_a_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run *coroutine* in a loop of its own, leaving the thread's loop as it is."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()


def place(request: Request | None) -> str:
    """Return host and path of a request."""
    return "" if request is None else request.url.removeprefix("http://")


def pops(queue: ReadyQueue, count: int = 1000) -> list[str]:
    """Return what comes out of *queue* until nothing may go."""
    found = []
    while len(found) < count and (request := queue.pop()) is not None:
        found.append(place(request))
    return found


def answer(here: World, request: Request, body: bytes = b"", *, status: int = 200) -> None:
    response = Response(request.url, body=body, status=status)
    here.politeness.learn_robots(request.meta[metakeys.ROBOTS], response)
    here.done(request)
