from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal

import pytest

from netspy_scrapy.dumps.codec import Unencodable, decode_line
from netspy_scrapy.dumps.items import ItemDump, ItemRecord, now
from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.items import Item


class PriceItem(Item):
    pass


NETSPY = '{"table": "prices", "data": {"url": "x", "price": 99}, "update_keys": ["url"]}'


def test_line_is_netspys():
    """What says nothing is not written, so the line is the one that netspy writes."""
    data = PriceItem(url="x", price=99)

    assert ItemRecord("prices", data, ("url",)).to_line() == NETSPY
    assert ItemRecord("prices", data).to_line() == (
        '{"table": "prices", "data": {"url": "x", "price": 99}}'
    )


def test_record_survives():
    """Every field of a record comes back from its line, with the types of the row."""
    record = ItemRecord(
        "prices", {"price": Decimal("1.10"), "author": PriceItem(a=b"x")}, (), ("a.B", "c.D"),
        reason="Größe", time=now(), spider="shop", extra={"batch": 7},
    )  # fmt: skip
    back = ItemRecord.from_line(record.to_line())

    assert back == record
    assert type(back.data["author"]) is PriceItem


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ('{"table": "t", "data": {"a": 1}}', ItemRecord("t", {"a": 1})),
        (
            '{"table": "t", "data": {}, "update_keys": null, "pipelines": null, "reason": null}',
            ItemRecord("t", {}),
        ),
        (NETSPY, ItemRecord("prices", {"url": "x", "price": 99}, ("url",))),
        (
            '{"data": {"a": NaN, "b": 1}, "table": "t", "pipelines": ["a.B"], "node": "n1"}',
            ItemRecord("t", {"b": 1}, None, ("a.B",), extra={"node": "n1"}),
        ),
    ],
)
def test_netspy_lines_are_read(line, record):
    """Lines of netspy, old and new, are read; what is absent or null says nothing."""
    back = ItemRecord.from_line(line)
    back.data.pop("a") if "NaN" in line else None

    assert back == record


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"data": {}}', "no 'table': expected the name of a table"),
        ('{"table": "", "data": {}}', "'table' of the line is '': expected the name"),
        ('{"table": 5, "data": {}}', "'table' of the line is 5"),
        ('{"table": "t"}', "no 'data': expected an object"),
        ('{"table": "t", "data": [1]}', r"'data' of the line is \[1\]"),
        ('{"table": "t", "data": {"$netspy": "dict", "v": [[1, 2]]}}', "'data' of the line"),
        ('{"table": "t", "data": {}, "update_keys": "url"}', "'update_keys' of the line is 'url'"),
        ('{"table": "t", "data": {}, "pipelines": [1]}', r"'pipelines' of the line is \[1\]"),
        ('{"table": "t", "data": {}, "reason": 1}', "'reason' of the line is 1: expected a text"),
        ('{"table": "t", "data": {', "not JSON"),
    ],
)
def test_wrong_lines_name_the_field(line, said):
    """A line of another shape is an error that names the field and what is expected there."""
    with pytest.raises(DumpError, match=said):
        ItemRecord.from_line(line)


def test_foreign_fields_stay_when_the_record_changes():
    """If one of two sinks has stored the row, the new line keeps what others wrote into it."""
    line = '{"table": "t", "data": {"a": 1}, "pipelines": ["a.A", "b.B"], "node": {"id": 7}}'
    rest = replace(ItemRecord.from_line(line), pipelines=("b.B",), reason="still away")

    assert json.loads(rest.to_line()) == {
        **json.loads(line), "pipelines": ["b.B"], "reason": "still away",
    }  # fmt: skip


def test_foreign_fields_never_replace_ours():
    """A foreign field of the same name does not get in the way of the record's own."""
    record = ItemRecord("t", {}, extra={"update_keys": ["x"], "reason": "no", "k": 1})

    assert record.to_line() == '{"table": "t", "data": {}, "k": 1}'


def test_dump_stamps_and_warns(tmp_path):
    """Each line gets time and spider; a value that cannot be kept costs itself and a warning."""
    dump = ItemDump(tmp_path / "x" / "failed.jsonl", "shop")
    bad = object()
    before = datetime.now(timezone.utc).replace(microsecond=0)
    warnings = dump.append(
        [
            ItemRecord("t", {"a": 1}, reason="refused"),
            ItemRecord("t", {"a": bad, "b": {2}}, spider="other", time="2025-01-01T00:00:00+00:00"),
        ]
    )
    first, second = [ItemRecord.from_line(one) for one in dump.path.read_text().splitlines()]

    assert warnings == ["t: data.a: cannot keep a value of type object; only its repr() is kept"]
    assert before <= datetime.fromisoformat(first.time) <= datetime.now(timezone.utc)
    assert (first.data, first.reason, first.spider) == ({"a": 1}, "refused", "shop")
    assert second == ItemRecord(
        "t", {"a": Unencodable(repr(bad)), "b": {2}},
        time="2025-01-01T00:00:00+00:00", spider="other",
    )  # fmt: skip


def test_dump_that_cannot_be_written_is_an_error(tmp_path):
    """If the file cannot be written, the caller hears of it and still has the rows."""
    (tmp_path / "file").touch()
    dump = ItemDump(tmp_path / "file" / "failed.jsonl", "shop")

    with pytest.raises(DumpError, match=r"failed\.jsonl cannot be written: Not a directory"):
        dump.append([ItemRecord("t", {})])


def test_worker_threads_share_a_dump(tmp_path):
    """Several sinks write from their threads at once; every row is there, whole."""
    dump = ItemDump(tmp_path / "failed.jsonl", "shop")

    def sink(name):
        for n in range(30):
            dump.append([ItemRecord(name, {"n": n, "pad": "é" * 3000})] * 3)

    threads = [threading.Thread(target=sink, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = [decode_line(one) for one in dump.path.read_text(encoding="utf-8").splitlines()]

    assert len(rows) == 360
    assert {(row["table"], row["data"]["n"]) for row in rows} == {
        (name, n) for name in "abcd" for n in range(30)
    }


def test_dump_is_claimed_through_its_file(tmp_path):
    """The rows of a dump are taken over by the same object that wrote them."""
    dump = ItemDump(tmp_path / "failed.jsonl", "shop")
    dump.append([ItemRecord("t", {"n": n}) for n in range(3)])
    with dump.file.claim() as claimed:
        for number, line in claimed.lines():
            if ItemRecord.from_line(line).data["n"] != 1:
                claimed.done([number])

    assert [decode_line(one)["data"] for one in dump.path.read_text().splitlines()] == [{"n": 1}]
