"""What is PostgreSQL's own."""

from __future__ import annotations

import datetime as dt
import enum
import math
import subprocess
import sys
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from netspy_scrapy.exceptions import ConfigError, PipelineError
from netspy_scrapy.pipelines import postgres_table
from tests.pipelines.sql_servers import PostgresCase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.postgres import Postgres

PLUS2 = dt.timezone(dt.timedelta(hours=2))
NOON = dt.datetime(2026, 5, 1, 12, 0, 0, 5)  # noqa: DTZ001
ZONED = NOON.replace(tzinfo=PLUS2)


class Mood(enum.Enum):
    """An enum of the project's."""

    GOOD = "good"


@pytest.fixture
def case(postgres_server: Postgres) -> Iterator[PostgresCase]:
    """A database with a table of its own."""
    one = PostgresCase(postgres_server)
    yield one
    one.close()


VALUES = [
    ("text", "", ""),
    ("text", None, None),
    ("text", "\\N \\. \\x41 tab\t new\n cr\r '\" 😀", "\\N \\. \\x41 tab\t new\n cr\r '\" 😀"),
    ("text", "lone \udc80", "lone \\udc80"),
    ("text", 5, "5"),
    ("text", True, "true"),
    ("text", b"bytes \xc3\xa9", "bytes é"),
    ("text", {"a": [1, None]}, '{"a": [1, null]}'),
    ("text", Mood.GOOD, "good"),
    ("text", NOON, "2026-05-01 12:00:00.000005"),
    ("varchar(3)", "äöü", "äöü"),
    ("int", True, 1),
    ("int", 3.0, 3),
    ("int", Decimal("4.0"), 4),
    ("int", "12", 12),
    ("bigint", -(2**63), -(2**63)),
    ("boolean", False, False),
    ("boolean", 1, True),
    ("double precision", 0.1, 0.1),
    ("double precision", math.inf, math.inf),
    ("numeric", 10**60, Decimal(10**60)),
    ("numeric", Decimal("1E+5"), Decimal(100000)),
    ("numeric(10,2)", Decimal("9.99"), Decimal("9.99")),
    ("bytea", b"\0\xff\\", b"\0\xff\\"),
    ("bytea", "text", b"text"),
    ("timestamp", NOON, NOON),
    ("timestamp", ZONED, NOON.replace(hour=10)),
    ("timestamptz", ZONED, ZONED),
    ("timestamptz", "2026-05-01T12:00:00.000005+02:00", ZONED),
    ("date", dt.date(2026, 5, 1), dt.date(2026, 5, 1)),
    ("time", dt.time(1, 2, 3), dt.time(1, 2, 3)),
    ("interval", dt.timedelta(days=-1, microseconds=7), dt.timedelta(days=-1, microseconds=7)),
    ("uuid", UUID(int=7), UUID(int=7)),
    ("json", {"a": "é\n\"'\\"}, {"a": "é\n\"'\\"}),
    ("jsonb", [1, {"b": None}, "x"], [1, {"b": None}, "x"]),
    ("jsonb", '"text that is JSON"', "text that is JSON"),
    ("text[]", ["a,b", '"q"', None, "\\", "NULL", "{}", ""],
     ["a,b", '"q"', None, "\\", "NULL", "{}", ""]),
    ("text[]", [], []),
    ("text[]", "{a,b}", ["a", "b"]),
    ("int[]", [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    ("int[]", {3}, [3]),
    ("boolean[]", [True, None], [True, None]),
    ("jsonb[]", [{"a": [1]}, [2]], [{"a": [1]}, [2]]),
    ("bytea[]", [b"\0"], [b"\0"]),
    ("timestamp[]", [ZONED], [NOON.replace(hour=10)]),
    ("inet", "10.0.0.1/8", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "stored"), VALUES)
def test_values(case: PostgresCase, kind: str, value: Any, stored: Any) -> None:
    """A value is stored as the column's type reads it, alone and among others, and by an update."""
    case.table(f"k INT, v {kind}")
    sink = case.sink()
    assert sink.save_items("t", [{"k": 1, "v": value}, {"k": 2, "v": None}]) == {}
    assert sink.save_items("t", [{"k": n, "v": value} for n in range(3, 60)]) == {}
    assert sink.update_items("t", [{"k": 2, "v": value}], ["k"]) == {}
    found = [row[0] for row in case.run("SELECT v FROM t")]

    if kind != "inet":
        assert found == [stored] * 59
    assert len({str(one) for one in found}) == 1


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("text", "a\0b", "field 'v': PostgreSQL has no NUL character in text"),
        ("text[]", ["a\0b"], "field 'v': PostgreSQL has no NUL character in text"),
        ("text", b"\xff", "field 'v': bytes that are no UTF-8, in a column of type text"),
        ("text", object(), "field 'v': cannot store a value of type object"),
        pytest.param("int", 10**5000, "field 'v': Exceeds the limit", id="huge"),
        ("int", 3.5, "column v: invalid input syntax for type integer"),
        ("int", math.nan, "field 'v': cannot convert float NaN to integer"),
        ("int", "", "column v: invalid input syntax"),
        ("bigint", 2**63, "out of range"),
        ("jsonb", "no json", "column v: invalid input syntax for type json"),
        ("jsonb", {"a": "\0"}, "unsupported Unicode escape sequence"),
        ("date", "soon", "column v: invalid input syntax for type date"),
        ("varchar(3)", "four", "column v: value too long"),
    ],
)
def test_values_that_are_refused(case: PostgresCase, kind: str, value: Any, why: str) -> None:
    """What a column cannot hold costs its row, with the reason and the column."""
    case.table(f"k INT, v {kind}")
    refused = case.sink().save_items(
        "t", [{"k": n, "v": value if n == 7 else None} for n in range(50)]
    )

    assert refused.keys() == {7}
    assert why in refused[7]
    assert case.run("SELECT COUNT(*) FROM t") == [(49,)]


@pytest.mark.parametrize(
    ("kind", "value", "is_sent_binary"),
    [
        ("text", "é", True), ("text", "a\0", False), ("text", "\udc80", False), ("text", 1, False),
        ("int", 2**31 - 1, True), ("int", 2**31, False), ("int", True, False),
        ("timestamp", NOON, True), ("timestamp", ZONED, False), ("timestamptz", ZONED, True),
        ("numeric", 1, False), ("jsonb", {}, False), ("uuid", UUID(int=1), True),
    ],
)  # fmt: skip
def test_both_ways_store_the_same(
    case: PostgresCase, kind: str, value: Any, is_sent_binary: bool, monkeypatch: Any
) -> None:
    """Values of the column's very type go in its own format, others as text, all alike."""
    case.table(f"v {kind}")
    sent = []
    binary = postgres_table.Batch._send_binary

    def noted(*args: Any) -> Any:
        sent.append(args)
        return binary(*args)

    monkeypatch.setattr(postgres_table.Batch, "_send_binary", noted)
    sink = case.sink()
    first = sink.save_items("t", [{"v": value}] * 3)
    assert bool(sent) == is_sent_binary
    monkeypatch.setattr(postgres_table, "IS_FAST", False)
    second = sink.save_items("t", [{"v": value}] * 3)

    assert first == second
    assert len({str(row) for row in case.run("SELECT v FROM t")}) <= 1


def test_types_of_the_databases_own(case: PostgresCase) -> None:
    """Enums and domains judge each row; a domain that must not be NULL may have a default."""
    case.run("DROP TABLE IF EXISTS t; DROP TYPE IF EXISTS mood; DROP DOMAIN IF EXISTS positive")
    case.run("CREATE TYPE mood AS ENUM ('good', 'bad')")
    case.run("CREATE DOMAIN positive AS int NOT NULL CHECK (VALUE > 0)")
    case.table("m mood, p positive DEFAULT 1, g INT GENERATED ALWAYS AS (1) STORED")
    items = [
        {"m": Mood.GOOD},
        {"m": "ugly"},
        {"m": "bad", "p": 5},
        {"m": "bad", "p": -1},
        {"p": None},
    ]
    refused = case.sink().save_items("t", items)

    assert refused.keys() == {1, 3, 4}
    assert case.run("SELECT m, p, g FROM t ORDER BY p") == [("good", 1, 1), ("bad", 5, 1)]


def test_on_conflict_nothing(case: PostgresCase) -> None:
    """The default: a row whose key is in any unique index is skipped, and counts as stored."""
    case.table("a INT UNIQUE, b INT UNIQUE, c INT")
    sink = case.sink()

    assert sink.save_items("t", [{"a": 1, "b": 1, "c": 1}]) == {}
    assert sink.save_items("t", [{"a": 1, "b": 9, "c": 2}, {"a": 9, "b": 1, "c": 2}]) == {}
    assert case.run("SELECT a, b, c FROM t") == [(1, 1, 1)]


def test_update_without_a_target_is_nothing(
    case: PostgresCase, caplog: pytest.LogCaptureFixture
) -> None:
    """POSTGRES_ON_CONFLICT = "update" without a target skips rows, with one warning."""
    case.table("a INT UNIQUE, c INT")
    sink = case.sink(POSTGRES_ON_CONFLICT="update")
    for c in (1, 2):
        assert sink.save_items("t", [{"a": 1, "c": c}]) == {}

    assert case.run("SELECT a, c FROM t") == [(1, 1)]
    assert [
        r.levelname for r in caplog.records if "POSTGRES_CONFLICT_TARGET" in r.getMessage()
    ] == ["WARNING"]


@pytest.mark.parametrize("target", [["a", "b"], "a, b"])
def test_target_columns_are_not_set(case: PostgresCase, target: Any) -> None:
    """Rows of nothing but the target are skipped; a GENERATED column in it is never written to."""
    case.table("a INT, b INT, c INT, UNIQUE (b, a)")
    sink = case.sink(POSTGRES_ON_CONFLICT="update", POSTGRES_CONFLICT_TARGET=target)
    for items in ([{"a": 1, "b": 1, "c": 1}], [{"a": 1, "b": 1}], [{"a": 1, "b": 1, "c": 2}]):
        assert sink.save_items("t", items) == {}

    assert case.run("SELECT a, b, c FROM t") == [(1, 1, 2)]


def test_a_target_without_an_index_is_named(case: PostgresCase) -> None:
    """The error names the setting, its value and what is missing."""
    case.table("a INT, c INT")
    sink = case.sink(POSTGRES_ON_CONFLICT="update", POSTGRES_CONFLICT_TARGET=["a"])
    with pytest.raises(PipelineError, match=r"POSTGRES_CONFLICT_TARGET = \['a'\].*no unique index"):
        sink.save_items("t", [{"a": 1}])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("ON_CONFLICT", "upsert"), ("CONFLICT_TARGET", 5), ("CONFLICT_TARGET", [5])],
)
def test_wrong_settings(case: PostgresCase, setting: str, value: Any) -> None:
    """A value that cannot be used is named."""
    with pytest.raises(ConfigError, match=f"POSTGRES_{setting}"):
        case.sink(**{f"POSTGRES_{setting}": value})


def test_keys_that_are_equal_to_the_database_only(case: PostgresCase) -> None:
    """Values that differ in Python and not in the column: the last one wins."""
    case.table("a NUMERIC UNIQUE, c INT")
    sink = case.sink(POSTGRES_ON_CONFLICT="update", POSTGRES_CONFLICT_TARGET=["a"])
    items = [{"a": "1.0", "c": 1}, {"a": 1, "c": 2}, {"a": "1.00", "c": 3}]

    assert sink.save_items("t", items) == {}
    assert case.run("SELECT c FROM t") == [(3,)]


def test_checks_that_wait_for_the_commit(case: PostgresCase) -> None:
    """A deferred constraint costs the row that breaks it, not the batch."""
    case.run("DROP TABLE IF EXISTS child; DROP TABLE IF EXISTS parent")
    case.table("id INT PRIMARY KEY", "parent")
    case.table("id INT, p INT REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED", "child")
    case.run("INSERT INTO parent VALUES (1)")
    refused = case.sink().save_items("child", [{"id": n, "p": 1 + (n == 5)} for n in range(9)])

    assert refused.keys() == {5}
    assert case.run("SELECT COUNT(*) FROM child") == [(8,)]


def test_a_right_that_is_missing_refuses_the_batch(case: PostgresCase) -> None:
    """Rows are not to blame, and the server is not away."""
    case.table("a INT")
    case.run("DROP ROLE IF EXISTS reader")
    case.run("CREATE ROLE reader LOGIN PASSWORD 'x'")
    sink = case.sink(POSTGRES_USER="reader", POSTGRES_PASSWORD="x")
    with pytest.raises(PipelineError, match="permission denied for table t"):
        sink.save_items("t", [{"a": 1}])


def test_connections_are_few(case: PostgresCase) -> None:
    """Batches share a connection, and the sink leaves none behind."""
    case.table("a INT")
    mine = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'netspy_scrapy'"
    sink = case.sink()
    for n in range(20):
        sink.save_items("t", [{"a": n}])
    during = case.run(mine)
    sink.close()
    until = time.monotonic() + 10  # the server notices a moment later
    while case.run(mine) != [(0,)] and time.monotonic() < until:
        time.sleep(0.05)

    assert during == [(1,)]
    assert case.run(mine) == [(0,)]


@pytest.mark.parametrize("missing", ["psycopg", "psycopg_pool"])
def test_a_driver_that_is_missing(missing: str) -> None:
    """The error says what to install."""
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from netspy_scrapy.pipelines import postgres"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )

    assert 'pip install "netspy-scrapy[postgres]"' in done.stderr
