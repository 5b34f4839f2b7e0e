"""How many nodes one Redis carries: the processor time that they cost it, and how fast it answers.

::

    python benchmarks/distributed/carry.py --url redis://... --nodes 50 --rate 10 --seconds 8

runs nodes without a crawler (a child of run.py): threads that do with the queue what a node does
which fetches *rate* pages a second (a push with its filter and an acknowledgement a page, a pop for
every 16 pages, four questions a second when there is nothing to do, and a renewal of all leases
every five seconds), and reports how long pops took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

import redis
from processes import HERE, OURS, fetched, start, until

from netspy_scrapy.dedup.redis_store import RedisSet
from netspy_scrapy.redis.leases import Lease
from netspy_scrapy.redis.queue import Push, QueueNames, RedisQueue, Settle

BASE = "c:{carry}"
PAYLOAD = json.dumps(
    {"url": "http://example.com/page?n=123456", "callback": "parse", "meta": {"depth": 3},
     "headers": {"Referer": ["http://example.com/list?n=12"]}}
).encode()  # fmt: skip
#: Pages of one question.
TAKEN = 16


def crawls(origin, server, counts=(2, 4, 8), *, rate=20.0, seconds=12.0):
    """Real nodes that each fetch about *rate* pages a second: what a page costs Redis."""
    found = []
    for count in counts:
        server.flush()
        origin.reset()
        pages = int(rate * seconds * count)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            given = {"base": origin.url(""), "n": pages, "ms": 1000 / rate}
            settings = {
                **OURS, "REDIS_URL": server.url, "SINK_SECONDS": 0.05, "CONCURRENT_REQUESTS": 1,
                "SPIDER_TASK_LEASE": 60,
            }  # fmt: skip
            nodes = [start(folder, "spider", given, settings) for _ in range(count)]
            until(lambda count=count: fetched(origin) >= 10 * count)
            before = Usage(server, [one.pid for one in nodes])
            first = fetched(origin)
            time.sleep(seconds / 2)
            after = Usage(server, [one.pid for one in nodes])
            done = fetched(origin) - first
            for one in nodes:
                one.terminate()
            for one in nodes:
                one.wait(60)
        found.append({"nodes": count, "kind": "crawls", **after.since(before, done)})
    return found


def simulated(server, counts=(10, 50, 100, 200), *, rate=10.0, seconds=8.0, children=2):
    """Nodes without a crawler, in two processes; *rate* 0: nodes that have nothing to do."""
    found = []
    for count in counts:
        server.flush()
        client = redis.Redis.from_url(server.url)
        if rate:
            fill(client, int(count * rate * seconds) + count * 2 * TAKEN)
        command = [
            sys.executable, str(HERE / "carry.py"), "--url", server.url, "--rate", str(rate),
            "--seconds", str(seconds),
        ]  # fmt: skip
        processes = [
            subprocess.Popen([*command, "--nodes", str(count // children)], stdout=subprocess.PIPE)
            for _ in range(children)
        ]
        for one in processes:  # they say when they begin
            one.stdout.readline()
        before = Usage(server, [one.pid for one in processes])
        time.sleep(seconds - 1)
        after = Usage(server, [one.pid for one in processes])
        reports = [json.loads(one.communicate()[0]) for one in processes]
        took = sorted(taken for one in reports for taken in one["pops"])
        pages = sum(one["done"] for one in reports) * (seconds - 1) / seconds
        found.append(
            {
                "nodes": count,
                "kind": f"{rate:g} pages a second each" if rate else "idle",
                **after.since(before, pages),
                "pop_ms": took[len(took) // 2] * 1e3,
                "pop_p99_ms": took[len(took) * 99 // 100] * 1e3,
            }
        )
    return found


def fill(client, count):
    """Queue *count* tasks of 100 domains."""
    queue = new("fill")
    for at in range(0, count, 200):
        queue.push(client, [
            Push(f"fill-{n}", f"d{n % 100}.example", 0, payload=PAYLOAD)
            for n in range(at, min(count, at + 200))
        ])  # fmt: skip


def new(node):
    return RedisQueue(QueueNames(BASE), RedisSet(None, f"{BASE}:seen"), node)


class Usage:
    """Processor seconds and memory of a server, and seconds of other processes, at one moment."""

    def __init__(self, server, others):
        self.at = time.monotonic()
        info = redis.Redis.from_url(server.url).info("all")
        self.server = info["used_cpu_user"] + info["used_cpu_sys"]
        self.commands = info["total_commands_processed"]
        self.memory = info["used_memory"]
        self.clients = info["connected_clients"]
        self.others = sum(map(seconds_of, others))

    def since(self, before, pages):
        seconds = self.at - before.at
        return {
            "pages_per_s": pages / seconds,
            "redis_share": (self.server - before.server) / seconds,
            "redis_us_a_page": (self.server - before.server) / pages * 1e6 if pages else None,
            "node_ms_a_page": (self.others - before.others) / pages * 1e3 if pages else None,
            "commands_per_s": (self.commands - before.commands) / seconds,
            "clients": self.clients,
        }


def seconds_of(pid):
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Node(threading.Thread):
    """Does with the queue what a node does."""

    def __init__(self, url, name, rate, until):
        super().__init__(daemon=True)
        self._client = redis.Redis.from_url(url)
        self._queue = new(name)
        self._rate = rate
        self._until = until
        self._name = name
        self.pops = []
        self.done = 0

    def run(self):
        queue, client = self._queue, self._client
        held = deque()
        renewal = time.monotonic() + 5
        while (now := time.monotonic()) < self._until:
            if now >= renewal:
                queue.renew(client, list(held), 60, '{"held": 64}')
                renewal = now + 5
            if len(held) < TAKEN or not self._rate:
                answer = queue.pop(
                    client, lease=60, wanted=TAKEN, width=16, allowed=5, next_epoch="e", unwanted=()
                )
                self.pops.append(time.monotonic() - now)
                queue.epoch = answer.epoch
                held += [Lease(one.id, one.delivery, "", 0, b"") for one in answer.tasks]
                if not answer.tasks:
                    time.sleep(0.25)
                    continue
            key = f"{self._name}-{self.done}"
            queue.push(client, [
                Push(key, f"d{self.done % 100}.example", 0, key.encode(), payload=PAYLOAD)
            ])  # fmt: skip
            queue.settle(client, [Settle("done", held.popleft())])
            self.done += 1
            time.sleep(max(0.0, now + 1 / self._rate - time.monotonic()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    nodes = [Node(given.url, f"n{os.getpid()}-{n}", given.rate, end) for n in range(given.nodes)]
    for one in nodes:
        one.start()
    print("BEGUN", flush=True)
    for one in nodes:
        one.join()
    pops = [taken for one in nodes for taken in one.pops]
    print(json.dumps({"pops": pops, "done": sum(one.done for one in nodes)}))


if __name__ == "__main__":
    main()
