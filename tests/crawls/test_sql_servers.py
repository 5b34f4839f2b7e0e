"""Whole crawls into MariaDB and PostgreSQL: servers that go away, bad rows, replay."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import netspy_scrapy as mw
from netspy_scrapy.commands import retry
from tests.crawling import PlainSpider, crawl, dumped, netspy_stats, reason
from tests.pipelines.sql_servers import CASES, Case
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import PASSWORD, Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEMS = "failed_items.jsonl"


class BookItem(mw.Item):
    """A row."""

    __table_name__ = "books"
    __unique_key__: ClassVar[list[str]] = ["url"]


class PriceItem(mw.UpdateItem):
    """An update of it."""

    __table_name__ = "books"
    __update_key__: ClassVar[list[str]] = ["url"]


class Books(PlainSpider):
    """Yields ``count`` rows within ``seconds``, and runs ``halfway`` in between."""

    count = 1000
    seconds = 0.0
    halfway: Any = None
    items: Any = ()

    async def parse(self, response: Any) -> Any:
        for item in self.items:
            yield item
        for number in range(self.count):
            if number == self.count // 2 and self.halfway is not None:
                await asyncio.to_thread(self.halfway)
            if number % 50 == 0:
                await asyncio.sleep(self.seconds * 50 / max(self.count, 1))
            yield BookItem(url=f"u{number}", n=number)


@pytest.fixture(params=CASES)
def own(request: pytest.FixtureRequest) -> Iterator[Case]:
    """A server of the test's own, with a table."""
    with {"postgres": Postgres, "mysql": MariaDB}[request.param]() as server:
        one = CASES[request.param](server)
        make_table(one)
        yield one
        one.forget()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """A server that tests share."""
    fixture = {"postgres": "postgres_server", "mysql": "mariadb_server"}[request.param]
    one = CASES[request.param](request.getfixturevalue(fixture))
    make_table(one)
    yield one
    one.close()


def make_table(case: Case) -> None:
    case.table(
        "id SERIAL PRIMARY KEY, url VARCHAR(40), n INT, price FLOAT, title VARCHAR(9)", "books"
    )


def count(case: Case) -> int:
    return int(case.run("SELECT COUNT(*) FROM books")[0][0])


def run(case: Case, settings: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    """Crawl into the server of *case*; return the stats of the sink."""
    merged = {**case.server.settings, "ITEM_PIPELINES": {case.path: 300}, **(settings or {})}
    crawler = crawl(Books, merged, urls=("data:,",), **arguments)
    assert reason(crawler) == "finished"
    prefix = f"netspy/rows/{case.path.rpartition('.')[2]}/"
    stats = netspy_stats(crawler)
    found = {key[len(prefix) :]: n for key, n in stats.items() if key.startswith(prefix)}
    found.pop("batches", None)
    return found


def later(seconds: float, function: Any) -> None:
    threading.Timer(seconds, function).start()


def test_all_rows_arrive(case: Case) -> None:
    """Plain dicts, items and updates are stored; nothing is dumped."""
    update = PriceItem(url="first", price=2.5)
    items = [BookItem(url="first", n=1), update, {"url": "dict"}]
    stats = run(case, {"ITEM_DEFAULT_TABLE": "books"}, items=items)

    assert stats == {"stored": 1003}
    assert count(case) == 1002
    assert case.run("SELECT n, price FROM books WHERE url = 'first'") == [(1, 2.5)]
    assert dumped(ITEMS) == []


def test_one_bad_row_of_a_thousand(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """999 rows are stored and one is dumped with the server's reason, its values as they were."""
    bad = BookItem(url="bad", title="far too long", n=True)
    missing = PriceItem(url="nowhere", price=1)
    stats = run(case, items=[bad, missing], count=999)

    assert stats == {"stored": 999, "refused": 2, "dumped": 2}
    assert count(case) == 999
    first, second = dumped(ITEMS)
    assert first["data"] == {"url": "bad", "title": "far too long", "n": True}
    assert first["pipelines"] == [case.path]
    assert "title" in first["reason"]
    assert (second["update_keys"], second["reason"]) == (
        ["url"],
        "no row of 'books' has url = 'nowhere'",
    )

    # Once the cause is gone, the replay stores both, by the way each was to go.
    case.run("INSERT INTO books (url) VALUES ('nowhere')")
    case.run(f"ALTER TABLE books {'MODIFY' if case.name == 'MYSQL' else 'ALTER'} title "
             f"{'' if case.name == 'MYSQL' else 'TYPE '}VARCHAR(40)")  # fmt: skip
    assert retry.main(["--items", *options(case)]) == 0
    assert dumped(ITEMS) == []
    assert case.run("SELECT n FROM books WHERE url = 'bad'") == [(1,)]
    assert case.run("SELECT price FROM books WHERE url = 'nowhere'") == [(1,)]
    assert PASSWORD not in capsys.readouterr().out


def options(case: Case) -> list[str]:
    """Return the settings as options of a command."""
    return [
        part for name, value in case.server.settings.items() for part in ("-s", f"{name}={value}")
    ]


@pytest.mark.timed
def test_a_server_that_is_killed_and_comes_back(
    own: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """kill -9 in the middle, back after 20 s: every row is there once, none is dumped."""

    def halfway() -> None:
        own.server.kill()
        own.forget()
        later(20, own.server.start)

    stats = run(own, seconds=2, halfway=halfway)

    assert stats == {"stored": 1000, "outages": 1}
    assert count(own) == 1000
    assert dumped(ITEMS) == []
    assert "its server is away; rows wait" in caplog.text
    assert "its server is back after" in caplog.text
    assert "geheim" not in caplog.text


@pytest.mark.timed
def test_a_server_that_is_away_before_the_start(own: Case) -> None:
    """The crawl starts without it, and stores all once it is there."""
    own.server.kill()
    own.forget()
    later(3, own.server.start)

    assert run(own) == {"stored": 1000, "outages": 1}
    assert count(own) == 1000


@pytest.mark.timed
def test_a_server_that_stays_away(own: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """The crawl goes on with bounded memory, all rows are dumped, and the replay stores them."""
    own.server.kill()
    own.forget()
    began = time.monotonic()
    stats = run(own, {"NETSPY_SINK_WAIT": 1, "ITEM_MAX_CACHED_COUNT": 100})

    assert time.monotonic() - began < 40
    assert stats == {"dumped": 1000, "outages": 1}
    assert {line["data"]["url"] for line in dumped(ITEMS)} == {f"u{n}" for n in range(1000)}
    assert "the server was away" in dumped(ITEMS)[0]["reason"]
    assert "geheim" not in str(dumped(ITEMS))

    # Still away: the lines stay.
    assert retry.main(["--items", *options(own)]) == 1
    assert len(dumped(ITEMS)) == 1000
    own.server.start()
    assert retry.main(["--items", *options(own)]) == 0
    assert dumped(ITEMS) == []
    assert count(own) == 1000


@pytest.mark.timed
def test_a_server_that_hangs_does_not_hold_up_the_end(own: Case) -> None:
    """SIGSTOP: the crawl ends in bounded time, and every row is stored or dumped."""
    settings = {"NETSPY_SINK_TIMEOUT": 2, "NETSPY_SINK_WAIT": 3}
    began = time.monotonic()
    stats = run(own, settings, seconds=1, halfway=own.server.freeze)
    took = time.monotonic() - began
    own.server.thaw()

    assert took < 45
    assert stats["outages"] == 1
    assert stats["stored"] + stats["dumped"] == 1000
    assert len(dumped(ITEMS)) == stats["dumped"]
    # What the server had got when it was stopped was not committed.
    assert count(own) == stats["stored"]


@pytest.mark.timed
def test_a_server_that_hangs_for_a_while(own: Case) -> None:
    """Once it goes on, all rows are there once."""

    def halfway() -> None:
        own.server.freeze()
        later(9, own.server.thaw)

    stats = run(own, {"NETSPY_SINK_TIMEOUT": 1}, seconds=1, halfway=halfway)

    assert stats == {"stored": 1000, "outages": 1}
    assert count(own) == 1000


@pytest.mark.parametrize("setting", ["PASSWORD", "DB"])
def test_a_set_up_fault_ends_the_start(
    case: Case, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong password or database is said at the start, without the secret; nothing is fetched."""
    caplog.set_level(logging.DEBUG)
    settings = {**case.server.settings, f"{case.name}_{setting}": "wrong-one",
                "ITEM_PIPELINES": {case.path: 300}}  # fmt: skip
    with pytest.raises(mw.PipelineError, match=f"{case.name}_{setting}"):
        crawl(Books, settings, urls=("data:,",))

    assert PASSWORD not in caplog.text
    assert setting == "DB" or "wrong-one" not in caplog.text


def test_a_missing_table_costs_its_own_rows(case: Case) -> None:
    """The rows of the table that is missing are dumped, those of others are stored."""
    stats = run(case, {"ITEM_DEFAULT_TABLE": "no_such_table"}, items=[{"a": 1}, {"a": 2}])

    assert stats == {"stored": 1000, "refused": 2, "dumped": 2}
    why = f"there is no table 'no_such_table' in the database {case.name}_DB = 'spider'"
    assert {line["reason"] for line in dumped(ITEMS)} == {f"PipelineError: {why}"}
