"""Queues that a kill left behind, made readable again."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from queuelib.queue import FifoDiskQueue, LifoDiskQueue

from netspy_scrapy import _scrapy
from netspy_scrapy.dedup.request_filter import SEEN_FILE, forget_last
from netspy_scrapy.scheduling import journal
from netspy_scrapy.scheduling.journal import Journal, Left
from netspy_scrapy.scheduling.recovery import Recovered, recover


def recovered(folder: Path, left: Left | None = None, cls: Any = FifoDiskQueue) -> Recovered:
    """Repair *folder*, whose queues are of *cls*."""

    def put(path: Path, data: bytes) -> None:
        queue = cls(path)
        queue.push(data)
        queue.close()

    return recover(folder, left or Left(), put=put, domain_of=lambda *_: None)


def drained(queue: Any) -> list[bytes]:
    """Return the records of *queue*."""
    return [queue.pop() for _ in range(len(queue))]


@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_a_fifo_queue(tmp_path: Path, cut: int) -> None:
    """What was pushed and not popped is there, in order, over chunks, without a cut record."""
    queue = FifoDiskQueue(tmp_path / "0", chunksize=4)
    for n in range(10):
        queue.push(b"record%d" % n)
    last = None
    for _ in range(6):
        last = tuple(queue.info["tail"])
        queue.pop()
    if cut:
        with (tmp_path / "0" / "q00002").open("ab") as file:
            file.write((struct.pack(">L", 7) + b"record9")[:cut])
    (tmp_path / "0" / "info.json").write_text('{"chunksize": 4, "size": 0}')

    found = recovered(tmp_path, Left(positions={"0": last}))

    assert (found.queued, found.lost) == (4, [])
    again = FifoDiskQueue(tmp_path / "0")
    again.push(b"new")
    assert drained(again) == [b"record6", b"record7", b"record8", b"record9", b"new"]
    assert json.loads((tmp_path / "active.json").read_text()) == [0]


@pytest.mark.parametrize("pops", [3, 4, 8, 10])
def test_a_fifo_queue_read_to_a_chunks_end(tmp_path: Path, pops: int) -> None:
    """Where the last record that was read was the last of its chunk, the next chunk is gone on."""
    queue = FifoDiskQueue(tmp_path / "-1", chunksize=4)
    for n in range(10):
        queue.push(b"record%d" % n)
    last = None
    for _ in range(pops):
        last = tuple(queue.info["tail"])
        queue.pop()
    (tmp_path / "-1" / "info.json").write_text('{"chunksize": 4}')

    found = recovered(tmp_path, Left(positions={"-1": last}))

    assert found.queued == 10 - pops
    if pops < 10:
        assert drained(FifoDiskQueue(tmp_path / "-1"))[0] == b"record%d" % pops
    else:
        assert not (tmp_path / "-1").exists()


@pytest.mark.parametrize("cut", [0, 1, 4, 8, 11])
def test_a_lifo_queue(tmp_path: Path, cut: int) -> None:
    """The records of a LIFO queue are counted anew; one that was cut short is dropped."""
    queue = LifoDiskQueue(tmp_path / "0s")
    for n in range(5):
        queue.push(b"record%d" % n)
    queue.f.write((b"record5" + struct.pack(">L", 7))[:cut])
    queue.f.flush()

    found = recovered(tmp_path, cls=LifoDiskQueue)

    kept = 6 if cut == 11 else 5
    assert found.queued == kept
    assert drained(LifoDiskQueue(tmp_path / "0s")) == [b"record%d" % n for n in range(kept)][::-1]


def test_an_unreadable_queue_is_named_and_kept_aside(tmp_path: Path) -> None:
    """What cannot be made readable is named, and the other queues go on."""
    (tmp_path / "0").write_bytes(b"\xff" * 50)
    queue = LifoDiskQueue(tmp_path / "1")
    queue.push(b"record")
    queue.f.flush()

    found = recovered(tmp_path, cls=LifoDiskQueue)

    assert found.queued == 1
    assert found.lost == ["the queue 0 cannot be read: its records do not join"]
    assert (tmp_path / "0.broken").exists()


@pytest.mark.parametrize("domain", ["a.example", "a_b.example:8080", "127.0.0.1:80", "bücher.ex"])
def test_domains_are_known_by_their_folders(tmp_path: Path, domain: str) -> None:
    """The folder of a host, with or without a port, says which domain it is for."""
    folder = tmp_path / _scrapy.queue_folder(domain)
    queue = FifoDiskQueue(folder / "-3")
    queue.push(b"record")

    left = Left(taken={1: (f"{folder.name}/0", b"taken")})
    found = recovered(tmp_path, left)

    assert (found.queued, found.under_way) == (1, 1)
    assert json.loads((tmp_path / "active.json").read_text()) == {domain: [-3, 0]}


def test_a_domain_that_cannot_be_told(tmp_path: Path) -> None:
    """A folder whose domain nobody knows is said to be lost, not passed over."""
    queue = FifoDiskQueue(tmp_path / _scrapy.queue_folder("my slot") / "0")
    queue.push(b"record")

    assert "cannot be told" in recovered(tmp_path).lost[0]


def test_a_journal_is_read_up_to_what_was_cut(tmp_path: Path) -> None:
    """A journal says what was taken and is not done, also where it ends in half a note."""
    path = tmp_path / "journal"
    notes = Journal(path)
    first = notes.taken("a/0", (0, 0, 0), b"one")
    notes.done(first)
    notes.taken("a/0", (0, 1, 7), b"two")
    notes.taken("b/0", None, b"three")
    whole = path.read_bytes()

    assert sorted(data for _, data in journal.read(path).taken.values()) == [b"three", b"two"]
    path.write_bytes(whole[:-2])
    assert [data for _, data in journal.read(path).taken.values()] == [b"two"]
    assert journal.read(path).positions == {"a/0": (0, 1, 7)}
    assert journal.read(tmp_path / "none") == Left()


def test_a_queue_that_is_made_anew_is_read_from_its_start(tmp_path: Path) -> None:
    """That a queue was read to its end is in the file before anything can be pushed to it again."""
    notes = Journal(tmp_path / "journal")
    notes.done(notes.taken("a/0", (0, 5, 100), b"one"))
    notes.closed("a/0")

    assert journal.read(tmp_path / "journal") == Left()


def test_a_queue_whose_state_was_cut(tmp_path: Path) -> None:
    """A kill while a FIFO queue writes its state leaves the file empty: it is worked out anew."""
    queue = FifoDiskQueue(tmp_path / "0")
    for n in range(3):
        queue.push(b"record%d" % n)
    (tmp_path / "0" / "info.json").touch()

    assert recovered(tmp_path, Left(positions={"0": (0, 0, 0)})).queued == 2


def test_a_journal_does_not_grow_without_end(tmp_path: Path) -> None:
    """What is done is left out once the file is large; what is not, stays."""
    path = tmp_path / "journal"
    notes = Journal(path)
    kept = b"k" * 1000
    notes.taken("a/0", (0, 0, 0), kept)
    for n in range(9000):
        notes.done(notes.taken("a/0", (0, n + 1, 1000 * n), b"x" * 1000))
    notes.flush()

    assert path.stat().st_size < 5_000_000
    left = journal.read(path)
    assert list(left.taken.values()) == [("a/0", kept)]
    assert left.positions == {"a/0": (0, 9000, 1000 * 8999)}


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"a" * 40 + b"\n" + b"b" * 40 + b"\n", 41),
        (b"\0\x02ab\0\x02cd", 4),
        (b"\0\x02ab\0\x02c", 4),
        (b"a" * 40 + b"\n" + b"bb", 41),
        (b"", 0),
    ],
)
def test_the_last_request_seen_is_forgotten(tmp_path: Path, data: bytes, kept: int) -> None:
    """What a filter saw last may be in no queue: it is taken out, in Scrapy's formats and ours."""
    (tmp_path / "requests.seen").write_bytes(data)
    (tmp_path / SEEN_FILE).write_bytes(b"x" * 47)
    forget_last(tmp_path)

    assert (tmp_path / "requests.seen").read_bytes() == data[:kept]
    assert (tmp_path / SEEN_FILE).stat().st_size == 40
    forget_last(tmp_path)
    assert (tmp_path / SEEN_FILE).stat().st_size == 20
