"""Sets of keys in a real Redis."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import pytest
from scrapy.settings import Settings

from netspy_scrapy.dedup.redis_store import RedisBloom, RedisSet, redis_store
from netspy_scrapy.exceptions import ConfigError, RedisFailedError
from netspy_scrapy.redis.connection import Connection
from netspy_scrapy.redis.options import RedisSettings
from netspy_scrapy.settings import DedupSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.redis import Redis


@pytest.fixture
def connection(redis_server: Redis) -> Iterator[Connection]:
    made = connect(redis_server.url)
    made.call(lambda client: client.flushall())
    yield made
    made.close()


def connect(url: str) -> Connection:
    return Connection(RedisSettings.from_settings(Settings({"REDIS_URL": url})))


def keys(count: int, start: int = 0) -> list[bytes]:
    return [b"key %d" % number for number in range(start, start + count)]


def bloom(connection: Connection, **shape: Any) -> RedisBloom:
    chosen = {"capacity": 10_000, "error_rate": 1e-6, "max_layers": 4, **shape}
    return RedisBloom(connection, connection.key("s", "bloom"), **chosen)


def store(connection: Connection, kind: str, **arguments: Any) -> Any:
    if kind == "bloom":
        return bloom(connection, **arguments)
    return RedisSet(connection, connection.key("s", "set"), **arguments)


KINDS = pytest.mark.parametrize("kind", ["bloom", "set"])


@KINDS
def test_what_was_added_is_known(connection: Connection, kind: str) -> None:
    """Of each key it is told whether it is known, and whether it was new, in order."""

    async def run() -> None:
        made = store(connection, kind)
        assert await made.known([]) == ([], 0, False)
        assert await made.known(keys(3)) == ([False] * 3, 0, False)
        assert await made.add(keys(2)) == ([True, True], 2, False)
        # one that is known, one that is new, the same once more
        assert await made.add([*keys(2, 1), b"key 2"]) == ([False, True, False], 3, False)
        assert await made.known(keys(5)) == ([True] * 3 + [False] * 2, 3, False)

    asyncio.run(run())


@KINDS
def test_more_keys_than_one_call_takes(connection: Connection, kind: str) -> None:
    """Any number of keys may be given."""

    async def run() -> None:
        made = store(connection, kind)
        added = await made.add(keys(1234))
        known = await made.known(keys(2000))

        assert (sum(added.flags), added.total) == (1234, 1234)
        assert known.flags == [True] * 1234 + [False] * 766

    asyncio.run(run())


@KINDS
def test_any_bytes_are_a_key(connection: Connection, kind: str) -> None:
    """Zeros, line ends and long keys are keys like others."""
    strange = [b"", b"\x00", b"\r\n", b"\xff" * 5, b"x" * 10_000]

    async def run() -> None:
        made = store(connection, kind)
        await made.add(strange)
        assert (await made.known([*strange, b"\x00\x00"])).flags == [True] * 5 + [False]

    asyncio.run(run())


@KINDS
def test_a_store_of_a_run_is_forgotten(connection: Connection, kind: str) -> None:
    """With a time to live every key of the store has it, anew after each addition."""

    async def run() -> None:
        made = store(connection, kind, ttl=100)
        await made.add(keys(1))
        connection.call(lambda client: [client.expire(one, 5) for one in client.keys("*")])
        await made.add(keys(1))

    asyncio.run(run())
    left = connection.call(lambda client: [client.ttl(one) for one in client.keys("*")])

    assert left
    assert min(left) > 50


@KINDS
def test_a_store_of_a_spider_is_kept(connection: Connection, kind: str) -> None:
    """Without one the store lives for ever."""
    asyncio.run(store(connection, kind).add(keys(1)))

    left = connection.call(lambda client: [client.ttl(one) for one in client.keys("*")])
    assert set(left) == {-1}


@KINDS
def test_a_key_of_another_kind_is_an_error(connection: Connection, kind: str) -> None:
    """Where the key holds something else, Redis refuses, and nothing is overwritten."""
    made = store(connection, kind)
    connection.call(lambda client: client.set(made.key, "a text"))

    with pytest.raises(RedisFailedError, match="WRONGTYPE"):
        asyncio.run(made.add(keys(1)))
    assert connection.call(lambda client: client.get(made.key)) == b"a text"


# The bloom filter --------------------------------------------------------------------------------
def test_it_errs_as_seldom_as_promised(connection: Connection) -> None:
    """Through all layers, no key is forgotten, and few are taken for known ones."""

    async def run() -> None:
        made = bloom(connection, capacity=500, error_rate=0.01, max_layers=3)
        added = await made.add(keys(3000))
        known = await made.known(keys(3000))
        strange = await made.known(keys(20_000, 1_000_000))

        assert all(known.flags)
        assert sum(added.flags) == added.total == known.total
        assert added.total >= 3000 * 0.99
        assert sum(strange.flags) < 20_000 * 0.01

    asyncio.run(run())


def test_layers_grow_and_end(connection: Connection) -> None:
    """A layer holds its capacity and not a key more; the last one takes the rest, and says so."""

    async def run() -> None:
        made = bloom(connection, capacity=150, error_rate=1e-9, max_layers=2)
        fullness = [(await made.add(keys(150, start))).full for start in range(0, 600, 150)]
        shape = {
            name.decode(): int(value)
            for name, value in connection.call(lambda client: client.hgetall(made.key)).items()
        }

        assert fullness == [False, False, True, True]
        assert (shape["layers"], shape["count0"], shape["count1"]) == (2, 150, 450)
        assert (shape["capacity0"], shape["capacity1"]) == (150, 300)
        assert all((await made.known(keys(600))).flags)

    asyncio.run(run())


def test_a_key_of_a_full_layer_is_not_put_into_the_next(connection: Connection) -> None:
    """What an earlier layer has is known, and takes no room in a later one."""

    async def run() -> None:
        made = bloom(connection, capacity=10, max_layers=3)
        await made.add(keys(15))
        again = await made.add(keys(15))
        only_old = await made.add(keys(10))

        assert again == ([False] * 15, 15, False)
        assert only_old.total == 15

    asyncio.run(run())


def test_processes_with_other_settings_share_it(connection: Connection) -> None:
    """A layer keeps the shape that it was made with, whoever asks."""

    async def run() -> None:
        await bloom(connection, capacity=20, max_layers=2).add(keys(30))
        other = bloom(connection, capacity=5000, error_rate=0.01, max_layers=1)

        assert (await other.known(keys(31))).flags == [True] * 30 + [False]
        assert (await other.add(keys(31))).flags == [False] * 30 + [True]

    asyncio.run(run())


def test_memory(connection: Connection) -> None:
    """A key costs 4 bytes at an error rate of 1e-6."""
    asyncio.run(bloom(connection, capacity=100_000).add(keys(1)))

    used = connection.call(lambda client: client.memory_usage(b"netspy:{s}:bloom:0"))
    assert 350_000 < used < 600_000


def add_shared(url: str, kind: str, barrier: Any, answers: Any) -> None:
    connection = connect(url)
    made = store(connection, kind, **({"capacity": 300} if kind == "bloom" else {}))
    barrier.wait(30)
    new = []
    for start in range(0, 2000, 100):
        new += asyncio.run(made.add(keys(100, start))).flags
    answers.put(sum(new))
    connection.close()


@KINDS
def test_two_processes_add_the_same(redis_server: Redis, connection: Connection, kind: str) -> None:
    """Of processes that add the same keys at once, each key is new to exactly one."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=add_shared, args=(redis_server.url, kind, barrier, answers))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    new = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)

    assert sum(new) == 2000
    assert all(asyncio.run(store(connection, kind).known(keys(2000))).flags)


def test_after_a_restart_the_script_is_sent_again(own_redis: Any) -> None:
    """A server that was restarted does not know the script any more; nobody notices."""
    server = own_redis()
    connection = connect(server.url)
    made = store(connection, "bloom")
    asyncio.run(made.add(keys(1)))
    server.kill()
    server.start()

    assert asyncio.run(made.known(keys(1))) == ([False], 0, False)
    connection.close()


# By the settings ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "cls", "key"),
    [
        ({"DEDUP_FILTER": "redis"}, RedisBloom, "netspy:{books}:seen:items:bloom"),
        ({"DEDUP_FILTER": "redis-set"}, RedisSet, "netspy:{books}:seen:items:set"),
        (
            {"DEDUP_FILTER": "redis-set", "RUN_ID": "7"},
            RedisSet,
            "netspy:{books}:run:7:seen:items:set",
        ),
        (
            {"DEDUP_FILTER": "redis", "RUN_ID": "7", "DEDUP_SCOPE": "run"},
            RedisBloom,
            "netspy:{books}:run:7:seen:items:bloom",
        ),
        (
            {"DEDUP_FILTER": "redis-set", "RUN_ID": "7", "DEDUP_SCOPE": "spider"},
            RedisSet,
            "netspy:{books}:seen:items:set",
        ),
    ],
)
def test_settings_choose_kind_and_scope(
    connection: Connection, settings: dict[str, Any], cls: type, key: str
) -> None:
    """DEDUP_FILTER chooses the kind; with a RUN_ID the run has a store of its own for a week."""
    made = redis_store(
        DedupSettings.from_settings(Settings(settings)), connection, "books", "items"
    )
    asyncio.run(made.add([os.urandom(16)]))

    assert (type(made), made.key) == (cls, key)
    assert connection.call(lambda client: client.ttl(key)) == (604_800 if "run:" in key else -1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"DEDUP_SCOPE": "all"}, "DEDUP_SCOPE = 'all' cannot be used"),
        ({"DEDUP_SCOPE": "run"}, "DEDUP_SCOPE = 'run' cannot be used.*RUN_ID is not set"),
        ({"DEDUP_INITIAL_CAPACITY": 10**9}, "DEDUP_INITIAL_CAPACITY = 1000000000 cannot be used"),
    ],
)
def test_a_wrong_value_is_named(
    connection: Connection, settings: dict[str, Any], message: str
) -> None:
    """A scope that does not exist, and a filter larger than Redis can hold, are refused."""
    with pytest.raises(ConfigError, match=message):
        redis_store(
            DedupSettings.from_settings(Settings({"DEDUP_FILTER": "redis", **settings})),
            connection,
            "books",
            "items",
        )
