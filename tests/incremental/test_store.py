"""The store of pages: batches, kills, damage, full disks."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.crawler import Crawler
from scrapy.statscollectors import MemoryStatsCollector

from netspy_scrapy import stats as keys
from netspy_scrapy.exceptions import ConfigError, StoreError
from netspy_scrapy.incremental import store as store_module
from netspy_scrapy.incremental.entry import Entry
from netspy_scrapy.incremental.sqlite import SqliteBackend
from netspy_scrapy.incremental.store import Changes, Store

ROOT = Path(__file__).resolve().parent.parent.parent


def page(n: int, **values: Any) -> Entry:
    key = blake2b(b"%d" % n, digest_size=16).digest()
    return replace(Entry(key, "s", f"http://a.test/{n}", etag=b'"%d"' % n), **values)


class Counting(SqliteBackend):
    """Counts calls, and fails when told."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.calls: list[str] = []
        self.error: Exception | None = None

    def _note(self, what: str) -> None:
        self.calls.append(what)
        if self.error is not None:
            raise self.error

    def read(self, wanted: list[bytes]) -> dict[bytes, Entry]:
        self._note(f"read {len(wanted)}")
        return super().read(wanted)

    def write(self, changes: Changes) -> None:
        self._note(f"write {len(changes)}")
        super().write(changes)


@pytest.fixture
def backend() -> Counting:
    return Counting("pages.db")


@pytest.fixture
def stats() -> MemoryStatsCollector:
    return MemoryStatsCollector(Crawler(scrapy.Spider))


@pytest.fixture
def store(backend: Counting, stats: MemoryStatsCollector) -> Store:
    return Store(backend, stats)


def stored(path: str = "pages.db") -> dict[bytes, Entry]:
    backend = SqliteBackend(path, create=False)
    found = {one.key: one for one in backend.entries()}
    backend.close()
    return found


def test_what_was_put_is_there_in_the_next_run(store: Store) -> None:
    """Every field comes back, and runs are counted by spider."""
    full = page(
        1, modified=b"\xff", status=304, fetched=1.5, checked=2.5, run=1, size=7, digest=b"d",
        changes=2, dynamic=True, children=3, body=b"b",
    )  # fmt: skip

    async def first() -> int:
        await store.open("s")
        store.put_body(full.key, b"b", b"the body")
        store.put(full, b"the children")
        store.put(page(2))
        assert await store.get(full.key) == full  # before it is written, too
        await store.close()
        return store.run

    async def second() -> Any:
        again = Store(SqliteBackend("pages.db"), store._stats)
        await again.open("s")
        found = [await again.get(full.key), await again.get(page(2).key), await again.get(b"no")]
        kept = await again.children(full.key), await again.body(full.key, b"b")
        await again.close()
        return again.run, found, kept

    assert asyncio.run(first()) == 1
    assert asyncio.run(second()) == (2, [full, page(2), None], (b"the children", b"the body"))


def test_a_page_is_forgotten_with_all_that_is_kept_of_it(store: Store) -> None:
    """Nothing is left of it, written or not."""

    async def run() -> Any:
        for entry in (page(1, body=b"b"), page(2, body=b"b")):
            store.put_body(entry.key, b"b", b"body")
            store.put(entry, b"children")
            if entry == page(1, body=b"b"):
                await store.flush()
            store.forget(entry.key)
        found = [await store.get(page(n).key) for n in (1, 2)]
        await store.close()
        return found

    assert asyncio.run(run()) == [None, None]
    with sqlite3.connect("pages.db") as database:
        for table in ("pages", "children", "bodies"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    database.close()


def test_only_the_body_of_the_entry_is_kept(store: Store) -> None:
    """A body whose rows were never safe does not stay, nor that of the run before."""

    async def run() -> Any:
        for digest in (b"1", b"never safe", b"2"):
            store.put_body(page(1).key, digest, digest * 2)
            if digest != b"never safe":
                store.put(page(1, body=digest))
            await store.flush()
        found = [await store.body(page(1).key, digest) for digest in (b"1", b"never safe", b"2")]
        await store.close()
        return found

    assert asyncio.run(run()) == [None, None, b"22"]


def test_look_ups_go_together(store: Store, backend: Counting) -> None:
    """Those of one turn of the loop are one call, however many they are."""

    async def run() -> None:
        for n in range(1200):
            store.put(page(n))
        await store.flush()
        backend.calls.clear()
        found = await asyncio.gather(*(store.get(page(n).key) for n in range(1500)))
        assert found == [page(n) for n in range(1200)] + [None] * 300
        await store.close()

    asyncio.run(run())

    assert backend.calls == ["read 1500"]


def test_updates_are_written_in_time_and_in_batches(backend: Counting, stats: Any) -> None:
    """Nothing waits longer than the interval, and many do not wait for it."""
    assert store_module.FLUSH_INTERVAL <= 30

    async def run() -> None:
        store = Store(backend, stats, interval=0.1)
        store.put(page(1))
        store.put(page(2))
        assert backend.calls == []
        for _ in range(100):
            await asyncio.sleep(0.05)
            if backend.calls:
                break
        assert backend.calls == ["write 2"]
        slow = Store(backend, stats, interval=1000)
        for n in range(5000):
            slow.put(page(n))
        for _ in range(100):
            await asyncio.sleep(0.05)
            if len(stored()) == 5000:  # noted before they are written
                break
        assert backend.calls == ["write 2", "write 5000"]
        assert len(stored()) == 5000
        await store.close()
        await slow.close()

    asyncio.run(run())

    assert stats.get_value(keys.INCREMENTAL_STORED) == 5002


@pytest.mark.parametrize("error", [StoreError("away"), RuntimeError("a bug"), OSError("disk")])
def test_a_store_that_fails_ends_nothing(
    store: Store, backend: Counting, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows nothing while it cannot be read, and what it could not write is written later."""

    async def run() -> None:
        await store.open("s")
        backend.error = error
        for n in range(3):
            assert await store.get(page(n).key) is None
            store.put(page(n))
            await store.flush()
        assert await store.get(page(0).key) == page(0)  # held
        backend.error = None
        await store.close()

    asyncio.run(run())

    assert len(stored()) == 3
    assert caplog.text.count("fetched as if they were not known") == 1
    assert caplog.text.count("held, and tried again") == 1


def test_only_so_much_is_held(
    store: Store, backend: Counting, stats: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """While it cannot be written, memory is bounded, and what is dropped is counted."""
    monkeypatch.setattr(store_module, "_BATCH", 10)
    monkeypatch.setattr(store_module, "_MAX_HELD", 50)
    monkeypatch.setattr(store_module, "_MAX_HELD_BYTES", 10_000)

    async def run() -> None:
        backend.error = StoreError("full")
        for n in range(200):
            store.put(page(n), b"x" * 100)
            store.put_body(page(n).key, b"d", b"x" * 100)
            await asyncio.sleep(0.001)
        assert len(store._held) + len(store._writing) <= 110
        assert store._held.size <= 10_000
        await store.close()

    asyncio.run(run())

    assert stats.get_value(keys.INCREMENTAL_LOST) > 300
    assert "could not be stored" in caplog.text


def test_a_full_disk(store: Store, backend: Counting, caplog: pytest.LogCaptureFixture) -> None:
    """One line; what was stored stays, and what is new is written once there is room."""

    async def run() -> None:
        await store.open("s")
        store.put(page(0))
        await store.flush()
        database = backend._connected()
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages + 2}")
        for n in range(1, 2000):
            store.put(page(n, url="http://a.test/" + "x" * 500))
        await store.flush()
        await store.flush()
        assert await store.get(page(0).key) == page(0)
        assert list(stored()) == [page(0).key]
        database.execute("PRAGMA max_page_count = 1000000")
        await store.close()

    asyncio.run(run())

    assert len(stored()) == 2000
    assert caplog.text.count("database or disk is full") == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"not a database at all" * 100,
        lambda data: data[: len(data) // 3],
        lambda data: data[:100] + os.urandom(len(data) - 100),
        lambda data: os.urandom(len(data)),
    ],
    ids=["text", "cut", "all but the head", "noise"],
)
def test_a_damaged_file_is_kept_aside(
    damage: Any, stats: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is begun anew with one warning, and the crawl goes on."""

    async def fill(store: Store) -> None:
        await store.open("s")
        for n in range(500):
            store.put(page(n))
        await store.close()

    async def use(store: Store) -> int:
        await store.open("s")
        found = await asyncio.gather(*(store.get(page(n).key) for n in range(500)))
        store.put(page(1))
        await store.close()
        return sum(one is not None for one in found)

    asyncio.run(fill(Store(SqliteBackend("pages.db"), stats)))
    path = Path("pages.db")
    spoiled = damage(path.read_bytes())
    path.write_bytes(spoiled)
    found = asyncio.run(use(Store(SqliteBackend("pages.db"), stats)))
    aside = [one for one in Path().iterdir() if "damaged" in one.name]

    assert found == 0
    assert page(1).key in stored()
    assert len(aside) == 1
    assert aside[0].read_bytes() == spoiled
    assert caplog.text.count("is damaged") == 1


def test_an_empty_file_is_a_new_store(stats: Any) -> None:
    """As a disk leaves it that was full when the file was made."""
    Path("pages.db").touch()
    backend = SqliteBackend("pages.db")

    assert backend.open("s") == 1
    backend.close()


def test_a_store_of_another_version_is_refused() -> None:
    """Rather than misread it."""
    backend = SqliteBackend("pages.db")
    backend.open("s")
    backend.close()
    with sqlite3.connect("pages.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()

    with pytest.raises(ConfigError, match="NETSPY_INCREMENTAL_PATH"):
        SqliteBackend("pages.db").check()


def test_two_processes_share_a_file(stats: Any) -> None:
    """Two crawls write at once; neither loses anything."""
    one, two = SqliteBackend("pages.db"), SqliteBackend("pages.db")

    async def fill(backend: SqliteBackend, numbers: range) -> None:
        store = Store(backend, stats, interval=0.01)
        await store.open("s")
        for n in numbers:
            store.put(page(n))
            if n % 50 == 0:
                await asyncio.sleep(0.002)
        await store.close()

    async def run() -> None:
        await asyncio.gather(fill(one, range(1000)), fill(two, range(1000, 2000)))

    asyncio.run(run())

    assert len(stored()) == 2000


_WRITER = """
import sys
sys.path.insert(0, {root!r})
from tests.incremental.test_store import page
from netspy_scrapy.incremental.sqlite import SqliteBackend
from netspy_scrapy.incremental.store import Changes
backend = SqliteBackend("pages.db")
backend.open("s")
print("READY", flush=True)
for turn in range(100_000):
    changes = Changes()
    for n in range(200):
        changes.put(page(n).key, page(n, run=turn), b"x" * 50)
    backend.write(changes)
    print(turn, flush=True)
"""


def test_a_killed_process_leaves_whole_batches(tmp_path: Path) -> None:
    """After kill -9 the file is sound, and each batch is there in full or not at all."""
    chance = random.Random(4)
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER.format(root=str(ROOT))],
            stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        time.sleep(chance.uniform(0.02, 0.4))
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split("\n")[:-1]
        process.wait()
        process.stdout.close()
        with sqlite3.connect(tmp_path / "pages.db") as database:
            (sound,) = database.execute("PRAGMA integrity_check").fetchone()
            turns = [turn for (turn,) in database.execute("SELECT DISTINCT run FROM pages")]
        database.close()

        assert sound == "ok"
        assert len(turns) == 1
        assert turns[0] >= int(said[-1]) if said else True
