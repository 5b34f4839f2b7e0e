"""Ids, names and JSON of the document sinks: pure rules."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import count

import pytest

from netspy_scrapy.exceptions import PipelineError
from netspy_scrapy.pipelines.documents import (
    Destinations,
    Outcome,
    RowIds,
    json_bytes,
    key_text,
    shortened,
)
from netspy_scrapy.pipelines.elasticsearch import document_id, index_name_of
from netspy_scrapy.pipelines.kafka import topic_name_of
from netspy_scrapy.spiders.logger import SpiderLogger

KEYS = [
    ["a", "bc"], ["ab", "c"], ["a_b", "c"], ["a", "b_c"], ["abc"], ["a", "b", "c"],
    [1], ["1"], [1.0], [True], ["True"], [None], ["None"], [""], [], ["[1]"], ['["a", "bc"]'],
    [Decimal("1.5")], [1.5], ["1.5"], [b"1"], [Decimal("1.50")], ["\udc80"], ["\\udc80"],
    [["a", "bc"]], [{"a": 1}], ["a", None], ["x" * 600], ["x" * 601], ["x" * 600, ""],
]  # fmt: skip


def test_no_two_keys_share_an_id() -> None:
    """Ids differ where values, their types or their borders do, also those that are hashed."""
    ids = [document_id(dict(enumerate(key)), range(len(key))) for key in KEYS]

    assert len(set(ids)) == len(KEYS)
    assert all(0 < len(one.encode()) <= 512 for one in ids)


def test_a_text_is_its_own_id() -> None:
    """The _id of a single text can be read, as netspy wrote it."""
    assert key_text(["https://example.com/新闻"]) == "https://example.com/新闻"


@pytest.mark.parametrize(
    ("table", "index"),
    [
        ("news", "news"), ("新闻", "新闻"), ("News Items", "news_items"), ("_a/b", "a_b"),
        ("-+x", "x"), ("a:b#c,d", "a_b_c_d"), ("x" * 300, "x" * 255), ("..", ""), ("", ""),
    ],
)  # fmt: skip
def test_names_of_indexes(table: str, index: str) -> None:
    """What Elasticsearch forbids is replaced, everything else stays."""
    assert index_name_of(table) == index


@pytest.mark.parametrize(
    ("table", "topic"),
    [("news", "news"), ("A.b-c_d", "A.b-c_d"), ("a b/c", "a_b_c"), ("x" * 300, "x" * 249)],
)
def test_names_of_topics(table: str, topic: str) -> None:
    """What Kafka forbids is replaced, everything else stays."""
    assert topic_name_of(table) == topic


@pytest.fixture
def destinations() -> Destinations:
    import logging

    return Destinations("an index", index_name_of, SpiderLogger(logging.getLogger("sink"), {}))


def test_a_cleaned_name_is_told_once(destinations, caplog) -> None:
    """The user learns where the rows of such a table go."""
    assert [destinations.of("My News"), destinations.of("My News")] == ["my_news"] * 2
    assert caplog.messages == ["'My News' cannot be an index: its rows go to 'my_news'"]


def test_two_tables_never_meet(destinations) -> None:
    """Rows of a table whose cleaned name another has are refused, and both are named."""
    destinations.of("news")

    with pytest.raises(PipelineError, match="'news' and 'News' would both be an index called"):
        destinations.of("News")
    assert destinations.of("news") == "news"


@pytest.mark.parametrize("table", ["", "--", "..", "//"])
def test_a_table_without_a_possible_name(destinations, table) -> None:
    """The error says what to set."""
    with pytest.raises(PipelineError, match="cannot be an index: set __table_name__"):
        destinations.of(table)


def test_a_row_keeps_its_id_when_it_is_offered_again() -> None:
    """The batcher's new dicts of the same values get the old ids; other rows get new ones."""
    ids = RowIds(count().__next__)
    rows = [{"url": "u" * 3, "n": n} for n in (1, 2, 2)]
    first, again = ids.of(rows)
    ids.keep(rows, first)

    assert (first, again) == ([0, 1, 2], set())
    offered = [*map(dict, rows[1:]), {"url": "v", "n": 1}]
    second, again = ids.of(offered)
    assert sorted(second[:2]) == [1, 2]
    assert second[2] == 3
    assert again == {0, 1}


def test_ids_are_forgotten_after_the_next_batch() -> None:
    """What was stored at last does not count for equal rows that come later."""
    ids = RowIds(count().__next__)
    row = {"n": 1}
    ids.keep([row], [7])

    assert ids.of([dict(row)])[0] == [7]
    assert ids.of([dict(row)]) == ([0], set())


def test_json_of_a_lone_surrogate() -> None:
    """It is written out, so that the message is UTF-8 and reads back as text."""
    assert json.loads(json_bytes({"t": "a\udc80😀"})) == {"t": "a\\udc80😀"}


def test_a_value_that_contains_itself() -> None:
    """The error says so, whatever the depth of the stack."""
    row: dict = {}
    row["self"] = row

    with pytest.raises(ValueError, match=r"itself|[Cc]ircular"):
        json_bytes(row)


def test_reasons_are_one_short_line() -> None:
    """A server's page of an error does not fill a dump line."""
    assert shortened("a\n  b " + "x" * 9999)[:8] == "a b xxxx"
    assert len(shortened("x" * 9999)) == 500


def test_dividing_ends_where_nothing_is_stored() -> None:
    """Requests that all fail are not divided to the last row; one success goes on."""
    outcome = Outcome()

    assert not any(outcome.is_hopeless() for _ in range(64))
    assert outcome.is_hopeless()
    outcome.stored.add(1)
    assert not outcome.is_hopeless()
