"""What is MySQL's own."""

from __future__ import annotations

import datetime as dt
import enum
import logging
import math
import subprocess
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from netspy_scrapy.exceptions import PipelineError
from netspy_scrapy.pipelines import mysql_driver
from tests.pipelines.sql_servers import MysqlCase
from tests.servers.mariadb import MariaDB

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUS2 = dt.timezone(dt.timedelta(hours=2))
NOON = dt.datetime(2026, 5, 1, 12, 0, 0, 5)  # noqa: DTZ001
ZONED = NOON.replace(tzinfo=PLUS2)

HARD = "\\N \\0 tab\t new\n cr\r '\" 😀 nul\0 %s {}"


class Mood(enum.Enum):
    """An enum of the project's."""

    GOOD = "good"


@pytest.fixture(scope="module")
def closed_server() -> Iterator[MariaDB]:
    """A server that forbids LOCAL INFILE."""
    with MariaDB("--local-infile=0", "--max-allowed-packet=4M") as server:
        yield server


@pytest.fixture(params=["load", "statements"])
def case(request: pytest.FixtureRequest) -> Iterator[MysqlCase]:
    """A database that takes LOAD DATA LOCAL, and one that does not."""
    name = "mariadb_server" if request.param == "load" else "closed_server"
    one = MysqlCase(request.getfixturevalue(name))
    yield one
    one.close()


VALUES = [
    ("TEXT", "", ""),
    ("TEXT", HARD, HARD),
    ("TEXT", "lone \udc80", "lone \\udc80"),
    ("TEXT", 5, "5"),
    ("TEXT", True, "1"),
    ("TEXT", b"bytes \xc3\xa9", "bytes é"),
    ("TEXT", {"a": [1, None]}, '{"a": [1, null]}'),
    ("TEXT", Mood.GOOD, "good"),
    ("VARCHAR(3)", "äöü", "äöü"),
    ("INT", True, 1),
    ("INT", 3.0, 3),
    ("INT", "12", 12),
    ("BIGINT UNSIGNED", 2**64 - 1, 2**64 - 1),
    ("BIT(1)", True, b"\1"),
    ("DOUBLE", 0.1, 0.1),
    ("DOUBLE", 1e300, 1e300),
    ("DECIMAL(65)", 10**60, Decimal(10**60)),
    ("DECIMAL(10,2)", Decimal("9.99"), Decimal("9.99")),
    ("DECIMAL(10,2)", 9.99, Decimal("9.99")),
    ("BLOB", b"\0\xff\\\t\n", b"\0\xff\\\t\n"),
    ("BLOB", "text", b"text"),
    ("DATETIME(6)", NOON, NOON),
    ("DATETIME(6)", ZONED, NOON.replace(hour=10)),
    ("DATE", dt.date(2026, 5, 1), dt.date(2026, 5, 1)),
    ("TIME(6)", dt.timedelta(hours=-30, microseconds=7), -dt.timedelta(hours=30, microseconds=-7)),
    ("TIME", dt.time(1, 2, 3), dt.timedelta(hours=1, minutes=2, seconds=3)),
    ("CHAR(36)", UUID(int=7), str(UUID(int=7))),
    ("JSON", {"a": "é\n\"'\\"}, '{"a": "é\\n\\"\'\\\\"}'),
    ("ENUM('good', 'bad')", "bad", "bad"),
    ("ENUM('good', 'bad')", 1, "good"),
    ("SET('x', 'y')", "x,y", "x,y"),
    ("YEAR", 2026, 2026),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "stored"), VALUES)
def test_values(case: MysqlCase, kind: str, value: Any, stored: Any) -> None:
    """A value is stored the same alone, among many, and by an update."""
    case.table(f"k INT, v {kind}")
    sink = case.sink()
    assert sink.save_items("t", [{"k": 1, "v": value}, {"k": 2, "v": None}]) == {}
    assert sink.save_items("t", [{"k": n, "v": value} for n in range(3, 99)]) == {}
    assert sink.update_items("t", [{"k": 2, "v": value}], ["k"]) == {}

    assert case.run("SELECT v FROM t") == [(stored,)] * 98


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("DOUBLE", math.nan, "field 'v': MySQL has no nan"),
        ("DOUBLE", -math.inf, "field 'v': MySQL has no -inf"),
        ("TEXT", object(), "field 'v': cannot store a value of type object"),
        ("TEXT", b"\xff\xfe", "Incorrect string value"),
        pytest.param("DECIMAL(65)", 10**5000, "field 'v': Exceeds the limit", id="huge"),
        ("INT", "", "Incorrect integer value"),
        ("INT", "5 pieces", "v"),
        ("BIGINT", 2**63, "Out of range value for column 'v'"),
        ("JSON", "no json", "CONSTRAINT `t.v` failed"),
        ("DATETIME", "soon", "Incorrect datetime value"),
        ("VARCHAR(3)", "four", "Data too long for column 'v'"),
        ("ENUM('a')", "b", "v"),
    ],
)
@pytest.mark.parametrize("count", [20, 90])
def test_values_that_are_refused(
    case: MysqlCase, kind: str, value: Any, why: str, count: int
) -> None:
    """What a column cannot hold costs its row: nothing is cut or made 0."""
    case.table(f"k INT, v {kind}")
    refused = case.sink().save_items(
        "t", [{"k": n, "v": value if n == 7 else None} for n in range(count)]
    )

    assert refused.keys() == {7}
    assert why in refused[7]
    assert "at row" not in refused[7]
    assert case.run("SELECT COUNT(*) FROM t") == [(count - 1,)]


def test_a_server_that_would_cut_values(closed_server: MariaDB) -> None:
    """The session is strict, whatever the server's default is."""
    case = MysqlCase(closed_server)
    root = closed_server.connect(user="root", password=b"")
    with root.cursor() as cursor:
        cursor.execute("SET GLOBAL sql_mode = ''")
    try:
        case.table("v VARCHAR(3)")
        assert case.sink().save_items("t", [{"v": "four"}]).keys() == {0}
    finally:
        with root.cursor() as cursor:
            cursor.execute("SET GLOBAL sql_mode = DEFAULT")
        root.close()
        case.close()


@pytest.mark.parametrize("count", [1, 60])
def test_zones(case: MysqlCase, count: int) -> None:
    """In a TIMESTAMP column a datetime with a zone is that moment, in any zone of the session."""
    root = case.server.connect(user="root", password=b"")
    with root.cursor() as cursor:
        cursor.execute("SET GLOBAL time_zone = '+05:00'")
    try:
        case.table("k INT, a TIMESTAMP(6) NULL, b TIMESTAMP(6) NULL")
        sink = case.sink()
        assert sink.save_items("t", [{"k": n, "a": ZONED, "b": NOON} for n in range(count)]) == {}
        assert sink.save_items("t", [{"k": -1, "a": None}]) == {}
        assert sink.update_items("t", [{"k": -1, "a": ZONED, "b": NOON}], ["k"]) == {}
        case.run("SET SESSION time_zone = '+00:00'")
        found = case.run("SELECT a, b FROM t")
    finally:
        with root.cursor() as cursor:
            cursor.execute("SET GLOBAL time_zone = DEFAULT")
        root.close()

    # Without a zone it is as the session has it: 12:00 at +05:00.
    assert found == [(NOON.replace(hour=10), NOON.replace(hour=7))] * (count + 1)


def test_values_of_several_types_in_one_column(case: MysqlCase) -> None:
    """Each row keeps its own value."""
    case.table("k INT, v TEXT")
    values = ["a", 1, 2.5, True, b"b", None, Decimal("1.50"), "é"] * 20
    assert case.sink().save_items("t", [{"k": n, "v": v} for n, v in enumerate(values)]) == {}

    assert [row[0] for row in case.run("SELECT v FROM t ORDER BY k")] == [
        "a", "1", "2.5", "1", "b", None, "1.50", "é"
    ] * 20  # fmt: skip


@pytest.mark.parametrize("count", [1, 60])
def test_names_in_any_case(case: MysqlCase, count: int) -> None:
    """Columns have no case; two fields that are one column refuse their row."""
    case.table("k INT UNIQUE, Title VARCHAR(9)")
    sink = case.sink()
    sink.unique_keys = ("k",)
    assert sink.save_items("t", [{"K": n, "TITLE": "x"} for n in range(count)]) == {}
    assert sink.update_items("t", [{"K": 0, "title": "y"}], ["k"]) == {}

    assert sink.save_items("t", [{"k": 1, "title": "x", "Title": "y"}]) == {
        0: "the fields 'title' and 'Title' would be one column"
    }
    assert case.run("SELECT title FROM t WHERE k = 0") == [("y",)]


def test_a_number_finds_a_text_as_text(case: MysqlCase) -> None:
    """An update by 5 does not change the row of '5 pieces'."""
    case.table("sku VARCHAR(9), v INT")
    case.run("INSERT INTO t VALUES ('5', 0), ('5 pieces', 0)")

    assert case.sink().update_items("t", [{"sku": 5, "v": 1}], ["sku"]) == {}
    assert set(case.run("SELECT sku, v FROM t")) == {("5", 1), ("5 pieces", 0)}


def test_the_way_is_chosen_once_and_said(
    closed_server: MariaDB, caplog: pytest.LogCaptureFixture
) -> None:
    """Where LOAD DATA LOCAL is forbidden, one line says so at the start."""
    case = MysqlCase(closed_server)
    case.table("k INT")
    sink = case.sink()
    for n in range(3):
        assert sink.save_items("t", [{"k": n}] * 60) == {}
    case.close()
    said = [one.getMessage() for one in caplog.records if "LOAD DATA LOCAL" in one.getMessage()]

    assert len(said) == 1
    assert "rows go in INSERT statements" in said[0]


def test_rights_for_a_temporary_table_are_missing(
    mariadb_server: MariaDB, caplog: pytest.LogCaptureFixture
) -> None:
    """A user who may only INSERT writes rows, and upserts them."""
    case = MysqlCase(mariadb_server)
    case.table("k INT UNIQUE, v INT")
    root = mariadb_server.connect(user="root", password=b"")
    with root.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER writer@'127.0.0.1' IDENTIFIED BY 'x'")
        cursor.execute("GRANT SELECT, INSERT, UPDATE ON spider.* TO writer@'127.0.0.1'")
    root.close()
    sink = case.sink(MYSQL_USER="writer", MYSQL_PASSWORD="x")
    for v in (1, 2):
        assert sink.save_items("t", [{"k": n, "v": v} for n in range(80)]) == {}

    assert case.run("SELECT COUNT(*), MIN(v) FROM t") == [(80, 2)]
    assert "rows go in INSERT statements" in caplog.text
    case.close()


def test_a_right_that_is_missing_refuses_the_batch(case: MysqlCase) -> None:
    """Rows are not to blame, and the server is not away."""
    case.table("k INT")
    root = case.server.connect(user="root", password=b"")
    with root.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER reader@'127.0.0.1' IDENTIFIED BY 'x'")
        cursor.execute("GRANT SELECT, CREATE TEMPORARY TABLES ON spider.* TO reader@'127.0.0.1'")
    root.close()
    sink = case.sink(MYSQL_USER="reader", MYSQL_PASSWORD="x")
    for count in (1, 60):
        with pytest.raises(PipelineError, match=r"INSERT.* command denied"):
            sink.save_items("t", [{"k": 1}] * count)


def test_rows_larger_than_a_packet(case: MysqlCase) -> None:
    """Rows go in as many statements as the server's limit asks for; one over it is refused."""
    case.table("k INT, v LONGTEXT")
    sink = case.sink()
    rows: list[dict[str, Any]] = [{"k": n, "v": "x" * 300_000} for n in range(30)]
    rows[5]["v"] = "y" * 17_000_000
    refused = sink.save_items("t", rows)

    assert refused.keys() == {5}
    assert "max_allowed_packet is" in refused[5]
    assert case.run("SELECT COUNT(*), MIN(LENGTH(v)) FROM t") == [(29, 300_000)]


def test_a_server_gets_no_file(mariadb_server: MariaDB) -> None:
    """Whatever file LOAD DATA LOCAL names, the server gets the connection's text."""
    case = MysqlCase(mariadb_server)
    case.table("v TEXT")
    db = mysql_driver.connect(case.sink().server)
    db.load("LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t", b"mine\n")
    db.run("LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t")
    db.commit()
    db.close()

    assert case.run("SELECT v FROM t") == [("mine",)]
    case.close()


def test_a_temporary_table_of_the_same_name(mariadb_server: MariaDB) -> None:
    """A table that is called as ours, with columns called as ours, is written like any other."""
    case = MysqlCase(mariadb_server)
    case.table("netspy_row INT UNIQUE, netspy_0 INT", "other")
    sink = case.sink()
    for v in (1, 2):
        assert sink.save_items("other", [{"netspy_row": n, "netspy_0": v} for n in range(60)]) == {}

    assert case.run("SELECT COUNT(*), MIN(netspy_0) FROM other") == [(60, 2)]
    case.close()


def test_no_update_on_duplicate_is_a_switch(
    mariadb_server: MariaDB, caplog: pytest.LogCaptureFixture
) -> None:
    """MYSQL_UPDATE_ON_DUPLICATE = "False", as from the command line, is no."""
    case = MysqlCase(mariadb_server)
    case.table("k INT UNIQUE")
    sink = case.sink(MYSQL_UPDATE_ON_DUPLICATE="False")

    assert sink.save_items("t", [{"k": 1}, {"k": 1}]).keys() == {1}
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    case.close()


@pytest.mark.parametrize("missing", ["pymysql", "dbutils"])
def test_a_driver_that_is_missing(missing: str) -> None:
    """The error says what to install."""
    code = f"import sys; sys.modules[{missing!r}] = None; from netspy_scrapy.pipelines import mysql"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )

    assert 'pip install "netspy-scrapy[mysql]"' in done.stderr
