"""What MysqlPipeline and PostgresPipeline have in common, on real servers."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest

from netspy_scrapy.exceptions import ConfigError, PipelineError, SinkUnavailableError
from tests.pipelines.sql_servers import CASES, Case
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import PASSWORD, Postgres
from tests.servers.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = (
    "id SERIAL PRIMARY KEY, url VARCHAR(100) UNIQUE, title VARCHAR(10), n INT,"
    " d VARCHAR(9) DEFAULT 'default', p INT NOT NULL DEFAULT 1 CHECK (p > 0)"
)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """Each of the databases, with the table ``t``."""
    fixture = {"postgres": "postgres_server", "mysql": "mariadb_server"}[request.param]
    one = CASES[request.param](request.getfixturevalue(fixture))
    one.table(COLUMNS)
    yield one
    one.close()


def urls(case: Case, where: str = "1 = 1") -> set[str]:
    return {url for (url,) in case.run(f"SELECT url FROM t WHERE {where}")}


@pytest.mark.parametrize("count", [20, 300])
def test_one_bad_row_costs_one_row(case: Case, count: int) -> None:
    """Whatever is wrong with a row, the others of its batch are stored, few or many."""
    items: list[dict[str, Any]] = [{"url": f"u{n}", "n": n} for n in range(count)]
    items[1]["n"] = "abc"
    items[2]["title"] = "x" * 11
    items[4]["p"] = -1
    items[5]["nowhere"] = 1
    items[6]["n"] = 2**70
    items[7]["n"] = object()
    items[count - 1]["p"] = None
    refused = case.sink(ITEM_MAX_CACHED_COUNT=1).save_items("t", items)

    assert sorted(refused) == [1, 2, 4, 5, 6, 7, count - 1]
    assert refused[5] == "the table 't' has no column 'nowhere'"
    assert refused[7] == "field 'n': cannot store a value of type object"
    assert "abc" in refused[1]
    assert "title" in refused[2]
    assert urls(case) == {f"u{n}" for n in range(count) if n not in refused}


def test_a_missing_field_is_not_null(case: Case) -> None:
    """Rows with different fields are all stored; a field that is missing gets the default."""
    items = [
        {"url": "a", "n": 1},
        {"url": "b"},
        {"n": 3, "url": "c", "d": None},
        {"url": "d", "p": 5},
    ]

    assert case.sink().save_items("t", items) == {}
    assert case.run("SELECT url, n, d, p FROM t ORDER BY url") == [
        ("a", 1, "default", 1),
        ("b", None, "default", 1),
        ("c", 3, None, 1),
        ("d", None, "default", 5),
    ]


@pytest.mark.parametrize("count", [3, 300])
def test_upsert(case: Case, count: int) -> None:
    """A row whose key is there overwrites the fields that it has; of equal keys the last wins."""
    sink = case.sink(**case.update)
    first = [{"url": f"u{n}", "title": "old", "n": n} for n in range(count)]
    assert sink.save_items("t", first) == {}
    second = [{"url": f"u{n}", "n": 1000 + n} for n in range(count)]
    second += [{"url": "u0", "n": 1}, {"url": "new", "n": 1}, {"url": "new", "n": 2}]
    assert sink.save_items("t", second) == {}

    found = {url: rest for url, *rest in case.run("SELECT url, title, n FROM t")}
    assert found.pop("new") == [None, 2]
    assert found.pop("u0") == ["old", 1]
    assert found == {f"u{n}": ["old", 1000 + n] for n in range(1, count)}


def test_upsert_of_rows_with_different_fields(case: Case) -> None:
    """Rows of one key are written in their order, whatever fields they have."""
    sink = case.sink(**case.update)
    sink.unique_keys = ("url",)
    items = [
        {"url": "a", "title": "1"}, {"url": "a", "n": 2}, {"url": "a", "title": "3"},
        {"url": "a", "n": 4, "title": "4"}, {"url": "a", "n": 5},
    ]  # fmt: skip

    assert sink.save_items("t", items) == {}
    assert case.run("SELECT url, title, n FROM t") == [("a", "4", 5)]


def test_a_bad_row_does_not_take_the_place_of_a_good_one(case: Case) -> None:
    """Where the last row of a key is refused, the one before it is stored."""
    items = [{"url": "a", "n": 1, "p": 1}, {"url": "a", "n": 2, "p": -1}]
    refused = case.sink(**case.update).save_items("t", items)

    assert list(refused) == [1]
    assert case.run("SELECT url, n FROM t") == [("a", 1)]


def test_a_null_in_the_key_is_no_conflict(case: Case) -> None:
    """Rows whose key is NULL are all new, as the databases see it."""
    items = [{"url": None, "n": n} for n in range(3)]

    assert case.sink(**case.update).save_items("t", items) == {}
    assert case.run("SELECT COUNT(*) FROM t") == [(3,)]


@pytest.mark.parametrize("count", [4, 200])
def test_duplicates_are_refused_on_demand(case: Case, count: int) -> None:
    """In the strict mode a row whose key is there is refused, with the server's words."""
    items = [{"url": f"u{n}"} for n in range(count)]
    items[2] = {"url": "u0"}
    refused = case.sink(**case.refuse).save_items("t", items)

    assert list(refused) == [2]
    assert "uplicate" in refused[2]
    assert len(urls(case)) == count - 1


def test_updates(case: Case) -> None:
    """An update changes its row; one that finds none, or is bad, is refused, and only that."""
    case.run("INSERT INTO t (url, n) VALUES ('a', 1), ('b', 2), (NULL, 3), ('c', 4)")
    items = [
        {"url": "a", "n": 10, "title": "ten"}, {"url": "nowhere", "n": 1, "title": ""},
        {"url": "b", "n": 2, "title": "x" * 11}, {"url": None, "n": 30, "title": "null"},
        {"url": "c", "n": 4, "title": None}, {"url": "a", "n": 11, "title": "eleven"},
        {"url": "c", "n": 5},
    ]  # fmt: skip
    refused = case.sink().update_items("t", items, ["url"])

    assert refused.keys() == {1, 2}
    assert refused[1] == "no row of 't' has url = 'nowhere'"
    assert set(case.run("SELECT url, n, title FROM t")) == {
        ("a", 11, "eleven"), ("b", 2, None), (None, 30, "null"), ("c", 5, None)
    }  # fmt: skip


def test_an_update_that_changes_nothing_is_one(case: Case) -> None:
    """A row that has the new values already is found; so is one that is only looked for."""
    case.run("INSERT INTO t (url, n) VALUES ('a', 1)")
    sink = case.sink()

    assert sink.update_items("t", [{"url": "a", "n": 1}], ["url"]) == {}
    assert sink.update_items("t", [{"url": "a"}, {"url": "b"}], ["url"]).keys() == {1}
    assert sink.update_items("t", [{"n": 1}], ["url"])[0].startswith("the row lacks a field")


def test_an_update_by_several_keys(case: Case) -> None:
    """All keys have to match."""
    case.run("INSERT INTO t (url, n) VALUES ('a', 1), ('b', 1), ('c', NULL)")
    items = [{"url": "a", "n": 1, "d": "x"}, {"url": "b", "n": 2, "d": "x"},
             {"url": "c", "n": None, "d": "x"}]  # fmt: skip

    assert case.sink().update_items("t", items, ["n", "url"]).keys() == {1}
    assert urls(case, "d = 'x'") == {"a", "c"}


@pytest.mark.parametrize(
    "name", ["../x", "a;drop table t", 'a"b`c', "with space", "{0} %s %(a)s", "t'"]
)
def test_names_of_tables_and_columns_are_data(case: Case, name: str) -> None:
    """A name is quoted, whatever is in it: never another table, never another statement."""
    case.table(f"{case.quote(name)} INT, k INT UNIQUE", name)
    try:
        sink = case.sink()
        many = [{name: n, "k": n} for n in range(100)]
        assert sink.save_items(name, [{name: 1, "k": 1000}]) == {}
        assert sink.save_items(name, many) == {}
        assert sink.update_items(name, [{name: 5, "k": 1}], ["k"]) == {}
        assert case.run(f"SELECT {case.quote(name)} FROM {case.quote(name)} WHERE k = 1") == [(5,)]
    finally:
        case.run(f"DROP TABLE {case.quote(name)}")


@pytest.mark.parametrize("name", ["missing", "x" * 300, "a\0b", "\udc80"])
def test_a_missing_table_refuses_the_batch(case: Case, name: str) -> None:
    """The error names the table and the database, or says what is wrong with the name."""
    with pytest.raises(PipelineError) as caught:
        case.sink().save_items(name, [{"a": 1}])

    assert not isinstance(caught.value, SinkUnavailableError)
    expected = "the name" if "\0" in name or "\udc80" in name else f"{case.name}_DB = 'spider'"
    assert expected in str(caught.value)


def test_a_table_may_change(case: Case) -> None:
    """A column that is added while the crawl runs is there for the next batch."""
    sink = case.sink()
    assert sink.save_items("t", [{"url": "a", "later": 1}]).keys() == {0}
    case.run("ALTER TABLE t ADD later INT")

    assert sink.save_items("t", [{"url": "a", "later": 1}]) == {}
    assert sink.save_items("t", [{"url": f"u{n}", "later": n} for n in range(99)]) == {}


def test_items_stay_as_they_are(case: Case) -> None:
    """What the sink makes of values does not reach the rows, which may have to be dumped."""
    items = [{"url": b"bytes", "n": True, "title": {"a": [1]}}]
    before = [dict(item) for item in items]
    case.sink().save_items("t", items)

    assert items == before


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [("PASSWORD", "wrong", "PASSWORD"), ("USER", "nobody", "USER"), ("DB", "nothing", "DB")],
)
def test_a_wrong_setting_is_named(case: Case, setting: str, value: str, named: str) -> None:
    """The crawl does not start; the error names the setting and never the password."""
    with pytest.raises(PipelineError) as caught:
        case.sink(**{f"{case.name}_{setting}": value})

    text = str(caught.value)
    assert not isinstance(caught.value, SinkUnavailableError)
    assert f"{case.name}_{named}" in text
    assert PASSWORD not in text
    assert "wrong" not in text


@pytest.mark.parametrize(
    ("setting", "value"),
    [("PORT", 0), ("PORT", 70000), ("PORT", "abc"), ("HOST", ""), ("POOL_SIZE", 0)],
)
def test_an_impossible_setting_is_named(case: Case, setting: str, value: Any) -> None:
    """A value that cannot be used is an error naming it."""
    with pytest.raises(ConfigError, match=f"{case.name}_{setting}"):
        case.sink(**{f"{case.name}_{setting}": value})


def test_a_password_is_never_shown(case: Case) -> None:
    """Not even one that is of the wrong type, nor by a representation."""
    with pytest.raises(ConfigError) as caught:
        case.sink(**{f"{case.name}_PASSWORD": 12345678})

    assert "12345678" not in str(caught.value)
    assert "geheim" not in repr(case.sink().server)


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid"])
def test_a_server_that_is_away(case: Case, host: str) -> None:
    """Nobody listens, or no such host: no set-up fault, as it may come."""
    with pytest.raises(SinkUnavailableError, match=f"{case.name}_HOST = '{host}'"):
        case.sink(**{f"{case.name}_HOST": host, f"{case.name}_PORT": 1})


def test_an_empty_batch_of_impossible_rows(case: Case) -> None:
    """Rows without fields, or with fields that are no names, are refused one by one."""
    refused = case.sink().save_items("t", [{}, {"url": "a"}, {5: 1}, {"a\0": 1}])

    assert refused.keys() == {0, 2, 3}
    assert urls(case) == {"a"}


# Servers that go away ------------------------------------------------------------------------
@pytest.fixture(params=CASES)
def own(request: pytest.FixtureRequest) -> Iterator[Case]:
    """A server of the test's own, with the table ``t``."""
    with {"postgres": Postgres, "mysql": MariaDB}[request.param]() as server:
        one = CASES[request.param](server)
        one.table(COLUMNS)
        yield one
        one.forget()
        one.close()


def test_a_killed_server(own: Case) -> None:
    """Rows cannot be stored while it is away, and can once it is back; no connection is stale."""
    sink = own.sink()
    assert sink.save_items("t", [{"url": "before"}]) == {}
    own.server.kill()
    own.forget()
    for _ in range(2):
        with pytest.raises(SinkUnavailableError) as caught:
            sink.save_items("t", [{"url": "after"}])
        assert not caught.value.in_doubt
    own.server.start()

    assert sink.save_items("t", [{"url": "after"}]) == {}
    assert urls(own) == {"before", "after"}


@pytest.mark.timed
def test_a_server_that_hangs(own: Case) -> None:
    """A server that does not answer counts as away after NETSPY_SINK_TIMEOUT."""
    sink = own.sink(NETSPY_SINK_TIMEOUT=1)
    assert sink.save_items("t", [{"url": "before"}]) == {}
    own.server.freeze()
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError):
        sink.save_items("t", [{"url": "after"}])
    with pytest.raises(SinkUnavailableError):
        sink.save_items("t", [{"url": "after"}])
    assert time.monotonic() - began < 30
    own.server.thaw()

    assert sink.save_items("t", [{"url": "after"}]) == {}
    assert urls(own) == {"before", "after"}


@pytest.mark.timed
def test_a_server_that_hangs_may_be_left(own: Case) -> None:
    """Closing the sink does not wait for it."""
    sink = own.sink(NETSPY_SINK_TIMEOUT=1)
    sink.save_items("t", [{"url": "before"}])
    own.server.freeze()
    with pytest.raises(SinkUnavailableError):
        sink.save_items("t", [{"url": "after"}])
    began = time.monotonic()
    sink.close()

    assert time.monotonic() - began < 10
    own.server.thaw()


def test_a_lock_is_waited_for(case: Case) -> None:
    """A deadlock costs no row: the batch is tried again."""
    import threading

    case.run("INSERT INTO t (url, n) VALUES ('a', 0), ('b', 0)")
    sinks = [case.sink(), case.sink()]
    orders = [["a", "b"], ["b", "a"]]
    refused: list[Any] = []

    def work(sink: Any, order: list[str]) -> None:
        for _ in range(20):
            # Different fields, so that the rows are locked one after the other.
            items = [{"url": order[0], "n": 1}, {"url": order[1], "title": "x"}]
            refused.append(sink.update_items("t", items, ["url"]))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(sinks, orders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert refused == [{}] * 40


@pytest.mark.parametrize("verb", ["INSERT", "COMMIT"])
def test_a_connection_that_breaks(case: Case, verb: str) -> None:
    """A batch is stored once, or counted as one that may be stored twice."""
    with Proxy(case.server.port) as proxy:
        sink = case.sink(**{f"{case.name}_PORT": proxy.port, "NETSPY_SINK_TIMEOUT": 20})
        proxy.cut_after = case.commit if verb == "COMMIT" else b"INSERT"
        with pytest.raises(SinkUnavailableError) as caught:
            sink.save_items("t", [{"title": f"r{n}"} for n in range(100)])
        in_doubt = verb == "COMMIT" and case.name == "MYSQL"
        assert len(caught.value.in_doubt) == (100 if in_doubt else 0)
        assert ("was committed" in str(caught.value)) == (verb == "COMMIT")
        assert sink.save_items("t", [{"title": f"r{n}"} for n in range(100)]) == {}

    assert case.run("SELECT COUNT(*) FROM t") == [(200 if in_doubt else 100,)]


def test_another_batch_after_a_doubtful_one(case: Case) -> None:
    """A batch that comes next is not taken for the one whose commit was not confirmed."""
    with Proxy(case.server.port) as proxy:
        sink = case.sink(**{f"{case.name}_PORT": proxy.port})
        proxy.cut_after = case.commit
        with pytest.raises(SinkUnavailableError):
            sink.save_items("t", [{"title": "first"}])
        assert sink.save_items("t", [{"title": "second"}]) == {}

    assert set(case.run("SELECT title FROM t")) == {("first",), ("second",)}


def test_no_noise(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """A sink that works says nothing."""
    caplog.set_level(logging.DEBUG)
    sink = case.sink()
    sink.save_items("t", [{"url": f"u{n}", "n": "bad" if n == 5 else n} for n in range(100)])
    sink.update_items("t", [{"url": "u1", "n": 2}, {"url": "nowhere", "n": 2}], ["url"])
    sink.close()

    assert [
        record.getMessage() for record in caplog.records if record.levelno >= logging.INFO
    ] == []
