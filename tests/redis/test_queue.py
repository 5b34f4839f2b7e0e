"""The queue in Redis by itself: turns, leases, tokens, rests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import redis

from netspy_scrapy.dedup.redis_store import RedisBloom, RedisSet
from netspy_scrapy.redis.leases import Lease, Leases, Stage
from netspy_scrapy.redis.queue import Handed, Push, QueueNames, RedisQueue, Settle
from netspy_scrapy.redis.status import purge, status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.redis import Redis

BASE = "netspy:{q}:queue"
BEGIN: Any = {"forget": True, "named": False, "node_ttl": 2, "age": 0}
LEAVE: Any = {"is_done": True, "forget": True, "node_ttl": 2, "told": 5, "named": 0}


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    """A client of an empty server."""
    made = redis.Redis.from_url(redis_server.url)
    made.flushall()
    yield made
    made.close()


def new(node: str = "a", kind: str = "", **names: str) -> RedisQueue:
    store: Any = None
    if kind == "set":
        store = RedisSet(None, "netspy:{q}:seen")  # type: ignore[arg-type]
    elif kind == "bloom":
        store = RedisBloom(None, "netspy:{q}:seen", capacity=1000, error_rate=1e-6, max_layers=2)  # type: ignore[arg-type]
    return RedisQueue(QueueNames(BASE, **names), store, node)


def task(number: int, domain: str = "d", **more: Any) -> Push:
    return Push(f"t{number}", domain, more.pop("score", 0), payload=b"{}", **more)


def pop(queue: RedisQueue, client: Any, wanted: int = 10, **more: Any) -> Handed:
    asked = {"lease": 10.0, "width": 100, "allowed": 3, "next_epoch": "e", "unwanted": (), **more}
    answer = queue.pop(client, wanted=wanted, **asked)
    if not answer.is_emptied:
        queue.epoch = answer.epoch
    return answer


def ids(answer: Handed) -> list[str]:
    return [one.id for one in answer.tasks]


def lease(answer: Handed, place: int = 0) -> Lease:
    one = answer.tasks[place]
    return Lease(one.id, one.delivery, "d", 0, one.payload)


def test_priority_then_order(client: Any) -> None:
    """Inside a domain what is more important goes first, then what came first."""
    queue = new()
    queue.push(client, [task(n, score=-(n % 2)) for n in range(250)])
    found: list[str] = []
    while len(found) < 250:
        found += ids(pop(queue, client, 100))

    assert found == [f"t{n}" for n in [*range(1, 250, 2), *range(0, 250, 2)]]


def test_domains_take_turns(client: Any) -> None:
    """A domain with many tasks does not hold up one with few, nor one that comes later."""
    queue = new()
    queue.push(client, [task(n, "big") for n in range(100)] + [task(1000, "small")])
    first = ids(pop(queue, client, 10))
    queue.push(client, [task(2000, "late")])
    second = ids(pop(queue, client, 10))

    assert "t1000" in first
    assert "t2000" in second


def test_unwanted_domains(client: Any) -> None:
    """A node gets nothing of domains that it does not want, however many stand before others."""
    queue = new()
    queue.push(client, [task(n, f"d{n:03}") for n in range(300)])
    answer = pop(queue, client, 10, unwanted=[f"d{n:03}" for n in range(295)])

    assert ids(answer) == [f"t{n}" for n in range(295, 300)]


def test_width(client: Any) -> None:
    """Of one domain a node gets no more than the width, its own before the general one."""
    queue = new()
    queue.push(client, [task(n, "a") for n in range(20)] + [task(100 + n, "b") for n in range(20)])
    queue.rest(client, [("width", "a", 1)])
    answer = ids(pop(queue, client, 20, width=5))

    assert len([one for one in answer if int(one[1:]) < 100]) == 1
    assert len(answer) == 6


@pytest.mark.timed
def test_a_rest_holds_for_all(client: Any) -> None:
    """A resting domain is handed to nobody; new tasks of it do not end its rest."""
    queue, other = new("a"), new("b")
    queue.push(client, [task(1), task(2, "free")])
    queue.rest(client, [("rest", "d", 0.4), ("rest", "d", 0.1), ("rest", "empty", 0.4)])
    other.push(client, [task(3), task(4, "empty")])

    assert ids(pop(other, client)) == ["t2"]
    answer = pop(queue, client)
    assert ids(answer) == []
    assert answer.wake is not None
    assert 0.1 < answer.wake <= 0.4
    time.sleep(0.45)
    assert sorted(ids(pop(other, client))) == ["t1", "t3", "t4"]


@pytest.mark.timed
def test_delayed(client: Any) -> None:
    """A task that is not due is handed to nobody, and counted."""
    queue = new()
    queue.push(client, [task(1, delay=0.3)])
    early = pop(queue, client)
    time.sleep(0.35)

    assert ids(early) == []
    assert (early.total, early.delayed) == (1, 1)
    assert ids(pop(queue, client)) == ["t1"]


# Leases ------------------------------------------------------------------------------------------
@pytest.mark.timed
def test_a_lease_that_runs_out(client: Any) -> None:
    """The task goes to another node; the first one's word counts no more, whatever it says."""
    first, second = new("a"), new("b")
    first.push(client, [task(1)])
    old = lease(pop(first, client, lease=0.05))
    time.sleep(0.1)
    new_one = lease(pop(second, client))

    assert (old.delivery, new_one.delivery) == (1, 2)
    for what in ("done", "back", "dead"):
        assert first.settle(client, [Settle(what, old)]) == [False]
    assert first.renew(client, [old], 10, "{}") == [old]
    assert second.renew(client, [new_one], 10, "{}") == []
    assert second.settle(client, [Settle("done", new_one)]) == [True]
    assert second.settle(client, [Settle("done", new_one)]) == [False]
    assert pop(second, client).total == 0


@pytest.mark.timed
def test_renewal(client: Any) -> None:
    """A lease that is renewed in time does not run out."""
    queue = new()
    queue.push(client, [task(1)])
    held = lease(pop(queue, client, lease=0.2))
    for _ in range(3):
        time.sleep(0.12)
        assert queue.renew(client, [held], 0.2, "{}") == []
    assert ids(pop(new("b"), client)) == []


@pytest.mark.timed
def test_dead(client: Any) -> None:
    """A task that was handed out too often is told once, and can be put back."""
    queue = new()
    queue.push(client, [task(1)])
    for _ in range(3):
        assert ids(pop(queue, client, lease=0.02)) == ["t1"]
        time.sleep(0.04)
    answer = pop(queue, client)

    assert ids(answer) == []
    assert answer.dead == [("t1", b"{}")]
    assert pop(queue, client).dead == []
    assert queue.requeue_dead(client) == 1
    assert [(one.id, one.delivery) for one in pop(queue, client).tasks] == [("t1", 1)]


def test_given_back(client: Any) -> None:
    """It goes where it was, with a new payload if one is given, and costs no delivery."""
    queue = new()
    queue.push(client, [task(1), task(2)])
    answer = pop(queue, client)
    queue.settle(client, [Settle("back", lease(answer, 1)), Settle("back", lease(answer), b"new")])
    again = pop(queue, client)

    assert [(one.id, one.delivery, one.payload) for one in again.tasks] == [
        ("t1", 1, b"new"), ("t2", 1, b"{}")
    ]  # fmt: skip


def test_an_answer_that_got_lost(client: Any) -> None:
    """Tasks that a node was handed without knowing it are found, and given back."""
    queue = new()
    queue.push(client, [task(1), task(2)])
    pop(queue, client, 1)
    pop(queue, client, 1)  # the answer got lost
    pop(new("b"), client)
    found = queue.orphans(client, ["t1"])

    assert [one.lease.id for one in found] == ["t2"]
    assert queue.settle(client, found) == [True]
    assert ids(pop(queue, client)) == ["t2"]


def test_pushing_again_changes_nothing(client: Any) -> None:
    """A push whose answer got lost may be repeated: the task is there once, and not a duplicate."""
    queue = new(kind="set")
    first = queue.push(client, [task(1, fingerprint=b"x"), task(2)])
    again = queue.push(client, [task(1, fingerprint=b"x"), task(2)])

    assert first == again == [True, True]
    assert sorted(ids(pop(queue, client))) == ["t1", "t2"]


def test_no_lease(client: Any) -> None:
    """Without leases a task is gone once it was handed out."""
    queue = new()
    queue.push(client, [task(1)])

    assert ids(pop(queue, client, lease=0)) == ["t1"]
    assert pop(queue, client, lease=0).total == 0


# The filter --------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["set", "bloom"])
def test_the_filter(client: Any, kind: str) -> None:
    """A fingerprint is taken once, also within one push, until it is forgotten."""
    queue = new(kind=kind)
    one, two = b"1" * 20, b"2" * 20
    taken = queue.push(
        client,
        [task(1, fingerprint=one), task(2, fingerprint=one), task(3, fingerprint=two), task(4)],
    )
    assert taken == [True, False, True, True]
    answer = pop(queue, client)
    assert ids(answer) == ["t1", "t3", "t4"]
    queue.settle(client, [Settle("done", lease(answer, 0), one), Settle("done", lease(answer, 1))])

    assert queue.push(client, [task(5, fingerprint=one), task(6, fingerprint=two)]) == [True, False]
    assert queue.push(client, [task(7, fingerprint=one)]) == [False]


@pytest.mark.parametrize("kind", ["set", "bloom"])
def test_the_filter_goes_with_the_run(client: Any, kind: str) -> None:
    """The last node forgets it; or the first of the next run, if that one was killed."""
    queue = new(kind=kind)
    queue.push(client, [task(1, fingerprint=b"x")])
    queue.settle(client, [Settle("done", lease(pop(queue, client)))])
    over = queue.leave(client, **{**LEAVE, "told": 0.1})

    assert over == (True, 0)
    time.sleep(0.15)
    assert client.keys("*seen*") == []
    queue.push(client, [task(2, fingerprint=b"x")])
    queue.settle(client, [Settle("done", lease(pop(queue, client)))])
    client.delete(f"{BASE}:nodes")
    assert new("b", kind).begin(client, **BEGIN) == (0, 0, False)
    assert client.keys("*seen*") == []


def test_a_node_is_not_the_last_one(client: Any) -> None:
    """While another node is at work the run is not over."""
    queue, other = new("a"), new("b")
    other.begin(client, **BEGIN)

    assert queue.leave(client, **LEAVE) == (False, 1)


@pytest.mark.parametrize("kind", ["set", "bloom"])
def test_a_node_that_comes_too_late(client: Any, kind: str) -> None:
    """It was on its way when the run ended: all is known to it. Later ones begin another run."""
    names = {"start": f"{BASE}:start"}
    first, late, later = (new(node, kind, **names) for node in "abc")
    first.begin(client, **BEGIN)
    assert first.first(client, "claim", 20, 1) == "running:a"
    first.push(client, [task(1, fingerprint=b"x")])
    first.first(client, "done", 0)
    first.settle(client, [Settle("done", lease(pop(first, client)))])
    assert first.leave(client, **LEAVE) == (True, 0)

    time.sleep(0.02)
    assert late.begin(client, **{**BEGIN, "age": 2}) == (0, 0, True)
    assert late.first(client, "claim", 20, 2) == "over"
    assert late.push(client, [task(2, fingerprint=b"x")]) == [False]
    assert later.begin(client, **{**BEGIN, "age": 0.01}) == (1, 0, False)
    assert later.first(client, "claim", 20, 0.01) == "running:c"
    assert later.push(client, [task(3, fingerprint=b"x")]) == [True]
    assert late.leave(client, **LEAVE) == (False, 1)


def test_a_run_with_a_name_is_over_for_good(client: Any) -> None:
    """Nobody begins it again, whenever he came; another one begins at once."""
    monday, again, tuesday = (
        new(node, start=f"{BASE}:start:{day}")
        for node, day in (("a", "mon"), ("b", "mon"), ("c", "tue"))
    )
    named = {**BEGIN, "forget": False, "named": True}
    monday.begin(client, **named)
    monday.first(client, "claim", 20)
    monday.first(client, "done", 100)
    monday.leave(client, **{**LEAVE, "forget": False, "named": 100})

    assert again.begin(client, **named) == (0, 0, False)
    assert again.first(client, "claim", 20) == "over"
    assert again.leave(client, **{**LEAVE, "is_done": False}) == (False, 0)
    assert tuesday.begin(client, **named) == (0, 0, False)
    assert tuesday.first(client, "claim", 20) == "running:c"


def test_a_run_whose_last_node_could_not_say_that_it_is_over(client: Any) -> None:
    """Stopped (SPIDER_KEEP_ALIVE) or killed with all done: the next start is no empty run."""
    names = {"start": f"{BASE}:start"}
    first, second = new("a", **names), new("b", **names)
    first.begin(client, **BEGIN)
    first.first(client, "claim", 20, 1)
    first.first(client, "done", 0)
    assert first.leave(client, **{**LEAVE, "is_done": False}) == (False, 0)
    second.begin(client, **BEGIN)

    assert second.first(client, "claim", 20, 1) == "running:b"


# An emptied server -------------------------------------------------------------------------------
def test_an_emptied_server(client: Any) -> None:
    """It is noticed by each call that could do harm, and gets back what the node holds."""
    queue, other = new("a"), new("b")
    queue.push(client, [task(1), task(2)])
    held = lease(pop(queue, client, 1))
    pop(other, client, 0)
    client.flushall()

    assert queue.settle(client, [Settle("done", held)]) is None
    assert queue.renew(client, [held], 10, "{}") == []
    assert pop(queue, client).is_emptied
    epoch, count = queue.restore(client, [held], 10, "next")
    queue.epoch = epoch
    assert (epoch, count) == ("next", 1)
    assert pop(other, client).is_emptied
    assert other.restore(client, [], 10, "another") == ("next", 0)
    assert queue.settle(client, [Settle("done", held)]) == [True]


# For people --------------------------------------------------------------------------------------
def test_status_and_purge(client: Any) -> None:
    """What is in the queue is told by domain, and can be deleted."""
    queue = new(kind="set")
    queue.push(client, [task(n, f"d{n % 3}") for n in range(9)] + [task(99, delay=60)])
    pop(queue, client, 2, width=1)
    queue.rest(client, [("rest", "d2", 30)])
    queue.renew(client, [], 10, '{"held": 2}')
    found = status(client, queue.names)

    assert (found.ready, found.in_flight, found.delayed, found.dead) == (7, 2, 1, 0)
    assert [(one.name, one.ready, one.in_flight) for one in found.domains] == [
        ("d0", 2, 1), ("d1", 2, 1), ("d2", 3, 0), ("d", 0, 0)
    ]  # fmt: skip
    assert [one.delayed for one in found.domains] == [0, 0, 0, 1]
    assert found.domains[2].rests > 25
    assert [(one.name, one.held, one.is_alive) for one in found.nodes] == [("a", 2, True)]
    assert purge(client, queue.names, "netspy:{q}:seen") == 10
    assert sorted(key.decode() for key in client.scan_iter()) == [
        f"{BASE}:about", f"{BASE}:epoch", f"{BASE}:nodes"
    ]  # fmt: skip


def test_leases_are_counted() -> None:
    """The counts of a node follow each task through its stages."""
    leases = Leases()
    one, two = Lease("1", 1, "a", 0, b""), Lease("2", 1, "a", 0, b"")
    leases.add(one)
    leases.add(two)
    assert (leases.fresh_total, dict(leases.fresh), leases.started) == (2, {"a": 2}, 0)
    leases.start(one)
    leases.start(two)
    assert (leases.fresh_total, dict(leases.fresh), leases.started) == (0, {}, 2)
    leases.wait(one)
    assert (one.stage, leases.started) == (Stage.WAITING, 1)
    assert leases.remove(two)
    assert not leases.remove(two)
    assert (leases.started, len(leases)) == (0, 1)
