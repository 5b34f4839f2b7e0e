from __future__ import annotations

import logging

import pytest

from netspy_scrapy.pipelines.console import ConsolePipeline


class Angry:
    def __repr__(self):
        raise RuntimeError("no")

    def __len__(self):
        raise RuntimeError("no")


class Odd:
    def __repr__(self):
        return "a\nb\x1b[31m\udc80"


@pytest.fixture
def sink(caplog):
    caplog.set_level(logging.INFO)
    return ConsolePipeline()


def test_one_line_a_row(sink, caplog):
    """Each row is one line at INFO, under the sink's name, with table and fields."""
    answer = sink.save_items("news", [{"url": "u1", "n": 1}, {"url": "新闻", "n": None}])

    assert answer == {}
    assert caplog.record_tuples == [
        ("ConsolePipeline", logging.INFO, "news: url='u1', n=1"),
        ("ConsolePipeline", logging.INFO, "news: url='新闻', n=None"),
    ]


def test_update_is_shown_as_one(sink, caplog):
    """An UpdateItem is shown too, with the key that finds its row."""
    answer = sink.update_items("news", [{"url": "u1", "n": 2}], ["url", "n"])

    assert answer == {}
    assert caplog.messages == ["news (update by url, n): url='u1', n=2"]


@pytest.mark.parametrize(
    "value",
    ["x" * 100_000, b"x" * 100_000, 10**100_000, list(range(100_000)), {n: n for n in range(999)}],
    ids=["text", "bytes", "int", "list", "dict"],
)
def test_long_values_are_shortened(sink, caplog, value):
    """A page in a field does not fill the screen, and the fields behind it are seen."""
    sink.save_items("news", [{"body": value, "url": "u1"}])

    assert len(caplog.messages[0]) < 600
    assert caplog.messages[0].endswith(", url='u1'")


def test_long_rows_are_shortened(sink, caplog):
    """Of a row with very many fields the first are shown, and how many there are."""
    sink.save_items("wide", [{f"field{n}": n for n in range(5000)}])

    assert len(caplog.messages[0]) < 2100
    assert caplog.messages[0].startswith("wide: field0=0, field1=1, ")
    assert caplog.messages[0].endswith(" more fields)")


def test_odd_values_do_no_harm(sink, caplog, capsys):
    """What cannot be shown, or would end the line, is no reason to lose a row."""
    loop = []
    loop.append(loop)
    rows = [
        {"a": Angry(), "b": 1},
        {"a": Odd(), "b": 1},
        {"a": loop, "b": 1},
        {"a": "x\ny\r\u2028\x85\udc80", "b": 1},
        {1: "number", "two\nlines": 2, "%s": "%d"},
        {},
    ]
    handler = logging.StreamHandler()
    logging.getLogger("ConsolePipeline").addHandler(handler)
    try:
        answer = sink.save_items("ta\nble%s", rows)
    finally:
        logging.getLogger("ConsolePipeline").removeHandler(handler)

    assert answer == {}
    assert len(caplog.messages) == len(rows)
    assert all(message.isprintable() for message in caplog.messages)
    assert all(message.endswith(", b=1") for message in caplog.messages[:4])
    assert "Logging error" not in capsys.readouterr().err
