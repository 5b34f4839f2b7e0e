"""Several nodes on a real Redis: kills, one pace, and what the queue costs.

::

    python benchmarks/distributed/run.py [--only seed,kills,pace,queue] [--runs 3] [--kills 20]
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

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import redis

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from common import Origin, Parser, median, of, ratios, run_child  # noqa: E402
from report import Report  # noqa: E402

from tests.servers.redis import Redis  # noqa: E402

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


def start(folder, spider, arguments, settings):
    """Start a node in *folder*."""
    command = [sys.executable, "-m", "scrapy", "runspider", str(HERE / f"{spider}.py")]
    for name, value in arguments.items():
        command += ["-a", f"{name}={value}"]
    shared = {"LOG_LEVEL": "WARNING", "TELNETCONSOLE_ENABLED": False}
    for name, value in {**shared, **settings}.items():
        command += ["-s", f"{name}={value}"]
    log = (Path(folder) / "log").open("ab")
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
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


def begin(origin, server):
    """Empty the Redis and the log of the site."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    origin.reset()


def seed(origin, server, settings, *, pages=400):
    """One kill half way; return what is stored and how many pages were fetched twice."""
    begin(origin, server)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        given = {"base": origin.url(""), "n": pages, "ms": 20}
        settings = {**settings, "REDIS_URL": server.url, "SINK_SECONDS": 1.5}
        node = start(folder, "spider", given, settings)
        until(lambda: fetched(origin) >= pages // 2)
        node.kill()
        node.wait()
        second = start(folder, "spider", given, settings)
        second.wait(300)
        stored = rows(folder)
        return {"rows": len(set(stored)), "twice": max(0, fetched(origin) - pages)}


def kills(origin, server, *, pages=400):
    """Three nodes, two kills at random moments."""
    begin(origin, server)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        given = {"base": origin.url(""), "n": pages, "ms": 20}
        settings = {**OURS, "REDIS_URL": server.url, "SINK_SECONDS": 0.5}
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


def pace(origin, server, *, shared, each=25, delay=0.3):
    """Three processes at one site; return the gaps that it saw."""
    begin(origin, server)
    settings = {
        "ADDONS": OURS["ADDONS"], "REDIS_URL": server.url, "GLOBAL_THROTTLE": shared,
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
    options = _options()
    report = Report(options)
    hosts = HERE.parent / "politeness" / "hosts.py"
    with report.part("all of it"), Redis() as server, Origin(hosts) as origin:
        for name in options.only.split(","):
            _PARTS[name](report, origin, server, options)
    report.finish()


def _options():
    parser = Parser(__doc__, quick={"kills": 2, "count": 10_000})
    parser.add_argument("--only", default=",".join(_PARTS))
    parser.add_argument("--kills", type=int, default=20, help="rounds")
    parser.add_argument("--count", type=int, default=100_000)
    return parser.parse_args()


def _seed(report, origin, server, options):
    found = {name: [] for name in ("this package", "scrapy-redis")}
    for run, name in report.in_turns(list(found)):
        one = seed(origin, server, OURS if name == "this package" else STOCK)
        found[name].append(one)
        report.progress(run + 1, name, one)
    report.table(
        ["kill half way", "rows of 400", "fetched twice"],
        [
            [name, f"{median(of(one, 'rows')):.0f}", f"{median(of(one, 'twice')):.0f}"]
            for name, one in found.items()
        ],
    )
    report.compare(
        "kill half way: rows stored of 400", of(found["this package"], "rows"), at_least=400,
        digits=0, in_each_round=True,
    )  # fmt: skip
    report.compare(
        "kill half way: rows stored", ratios(found["this package"], found["scrapy-redis"], "rows"),
        peer="scrapy-redis",
    )  # fmt: skip


def _kills(report, origin, server, options):
    found = []
    for run, _ in report.in_turns(["kills"], options.kills):
        found.append(kills(origin, server))
        report.progress(run + 1, "3 nodes, 2 kills", found[-1])
    lost = [400 - one["rows"] for one in found]
    twice = of(found, "twice")
    report.table(
        ["3 nodes, 2 random kills a round", "rows", "rows lost", "fetched twice a round", "most"],
        [[f"{len(found)} rounds", f"{400 * len(found):,}", str(sum(lost)),
          f"{median(twice):.0f}", str(max(twice))]],
    )  # fmt: skip
    report.compare("random kills: rows lost a round", lost, at_most=0, digits=0, in_each_round=True)


def _pace(report, origin, server, options):
    found = {name: [] for name in ("off", "on")}
    for run, name in report.in_turns(list(found)):
        one = pace(origin, server, shared=name == "on")
        found[name].append(one)
        report.progress(run + 1, "GLOBAL_THROTTLE", name, one)
    report.table(
        ["GLOBAL_THROTTLE, delay 0.3", "shortest gap s", "mean gap s", "most in 1 s"],
        [
            [name, f"{min(of(one, 'shortest_s')):.3f}", f"{median(of(one, 'mean_s')):.3f}",
             str(max(of(one, "peak_per_s")))]
            for name, one in found.items()
        ],
    )  # fmt: skip
    report.compare(
        "GLOBAL_THROTTLE: shortest gap", of(found["on"], "shortest_s"), at_least=0.28, digits=3,
        unit=" s", in_each_round=True,
    )  # fmt: skip


def _queue(report, origin, server, options):
    """Measure the queue alone, by the number of domains."""
    variants = [("ours", 1), ("ours", 5000), ("stock", 5000)]
    found = {one: [] for one in variants}
    for run, (what, domains) in report.in_turns(variants):
        size = options.count if what == "ours" else min(options.count, 20_000)
        command = [sys.executable, str(HERE / "bare.py"), "--redis", server.url, "--what", what,
                   "--count", str(size), "--domains", str(domains)]  # fmt: skip
        found[what, domains].append(run_child(command))
        report.progress(run + 1, what, domains, found[what, domains][-1])
    keys = ["push_us", "pop_us", "ack_us", "first_tenth_us", "last_tenth_us", "slowest_pop_ms"]
    rows = []
    for (what, domains), measured in found.items():
        name = "this package" if what == "ours" else "scrapy-redis"
        figures = [
            f"{median(of(measured, key)):.0f}" if key in measured[0] else "-" for key in keys
        ]
        rows.append([f"{name}, {domains:,} domains", *figures])
    report.table(
        ["us a request", "push", "pop", "ack", "first tenth", "last tenth", "slowest pop, ms"], rows
    )
    for key, what in (("push_us", "a push"), ("pop_us", "a pop")):
        report.compare(
            f"queue, 5,000 domains: {what}", ratios(found["ours", 5000], found["stock", 5000], key),
            peer="scrapy-redis", less_is_better=True,
        )  # fmt: skip


_PARTS = {"seed": _seed, "kills": _kills, "pace": _pace, "queue": _queue}


if __name__ == "__main__":
    main()
