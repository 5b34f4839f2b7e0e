"""Several nodes on a real Redis: kills, one pace, and what the queue costs.

::

    python benchmarks/distributed/run.py [--only seed,kills,pace,queue] [--kills 20]
        [--count 100000] [--json FILE]

``seed``
    400 pages, a pipeline that takes 1.5 s a batch, SIGKILL of the node half way, a second node
    takes over: rows stored, and pages fetched twice. Beside it stock scrapy-redis, whose pipeline
    writes 50 rows at a time.
``kills``
    Three nodes, 400 pages, 0.5 s a batch; one of them is killed at a random moment and replaced,
    twice a round: rows lost, pages fetched twice.
``pace``
    Three processes, DOWNLOAD_DELAY = 0.3 without jitter: gaps at the site, without and with
    GLOBAL_THROTTLE. The first requests of each process, which open its connection, are left out.
``queue``
    The price of a push (filter included), a pop and an acknowledgement, in one process.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import Origin, in_turns, median, run_child, table, write_json  # noqa: E402

OURS = {
    "ADDONS": '{"netspy_scrapy.Addon": 500}',
    "SCHEDULER": "netspy_scrapy.redis.scheduler.RedisScheduler",
    "ITEM_PIPELINES": '{"spider.FileSink": 300}',
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "SPIDER_TASK_LEASE": 3,
}
STOCK = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "ITEM_PIPELINES": '{"spider.BufferedSink": 300}',
    "SCHEDULER_PERSIST": True,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
}


class Redis:
    """A Redis of the benchmark's own, which keeps nothing."""

    def __enter__(self):
        program = shutil.which("redis-server") or sys.exit("redis-server is not installed")
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self._process = subprocess.Popen(
            [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "no"], stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self.url = f"redis://127.0.0.1:{self.port}/0"
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()

    def flush(self):
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(b"FLUSHALL\r\n")
            sock.recv(16)


def start(folder, spider, arguments, settings):
    """Start a node in *folder*."""
    command = [sys.executable, "-m", "scrapy", "runspider", str(HERE / f"{spider}.py")]
    for name, value in arguments.items():
        command += ["-a", f"{name}={value}"]
    shared = {"LOG_LEVEL": "WARNING", "TELNETCONSOLE_ENABLED": False}
    for name, value in {**shared, **settings}.items():
        command += ["-s", f"{name}={value}"]
    log = (Path(folder) / "log").open("ab")
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    with log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)


def rows(folder):
    path = Path(folder) / "rows.txt"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def fetched(origin):
    return sum(path.startswith("/page/1") for _, _, path, *_ in origin.log())


def until(condition, *, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


def seed(origin, redis, settings, *, pages=400):
    """One kill half way; return what is stored and how many pages were fetched twice."""
    redis.flush()
    origin.reset()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        given = {"base": origin.url(""), "n": pages, "ms": 20}
        settings = {**settings, "REDIS_URL": redis.url, "SINK_SECONDS": 1.5}
        node = start(folder, "spider", given, settings)
        until(lambda: fetched(origin) >= pages // 2)
        node.kill()
        node.wait()
        second = start(folder, "spider", given, settings)
        second.wait(300)
        stored = rows(folder)
        return {"rows": len(set(stored)), "twice": max(0, fetched(origin) - pages)}


def kills(origin, redis, *, pages=400):
    """Three nodes, two kills at random moments."""
    redis.flush()
    origin.reset()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        given = {"base": origin.url(""), "n": pages, "ms": 20}
        settings = {**OURS, "REDIS_URL": redis.url, "SINK_SECONDS": 0.5}
        nodes = [start(folder, "spider", given, settings) for _ in range(3)]
        for moment in sorted(random.sample(range(10, pages - 20), 2)):
            until(
                lambda bound=moment: fetched(origin) >= bound or all(n.poll() == 0 for n in nodes)
            )
            time.sleep(random.random() / 5)
            victim = nodes.pop(random.randrange(len(nodes)))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            nodes.append(start(folder, "spider", given, settings))
        for node in nodes:
            node.wait(300)
        stored = rows(folder)
        return {"rows": len(set(stored)), "twice": max(0, fetched(origin) - pages)}


def pace(origin, redis, *, shared, each=25, delay=0.3):
    """Three processes at one site; return the gaps that it saw."""
    redis.flush()
    origin.reset()
    settings = {
        "ADDONS": OURS["ADDONS"], "REDIS_URL": redis.url, "GLOBAL_THROTTLE": shared,
        "DOWNLOAD_DELAY": delay, "RANDOMIZE_DOWNLOAD_DELAY": False,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        nodes = [
            start(folder, "own", {"base": origin.url(""), "n": each}, settings) for _ in range(3)
        ]
        for node in nodes:
            node.wait(300)
    log = sorted(origin.log())
    moments = [one[0] for one in log]
    seen = set()
    warm = 0
    for place, one in enumerate(log):
        if one[4] not in seen:
            seen.add(one[4])
            warm = place + 1
    gaps = [after - before for before, after in pairwise(moments[warm:])]
    peak = max(sum(0 <= other - moment < 1 for other in moments) for moment in moments)
    return {
        "shortest_s": min(gaps), "mean_s": (moments[-1] - moments[0]) / (len(moments) - 1),
        "peak_per_s": peak, "requests": len(moments),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="seed,kills,pace,queue")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    given = parser.parse_args()
    only = given.only.split(",")
    result = {}
    with Origin(HERE.parent / "politeness" / "hosts.py") as origin, Redis() as redis:
        if "seed" in only:
            found = {"this package": seed(origin, redis, OURS)}
            found["scrapy-redis"] = seed(origin, redis, STOCK)
            result["seed"] = found
            lines = [[name, str(one["rows"]), str(one["twice"])] for name, one in found.items()]
            print(table(["kill half way", "rows of 400", "fetched twice"], lines))
        if "kills" in only:
            found = [kills(origin, redis) for _ in range(given.kills)]
            result["kills"] = found
            lost = sum(400 - one["rows"] for one in found)
            twice = sorted(one["twice"] for one in found)
            print(
                f"\n{len(found)} rounds of 3 nodes and 2 random kills: {lost} of {400 * len(found)}"
                f" rows lost; fetched twice per round: median {median(twice)}, most {twice[-1]}"
            )
        if "pace" in only:
            found = {
                "off": pace(origin, redis, shared=False), "on": pace(origin, redis, shared=True)
            }  # fmt: skip
            result["pace"] = found
            print()
            lines = [
                [name, f"{one['shortest_s']:.3f}", f"{one['mean_s']:.3f}", str(one["peak_per_s"])]
                for name, one in found.items()
            ]
            print(table(["GLOBAL_THROTTLE", "shortest gap s", "mean gap s", "most in 1 s"], lines))
        if "queue" in only:
            result["queue"] = queue_costs(redis, given.count, given.runs)
    if given.json:
        write_json(given.json, result)


def queue_costs(redis, count, runs):
    """Measure the queue alone, by the number of domains."""
    variants = [("ours", 1), ("ours", 5000), ("stock", 5000)]
    found = {}
    for _, variant in in_turns(variants, runs):
        what, domains = variant
        size = count if what == "ours" else min(count, 20_000)
        command = [sys.executable, str(HERE / "bare.py"), "--redis", redis.url, "--what", what,
                   "--count", str(size), "--domains", str(domains)]  # fmt: skip
        found.setdefault(variant, []).append(run_child(command))
    keys = ["push_us", "pop_us", "ack_us", "first_tenth_us", "last_tenth_us", "slowest_pop_ms"]
    lines = []
    for (what, domains), measured in found.items():
        name = "this package" if what == "ours" else "scrapy-redis"
        figures = [
            f"{median([one[key] for one in measured]):.0f}" if key in measured[0] else "-"
            for key in keys
        ]
        lines.append([f"{name}, {domains:,} domains", *figures])
    head = ["us a request", "push", "pop", "ack", "first tenth", "last tenth", "slowest pop, ms"]
    print()
    print(table(head, lines))
    return {f"{what} {domains}": measured for (what, domains), measured in found.items()}


if __name__ == "__main__":
    main()
