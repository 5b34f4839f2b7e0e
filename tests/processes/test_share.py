"""How processes divide what one would have of a domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis
from scrapy.settings import Settings

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.processes.share import Share
from netspy_scrapy.redis.queue import Push, QueueNames, RedisQueue
from netspy_scrapy.settings import PolitenessSettings
from tests.crawling import PlainSpider, crawl

if TYPE_CHECKING:
    from tests.servers.redis import Redis

DOMAINS = [f"site{n}.example:80{n}" for n in range(60)]


def shares(count: int) -> list[Share]:
    return [Share(number, count) for number in range(1, count + 1)]


@pytest.mark.parametrize("whole", [1, 2, 3, 7, 8, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 16])
def test_the_parts_add_up(whole: int, count: int) -> None:
    """All processes together have as many places of a domain as one has, and each about as many."""
    for domain in DOMAINS:
        parts = [share.of(domain, whole) for share in shares(count)]

        assert sum(parts) == whole
        assert max(parts) - min(parts) <= 1


def test_one_place_goes_to_each_process_in_turn() -> None:
    """Domains that only one process may ask are divided among all of them."""
    owners = [[s.of(domain, 1) for s in shares(3)].index(1) for domain in DOMAINS]

    assert {owners.count(n) > 5 for n in range(3)} == {True}


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/0", "-1/2", "1/2/3"])
def test_a_wrong_number(text: str) -> None:
    """It is an error that names the setting."""
    with pytest.raises(ConfigError, match="NETSPY_PROCESS"):
        PolitenessSettings.from_settings(Settings({"NETSPY_PROCESS": text}))


def politeness(share: Share, **settings: object) -> PolitenessSettings:
    return PolitenessSettings.from_settings(Settings({"NETSPY_PROCESS": str(share), **settings}))


@pytest.mark.parametrize(
    ("settings", "whole"),
    [
        ({"CONCURRENT_REQUESTS_PER_DOMAIN": 8}, 8),
        ({"CONCURRENT_REQUESTS_PER_DOMAIN": 0, "CONCURRENT_REQUESTS": 12}, 12),  # no limit
        ({"CONCURRENT_REQUESTS_PER_DOMAIN": 100, "CONCURRENT_REQUESTS": 12}, 12),
        ({"DOWNLOAD_SLOTS": {"a.example": {"concurrency": 5}}}, 5),
        ({"NETSPY_DOMAIN_POLICIES": {"a.example": {"concurrency": 7}}}, 7),
    ],
)
def test_what_is_divided(settings: dict[str, object], whole: int) -> None:
    """It is what one process would send to the domain at once."""
    parts = [politeness(share, **settings).pace_of("a.example").concurrency for share in shares(3)]

    assert sum(parts) == whole


def test_a_shared_start_wants_a_shared_queue() -> None:
    """NETSPY_SHARED_START without RedisScheduler is refused: nobody would yield anything."""
    with pytest.raises(ConfigError, match="NETSPY_SHARED_START"):
        crawl(PlainSpider, {"NETSPY_SHARED_START": True})


def test_a_domain_that_is_left_to_others() -> None:
    """With fewer places than processes some leave it alone; where a redirect leads there, one."""
    found = [politeness(share, CONCURRENT_REQUESTS_PER_DOMAIN=1) for share in shares(3)]

    assert sorted(one.is_others("a.example") for one in found) == [False, True, True]
    assert {one.pace_of("a.example").concurrency for one in found} == {1}
    assert Share().of("a.example", 1) == 1


def test_the_queue_leaves_the_same_domains_to_others(redis_server: Redis) -> None:
    """Redis hands a process just the tasks of domains in which it has a place."""
    client = redis.Redis.from_url(redis_server.url)
    names = QueueNames("{test-share}:queue")
    first = RedisQueue(names, None, "n0")
    first.push(client, [Push(one, one, 0, payload=b"x") for one in DOMAINS])
    taken: list[str] = []
    for share in shares(3):
        queue = RedisQueue(names, None, f"n{share.number}")
        queue.epoch = first.epoch
        handed = queue.pop(
            client, lease=60, wanted=100, width=16, allowed=5, next_epoch="e", unwanted=(),
            share=share, places=1,
        )  # fmt: skip
        first.epoch = handed.epoch
        mine = [task.id for task in handed.tasks]

        assert mine
        assert all(share.of(domain, 1) == 1 for domain in mine)
        taken += mine

    assert sorted(taken) == sorted(DOMAINS)
    client.delete(*client.keys("{test-share}*"))


def test_what_a_dead_node_held(redis_server: Redis) -> None:
    """It goes to the others at once, and with it the right to yield the first requests."""
    client = redis.Redis.from_url(redis_server.url)
    names = QueueNames("{test-abandon}:queue", start="{test-abandon}:queue:start")
    dead, other = RedisQueue(names, None, "dead"), RedisQueue(names, None, "other")
    dead.push(client, [Push(f"t{n}", "a.example", 0, payload=b"x") for n in range(4)])

    def pop(queue: RedisQueue, wanted: int) -> list[str]:
        handed = queue.pop(
            client, lease=600, wanted=wanted, width=16, allowed=5, next_epoch="e", unwanted=()
        )
        queue.epoch = handed.epoch
        return [task.id for task in handed.tasks]

    held = pop(dead, 3)
    dead.first(client, "claim", 60)
    mine = pop(other, 9)
    count = other.abandon(client, "dead")

    assert count == 3
    assert sorted(pop(other, 9)) == sorted(held)
    assert not set(mine) & set(held)
    assert other.first(client, "claim", 60) == "running:other"
    assert other.abandon(client, "dead") == 0
    client.delete(*client.keys("{test-abandon}*"))
