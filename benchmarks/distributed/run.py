"""Several nodes on a real Redis: kills, outages, one pace, and what the queue costs.

::

    python benchmarks/distributed/run.py [--only seed,kills,outage,pace,lag,queue,carry]
        [--kills 20] [--seconds 30] [--count 100000] [--json FILE]

``seed``
    400 pages, a pipeline that takes 1.5 s a batch, SIGKILL of the node half way, a second node
    takes over: rows stored, and pages fetched twice. Beside it stock scrapy-redis, whose pipeline
    writes 50 rows at a time.
``kills``
    The same with three nodes; one of them is killed at a random moment and replaced, twice a
    round: rows lost, pages fetched twice.
``outage``
    Three nodes, 600 pages, and a Redis that is killed, and back half a minute later on the same
    data; then one that is back empty. Then the first again with a lease shorter than the outage.
``pace``
    Three processes, DOWNLOAD_DELAY = 0.3 without jitter: gaps at the site, without and with
    GLOBAL_THROTTLE. The first requests of each process, which open its connection, are left out.
``lag``
    For how long the event loop stands still, with Scrapy's own scheduler, and with a Redis that
    answers at once, and after 0.1 and 0.5 s.
``queue``
    The price of a push (filter included), a pop and an acknowledgement, in one process.
``carry``
    How many nodes one Redis carries: its processor time a page and for an idle node, and how fast
    it answers, by the number of nodes. Real ones, as far as two cores go; then what they say to
    Redis without a crawler behind it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from itertools import pairwise

import carry
import kills
from outages import outage
from processes import HERE, OURS, STOCK, Redis, start

sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parent.parent))

from common import Origin, in_turns, median, run_child, table, write_json

from tests.servers.proxy import Proxy


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


def seed_part(origin, redis, given):
    found = {name: kills.half_way(origin, redis, settings)
             for name, settings in (("this package", OURS), ("scrapy-redis", STOCK))}  # fmt: skip
    lines = [[name, str(one["rows"]), str(one["twice"])] for name, one in found.items()]
    print(table(["kill half way", "rows of 400", "fetched twice"], lines))
    return found


def kills_part(origin, redis, given):
    found = []
    for _ in range(given.kills):
        found.append(kills.at_random(origin, redis))
        print(found[-1], file=sys.stderr, flush=True)
    lost = sum(400 - one["rows"] for one in found)
    twice = sorted(one["twice"] for one in found)
    print(
        f"{len(found)} rounds of 3 nodes and 2 random kills: {lost} of {400 * len(found)} rows "
        f"lost; fetched twice per round: median {median(twice)}, most {twice[-1]}"
    )
    return found


def outage_part(origin, _, given):
    found = {}
    for name, empty, lease in (
        ("the same data", False, 60), ("empty", True, 60), ("the same data, lease 10 s", False, 10),
    ):  # fmt: skip
        with Redis(keeps=not empty) as redis:
            found[name] = outage(origin, redis, seconds=given.seconds, lease=lease)
    keys = ["rows", "twice", "waited", "held", "said_lost", "seconds"]
    lines = [[name, *(f"{one[key]:.0f}" for key in keys)] for name, one in found.items()]
    head = [
        f"back after {given.seconds:g} s with", "rows of 600", "fetched twice", "only in Redis",
         "with nodes", "errors said", "s to the end",
    ]  # fmt: skip
    print(table(head, lines))
    return found


def pace_part(origin, redis, given):
    found = {
        "off": pace(origin, redis, shared=False), "on": pace(origin, redis, shared=True)
    }  # fmt: skip
    lines = [
        [name, f"{one['shortest_s']:.3f}", f"{one['mean_s']:.3f}", str(one["peak_per_s"])]
        for name, one in found.items()
    ]
    print(table(["GLOBAL_THROTTLE", "shortest gap s", "mean gap s", "most in 1 s"], lines))
    return found


def lag_part(origin, redis, given):
    found = {}
    command = [sys.executable, str(HERE / "lag.py"), "--base", origin.url("")]
    with Proxy(redis.port) as proxy:
        for _, delay in in_turns([None, 0.0, 0.1, 0.5], given.runs):
            redis.flush()
            proxy.delay = delay or 0.0
            url = [] if delay is None else ["--redis", f"redis://127.0.0.1:{proxy.port}/0"]
            found.setdefault(delay, []).append(run_child([*command, *url]))
    lines = [
        [
            "no Redis" if delay is None else f"answers after {delay:g} s",
            *(f"{median([one[key] for one in measured]):.1f}" for key in ("worst_ms", "p999_ms")),
            f"{max(one['worst_ms'] for one in measured):.1f}",
            str(sum(one["over_50_ms"] for one in measured)),
        ]
        for delay, measured in found.items()
    ]
    head = ["stops of the loop, ms", "longest (median)", "99.9 %", "longest of all", "over 50 ms"]
    print(table(head, lines))
    return {str(delay): measured for delay, measured in found.items()}


def carry_part(origin, redis, given):
    found = [*carry.crawls(origin, redis), *carry.simulated(redis, rate=0), *carry.simulated(redis)]
    lines = [
        [
            f"{one['nodes']} nodes, {one['kind']}", f"{one['pages_per_s']:.0f}",
            f"{one['redis_share']:.1%}", _figure(one["redis_us_a_page"]),
            f"{one['commands_per_s']:.0f}", _figure(one.get("pop_ms"), 1),
            _figure(one.get("pop_p99_ms"), 1),
        ]
        for one in found
    ]  # fmt: skip
    head = ["", "pages/s", "Redis: of a core", "us a page", "commands/s", "pop ms", "99 %"]
    print(table(head, lines))
    return found


def _figure(value, digits=0):
    return "-" if value is None else f"{value:.{digits}f}"


def queue_part(origin, redis, given):
    return queue_costs(redis, given.count, given.runs)


PARTS = {
    "seed": seed_part, "kills": kills_part, "outage": outage_part, "pace": pace_part,
    "lag": lag_part, "queue": queue_part, "carry": carry_part,
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    given = parser.parse_args()
    result = {}
    with Origin(HERE.parent / "politeness" / "hosts.py") as origin, Redis() as redis:
        for name in given.only.split(","):
            print(f"\n{name} (load {os.getloadavg()[0]:.1f})", flush=True)
            result[name] = PARTS[name](origin, redis, given)
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
