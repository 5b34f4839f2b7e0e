"""The text of COPY and LOAD DATA, and how bad rows are found: pure rules."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netspy_scrapy.pipelines.servers import Blame, Fault
from netspy_scrapy.pipelines.staging import escaped, isolate, joined, lines, without_surrogates

SIGNS = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


def read(text: str) -> str | None:
    """Read a value as both databases do."""
    if text == "\\N":
        return None
    return re.sub(r"\\(.)", lambda found: SIGNS[found[1]], text)


@given(st.lists(st.none() | st.text(alphabet=st.sampled_from("a\\\t\n\r\0N😀")), min_size=1))
def test_every_text_comes_back(texts: list[str | None]) -> None:
    """Whatever is in a value, it is read as what it was; None is not the text N."""
    found = escaped(texts)

    assert [read(one) for one in found] == texts
    assert not any(set(one) & set("\t\n\r") for one in found)


def test_lines() -> None:
    """Columns become lines of UTF-8."""
    assert joined(lines([["1", "2"], ["é", "\\N"]])) == "1\té\n2\t\\N\n".encode()


def test_surrogates() -> None:
    """Lone surrogates are written out, and only where there are some."""
    sound = ["a", None]

    assert without_surrogates(sound) is sound
    assert without_surrogates(["a\udc80", None, "😀"]) == ["a\\udc80", None, "😀"]


class Database:
    """Refuses some rows, and tells which one it was, or not."""

    def __init__(self, bad: set[int], *, tells: Any = None) -> None:
        self.bad = bad
        self.tells = tells
        self.stored: list[int] = []
        self.calls = 0

    def write(self, start: int, stop: int) -> None:
        self.calls += 1
        wrong = [row for row in range(start, stop) if row in self.bad]
        if wrong:
            raise ValueError(wrong[0] - start)
        self.stored += range(start, stop)

    def fault(self, exc: Exception) -> Fault:
        row = self.tells(exc.args[0]) if self.tells else None
        return Fault(Blame.ROW, "bad", row)


@pytest.mark.parametrize("tells", [None, lambda row: row, lambda row: row + 1, lambda row: 10**9])
@given(bad=st.sets(st.integers(0, 29)), cuts=st.sets(st.integers(1, 29)))
def test_bad_rows_are_found(tells: Any, bad: set[int], cuts: set[int]) -> None:
    """All others are written, in their order, even if the server names the wrong row."""
    database = Database(bad, tells=tells)
    edges = [0, *sorted(cuts), 30]
    ranges = list(pairwise(edges))

    assert isolate(database.write, ranges, database.fault) == dict.fromkeys(sorted(bad), "bad")
    assert database.stored == [row for row in range(30) if row not in bad]


def test_a_row_that_is_named_costs_few_statements() -> None:
    """Of 5,000 rows one is bad: four statements if the server names it, else some thirty."""
    counts = []
    for tells in (lambda row: row, None):
        database = Database({1234}, tells=tells)
        isolate(database.write, [(0, 5000)], database.fault)
        counts.append(database.calls)

    assert counts[0] == 4
    assert counts[1] < 30


def test_a_batch_of_bad_rows_only() -> None:
    """Where all are bad no row is written over and over: the work grows with n log n."""
    database = Database(set(range(4096)), tells=lambda row: row)
    rows = 0

    def write(start: int, stop: int) -> None:
        nonlocal rows
        rows += stop - start
        database.write(start, stop)

    assert len(isolate(write, [(0, 4096)], database.fault)) == 4096
    assert rows < 4096 * 25


def test_a_fault_of_no_row_is_raised() -> None:
    """Nothing is split where the table or the server is to blame."""

    def write(start: int, stop: int) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        isolate(write, [(0, 5)], lambda exc: Fault(Blame.AWAY, "gone"))
