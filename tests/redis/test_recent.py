"""What is pushed again after a restart of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis

from netspy_scrapy.redis.queue import Push
from netspy_scrapy.redis.recent import RecentPushes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.redis import Redis


def push(number: int) -> Push:
    return Push(f"t{number}", "d", 0, payload=b"{}")


def test_what_is_old_or_done_is_forgotten() -> None:
    """Only the last seconds are kept, without tasks that are done, and no more than so many."""
    now = [0.0]
    recent = RecentPushes(lambda: now[0])
    recent.add([push(1), push(2), Push("only-its-fingerprint", "d", 0, b"x")])
    now[0] = 4.0
    recent.add([push(3)])
    recent.remove(["t2", "unknown"])
    assert [one.id for one in recent.all()] == ["t1", "t3"]
    now[0] = 6.0
    recent.add([])
    assert [one.id for one in recent.all()] == ["t3"]
    recent.add([push(n) for n in range(10_000)])

    assert len(recent.all()) == 10_000


def test_they_are_pushed_again_after_a_restart(own_redis: Callable[..., Redis]) -> None:
    """And only then: not after a connection that broke."""
    server = own_redis()
    recent = RecentPushes()
    pushed: list[Any] = []
    with redis.Redis.from_url(server.url) as client:
        recent.learn_server(client)
        recent.add([push(1)])
        recent.push_again(client, lambda _, pushes: pushed.append(pushes))
        assert pushed == []
        server.kill()
        server.start()
        for _ in range(2):
            recent.push_again(client, lambda _, pushes: pushed.append(pushes))

    assert [[one.id for one in pushes] for pushes in pushed] == [["t1"]]
