"""The example project, run as README.md says, against the bookshop that it brings."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"

BASKETS = "/basket/"


class Example(NamedTuple):
    """A run of the example."""

    done: subprocess.CompletedProcess[str]
    folder: Path
    """The project."""
    expected: dict[int, dict[str, Any]]
    """Every book that can be had, by number, as the shop knows it."""
    unreadable: dict[int, int]
    """The status of each book that cannot, by number."""

    def output(self, name: str) -> Path:
        return self.folder / "output" / name


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """Run ``run.py`` in a copy of the project, where an earlier run has left something."""
    folder = tmp_path_factory.mktemp("example") / "example_project"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("output", "__pycache__"))
    command = [sys.executable, "run.py", "--here"]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("SCRAPY_SETTINGS_MODULE", "NETSPY_SETTING")
    }
    left = folder / "output" / "scrapy" / "books.csv"
    left.parent.mkdir(parents=True)
    left.write_text("number,url\n1,left by an earlier run\n")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8",
        timeout=100, check=False,
    )  # fmt: skip
    sys.path.insert(0, str(EXAMPLE))
    try:
        import bookshop
    finally:
        sys.path.remove(str(EXAMPLE))
    expected = {
        book.id: {
            "number": book.id,
            "title": book.title,
            "author": book.author,
            "category": book.category,
            "currency": book.currency,
            "price": book.price,
            "rating": book.rating,
            "stock": book.stock,
            "isbn": book.isbn,
            "description": book.description,
        }
        for book in bookshop.books()
        if book.id in bookshop.READABLE_IDS
    }
    unreadable = dict.fromkeys(bookshop.MISSING_IDS, 404) | dict.fromkeys(bookshop.BROKEN_IDS, 500)
    return Example(done, folder, expected, unreadable)


def rows_of(database: Path, table: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(f'SELECT * FROM "{table}"')]
    finally:
        connection.close()


def by_number(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return rows by number, in the types of the shop and without the URL; none may be double."""
    found = {}
    for stored in rows:
        row = {name: value for name, value in stored.items() if name != "url"}
        for name in ("number", "rating", "stock"):
            row[name] = int(row[name])
        row["price"] = Decimal(str(row["price"])).quantize(Decimal("0.01"))
        assert row["number"] == number_in(stored["url"])
        assert row["number"] not in found
        found[row["number"]] = row
    return found


def number_in(url: str) -> int:
    return int(url.partition("/book/")[2].partition("-")[0])


@pytest.mark.parametrize("name", ["netspy_style", "scrapy"])
def test_every_book_that_can_be_had_is_stored_once(example: Example, name: str) -> None:
    """Both spiders store 234 books, equal to the shop's, in SQLite and in CSV."""
    stored = rows_of(example.output(name) / "books.db", "books")
    with (example.output(name) / "books.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))

    assert example.done.returncode == 0, example.done.stdout + example.done.stderr
    assert len(stored) == len(written) == 234
    assert by_number(stored) == example.expected
    assert by_number(written) == example.expected


@pytest.mark.parametrize("name", ["netspy_style", "scrapy"])
def test_every_page_that_failed_is_kept(example: Example, name: str) -> None:
    """Five pages are 404, one is 500 after its retries: a line for each, and nothing else."""
    path = example.output(name) / "failed_requests.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    assert {number_in(line["url"]): line["status"] for line in lines} == example.unreadable
    assert len(lines) == 6
    assert {line["attempts"] for line in lines if line["status"] == 404} == {1}
    assert {line["attempts"] for line in lines if line["status"] == 500} == {3}
    assert not (example.output(name) / "failed_items.jsonl").exists()


def test_updates_tell_what_became_of_each_link(example: Example) -> None:
    """UpdateItems change the rows that the list pages gave: 234 stored, 6 failed."""
    listings = rows_of(example.output("netspy_style") / "books.db", "listings")
    states = {number_in(row["url"]): row["state"] for row in listings}
    failed = {number: f"failed: {status}" for number, status in example.unreadable.items()}

    assert len(listings) == 240
    assert states == dict.fromkeys(example.expected, "stored") | failed
    assert Counter(row["page"] for row in listings) == dict.fromkeys(range(1, 13), 20)


def test_what_a_person_sees(example: Example) -> None:
    """The output has both summaries, and what was stored where."""
    text = example.done.stdout

    assert text.count("Run summary of") == 2
    assert text.count("retries  9  (503 4, 429 3, 500 2)") == 2
    assert text.count("failures 6  (404 5, 500 1)") == 2
    assert text.count("6 failed requests (5 x 404, 1 x 500)") == 2
    assert "Stored in example_project/output/netspy_style:" in text
    assert "table books: 234 rows, table listings: 240 rows" in text
    assert text.rstrip().endswith("234 books of 234 that can be had")
    assert example.done.stderr == ""


def test_the_summary_in_the_stats_reference(example: Example) -> None:
    """docs/reference/stats.md shows the summary of the netspy spider, but for the folder."""
    page = EXAMPLE.parent / "docs" / "reference" / "stats.md"
    block = page.read_text(encoding="utf-8").split("```\n")[1]
    log = (example.output("netspy_style") / "crawl.log").read_text(encoding="utf-8")

    *lines, last = block.splitlines()
    # As many as were not under way; a port has four digits or five.
    rests = re.compile(
        r"^  rests    \d+\n    \S+: \d+ rests?, \S+ s$|^  bytes    .+$", re.MULTILINE
    )

    assert rests.sub("", "\n".join(lines)) in rests.sub("", log)
    assert last.startswith("  ! 6 requests in /")


def test_baskets_are_left_alone(example: Example) -> None:
    """The plain spider follows every link, and robots.txt keeps it from the baskets."""
    log = (example.output("scrapy") / "crawl.log").read_text(encoding="utf-8")

    assert log.count("Dropped: <GET http") == log.count(BASKETS) == 234
    assert "'netspy/drops/robots': 234" in log
