"""The queue alone: what a push and a pop cost, ours and scrapy-redis'; a child of run.py."""

from __future__ import annotations

import argparse
import time

import redis
import scrapy
from child import tell
from scrapy.utils.request import fingerprint
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import PriorityQueue

from netspy_scrapy.dedup.redis_store import RedisSet
from netspy_scrapy.dumps.classes import ClassResolver
from netspy_scrapy.redis import payload
from netspy_scrapy.redis.leases import Lease
from netspy_scrapy.redis.queue import Push, QueueNames, RedisQueue, Settle


class Spider(scrapy.Spider):
    name = "bare"

    def parse(self, response): ...


def requests(count, domains, spider):
    for n in range(count):
        url = f"http://d{n % domains}.example/page?n={n}"
        yield scrapy.Request(url, spider.parse, meta={"depth": 1}, headers={"X-From": "list"})


def ours(client, spider, count, domains):
    """Push in batches of 200, pop 32 at a time, acknowledge them."""
    queue = RedisQueue(QueueNames("b:{bare}"), RedisSet(None, "b:{bare}:seen"), "node")
    classes = ClassResolver()
    pushes, marks = [], [time.perf_counter()]
    for n, request in enumerate(requests(count, domains, spider)):
        one = Push(
            f"node-{n}", request.url.split("/")[2], 0, fingerprint(request),
            payload=payload.encode(request, spider),
        )  # fmt: skip
        pushes.append(one)
        if len(pushes) == 200:
            queue.push(client, pushes)
            pushes = []
    queue.push(client, pushes)
    marks.append(time.perf_counter())
    done, slowest, parts = 0, 0.0, []
    acknowledging = 0.0
    begin = time.perf_counter()
    while done < count:
        before = time.perf_counter()
        answer = queue.pop(
            client, lease=600, wanted=32, width=16, allowed=5, next_epoch="e", unwanted=()
        )
        slowest = max(slowest, time.perf_counter() - before)
        queue.epoch = answer.epoch
        for task in answer.tasks:
            payload.decode(task.payload, spider, classes)
        middle = time.perf_counter()
        leases = [Lease(one.id, one.delivery, "", 0, b"") for one in answer.tasks]
        queue.settle(client, [Settle("done", one) for one in leases])
        acknowledging += time.perf_counter() - middle
        done += len(answer.tasks)
        parts.append((done, time.perf_counter() - acknowledging))
    marks.append(parts[-1][1])
    tenth = count // 10
    first = next(at for number, at in parts if number >= tenth) - begin
    last = parts[-1][1] - next(at for number, at in parts if number >= count - tenth)
    return {
        "push_us": (marks[1] - marks[0]) / count * 1e6,
        "pop_us": (marks[2] - begin) / count * 1e6,
        "ack_us": acknowledging / count * 1e6,
        "first_tenth_us": first / tenth * 1e6,
        "last_tenth_us": last / tenth * 1e6,
        "slowest_pop_ms": slowest * 1e3,
    }


def stock(client, spider, count, domains):
    """scrapy-redis: a round trip for the filter, one for the push, one for each pop."""
    queue = PriorityQueue(client, spider, "stock")
    known = RFPDupeFilter(client, "stock:seen")
    begin = time.perf_counter()
    for request in requests(count, domains, spider):
        known.request_seen(request)
        queue.push(request)
    middle = time.perf_counter()
    while queue.pop() is not None:
        pass
    end = time.perf_counter()
    return {"push_us": (middle - begin) / count * 1e6, "pop_us": (end - middle) / count * 1e6}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", required=True)
    parser.add_argument("--what", choices=["ours", "stock"], required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--domains", type=int, required=True)
    given = parser.parse_args()
    client = redis.Redis.from_url(given.redis)
    client.flushall()
    measured = {"ours": ours, "stock": stock}[given.what](
        client, Spider(), given.count, given.domains
    )
    tell(measured)


if __name__ == "__main__":
    main()
