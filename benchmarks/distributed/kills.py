"""What comes of nodes that are killed."""

from __future__ import annotations

import random
import signal
import tempfile
import time

from processes import OURS, fetched, rows, start, until


def half_way(origin, redis, settings, *, pages=400):
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


def at_random(origin, redis, *, pages=400, sink_seconds=1.5):
    """Three nodes, two kills at random moments; who was killed is replaced."""
    redis.flush()
    origin.reset()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        given = {"base": origin.url(""), "n": pages, "ms": 20}
        settings = {**OURS, "REDIS_URL": redis.url, "SINK_SECONDS": sink_seconds}
        nodes = [start(folder, "spider", given, settings) for _ in range(3)]
        moments = []
        for moment in sorted(random.sample(range(pages - 5), 2)):
            until(
                lambda bound=moment: fetched(origin) >= bound or all(n.poll() == 0 for n in nodes)
            )
            time.sleep(random.random() / 2)
            moments.append(fetched(origin))
            victim = nodes.pop(random.randrange(len(nodes)))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            nodes.append(start(folder, "spider", given, settings))
        ended = [node.wait(300) for node in nodes]
        stored = rows(folder)
        return {
            "killed_at": moments, "rows": len(set(stored)), "ended": ended,
            "twice": max(0, fetched(origin) - pages), "rows_twice": len(stored) - len(set(stored)),
        }  # fmt: skip
