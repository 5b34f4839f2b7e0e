"""MongoPipeline against a server of MongoDB's protocol."""

from __future__ import annotations

import logging
from itertools import count
from typing import Any

import pytest

pytest.importorskip("pymongo", reason="pymongo is not installed")

from bson.binary import Binary
from bson.decimal128 import Decimal128
from pymongo import MongoClient

from netspy_scrapy.exceptions import (
    ConfigError,
    PipelineError,
    SinkUnavailableError,
)
from netspy_scrapy.pipelines.mongo import MongoPipeline
from tests.pipelines.offering import away, offer, offer_until_taken, opened
from tests.pipelines.values import odd_values
from tests.servers.mongo import Mongo

FAST = {"select_timeout": 0.5}
_numbers = count()


@pytest.fixture
def db(mongo_server):
    """A database of the test's own."""
    with MongoClient(mongo_server.url) as client:
        yield client[f"test_{next(_numbers)}"]
        client.drop_database(f"test_{next(_numbers) - 1}")


@pytest.fixture
def sink(mongo_server, db):
    # Polled, a server is seen to be back at once; a real one would tell.
    uri = f"{mongo_server.url}{'&' if '?' in mongo_server.url else '/?'}serverMonitoringMode=poll"
    made = opened(MongoPipeline, {"MONGO_URI": uri, "MONGO_DB": db.name})
    yield made
    made.close()


@pytest.fixture
def upserting(mongo_server, db):
    settings = {"MONGO_URI": mongo_server.url, "MONGO_DB": db.name, "NETSPY_MONGO_UPSERT": True}
    made = opened(MongoPipeline, settings)
    yield made
    made.close()


@pytest.fixture
def failing(mongo_server, db):
    """Have the server's next command of a name fail (a fail point of its test commands)."""

    def arm(command: str, times: int = 1, **data: Any) -> None:
        db.client.admin.command(
            "configureFailPoint", "failCommand",
            mode={"times": times}, data={"failCommands": [command], **data},
        )  # fmt: skip

    yield arm
    db.client.admin.command("configureFailPoint", "failCommand", mode="off")


def contents(collection: Any, *fields: str) -> list[Any]:
    found = [tuple(one.get(name) for name in fields) for one in collection.find()]
    return sorted(found, key=repr)


def test_rows_are_documents_with_all_their_fields(sink, db) -> None:
    """Rows of different fields are stored as they are, and the caller's dicts get no _id."""
    items = [{"url": "a", "n": 1}, {"url": "b", "title": "新闻 😀"}, {}]

    assert sink.save_items("news", items) == {}
    assert items == [{"url": "a", "n": 1}, {"url": "b", "title": "新闻 😀"}, {}]
    assert contents(db.news, "url", "n", "title") == [
        ("a", 1, None), ("b", None, "新闻 😀"), (None, None, None),
    ]  # fmt: skip
    assert all(next(iter(one)) == "_id" for one in db.news.find())


def test_1000_rows_one_poisoned(sink, db) -> None:
    """One row that breaks a unique index costs itself, with the server's reason."""
    db.news.create_index("url", unique=True)
    db.news.insert_one({"url": "u500"})

    refused = offer(sink, "news", [{"url": f"u{n}"} for n in range(1000)])

    assert list(refused) == [500]
    assert "E11000 duplicate key" in refused[500]
    assert db.news.count_documents({}) == 1000


def test_documents_over_16_mb(sink, db) -> None:
    """A document that is too large costs itself, whether the driver or the server says so."""
    rows = [{"n": 1}, {"n": 2, "t": "x" * 17_000_000}, {"n": 3, "t": "x" * 60_000_000}, {"n": 4}]

    refused = offer(sink, "pages", rows)

    assert sorted(refused) == [1, 2]
    assert all("large" in why.lower() for why in refused.values())
    assert contents(db.pages, "n") == [(1,), (4,)]


def test_values_that_bson_does_not_know(sink, db) -> None:
    """Each kind of value is stored as something sensible."""
    values = odd_values()
    moment = values["moment"]
    assert offer(sink, "v", [values]) == {}

    stored = db.v.find_one(projection={"_id": False})
    assert stored == {
        "decimal": Decimal128("1.50"), "moment": moment.replace(tzinfo=None),
        "date": "2026-01-02", "time": "03:04:00", "span": "1 day, 1:00:00",
        "uuid": Binary(b"\0" * 15 + b"\5", 4), "bytes": b"\xff\0", "text_bytes": b"abc",
        "set": [1, 2], "enum": "red", "int_enum": 3, "name": "x", "huge": str(2**70),
        "path": "/a/b",
        "nested": {
            "list": [{"value": Decimal128("2.50"), "tags": ["a", "b"]}, [Decimal128("1")]],
            "a.b": {"$x": 1},
        },
        "emoji": "新闻 😀", "none": None,
    }  # fmt: skip


def test_dots_and_dollars_are_part_of_a_name(sink, db) -> None:
    """Fields called a.b and $x are stored under these names."""
    assert offer(sink, "odd", [{"n": 1, "a.b": 2, "$x": 3}]) == {}
    assert db.odd.find_one({"n": 1}, {"_id": False}) == {"n": 1, "a.b": 2, "$x": 3}


def test_one_bad_value_costs_one_row(sink, db) -> None:
    """Values that cannot be stored are refused; those that can be written another way are."""
    circle: dict = {}
    circle["self"] = circle
    rows = [
        {"n": 0}, {"n": 1, "v": object()}, {"n": 2, "a\0b": 1}, {"n": 3, "v": circle},
        {"n": 4, "v": "x\udc80"}, {"n": 5, "v": {1: {"k\udc80"}}}, {"n": 6},
    ]  # fmt: skip

    refused = offer(sink, "news", rows)

    assert sorted(refused) == [1, 2, 3]
    assert refused[1] == "TypeError: cannot store a value of type object"
    assert "NULL" in refused[2]
    assert contents(db.news, "n", "v") == [
        (0, None), (4, "x\\udc80"), (5, {"1": ["k\\udc80"]}), (6, None),
    ]  # fmt: skip


@pytest.mark.parametrize("table", ["a$b", "", "a..b", "x\0"])
def test_names_that_no_collection_can_have(sink, table) -> None:
    """The error names the table."""
    with pytest.raises(PipelineError, match="cannot be a collection"):
        offer(sink, table, [{"n": 1}])


def test_an_update_sets_fields_or_inserts(sink, db) -> None:
    """What the key finds is changed, its other fields stay; what is not there is made."""
    db.price.insert_one({"sku": 1, "price": 1, "name": "x"})

    refused = sink.update_items("price", [{"sku": 1, "price": 2}, {"sku": 2, "price": 3}], ["sku"])

    assert refused == {}
    assert contents(db.price, "sku", "price", "name") == [(1, 2, "x"), (2, 3, None)]


def test_updates_of_one_key_keep_their_order(sink, db) -> None:
    """The last of several values in a batch wins."""
    rows = [{"sku": n % 7, "price": n} for n in range(100)]

    assert sink.update_items("price", rows, ["sku"]) == {}
    assert contents(db.price, "sku", "price") == [(n % 7, n) for n in (98, 99, 93, 94, 95, 96, 97)]


def test_a_key_is_compared_and_is_no_operator(sink, db) -> None:
    """A scraped dict as key finds its like, and not every document."""
    db.price.insert_many([{"sku": 1, "p": 0}, {"sku": {"$gt": 0}, "p": 0}])

    assert sink.update_items("price", [{"sku": {"$gt": 0}, "p": 9}], ["sku"]) == {}
    assert contents(db.price, "p") == [(0,), (9,)]


def test_bad_updates_cost_themselves(sink, db) -> None:
    """An update without its key, or one that contradicts itself, is refused alone."""
    rows = [{"p": 1}, {"sku": 1, "a": {"b": 1}, "a.b": 2}, {"sku": 2, "v": object()}, {"sku": 3}]

    refused = sink.update_items("price", rows, ["sku"])

    assert sorted(refused) == [0, 1, 2]
    assert refused[0] == "no value for the update key 'sku'"
    assert "conflict" in refused[1]
    assert contents(db.price, "sku") == [(3,)]


def test_a_key_without_an_index_is_named_once(sink, db, caplog) -> None:
    """The warning shows how to make the index; a key that has one gets none."""
    db.indexed.create_index("sku")
    for _ in range(2):
        sink.update_items("price", [{"sku": 1}], ["sku"])
    sink.update_items("indexed", [{"sku": 1, "shop": 1}], ["sku", "shop"])
    sink.update_items("price", [{"_id": 1}], ["_id"])

    (message,) = [one for one in caplog.messages if "has no index" in one]
    assert "db.price.createIndex({sku: 1}, {unique: true})" in message


def test_items_are_inserted_as_in_netspy(sink, db) -> None:
    """Unless asked for, an Item with a unique key is one more document."""
    for n in (1, 2):
        assert offer(sink, "news", [{"url": "a", "n": n}], unique=("url",)) == {}
    assert contents(db.news, "n") == [(1,), (2,)]


def test_upsert_by_the_unique_key(upserting, db) -> None:
    """NETSPY_MONGO_UPSERT: the same key is the same document; a row without its key is new."""
    db.news.create_index("url", sparse=True, unique=True)
    for n in (1, 2):
        rows = [{"url": "a", "n": n}, {"url": None, "k": n}, {"n": n}]
        upserting.save_items("news", [])
        upserting.unique_keys = ("url",)
        refused = upserting.save_items("news", rows)
        assert list(refused) == ([] if n == 1 else [1])  # null is in the sparse index
    assert contents(db.news, "url", "n") == [("a", 2), (None, 1), (None, 2), (None, None)]


def test_a_batch_is_not_stored_twice_after_a_broken_connection(sink, db, failing) -> None:
    """The server stored it, the answer was lost: offered again, the rows are the same."""
    rows = [{"n": n} for n in range(10)]
    # Only the driver sees the error: the server has done its work.
    failing("insert", writeConcernError={"code": 91, "errmsg": "shutting down"})
    assert "shutting down" in str(away(sink, "news", rows))
    assert db.news.count_documents({}) == 10

    assert offer(sink, "news", rows) == {}
    assert db.news.count_documents({}) == 10


def test_own_ids_are_not_refused_after_a_broken_connection(sink, db, failing) -> None:
    """Rows that bring their _id are known as stored if they are equal, else refused."""
    rows = [{"_id": n, "d": [n]} for n in range(3)]
    db.news.insert_one({"_id": 1, "d": "another's"})
    failing("insert", writeConcernError={"code": 91, "errmsg": "shutting down"})
    away(sink, "news", rows)

    refused = offer(sink, "news", rows)

    assert list(refused) == [1]
    assert "E11000" in refused[1]
    assert contents(db.news, "_id") == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    "fault", [{"closeConnection": True}, {"errorCode": 91}, {"errorCode": 11600}, {"errorCode": 50}]
)
def test_faults_of_the_server_are_no_rows_faults(sink, db, failing, fault) -> None:
    """A server that steps down, closes or takes too long is away: the batch is offered again."""
    rows = [{"n": n} for n in range(5)]
    failing("insert", **fault)
    error = away(sink, "news", rows)

    assert not error.refused
    assert not error.stored
    assert offer(sink, "news", rows) == {}
    assert contents(db.news, "n") == [(n,) for n in range(5)]


def test_no_right_to_write(sink, db, failing) -> None:
    """A user without the right gets every row back at once, with the reason."""
    failing("insert", errorCode=13)

    refused = offer(sink, "news", [{"n": n} for n in range(100)])

    assert len(refused) == 100
    assert refused[0].startswith("OperationFailure: ")


def test_a_fault_of_the_whole_command_costs_the_row_that_caused_it(sink, db, failing) -> None:
    """The server refuses the command for one row: the batch is divided, the others are stored."""
    failing("insert", times=1, errorCode=17280)

    assert offer(sink, "news", [{"n": n} for n in range(10)]) == {}
    assert db.news.count_documents({}) == 10


@pytest.mark.timed
def test_kill_and_restart() -> None:
    """While the server is killed the batch is away; back, it has every row once."""
    with Mongo() as server:
        if server.given:
            pytest.skip("a server that was given is not killed")
        sink = opened(
            MongoPipeline,
            {"MONGO_URI": server.url, "MONGO_DB": "t", "NETSPY_SINK_TIMEOUT": 1},
            **FAST,
        )
        rows = [{"n": n} for n in range(100)]
        assert offer(sink, "news", rows[:50]) == {}
        server.kill()
        error = away(sink, "news", rows[50:])
        assert "127.0.0.1" in str(error)
        assert len(str(error)) < 300
        server.start()

        assert offer_until_taken(sink, "news", rows[50:]) == {}
        with MongoClient(server.url) as client:
            assert contents(client.t.news, "n") == sorted([(n,) for n in range(100)], key=repr)
        sink.close()


@pytest.mark.timed
def test_frozen_server() -> None:
    """A server that hangs is away after the time-out, and stores each row once when it goes on."""
    with Mongo() as server:
        if server.given:
            pytest.skip("a server that was given is not stopped")
        sink = opened(
            MongoPipeline,
            {"MONGO_URI": server.url, "MONGO_DB": "t", "NETSPY_SINK_TIMEOUT": 1},
            **FAST,
        )
        assert offer(sink, "news", [{"n": 0}]) == {}
        rows = [{"n": 1}, {"n": 2}]
        server.freeze()
        away(sink, "news", rows)
        away(sink, "news", rows)
        server.thaw()

        assert offer_until_taken(sink, "news", rows) == {}
        with MongoClient(server.url) as client:
            assert contents(client.t.news, "n") == [(0,), (1,), (2,)]
        sink.close()


def test_server_away_at_the_start() -> None:
    """Opening does not need the server."""
    sink = opened(MongoPipeline, {"MONGO_URI": "mongodb://127.0.0.1:9/"}, **FAST)

    with pytest.raises(SinkUnavailableError, match=r"127\.0\.0\.1:9"):
        offer(sink, "news", [{"n": 1}])
    sink.close()


@pytest.mark.parametrize(
    "uri",
    [
        "http://user:geheim@h", "mongodb://user:geheim@h:99999", "mongodb://user:ge@heim@h",
        "mongodb://user:gehe/im@h/", "mongodb://user:geheim@",
    ],
)  # fmt: skip
def test_bad_uris(uri) -> None:
    """The error names the setting, and holds no password."""
    with pytest.raises(ConfigError, match="MONGO_URI = ") as info:
        opened(MongoPipeline, {"MONGO_URI": uri})

    text = str(info.value)
    assert not any(part in text for part in ("geheim", "heim", "gehe", "user"))
    assert info.value.__cause__ is None


@pytest.mark.parametrize("name", ["a b", "a/b", "", "a.b"])
def test_bad_database(name) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigError, match="MONGO_DB"):
        opened(MongoPipeline, {"MONGO_DB": name})


def test_timeouts_of_the_uri_count(caplog) -> None:
    """MONGO_URI may say how long to wait."""
    caplog.set_level(logging.WARNING)
    uri = "mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=250&socketTimeoutMS=7000"
    sink = opened(MongoPipeline, {"MONGO_URI": uri})

    options = sink._client.options
    assert options.server_selection_timeout == 0.25
    assert options.pool_options.socket_timeout == 7
    sink.close()
