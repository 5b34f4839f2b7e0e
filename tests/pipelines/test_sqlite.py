from __future__ import annotations

import enum
import json
import logging
import random
import signal
import sqlite3
import sys
import threading
import time
import uuid
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
from scrapy.settings import Settings

from netspy_scrapy.exceptions import ConfigError, PipelineError
from netspy_scrapy.pipelines.sqlite import SqlitePipeline
from tests.pipelines import processes

on_unix = pytest.mark.skipif(sys.platform == "win32", reason="signals: run it on Unix")


def open_sink(path="items.db", unique=()):
    sink = SqlitePipeline()
    sink.bind(SimpleNamespace(settings=Settings({"SQLITE_PATH": str(path)})))
    sink.open()
    sink.unique_keys = tuple(unique)
    return sink


@pytest.fixture
def sink():
    sink = open_sink()
    yield sink
    sink.close()


def ask(sql, *args, path="items.db"):
    with closing(sqlite3.connect(path)) as db:
        found = db.execute(sql, args).fetchall()
        db.commit()
        return found


def start(script, *args):
    """Run *script* in a process of its own, with a sink for this folder."""
    return processes.start(SqlitePipeline, {"SQLITE_PATH": "items.db"}, script, *args)


# Tables and columns ----------------------------------------------------------------------------
def test_rows_with_different_fields_are_stored_whole(sink):
    """Table and columns are made as needed, and no field of any row is lost."""
    answers = [
        sink.save_items("t", [{"a": 1, "b": 2}, {"c": 3, "a": 4}, {"b": 5, "a": 6}]),
        sink.save_items("t", [{"d": 7}, {"a": 8}]),
    ]

    assert answers == [{}, {}]
    assert ask("SELECT a, b, c, d FROM t ORDER BY a") == [
        (None, None, None, 7), (1, 2, None, None), (4, None, 3, None), (6, 5, None, None),
        (8, None, None, None),
    ]  # fmt: skip


def test_names_may_be_anything(sink):
    """Names of tables and columns are quoted: never another table, never another statement."""
    tables = [
        "../x", "a;drop table t", 'a"b', "a b", "x" * 300, "中", "", "select", "a'b", "a`b", "[a]",
        "json_each", "pragma_table_info", "a\nb", "%s", "t.u", "main.t",
    ]  # fmt: skip
    for number, table in enumerate(tables):
        row = dict.fromkeys([*tables, "rowid", "order"], number)
        sink.unique_keys = (table, 'a"b') if number % 2 else ()
        assert sink.save_items(table, [row]) == {}
        assert sink.update_items(table, [row], [table, "rowid"]) == {}
        if number % 2:
            assert sink.save_items(table, [row | {"order": -1}]) == {}

    found = ask("SELECT name FROM sqlite_master WHERE type = 'table'")
    assert sorted(name for (name,) in found) == sorted(tables)
    for number, table in enumerate(tables):
        quoted = table.replace('"', '""')
        values = [number] * (len(tables) + 1) + [-1 if number % 2 else number]
        assert ask(f'SELECT * FROM "{quoted}"') == [tuple(values)]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("sqlite_master", "SQLite keeps the table 'sqlite_master' for itself"),
        ("SQLite_new", "SQLite keeps the table 'SQLite_new' for itself"),
        ("a\0b", r"the name 'a\\x00b' contains NUL"),
        ("\udc80", r"the name '\\udc80' contains lone surrogates"),
    ],
)
def test_impossible_tables_are_refused(sink, table, why):
    """A table that SQLite cannot have is refused with the reason, and nothing is changed."""
    for call in (
        lambda: sink.save_items(table, [{"name": 1}]),
        lambda: sink.update_items(table, [{"name": 1}], ["name"]),
    ):
        with pytest.raises(PipelineError, match=why):
            call()
    assert sink.save_items("t", [{"a": 1}]) == {}
    assert ask("SELECT name FROM sqlite_master") == [("t",)]


def test_columns_do_not_depend_on_case(sink):
    """As everywhere in SQLite `Url` and `url` are one column; a row with both is refused."""
    answer = sink.save_items("t", [{"url": "a"}, {"Url": "b"}, {"url": "c", "URL": "d"}, {"É": 1}])
    again = sink.save_items("T", [{"URL": "e", "é": 2}])
    updated = sink.update_items("t", [{"uRl": "e", "N": 5}], ["URL"])

    assert answer == {2: "the fields 'url' and 'URL' would be one column"}
    assert (again, updated) == ({}, {})
    assert ask('SELECT url, "É", "é", n FROM t ORDER BY url') == [
        (None, 1, None, None), ("a", None, None, None), ("b", None, None, None), ("e", None, 2, 5),
    ]  # fmt: skip


def test_too_many_columns(sink):
    """A row that makes its table too wide is refused; the others are stored."""
    wide = {f"c{n}": n for n in range(2001)}
    answer = sink.save_items("t", [{"a": 1}, wide, {"b": 2}, dict(list(wide.items())[:1998])])
    later = sink.save_items("t", [{"new": 1}, {"c0": "fits"}])

    assert answer == {1: "'t' would have 2002 columns; SQLite takes 2000"}
    assert later == {0: "'t' would have 2001 columns; SQLite takes 2000"}
    assert ask("SELECT a, b, c0, c1997 FROM t") == [
        (1, None, None, None), (None, 2, None, None), (None, None, 0, 1997),
        (None, None, "fits", None),
    ]  # fmt: skip


def test_own_tables_are_respected(sink):
    """A table of the user's keeps its types, defaults, generated columns and constraints."""
    ask(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, price DECIMAL(10, 2), zip TEXT, n DEFAULT 7,"
        " double AS (price * 2))"
    )
    answer = sink.save_items("t", [{"price": "1.50", "zip": "007"}, {"id": 1, "price": 2}])

    assert answer == {1: "IntegrityError: UNIQUE constraint failed: t.id"}
    assert ask("SELECT * FROM t") == [(1, 1.5, "007", 7, 3.0)]


def test_columns_of_other_processes_are_seen(sink):
    """What others change in the database between two batches does not matter."""
    sink.save_items("t", [{"a": 1}])
    ask("ALTER TABLE t ADD COLUMN b")
    first = sink.save_items("t", [{"a": 2, "b": 3}])
    ask("DROP TABLE t")
    second = sink.save_items("t", [{"b": 4}])

    assert (first, second) == ({}, {})
    assert ask("SELECT * FROM t") == [(4,)]


# Values ----------------------------------------------------------------------------------------
class Text(str, enum.Enum):
    ONE = "one"


class Pair(enum.Enum):
    BOTH = (1, 2)


@dataclass
class Price:
    value: Decimal


@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        (None, "null", None),
        ("007", "text", "007"),
        ("1.10", "text", "1.10"),
        ("a\0b", "text", "a\0b"),
        ("\U0001f600\u2028", "text", "\U0001f600\u2028"),
        ("a\udc80b", "text", "a\\udc80b"),
        (True, "integer", 1),
        (2**63 - 1, "integer", 2**63 - 1),
        (-(2**63), "integer", -(2**63)),
        (2**63, "text", str(2**63)),
        (-(10**60), "text", str(-(10**60))),
        (0.1 + 0.2, "real", 0.1 + 0.2),
        (2.0, "real", 2.0),
        (float("inf"), "real", float("inf")),
        (float("nan"), "null", None),
        (b"\xff\0", "blob", b"\xff\0"),
        (bytearray(b"x"), "blob", b"x"),
        (memoryview(b"x"), "blob", b"x"),
        (Decimal("1.10"), "text", "1.10"),
        (Decimal("1E+3"), "text", "1000"),
        (datetime(2025, 3, 1, 12, tzinfo=timezone.utc), "text", "2025-03-01T12:00:00+00:00"),
        (date(2025, 3, 1), "text", "2025-03-01"),
        (timedelta(seconds=5), "text", "0:00:05"),
        (uuid.UUID(int=5), "text", "00000000-0000-0000-0000-000000000005"),
        (Text.ONE, "text", "one"),
        (Pair.BOTH, "text", "[1, 2]"),
        ({"b", "a"}, "text", '["a", "b"]'),
        (OrderedDict(k=[b"x", None]), "text", '{"k": ["x", null]}'),
        (Price(Decimal("9.90")), "text", '{"value": "9.90"}'),
    ],
)
def test_value_is_stored_exactly(sink, value, kind, stored):
    """Each kind of value is stored as documented, whatever the column held before."""
    for first in (1, "text", 1.5, b"x"):
        sink.save_items("t", [{"v": first, "w": 0}])
    answer = sink.save_items("t", [{"v": value, "w": 1}])
    updated = sink.update_items("t", [{"v": value, "w": 0}], ["w"])

    assert (answer, updated) == ({}, {})
    assert ask("SELECT typeof(v), v FROM t") == [(kind, stored)] * 5


def loop():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"a": object()}, "field 'a': cannot store a value of type object"),
        ({"a": loop()}, "field 'a': contains itself, or is nested too deep"),
        ({"a": 10**5000}, "ValueError: Exceeds the limit"),
        ({}, "the row has no fields"),
        ({1: "x"}, "the name 1 is not text"),
        ({"a\0": "x"}, r"the name 'a\x00' contains NUL"),
        ({"\udc80": "x"}, r"the name '\udc80' contains lone surrogates"),
    ],
)
def test_bad_row_costs_one_row(sink, row, reason):
    """A row that cannot be stored is refused with its reason; the others are stored."""
    rows = [{"a": n} for n in range(1000)]
    rows[500] = row
    answer = sink.save_items("t", rows)

    assert list(answer) == [500]
    assert answer[500].startswith(reason)
    assert ask("SELECT count(*), sum(a) FROM t") == [(999, 499_500 - 500)]


def test_integer_that_a_column_would_round(sink):
    """An integer over 64 bits is refused where the column's type would make it a float."""
    ask("CREATE TABLE t (i INTEGER, d DECIMAL, s TEXT, b BLOB)")
    answer = sink.save_items("t", [{name: 2**70, "b": 1} for name in "idsb"])

    assert answer == {
        0: f"OverflowError: the column 'i' of type INTEGER would round {2**70}",
        1: f"OverflowError: the column 'd' of type DECIMAL would round {2**70}",
    }
    assert ask("SELECT s, b FROM t") == [(str(2**70), 1), (None, 1)]


def test_few_bad_rows_among_many(sink):
    """Five rows of 50,000 that break a constraint cost five rows, and hardly any time."""
    ask("CREATE TABLE t (n INTEGER UNIQUE CHECK (n >= 0), s TEXT NOT NULL)")
    rows = [{"n": n, "s": "x"} for n in range(50_000)]
    begin = time.perf_counter()
    sink.save_items("t", rows)
    without = time.perf_counter() - begin
    ask("DELETE FROM t")
    bad = {0: {"n": -1, "s": "x"}, 7: {"n": 6, "s": "x"}, 8: {"n": 8, "s": None},
           20_000: {"n": -5, "s": "x"}, 49_999: {"n": 0.5, "s": None}}  # fmt: skip
    for at, row in bad.items():
        rows[at] = row
    begin = time.perf_counter()
    answer = sink.save_items("t", rows)
    spent = time.perf_counter() - begin

    assert answer == {
        0: "IntegrityError: CHECK constraint failed: n >= 0",
        7: "IntegrityError: UNIQUE constraint failed: t.n",
        8: "IntegrityError: NOT NULL constraint failed: t.s",
        20_000: "IntegrityError: CHECK constraint failed: n >= 0",
        49_999: "IntegrityError: NOT NULL constraint failed: t.s",
    }
    assert ask("SELECT count(*) FROM t") == [(49_995,)]
    assert spent < 10 * without + 1


def test_all_rows_bad(sink):
    """A batch in which every row breaks a constraint is refused row by row."""
    ask("CREATE TABLE t (n NOT NULL)")
    answer = sink.save_items("t", [{"n": None}] * 5000)

    assert answer == dict.fromkeys(range(5000), "IntegrityError: NOT NULL constraint failed: t.n")


@pytest.mark.parametrize("action", ["ROLLBACK", "IGNORE", "REPLACE", "FAIL"])
def test_conflict_clauses_of_the_table_do_no_harm(sink, action):
    """ON CONFLICT in a table of the user's neither undoes a batch nor drops a row in silence."""
    ask(f"CREATE TABLE t (n UNIQUE ON CONFLICT {action}, v)")
    answer = sink.save_items("t", [{"n": n % 3, "v": n} for n in range(4)])

    assert answer == {3: "IntegrityError: UNIQUE constraint failed: t.n"}
    assert ask("SELECT n, v FROM t") == [(0, 0), (1, 1), (2, 2)]


def test_trigger_that_ends_the_transaction(sink):
    """If a trigger takes the whole batch back, the whole batch is refused."""
    ask("CREATE TABLE t (n)")
    ask(
        "CREATE TRIGGER x BEFORE INSERT ON t WHEN new.n = 2 BEGIN SELECT RAISE(ROLLBACK, 'no'); END"
    )

    with pytest.raises(sqlite3.IntegrityError, match="no"):
        sink.save_items("t", [{"n": n} for n in range(4)])
    assert sink.save_items("t", [{"n": 9}]) == {}
    assert ask("SELECT n FROM t") == [(9,)]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="setlimit is new in 3.11: run it there")
def test_statement_that_sqlite_does_not_take(sink):
    """A statement that is too long for SQLite refuses the batch; it does not hang."""
    names = [f"{n}" * 100 for n in range(5)]
    sink.unique_keys = ("a",)
    sink._db.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 1000)

    with pytest.raises(sqlite3.DataError, match="too large"):
        sink.save_items("t", [{"a": 1}, dict.fromkeys(names, 1), {"a": 2}])
    assert sink.save_items("t", [{"a": 3}]) == {}
    assert ask("SELECT a FROM t") == [(3,)]


# Unique keys -----------------------------------------------------------------------------------
@pytest.fixture(params=["index", "duplicates"])
def keyed(request):
    """A sink with the key `url`; a second time with a table that cannot have the index."""
    if request.param == "duplicates":
        ask("CREATE TABLE t (url, a, b)")
        ask("INSERT INTO t VALUES ('twice', 0, 0), ('twice', 0, 0)")
    sink = open_sink(unique=["url"])
    yield sink
    sink.close()


def stored():
    return ask("SELECT url, a, b FROM t WHERE url IS NOT 'twice' ORDER BY url, a, b")


def test_same_key_replaces(keyed):
    """A row with a key that is there overwrites the fields it has; other fields stay."""
    first = keyed.save_items("t", [{"url": "u1", "a": 1, "b": 1}, {"url": "u2", "a": 2, "b": 2}])
    again = keyed.save_items("t", [{"url": "u1", "a": 10}, {"b": 20, "url": "u2"}, {"url": "u1"}])

    assert (first, again) == ({}, {})
    assert stored() == [("u1", 10, 1), ("u2", 2, 20)]


def test_same_key_twice_in_a_batch(keyed):
    """Of rows with the same key in one batch the last wins, also if their fields differ."""
    rng = random.Random(3)
    rows, expected = [], {}
    for n in range(2000):
        key = rng.choice([1, "1", "x", b"x", True, 2.0, 2, "中", "\udc80", 2**70])
        row = {"url": key, **{name: n for name in "ab" if rng.random() < 0.5}}
        rows.append(dict(sorted(row.items(), key=lambda _: rng.random())))
        known = "\\udc80" if key == "\udc80" else str(key) if key == 2**70 else key
        expected.setdefault(known, {"a": None, "b": None}).update(row, url=known)
    answer = keyed.save_items("t", rows)

    assert answer == {}
    found = {url: (a, b) for url, a, b in stored()}
    assert found == {url: (row["a"], row["b"]) for url, row in expected.items()}


def test_rows_without_their_key_are_new(keyed):
    """A None in the key (or no such field, or NaN) never finds a row: it is a new one."""
    nan = float("nan")
    keyed.save_items("t", [{"url": None, "a": 1, "b": 0}, {"url": nan, "a": 2, "b": 0}])
    keyed.save_items("t", [{"url": None, "a": 3}, {"url": nan, "a": 4}, {"a": 5}, {"a": 5}])

    assert [row[:2] for row in stored()] == [(None, n) for n in (1, 2, 3, 4, 5, 5)]


def test_bad_rows_with_a_key(keyed):
    """A row that breaks another constraint is refused alone."""
    keyed.save_items("t", [{"url": "u1", "a": 1, "b": 1}])
    ask("CREATE UNIQUE INDEX other ON t (a) WHERE a > 0")
    rows = [{"url": f"u{n}", "a": n, "b": n} for n in range(2, 6)]
    rows[1]["a"] = 1
    answer = keyed.save_items("t", [*rows, {"url": "u2", "a": 4, "b": 0}])

    assert answer == dict.fromkeys([1, 4], "IntegrityError: UNIQUE constraint failed: t.a")
    assert stored() == [("u1", 1, 1), ("u2", 2, 2), ("u4", 4, 4), ("u5", 5, 5)]


def test_index_is_made_once(sink):
    """The first batch with a key makes the unique index; one of the user's own is used."""
    ask("CREATE TABLE own (sku TEXT PRIMARY KEY, a) WITHOUT ROWID")
    ask("CREATE TABLE rowid (id INTEGER PRIMARY KEY, a)")
    for _ in range(2):
        sink.unique_keys = ("Shop", "sku")
        sink.save_items("made", [{"sku": 1, "shop": 2}])
        sink.unique_keys = ("SKU",)
        sink.save_items("own", [{"sku": "1", "a": 2}])
        sink.unique_keys = ("id",)
        sink.save_items("rowid", [{"id": 1, "a": 2}])

    assert ask("SELECT sql FROM sqlite_master WHERE type = 'index' AND sql > ''") == [
        ('CREATE UNIQUE INDEX "netspy_unique_3587e228" ON "made" ("Shop", "sku")',)
    ]
    assert [ask(f"SELECT count(*) FROM {table}") for table in ("made", "own", "rowid")] == [
        [(1,)]
    ] * 3


def test_duplicates_are_told_once(caplog):
    """Rows that prevent the index are named in one warning a run."""
    ask("CREATE TABLE t (url, a)")
    ask("INSERT INTO t VALUES (1, 0), (1, 0)")
    sink = open_sink(unique=["url"])
    for n in range(3):
        sink.save_items("t", [{"url": 1, "a": n}, {"url": 2, "a": n}])
    sink.close()

    text = (
        "'t' has rows that share url, so it cannot have a unique index: "
        "each row is looked up before it is written"
    )
    assert caplog.record_tuples == [("SqlitePipeline", logging.WARNING, text)]
    assert ask("SELECT url, a FROM t") == [(1, 2), (1, 2), (2, 2)]


# Updates ---------------------------------------------------------------------------------------
def test_update_changes_what_its_key_finds(sink):
    """An update changes the fields that it has; one that changes nothing is no failure."""
    sink.save_items("t", [{"sku": n, "price": n, "name": f"n{n}"} for n in range(4)])
    answer = sink.update_items(
        "t",
        [
            {"sku": 1, "price": 10},
            {"price": 2, "sku": 2},  # as it is
            {"sku": 3, "price": 30, "new": "x"},
            {"sku": 3},  # nothing to change
        ],
        ["sku"],
    )

    assert answer == {}
    assert ask("SELECT * FROM t ORDER BY sku") == [
        (0, 0, "n0", None), (1, 10, "n1", None), (2, 2, "n2", None), (3, 30, "n3", "x"),
    ]  # fmt: skip


def test_update_that_finds_nothing_is_refused(sink):
    """A row that is not there is refused with its key, and never made."""
    sink.save_items("t", [{"a": 1, "b": None, "n": 0}])
    answer = sink.update_items(
        "t",
        [
            {"a": 1, "b": None, "n": 1},
            {"a": 1, "b": "x", "n": 2},
            {"a": None, "b": None, "n": 3},
            {"a": 1, "n": 4},
            {"a": object(), "b": None},
            {"a": 1, "b": "\udc80"},
            {"a": 2**70, "b": None},
        ],
        ["a", "b"],
    )

    assert answer == {
        1: "no row of 't' has a = 1, b = 'x'",
        2: "no row of 't' has a = None, b = None",
        3: "the row lacks a field of its update key: a, b",
        4: "field 'a': cannot store a value of type object",
        5: r"no row of 't' has a = 1, b = '\udc80'",
        6: f"no row of 't' has a = {2**70}, b = None",
    }
    assert ask("SELECT a, b, n FROM t") == [(1, None, 1)]


def test_update_needs_table_and_key_column(sink):
    """An update makes no table and no key column: without them every row is refused."""
    no_table = sink.update_items("t", [{"a": 1}], ["a"])
    sink.save_items("t", [{"a": 1}])
    no_column = sink.update_items("t", [{"k": 1, "a": 2}, {"k": 1, "z": 2}], ["k"])

    assert no_table == {0: "there is no table 't'"}
    assert no_column == dict.fromkeys([0, 1], "'t' has no column 'k'")
    assert ask("SELECT * FROM t") == [(1,)]


def test_bad_row_among_updates(sink):
    """An update that breaks a constraint is refused alone."""
    ask("CREATE TABLE t (sku, price CHECK (price > 0))")
    sink.save_items("t", [{"sku": n, "price": 1} for n in range(1000)])
    rows = [{"sku": n, "price": 2} for n in range(1000)]
    rows[3]["price"] = -1
    answer = sink.update_items("t", rows, ["sku"])

    assert answer == {3: "IntegrityError: CHECK constraint failed: price > 0"}
    assert ask("SELECT price, count(*) FROM t GROUP BY price") == [(1, 1), (2, 999)]


def test_updates_use_an_index(sink):
    """Updates do not read the whole table for each row: an index is made if none helps."""
    sink.save_items("t", [{"a": n, "b": n} for n in range(100)])
    ask("CREATE INDEX mine ON t (a)")
    sink.update_items("t", [{"a": 1, "b": 2}], ["a"])
    sink.update_items("t", [{"a": 1, "b": 2}], ["a", "b"])
    before = ask("SELECT count(*) FROM sqlite_master WHERE type = 'index'")
    for _ in range(2):
        sink.update_items("t", [{"a": 1, "b": 2}], ["b"])

    assert before == [(1,)]
    assert ask("SELECT count(*) FROM sqlite_master WHERE type = 'index'") == [(2,)]


# The file --------------------------------------------------------------------------------------
def test_file_and_folder_are_made(folder, monkeypatch):
    """The folder is made, the database is in WAL mode, and the working folder may change."""
    sink = open_sink("deep/er/items.db")
    Path("other").mkdir()
    monkeypatch.chdir("other")
    sink.save_items("t", [{"a": 1}])
    mode = ask("PRAGMA journal_mode", path=folder / "deep/er/items.db")
    sink.close()
    sink.close()

    assert mode == [("wal",)]
    assert [path.name for path in (folder / "deep/er").iterdir()] == ["items.db"]


def test_path_that_cannot_be_opened():
    """A wrong SQLITE_PATH is an error at the start that names the setting."""
    Path("text.db").write_text("no database at all, but long enough to be looked at" * 100)
    Path("folder").mkdir()

    for path in ("text.db", "folder", "text.db/x.db"):
        with pytest.raises(PipelineError, match=f"SQLITE_PATH = '{path}' cannot be opened: "):
            open_sink(path)
    with pytest.raises(ConfigError, match="SQLITE_PATH"):
        open_sink("")


def test_database_that_is_removed(sink, caplog):
    """If somebody removes or replaces the file during the crawl, later rows are in the new one."""
    sink.save_items("t", [{"a": 1}])
    Path("items.db").rename("moved.db")
    sink.save_items("t", [{"a": 2}])

    assert ask("SELECT a FROM t") == [(2,)]
    assert "items.db was removed or replaced: it is opened again" in caplog.text


def test_readers_are_not_in_the_way(sink):
    """Somebody who reads the database meanwhile sees the last batch, and blocks nothing."""
    sink.save_items("t", [{"a": 1}])
    with closing(sqlite3.connect("items.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        before = reader.execute("SELECT count(*) FROM t").fetchall()
        sink.save_items("t", [{"a": 2}])
        during = reader.execute("SELECT count(*) FROM t").fetchall()
        reader.execute("COMMIT")
        after = reader.execute("SELECT count(*) FROM t").fetchall()

    assert (before, during, after) == ([(1,)], [(1,)], [(2,)])


def test_lock_that_stays(monkeypatch):
    """A database that another process keeps locked refuses the batch after the time-out."""
    monkeypatch.setattr(SqlitePipeline, "lock_timeout", 0.2)
    sink = open_sink()
    with closing(sqlite3.connect("items.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begin = time.monotonic()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sink.save_items("t", [{"a": 1}])
        spent = time.monotonic() - begin
        other.execute("ROLLBACK")
    answer = sink.save_items("t", [{"a": 2}])
    sink.close()

    assert 0.15 < spent < 5
    assert answer == {}
    assert ask("SELECT a FROM t") == [(2,)]


def test_lock_while_opening():
    """A database that is not in WAL mode yet, while another process writes it, is waited for."""
    with closing(sqlite3.connect("items.db", isolation_level=None, check_same_thread=False)) as db:
        db.execute("CREATE TABLE t (a)")
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES (1)")
        timer = threading.Timer(0.3, db.execute, ["COMMIT"])
        timer.start()
        sink = open_sink()
        timer.join()
        sink.save_items("t", [{"a": 2}])
        sink.close()

    assert ask("PRAGMA journal_mode") == [("wal",)]
    assert ask("SELECT a FROM t") == [(1,), (2,)]


def test_full_disk_refuses_the_whole_batch(sink):
    """A batch for which there is no room is taken back and raised; later ones go on."""
    sink.save_items("t", [{"a": "x" * 100}])
    sink._db.execute("PRAGMA max_page_count = 20")
    for keys in ((), ("a",)):
        sink.unique_keys = keys
        with pytest.raises(sqlite3.OperationalError, match="full"):
            sink.save_items("t", [{"a": "y" * 1000 + str(n), "new": 1} for n in range(1000)])
    sink._db.execute("PRAGMA max_page_count = 1000000")
    sink.unique_keys = ()
    answer = sink.save_items("t", [{"a": n} for n in range(10)])

    assert answer == {}
    assert ask("SELECT count(*) FROM t") == [(11,)]
    assert ask("SELECT name FROM pragma_table_info('t')") == [("a",)]


KILLED = """
seed = int(sys.argv[1])
sink.unique_keys = ("key",) if seed % 2 else ()
n = 0
while True:
    rows = [{"run": seed, "n": n + i, "key": "%d/%d" % (seed, n + i), "text": "x" * 3000}
            for i in range(50)]
    rows[7]["extra%d" % (n % 7)] = n
    assert sink.save_items("t%d" % (seed % 2), rows) == {}
    n += 50
    print(n, flush=True)
"""


@on_unix
def test_killed_writers_lose_nothing_that_they_reported():
    """After kill -9 at any moment each reported batch is there, and no batch is there in part."""
    reported = {}
    rng = random.Random(1)
    for seed in range(8):
        process = start(KILLED, seed)
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        reported[seed] = int((process.communicate()[0].split() or [50])[-1])

    assert ask("PRAGMA integrity_check") == [("ok",)]
    for seed, count in reported.items():
        found = ask(f"SELECT n FROM t{seed % 2} WHERE run = ? ORDER BY n", seed)
        assert [n for (n,) in found] == list(range(len(found)))
        assert len(found) >= count
        assert len(found) % 50 == 0


TOGETHER = """
me = int(sys.argv[1])
sink.unique_keys = ("key",)
for k in range(40):
    rows = [{"me": me, "n": 10 * k + i, "key": (me // 2, 10 * k + i)} for i in range(10)]
    rows[3]["only%d_%d" % (me, k % 10)] = "y"
    assert sink.save_items("t", rows) == {}
    assert sink.update_items("t", [{"key": rows[0]["key"], "u%d" % me: k}], ["key"]) == {}
"""


def test_several_processes_write_one_database():
    """Processes that make the same database, table, columns and index at once lose no row."""
    processes = [start(TOGETHER, me) for me in range(4)]
    assert [process.wait() for process in processes] == [0] * 4

    assert ask("SELECT count(*), count(DISTINCT key) FROM t") == [(800, 800)]
    assert ask("SELECT count(u0), count(u1), count(u2), count(u3) FROM t") == [(40,) * 4]
    for me in range(4):
        for k in range(10):
            assert ask(f"SELECT count(only{me}_{k}) FROM t") == [(4,)]
    assert json.loads(ask("SELECT key FROM t WHERE n = 399")[0][0])[1] == 399
