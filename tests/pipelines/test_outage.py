"""Rows wait for a server that is away: pure rules with a clock, and whole crawls."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, ClassVar

import pytest

from netspy_scrapy import SinkUnavailableError
from netspy_scrapy.commands import retry
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.pipelines.outage import Outage
from tests.crawling import PlainSpider, crawl, dumped, netspy_stats, reason

ITEMS = "failed_items.jsonl"


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


#: One for all turns: what an outage waits with belongs to the loop that saw it first.
LOOP = asyncio.new_event_loop()


def turn(outage: Outage, *, full: bool = False) -> bool | None:
    """Return what turn() says at once; None: it waits."""

    async def ask() -> bool | None:
        task = asyncio.ensure_future(outage.turn(lambda: full))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None

    return LOOP.run_until_complete(ask())


def test_attempts_are_further_apart_each_time() -> None:
    """The delays double from 0.5 s to 5 s."""
    clock = Clock()
    outage = Outage("S", 30, clock)
    delays = []
    for _ in range(7):
        outage.begin("gone")
        began = clock.now
        while not turn(outage):
            clock.now += 0.5
        delays.append(clock.now - began)

    assert delays == [0.5, 1, 2, 4, 5, 5, 5]


def test_a_server_that_hangs_is_asked_less_often() -> None:
    """An attempt that took 60 s is followed by as long a pause."""
    clock = Clock()
    outage = Outage("S", 30, clock)
    outage.begin("gone")
    clock.now += 1
    assert turn(outage)
    clock.now += 60
    outage.begin("no answer")
    clock.now += 59
    early = turn(outage)
    clock.now += 1

    assert (early, turn(outage)) == (None, True)


def fail_until(outage: Outage, clock: Clock, end: float) -> None:
    """Make all attempts before *end*, in vain."""
    while clock.now < end:
        if turn(outage):
            outage.begin("gone")
        clock.now += 0.25
    clock.now = end


def test_a_sink_with_room_waits_for_ever() -> None:
    """Only a sink that is full, or closes, gives up; and only after the wait."""
    clock = Clock()
    outage = Outage("S", 30, clock)
    outage.begin("gone")
    seen = []
    for end in (100.1, 129.9, 135.2):
        fail_until(outage, clock, end)
        seen.append((turn(outage), turn(outage, full=True)))

    assert seen == [(None, None), (None, None), (None, False)]


def test_no_row_is_dumped_without_an_attempt_at_the_end_of_the_wait() -> None:
    """A server that came back just before is noticed, whenever the next attempt was due."""
    clock = Clock()
    outage = Outage("S", 30, clock)
    outage.begin("gone")
    fail_until(outage, clock, 129.9)
    outage._next_try = 140.0
    clock.now = 130.0

    assert [turn(outage), turn(outage, full=True)] == [None, True]
    outage.begin("gone")
    assert turn(outage, full=True) is False


def test_a_full_sink_notices_a_server_that_is_back() -> None:
    """However long it has been dumping: an attempt is made every few seconds."""
    clock = Clock()
    outage = Outage("S", 30, clock)
    outage.begin("gone")
    fail_until(outage, clock, 1000.0)
    outage.begin("gone")
    seen = []
    for clock.now in (1001.0, 1004.9, 1005.0):
        seen.append(turn(outage, full=True))

    assert seen == [False, False, True]


def test_the_close_makes_one_more_attempt() -> None:
    """However long the server has been away: one attempt, then the rows are dumped."""
    clock = Clock()
    outage = Outage("S", 30, clock)
    outage.begin("gone")
    clock.now += 1000
    outage.begin("gone")
    outage.close()

    assert [turn(outage), turn(outage)] == [True, False]


def test_the_first_failure_at_the_close_waits() -> None:
    """A server that goes away at the very end is waited for as well."""
    clock = Clock()
    outage = Outage("S", 30, clock)
    outage.close()
    outage.begin("gone")
    first = turn(outage)
    clock.now += 31
    last = turn(outage)
    outage.begin("gone")

    assert (first, last, turn(outage)) == (None, True, False)


def test_a_server_that_is_back() -> None:
    """After an answer every batch is offered at once."""
    outage = Outage("S", 30, Clock())
    outage.begin("gone")
    outage.end()

    assert turn(outage) is True
    assert outage.begin("gone again") is True


class AwaySink(BasePipeline):
    """A sink whose server is away as a list says: an exception for each call, or None."""

    plan: ClassVar[list[Exception | None]] = []
    opening: ClassVar[list[Exception | None]] = []
    calls: ClassVar[list[list[int]]] = []
    closed: ClassVar[list[bool]] = []

    def open(self) -> None:
        if AwaySink.opening and (fault := AwaySink.opening.pop(0)):
            raise fault

    def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        AwaySink.calls.append([item["n"] for item in items])
        if AwaySink.plan and (fault := AwaySink.plan.pop(0)):
            raise fault
        return True

    def close(self) -> None:
        AwaySink.closed.append(True)


class Numbers(PlainSpider):
    """Yields ``count`` rows from one page."""

    count = 3

    def parse(self, response: Any) -> Any:
        yield from ({"n": n} for n in range(self.count))


def run(
    plan: list[Any], opening: tuple[Any, ...] = (), count: int = 3, **settings: Any
) -> dict[str, Any]:
    """Crawl with the sink of *plan*; return the stats of its rows."""
    AwaySink.plan, AwaySink.opening = list(plan), list(opening)
    AwaySink.calls, AwaySink.closed = [], []
    settings = {"ITEM_PIPELINES": {AwaySink: 300}, "NETSPY_SINK_WAIT": 2, **settings}
    crawler = crawl(Numbers, settings, urls=("data:,",), count=count)
    assert reason(crawler) == "finished"
    prefix = "netspy/rows/AwaySink/"
    stats = netspy_stats(crawler)
    return {key[len(prefix) :]: n for key, n in stats.items() if key.startswith(prefix)}


GONE = SinkUnavailableError("connection refused")


def test_rows_wait_for_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """Rows are offered again until the server is back; nothing is refused or dumped."""
    stats = run([GONE, GONE])

    assert AwaySink.calls == [[0, 1, 2]] * 3
    assert stats == {"stored": 3, "batches": 1, "outages": 1}
    assert dumped(ITEMS) == []
    assert "its server is away; rows wait, and are offered again: connection refused" in caplog.text
    assert "its server is back after" in caplog.text


def test_rows_are_dumped_in_the_end() -> None:
    """A server that does not come back costs the wait at the close, and the rows are dumped."""
    began = time.monotonic()
    stats = run([GONE] * 100)

    assert time.monotonic() - began < 15
    assert stats == {"dumped": 3, "batches": 1, "outages": 1}
    assert {line["reason"] for line in dumped(ITEMS)} == {"the server was away: connection refused"}


def test_a_full_sink_dumps_and_the_crawl_goes_on() -> None:
    """Memory is bounded: once the sink is full and the wait is over, batches are dumped."""
    stats = run([GONE] * 100, count=100, ITEM_MAX_CACHED_COUNT=5, NETSPY_SINK_WAIT=0.2)

    assert max(map(len, AwaySink.calls)) <= 5
    assert stats["dumped"] == 100
    assert sorted(line["data"]["n"] for line in dumped(ITEMS)) == list(range(100))


def test_a_server_that_is_away_before_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """The crawl starts, and the sink is opened once its server is there."""
    stats = run([], opening=(GONE, GONE))

    assert stats == {"stored": 3, "batches": 1, "outages": 1}
    assert AwaySink.closed == [True]


def test_a_sink_that_was_never_opened_is_not_closed() -> None:
    """close() may rely on what open() made."""
    stats = run([], opening=(GONE,) * 100, NETSPY_SINK_WAIT=0.1)

    assert stats["dumped"] == 3
    assert AwaySink.closed == []


def test_a_batch_that_is_stored_in_part() -> None:
    """Only rows of which nothing is known are offered again; doubtful ones are counted."""
    part = SinkUnavailableError("reset", stored=[0], refused={2: "too long"}, in_doubt=[3])
    stats = run([part, SinkUnavailableError("reset", stored=[1])], count=5)

    assert AwaySink.calls == [[0, 1, 2, 3, 4], [1, 3, 4], [1, 4]]
    assert stats == {
        "stored": 4, "refused": 1, "dumped": 1, "batches": 1, "outages": 1, "in_doubt": 1
    }  # fmt: skip
    assert [(line["data"]["n"], line["reason"]) for line in dumped(ITEMS)] == [(2, "too long")]


def test_the_summary_names_rows_in_doubt(caplog: pytest.LogCaptureFixture) -> None:
    """Who reads the summary knows that rows may be there twice."""
    run([SinkUnavailableError("reset", in_doubt=[0, 1])])

    assert "! 2 rows may be stored twice" in caplog.text
    assert "AwaySink: rows 3 stored, 0 refused, 0 dumped, 1 outage" in caplog.text


def test_a_replay_leaves_the_lines(capsys: pytest.CaptureFixture[str], folder: Any) -> None:
    """netspy-retry asks a sink that is away once, and every line stays that it has not stored."""
    AwaySink.plan, AwaySink.opening = [SinkUnavailableError("gone", stored=[0])] * 9, []
    AwaySink.calls = []
    path = f"{__name__}.AwaySink"
    lines = [{"table": "t", "data": {"n": n}, "pipelines": [path]} for n in range(4)]
    lines[3]["table"] = "other"
    file = folder / ITEMS
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert retry.main(["--items"]) == 1
    assert AwaySink.calls == [[0, 1, 2]]
    assert [line["data"]["n"] for line in dumped(ITEMS)] == [1, 2, 3]
    assert "its server is away: gone" in capsys.readouterr().out
