"""``scrapy netspy-queue`` as a person runs it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import redis

from netspy_scrapy.redis.queue import Push, QueueNames, RedisQueue

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

    assert (status, out) == (0, "netspy:{news}:queue: 1 dead tasks are in the queue again\n")
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
