"""KafkaPipeline against a server of Kafka's protocol."""

from __future__ import annotations

import json
import time
from datetime import date
from itertools import count
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Consumer, KafkaError, TopicPartition

from netspy_scrapy.exceptions import (
    ConfigError,
    PipelineError,
    SinkUnavailableError,
)
from netspy_scrapy.pipelines.documents import Outcome
from netspy_scrapy.pipelines.kafka import KafkaPipeline
from tests.pipelines.offering import away, offer, offer_until_taken, opened
from tests.pipelines.values import odd_values
from tests.servers.kafka import Kafka

QUICK = {"delivery_timeout": 2.0, "look_timeout": 0.5}
_numbers = count()


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"test-{next(_numbers)}"


@pytest.fixture
def sink(kafka_server):
    made = opened(KafkaPipeline, {"KAFKA_BOOTSTRAP_SERVERS": kafka_server.url})
    yield made
    made.close()


def messages(server: Kafka, topic: str) -> list[tuple[bytes | None, Any]]:
    """Return keys and rows of all messages of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": server.url, "group.id": "tests", "enable.auto.commit": False}
    )
    found = []
    for number in consumer.list_topics(topic, timeout=5).topics[topic].partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=5)
        consumer.assign([TopicPartition(topic, number, low)])
        while low < high:
            message = consumer.poll(5)
            assert message is not None
            assert not message.error()
            found.append((message.key(), json.loads(message.value())))
            low = message.offset() + 1
    consumer.close()
    return found


def numbers(server: Kafka, topic: str) -> list[int]:
    return sorted(row["n"] for _, row in messages(server, topic))


def test_one_message_a_row(sink, kafka_server, topic) -> None:
    """Each row is one JSON message without a key, in the topic of its table."""
    rows = [{"n": n, "title": "新闻 😀"} for n in range(1000)]

    assert offer(sink, topic, rows) == {}
    assert sorted(messages(kafka_server, topic), key=lambda one: one[1]["n"]) == [
        (None, row) for row in rows
    ]


def test_values_that_json_does_not_know(sink, kafka_server, topic) -> None:
    """Each kind of value is sent as something sensible."""
    assert offer(sink, topic, [{**odd_values(), "nan": float("nan"), "bad": "x\udc80"}]) == {}

    ((_, row),) = messages(kafka_server, topic)
    assert row == {
        "decimal": "1.50", "moment": "2026-01-02T03:04:05.678000+00:00", "date": "2026-01-02",
        "time": "03:04:00", "span": "1 day, 1:00:00",
        "uuid": "00000000-0000-0000-0000-000000000005", "bytes": "/wA=", "text_bytes": "abc",
        "set": [1, 2], "enum": "red", "int_enum": 3, "name": "x", "huge": 2**70, "path": "/a/b",
        "nested": {"list": [{"value": "2.50", "tags": ["a", "b"]}, ["1"]], "a.b": {"$x": 1}},
        "emoji": "新闻 😀", "none": None, "nan": None, "bad": "x\\udc80",
    }  # fmt: skip


def test_1000_rows_some_poisoned(sink, kafka_server, topic) -> None:
    """A message over the producer's limit, and a value without JSON, cost their rows."""
    rows: list[dict[str, Any]] = [{"n": n} for n in range(1000)]
    rows[3]["v"] = object()
    rows[500]["v"] = "x" * 2_000_000

    refused = offer(sink, topic, rows)

    assert refused == {
        3: "TypeError: cannot store a value of type object",
        500: "MSG_SIZE_TOO_LARGE: Unable to produce message: Broker: Message size too large",
    }
    assert numbers(kafka_server, topic) == [n for n in range(1000) if n not in refused]


def test_a_message_over_the_brokers_limit_costs_its_row(kafka_server, topic) -> None:
    """The broker refuses the whole request: it is divided, and the others are sent, once."""
    settings = {
        "KAFKA_BOOTSTRAP_SERVERS": kafka_server.url,
        "NETSPY_KAFKA_OPTIONS": {"message.max.bytes": 5_000_000, "linger.ms": 50},
    }
    sink = opened(KafkaPipeline, settings)
    rows: list[dict[str, Any]] = [{"n": n} for n in range(200)]
    rows[77]["v"] = rows[78]["v"] = "x" * 2_000_000

    refused = offer(sink, topic, rows)

    assert sorted(refused) == [77, 78]
    assert all("Broker: Message size too large" in why for why in refused.values())
    assert numbers(kafka_server, topic) == [n for n in range(200) if n not in refused]


@pytest.mark.parametrize(
    ("setting", "keys"),
    [
        ("url", [b"a", "新".encode(), b"2026-01-02", b"7", None, None]),
        (["url", "n"], [b'["a", 0]', '["新", 1]'.encode(), b'["2026-01-02", 2]', b"[7, 3]",
                        None, None]),
        ("__unique_key__", [b"0", b"1", b"2", b"3", b"4", b"5"]),
        ("", [None] * 6),
    ],
)  # fmt: skip
def test_keys(kafka_server, topic, setting, keys) -> None:
    """NETSPY_KAFKA_KEY: a field, several, or those of __unique_key__; a row without it has none."""
    values = ["a", "新", date(2026, 1, 2), 7, None]
    rows: list[dict[str, Any]] = [{"n": n, "url": one} for n, one in enumerate(values)]
    rows.append({"n": 5})
    settings = {"KAFKA_BOOTSTRAP_SERVERS": kafka_server.url, "NETSPY_KAFKA_KEY": setting}
    sink = opened(KafkaPipeline, settings)

    assert offer(sink, topic, rows, unique=("n",)) == {}
    found = sorted(messages(kafka_server, topic), key=lambda one: one[1]["n"])
    assert [key for key, _ in found] == keys


def test_names_are_cleaned(sink, kafka_server, topic, caplog) -> None:
    """A table that cannot be a topic goes to one of a similar name, and a warning says so."""
    assert offer(sink, f"{topic}/a b", [{"n": 1}]) == {}

    assert numbers(kafka_server, f"{topic}_a_b") == [1]
    assert f"'{topic}/a b' cannot be a topic: its rows go to '{topic}_a_b'" in caplog.messages
    with pytest.raises(PipelineError, match="cannot be a topic"):
        offer(sink, "新闻", [{"n": 1}])


def test_no_updates(sink) -> None:
    """An update is no call that is made: the sink says that it takes none."""
    assert sink.supports_update is False


def test_more_rows_than_the_producer_holds(kafka_server, topic) -> None:
    """A full queue of the producer is waited for."""
    settings = {
        "KAFKA_BOOTSTRAP_SERVERS": kafka_server.url,
        "NETSPY_KAFKA_OPTIONS": {"queue.buffering.max.messages": 100, "linger.ms": 0},
    }
    sink = opened(KafkaPipeline, settings)

    assert offer(sink, topic, [{"n": n} for n in range(2000)]) == {}
    assert numbers(kafka_server, topic) == list(range(2000))


@pytest.mark.timed
def test_kill_and_restart() -> None:
    """While the broker is killed the batch is away; back, it has every row once."""
    with Kafka() as server:
        if server.given:
            pytest.skip("a server that was given is not killed")
        sink = opened(KafkaPipeline, {"KAFKA_BOOTSTRAP_SERVERS": server.url}, **QUICK)
        assert offer(sink, "news", [{"n": n} for n in range(50)]) == {}
        time.sleep(server.settling)
        server.kill()
        rows = [{"n": n} for n in range(50, 100)]
        first = away(sink, "news", rows)
        began = time.monotonic()
        second = away(sink, "news", rows)

        assert first.in_doubt == frozenset(range(50))
        assert not second.in_doubt, "nothing was sent"
        assert time.monotonic() - began < 1.5, "a broker that is known to be away is asked for"
        assert "refused" in str(second)
        server.start()
        assert offer_until_taken(sink, "news", rows) == {}
        assert numbers(server, "news") == list(range(100))


@pytest.mark.timed
def test_frozen_broker() -> None:
    """A broker that hangs is away after the time-out; what it took late may be there twice."""
    with Kafka() as server:
        if server.given:
            pytest.skip("a server that was given is not stopped")
        sink = opened(KafkaPipeline, {"KAFKA_BOOTSTRAP_SERVERS": server.url}, **QUICK)
        assert offer(sink, "news", [{"n": 0}]) == {}
        server.freeze()
        error = away(sink, "news", [{"n": 1}])
        away(sink, "news", [{"n": 1}])
        server.thaw()

        assert error.in_doubt == {0}
        assert offer_until_taken(sink, "news", [{"n": 1}]) == {}
        assert set(numbers(server, "news")) == {0, 1}


def test_broker_away_at_the_start() -> None:
    """Opening does not need the broker, and nothing is in doubt."""
    sink = opened(KafkaPipeline, {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"}, **QUICK)

    error = away(sink, "news", [{"n": 1}])
    assert "refused" in str(error)
    assert not error.in_doubt
    assert isinstance(error, SinkUnavailableError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KAFKA_BOOTSTRAP_SERVERS", "localhost"), ("KAFKA_BOOTSTRAP_SERVERS", 5),
        ("KAFKA_BOOTSTRAP_SERVERS", []), ("NETSPY_KAFKA_KEY", 3), ("NETSPY_KAFKA_KEY", ["a", 1]),
        ("NETSPY_KAFKA_OPTIONS", "x"), ("NETSPY_KAFKA_OPTIONS", {"nope": "geheim"}),
        ("NETSPY_KAFKA_OPTIONS", {"acks": "geheim"}),
        ("NETSPY_KAFKA_OPTIONS", {"message.timeout.ms": "geheim"}),
        ("NETSPY_KAFKA_OPTIONS", {"sasl.password": "geheim", "security.protocol": "sasl_ssl"}),
    ],
)  # fmt: skip
def test_bad_settings(name, value) -> None:
    """The error names the setting and what is allowed, and holds no password."""
    with pytest.raises(ConfigError, match=f"{name} = ") as info:
        opened(KafkaPipeline, {name: value})

    assert "geheim" not in str(info.value)


def test_a_producer_that_is_done_for_is_replaced():
    """After a fatal error the next batch has a producer of its own, whatever refused the rows."""
    sink = opened(KafkaPipeline, {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}, **QUICK)
    sink._producer = None  # as after a fatal error
    outcome = Outcome()
    error = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    sink._settle("news", {0: (b"{}", None)}, {0: error}, outcome)

    assert list(outcome.refused) == [0]
    assert "127.0.0.1:1" in str(away(sink, "news", [{"n": 1}]))
    assert sink._producer is not None
