"""``scrapy netspy-queue`` as a person runs it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import redis

from netspy_scrapy.redis.leases import Lease
from netspy_scrapy.redis.queue import Push, QueueNames, RedisQueue, Settle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.redis import Redis


def run(folder: Path, url: str, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "scrapy", "netspy-queue", "-s", f"REDIS_URL={url}", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def filled(redis_server: Redis) -> Any:
    """A queue with three tasks, one of them dead."""
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    queue = RedisQueue(QueueNames("netspy:{news}:queue"), None, "node-1")
    queue.push(client, [Push(f"t{n}", "a.test", 0, payload=b"{}") for n in range(3)])
    asked: dict[str, Any] = {"width": 9, "allowed": 1, "next_epoch": "e", "unwanted": ()}
    queue.pop(client, lease=0.001, wanted=1, **asked)
    while not client.exists("netspy:{news}:queue:dead"):
        queue.pop(client, lease=60, wanted=0, **asked)
    queue.epoch = "e"
    queue.renew(client, [], 10, '{"held": 0}')
    yield client
    client.flushall()


def test_it_shows_all_queues(folder: Path, redis_server: Redis, filled: Any) -> None:
    """Tasks by kind and domain, nodes, and what to do about dead ones."""
    status, out, _ = run(folder, redis_server.url)

    assert status == 0
    assert "netspy:{news}:queue" in out
    assert "ready 2, in flight 0, delayed 0, dead 1" in out
    assert "--requeue-dead" in out
    assert any(line.split()[:2] == ["a.test", "2"] for line in out.splitlines())
    assert "node-1" in out
    assert "GONE" not in out


def test_dead_tasks_are_put_back(folder: Path, redis_server: Redis, filled: Any) -> None:
    """They are ready again."""
    status, out, _ = run(folder, redis_server.url, "news", "--requeue-dead")

    assert (status, out) == (0, "netspy:{news}:queue: 1 dead task put back\n")
    assert filled.zcard("netspy:{news}:queue:ready:a.test") == 3


def test_purge(folder: Path, redis_server: Redis, filled: Any) -> None:
    """It asks first, and where nobody can answer wants to be told."""
    status, _, err = run(folder, redis_server.url, "news", "--purge")
    assert status == 2
    assert "--yes" in err
    assert filled.hlen("netspy:{news}:queue:tasks") == 2
    status, out, _ = run(folder, redis_server.url, "news", "--purge", "--yes")

    assert status == 0
    assert out.startswith("Deleted netspy:{news}:queue: 2 ready")
    assert filled.exists("netspy:{news}:queue:tasks", "netspy:{news}:queue:dead") == 0


@pytest.mark.parametrize(("answer", "left"), [("n", 2), ("yes", 0)])
def test_purge_asks(folder: Path, redis_server: Redis, filled: Any, answer: str, left: int) -> None:
    """At a terminal it asks, says what is there and who is at work, and does as it is told."""
    ours, theirs = pty.openpty()
    url = f"REDIS_URL={redis_server.url}"
    command = [sys.executable, "-m", "scrapy", "netspy-queue", "-s", url, "news", "--purge"]
    with os.fdopen(ours, "wb", buffering=0) as terminal:
        process = subprocess.Popen(
            command, cwd=folder, stdin=theirs, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        os.close(theirs)
        terminal.write(answer.encode() + b"\n")
        out, _ = process.communicate(timeout=60)

    assert "2 ready, 0 in flight, 0 delayed, 1 dead task, and what" in out
    assert "(1 node at work)? [y/N]" in out
    assert filled.hlen("netspy:{news}:queue:tasks") == left


def test_what_is_shown_of_a_busy_queue(folder: Path, redis_server: Redis, filled: Any) -> None:
    """Each kind of task by domain, dead ones with their URLs, and how far start_requests is."""
    queue = RedisQueue(QueueNames("netspy:{news}:queue"), None, "node-2")
    payload = b'{"url": "http://b.test/x"}'
    later = [Push(f"u{n}", "b.test", 0, payload=payload, delay=n) for n in (0, 50, 60)]
    queue.push(filled, later)
    queue.push(filled, [Push("dead", "c.test", 0, payload=b'{"url": "http://c.test/kills"}')])
    asked: dict[str, Any] = {"allowed": 5, "next_epoch": "e", "unwanted": ("a.test", "b.test")}
    (task,) = queue.pop(filled, lease=60, wanted=9, width=1, **asked).tasks
    queue.epoch = "e"
    queue.settle(filled, [Settle("dead", Lease(task.id, task.delivery, "c.test", 0, b""))])
    filled.set("netspy:{news}:queue:start:monday", "over")
    status, out, _ = run(folder, redis_server.url, "news", "-s", "RUN_ID=monday")
    lines = [line.split() for line in out.splitlines()]

    assert status == 0
    assert "ready 3, in flight 0, delayed 2, dead 2" in out
    assert ["a.test", "2", "0", "0", "1"] in lines
    assert ["b.test", "1", "0", "2", "0"] in lines
    assert ["c.test", "0", "0", "0", "1"] in lines
    assert "    http://c.test/kills" in out.splitlines()
    assert "  first requests: over" in out.splitlines()


def test_a_run_that_is_purged_begins_anew(folder: Path, redis_server: Redis, filled: Any) -> None:
    """That its first requests are done goes with its tasks and its filter."""
    filled.set("netspy:{news}:queue:start:monday", "done")
    filled.sadd("netspy:{news}:run:monday:seen:requests:set", "x")
    settings = ("-s", "RUN_ID=monday")
    assert run(folder, redis_server.url, "news", "--purge", "--yes", *settings)[0] == 0

    assert filled.keys("*monday*") == []


def test_key_templates(folder: Path, redis_server: Redis, filled: Any) -> None:
    """Queues under a project's own SCHEDULER_QUEUE_KEY are found, one by one and all."""
    filled.set("{mine:news:q}:epoch", "e")
    template = ("-s", "SCHEDULER_QUEUE_KEY=mine:%(spider)s:q")
    everything = run(folder, redis_server.url, *template)
    one = run(folder, redis_server.url, "news", *template)

    assert everything == one
    assert one[1].startswith("{mine:news:q}\n  ready 0")


def test_a_queue_that_is_not_there(folder: Path, redis_server: Redis, filled: Any) -> None:
    """A wrong name is told, and nothing is done."""
    status, out, err = run(folder, redis_server.url, "nwes", "--purge", "--yes")

    assert (status, out) == (1, "")
    assert "There is no queue netspy:{nwes}:queue in redis://" in err


def test_no_server(folder: Path) -> None:
    """It says so, without the password, and ends with 1."""
    status, out, err = run(folder, "redis://:geheim-wort@127.0.0.1:9/0")

    assert status == 1
    assert "is away" in err
    assert "geheim-wort" not in out + err


def test_nothing_there(folder: Path, redis_server: Redis) -> None:
    """An empty server has no queue."""
    redis.Redis.from_url(redis_server.url).flushall()
    status, out, _ = run(folder, redis_server.url)

    assert status == 0
    assert out.startswith("There is no queue in redis://")


def test_spiders_are_named(folder: Path, redis_server: Redis) -> None:
    """What changes a queue wants its name."""
    status, _, err = run(folder, redis_server.url, "--purge", "--yes")

    assert status == 2
    assert "want the name of a spider" in err
