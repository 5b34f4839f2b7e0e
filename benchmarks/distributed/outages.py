"""What comes of a Redis that is killed under three nodes, and is back after half a minute."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

from processes import OURS, fetched, rows, start, until


def outage(origin, redis, *, pages=600, seconds=30.0, lease=60):
    """SIGKILL of the server in the midst of a crawl; return what is stored in the end.

    Of a server that is back empty only what waited in it for more than 5 s may be missing.
    """
    redis.flush()
    origin.reset()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        given = {"base": origin.url(""), "n": pages, "ms": 20}
        settings = {**OURS, "REDIS_URL": redis.url, "SINK_SECONDS": 0.5, "SPIDER_TASK_LEASE": lease}
        nodes = [start(folder, "spider", given, settings) for _ in range(3)]
        until(lambda: fetched(origin) >= pages // 4)
        queued, leased = _count(redis, b"HLEN", "tasks"), _count(redis, b"ZCARD", "leases")
        redis.kill()
        killed = time.monotonic()
        time.sleep(seconds)
        during = fetched(origin)
        redis.start()
        ended = [node.wait(300) for node in nodes]
        took = time.monotonic() - killed
        log = (Path(folder) / "log").read_text(encoding="utf-8")
        log = (Path(folder) / "log").read_text(encoding="utf-8")
        if any(ended):
            raise RuntimeError(f"the nodes ended with {ended}: {log}")
        stored = rows(folder)
    return {
        "pages": pages, "waited": queued - leased, "held": leased, "fetched_meanwhile": during,
        "rows": len(set(stored)), "rows_twice": len(stored) - len(set(stored)),
        "twice": max(0, fetched(origin) - pages), "seconds": took,
        "said_lost": len(re.findall("Redis has lost the queue", log)),
        "said_away": len(re.findall("is away:", log)),
    }  # fmt: skip


def _count(redis, command, part):
    return int(redis.ask(command + f" netspy:{{pages}}:queue:{part}".encode())[1:])
