"""Nodes as processes, on a real Redis: killed, stopped, cut off from it."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.nodes import Nodes, Zygote, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.redis import Redis


@pytest.fixture
def server(own_redis: Callable[..., Redis]) -> Redis:
    """A Redis of the test's own."""
    return own_redis()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """What starts the nodes."""
    with Zygote() as made:
        yield made


@pytest.fixture
def nodes(site: Any, server: Redis, folder: Path, zygote: Zygote) -> Iterator[Nodes]:
    """Nodes that share it."""
    made = Nodes(site, server.url, zygote)
    yield made
    made.close()


def left_over(server: Redis) -> list[str]:
    """Return the keys that a finished run leaves for longer than half a minute."""
    client = redis.Redis.from_url(server.url)
    return sorted(key.decode() for key in client.scan_iter() if not 0 <= client.ttl(key) <= 30)


def test_a_node_that_is_killed_half_way(nodes: Nodes, server: Redis) -> None:
    """Another node stores what was lost; only what was not stored yet is fetched twice."""
    first = nodes.start(200, SINK_SECONDS=0.5)
    nodes.until_fetched(100)
    first.kill()
    second = nodes.start(200, SINK_SECONDS=0.5)

    assert second.wait() == 0
    assert len(set(rows())) == 200
    assert nodes.site.hits("/page/1") <= 201 + 40  # NETSPY_MAX_UNACKNOWLEDGED
    assert "The run is over" in second.log
    assert left_over(server) == ["netspy:{pages}:queue:epoch"]


def test_three_nodes_of_which_two_are_killed(nodes: Nodes) -> None:
    """Whatever moments they are killed at, and new ones take their places: no row is missing."""
    alive = [nodes.start(200, SINK_SECONDS=0.2) for _ in range(3)]
    for _ in range(2):
        before = nodes.site.hits("/page/1")
        nodes.until_fetched(min(before + random.randint(5, 60), 180))
        alive.pop(random.randrange(len(alive))).kill()
        alive.append(nodes.start(200, SINK_SECONDS=0.2))

    assert [node.wait() for node in alive] == [0, 0, 0]
    assert len(set(rows())) == 200


def test_a_node_that_stands_still(nodes: Nodes) -> None:
    """Its tasks go to others when the lease is over; what it says of them later changes nothing."""
    still = nodes.start(150, SINK_SECONDS=0.3)
    nodes.until_fetched(60)
    still.signal(signal.SIGSTOP)
    other = nodes.start(150, SINK_SECONDS=0.3)

    assert other.wait() == 0  # it took over all that the first one had
    assert len(set(rows())) == 150
    still.signal(signal.SIGCONT)
    assert still.wait() == 0
    assert len(set(rows())) == 150
    assert "leases ran out" in still.log or "queue/stale" in still.log


def test_a_task_that_kills_its_nodes(nodes: Nodes, server: Redis) -> None:
    """It is given up after NETSPY_MAX_DELIVERIES, dumped, and the rest of the pages is stored."""
    statuses = []
    for _ in range(6):
        node = nodes.start(30, "-a", "poison=1", NETSPY_MAX_DELIVERIES=2, SPIDER_TASK_LEASE=1)
        statuses.append(node.wait())
        if statuses[-1] == 0:
            break
    dead = redis.Redis.from_url(server.url).hgetall("netspy:{pages}:queue:dead")
    dumped = [json.loads(line) for line in Path("failed_requests.jsonl").read_text().splitlines()]

    assert statuses[-1] == 0
    assert 3 in statuses
    assert any(line["url"].endswith("n=13") for line in dumped)
    assert all("handed out 2 times" in line["reason"] for line in dumped)
    assert len(dead) == len(dumped)
    assert len(set(rows())) + len(dumped) == 30


def test_redis_hangs_for_a_while(nodes: Nodes, server: Redis) -> None:
    """The node waits and goes on; no page is lost, and none is done twice."""
    node = nodes.start(300, SPIDER_TASK_LEASE=30)
    nodes.until_fetched(50)
    server.freeze()
    time.sleep(3)
    server.thaw()

    assert node.wait() == 0
    assert len(rows()) == len(set(rows())) == 300
    assert "is away" in node.log
    assert "is back after" in node.log


def test_redis_is_restarted(nodes: Nodes, own_redis: Callable[..., Redis]) -> None:
    """A Redis that keeps its data may be killed and started under running nodes."""
    durable = own_redis("--appendonly", "yes", "--appendfsync", "always")
    pair = [nodes.start(300, REDIS_URL=durable.url, SPIDER_TASK_LEASE=30) for _ in range(2)]
    nodes.until_fetched(50)
    durable.kill()
    time.sleep(1.5)
    durable.start()

    assert [node.wait() for node in pair] == [0, 0]
    assert len(set(rows())) == 300


@pytest.mark.parametrize("how", ["flushall", "restart"])
def test_redis_comes_back_empty(nodes: Nodes, server: Redis, how: str) -> None:
    """It is said loudly, and what the nodes hold is put back and done."""
    pair = [nodes.start(200, SINK_SECONDS=0.2) for _ in range(2)]
    nodes.until_fetched(60)
    if how == "flushall":
        redis.Redis.from_url(server.url).flushall()
    else:  # it keeps nothing
        server.kill()
        time.sleep(1)
        server.start()
    statuses = [node.wait() for node in pair]
    fetched = {one.path for one in nodes.site.log() if "?n=" in one.path}

    assert statuses == [0, 0]
    assert any("Redis has lost the queue netspy:{pages}:queue" in node.log for node in pair)
    assert {url.partition("/page")[2] for url in rows()} == {
        path.partition("/page")[2] for path in fetched
    }
    assert len(rows()) >= 60


def test_nodes_with_different_clocks(nodes: Nodes) -> None:
    """Leases are of Redis' clock: two hours between two nodes cost no page twice."""
    pair = [nodes.start(100, "-a", f"clock={hour}", SINK_SECONDS=0.1) for hour in (3600, -3600)]

    assert [node.wait() for node in pair] == [0, 0]
    assert len(rows()) == len(set(rows())) == 100
    assert nodes.site.hits("/page/1") in (101, 102)  # each of them may have fetched the list


def test_a_stop_gives_all_back(nodes: Nodes, server: Redis) -> None:
    """What a stopped node held is there at once for the next start, which finishes the run."""
    first = nodes.start(200, SPIDER_TASK_LEASE=600, DOWNLOAD_DELAY=0.02)
    nodes.until_fetched(50)
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert redis.Redis.from_url(server.url).zcard("netspy:{pages}:queue:leases") == 0
    second = nodes.start(200, SPIDER_TASK_LEASE=600)

    assert second.wait() == 0
    assert sorted(rows()) == sorted(set(rows()))
    assert len(rows()) == 200
    assert not Path("failed_requests.jsonl").exists()


def test_a_node_that_comes_too_late(nodes: Nodes) -> None:
    """It was started in time, and the run is over: it fetches nothing. The next one does."""
    late = nodes.start(20, "-a", "until=go")
    assert nodes.start(20).wait() == 0
    Path("go").touch()

    assert late.wait() == 0
    assert "The run was over before this node had come" in late.log
    assert len(rows()) == 20
    assert nodes.start(20).wait() == 0
    assert len(rows()) == 40


FACADE = """
import sys
import netspy_scrapy as mw
from pages import FileSink

class Shared(mw.Spider):
    __custom_setting__ = {
        "REDIS_URL": sys.argv[1], "ITEM_PIPELINES": [FileSink], "SINK_SECONDS": 0.0,
        "REDIS_PARAMS": {"socket_timeout": 1}, "RUN_ID": sys.argv[3],
    }

    def start_requests(self):
        print("START_REQUESTS", flush=True)
        for n in range(60):
            yield mw.Request(f"{sys.argv[2]}/page/1?n={n}", number=n)

    def parse(self, request, response):
        assert request.url.endswith(f"n={request.number}")
        yield {"url": request.url}
        yield mw.Request(request.url.replace("n=", "m="), callback="leaf")

    def leaf(self, request, response):
        yield {"url": request.url}

if __name__ == "__main__":
    Shared().start()
"""


@pytest.mark.parametrize("run_id", ["", "monday"])
def test_processes_of_one_netspy_spider(
    nodes: Nodes, server: Redis, zygote: Zygote, run_id: str
) -> None:
    """One runs start_requests, both work, both end; another run is not an empty one."""
    Path("shared.py").write_text(FACADE)
    if not run_id:
        nodes.zygote = None  # as a user starts them
    base = f"http://127.0.0.1:{nodes.site.port}"
    pair = [nodes.run("shared.py", server.url, base, run_id) for _ in range(2)]

    assert [node.wait() for node in pair] == [0, 0]
    assert sum(node.log.count("START_REQUESTS") for node in pair) == 1
    assert len(rows()) == len(set(rows())) == 120
    nodes.zygote = zygote
    again = nodes.run("shared.py", server.url, base, run_id and "tuesday")
    assert again.wait() == 0
    assert len(rows()) == 240
    if run_id:
        late = nodes.run("shared.py", server.url, base, "tuesday")
        assert late.wait() == 0
        assert "The run is over already" in late.log
        assert len(rows()) == 240
