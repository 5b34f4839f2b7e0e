"""What a priority queue costs by itself: CPU time of a push, a pop and a len(), in us."""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from types import SimpleNamespace

from child import tell
from scrapy import Request
from scrapy.core.downloader import Slot
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.squeues import LifoMemoryQueue
from scrapy.utils.test import get_crawler

from netspy_scrapy.context import CrawlContext
from netspy_scrapy.scheduling.queue import ReadyQueue

#: Domains that have a request in flight meanwhile.
ACTIVE = 32
QUEUES = {"Scrapy": DownloaderAwarePriorityQueue, "add-on": ReadyQueue}


class Downloader:
    """As much of it as Scrapy's queue looks at."""

    def __init__(self, domains):
        self.slots = {name(number): Slot(8, 0.0, 0.0) for number in range(domains)}
        for slot in self.slots.values():
            slot.active.add(slot)

    def get_slot_key(self, request):
        return request.meta["download_slot"]


def name(number):
    return f"d{number}.example"


def measure(cls, domains, pops):
    crawler = get_crawler(settings_dict={"CONCURRENT_REQUESTS_PER_DOMAIN": 0})
    crawler.engine = SimpleNamespace(downloader=Downloader(min(domains, ACTIVE)), _slot=None)
    queue = cls.from_crawler(crawler, LifoMemoryQueue, "")
    politeness = CrawlContext.of(crawler).politeness
    each = max(4, 2 * pops // domains)
    requests = [
        Request(f"http://{name(number)}/{n}") for n in range(each) for number in range(domains)
    ]
    for request in requests:
        politeness.assign(request)  # ours sets both keys when a request is scheduled
    gc.collect()
    return {
        "push_us": timed(len(requests), ((queue.push, request) for request in requests)),
        "pop_us": timed(pops, ((queue.pop,) for _ in range(pops))),
        "len_us": timed(100, ((len, queue) for _ in range(100))),
    }


def timed(times, calls):
    began = time.process_time()
    for function, *arguments in calls:
        function(*arguments)
    return (time.process_time() - began) / times * 1e6


async def main():  # a queue that parks a domain sets a timer of the loop
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--queue", choices=QUEUES, required=True)
    arguments.add_argument("--domains", type=int, required=True)
    arguments.add_argument("--pops", type=int, required=True)
    options = arguments.parse_args()
    tell(measure(QUEUES[options.queue], options.domains, options.pops))


asyncio.run(main())
