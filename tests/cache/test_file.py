"""The cache's file: what is written is read, and what is damaged is not."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netspy_scrapy.cache.entries import (
    Asked,
    Entry,
    Head,
    decode_head,
    encode_head,
    scope_of,
    vary_of,
)
from netspy_scrapy.cache.file import FILE, CacheFile
from netspy_scrapy.cache.index import Index
from netspy_scrapy.cache.listing import delete, entries_of, use_by_domain
from netspy_scrapy.exceptions import CacheError

HEAD = Head(
    "http://a.test/", 200, {"Content-Type": [b"text/html"], "Set-Cookie": [b"a=1", b"b=\xff"]},
    ["x"], "HTTP/1.1", None, {"Accept": [b"*/*"]},
)  # fmt: skip


def asked(key: int = 1, **headers: str) -> Asked:
    return Asked(
        "s/0", key, b"", "",
        {name.replace("_", "-"): value.encode() for name, value in headers.items()},
    )  # fmt: skip


def entry(
    key: int = 1, body: bytes = b"body", *, vary: tuple[str, ...] = (), stored: float = 1000.0,
    domain: str = "a.test", **headers: str,
) -> Entry:  # fmt: skip
    wanted = asked(key, **headers)
    return Entry(
        "s/0", key, wanted.variant(vary), ",".join(vary), wanted.cookies, stored, domain,
        f"http://{domain}/{key}", 200, encode_head(HEAD), body,
    )  # fmt: skip


def opened(folder: Any = "cache") -> CacheFile:
    file = CacheFile(folder)
    file.open()
    return file


def found(file: CacheFile, *wanted: Asked) -> list[Any]:
    return [one.body if isinstance(one, Entry) else one for one in file.find(wanted)]


# Entries -----------------------------------------------------------------------------------------
def test_what_is_written_is_read() -> None:
    """Entries come back byte for byte, in the order in which they are asked for."""
    file = opened()
    entries = [entry(n, os.urandom(abs(n) * 1000)) for n in range(-3, 20)]
    file.write(entries)
    keys = [5, -3, 19, 777, 5]

    assert file.find([asked(key) for key in keys]) == [
        next((one for one in entries if one.key == key), None) for key in keys
    ]
    assert file.keys("s/0") == sorted((one.key, 1000.0) for one in entries)
    assert file.keys("other") == []
    assert decode_head(entries[0].head) == HEAD


def test_an_entry_replaces_the_one_for_the_same_requests() -> None:
    """And leaves those for other headers and cookies."""
    file = opened()
    file.write([entry(body=b"old")])
    file.write([entry(body=b"de", accept_language="de"), entry(body=b"user", cookie="u=1")])
    file.write([entry(body=b"new")])

    assert found(file, asked(), asked(accept_language="de"), asked(cookie="u=1")) == [
        b"new", b"de", b"user"
    ]  # fmt: skip
    assert found(file, asked(cookie="u=2")) == [None]
    assert use_by_domain(file)[0].entries == 3
    with file.using("read") as db:
        assert db.execute("SELECT count(*) FROM contents").fetchone()[0] == 3


def test_variants_of_a_page_are_bounded() -> None:
    """A site that gives every request another cookie does not fill the disk with one page."""
    file = opened()
    for n in range(100):
        file.write([entry(cookie=f"sid={n}", stored=1000.0 + n)])

    assert use_by_domain(file)[0].entries <= 17
    assert found(file, asked(cookie="sid=99")) == [b"body"]


def test_cookies_are_a_set() -> None:
    """Their order does not count, and ambient ones do not."""
    file = opened()
    file.write([entry(cookie="a=1; sid=5")])
    other = replace(asked(cookie="sid=7; a=1"), ignored=frozenset({"sid"}))

    assert found(file, asked(cookie="sid=5; a=1"), asked(cookie="a=1"), other) == [
        b"body", None, b"body"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([], ()), ([b"Accept-Encoding"], ("accept-encoding",)), ([b"b, A", b"c"], ("a", "b", "c")),
        ([b"*"], None), ([b"a, *"], None), ([b" , "], ()),
    ],
)  # fmt: skip
def test_vary(value: list[bytes], names: Any) -> None:
    """The names of all Vary headers, in one order; * is for no other request."""
    assert vary_of({"vary": value}) == names


def test_parts_of_a_variant_do_not_run_together() -> None:
    """Two headers of which one has the other's end are two variants."""
    one = asked(accept="ab", accept_language="c")
    two = asked(accept="a", accept_language="bc")

    assert one.variant(()) != two.variant(())
    assert replace(one, manner="x").variant(()) != one.variant(())
    assert replace(one, page=b"x").variant(()) != one.variant(())


def test_scopes() -> None:
    """A spider under the same headers has one scope, under others another."""
    assert scope_of("a", {"h": {"X": 1}}) == scope_of("a", {"h": {"X": 1}})
    assert scope_of("a", {"h": {"X": 1}}) != scope_of("a", {"h": {"X": 2}})
    assert scope_of("a", {}) != scope_of("b", {})


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"\xff", b"null", b'{"url": 1}', b"[" * 100_000]
)
def test_a_head_that_is_none(data: bytes) -> None:
    """Anything that was not written by encode_head is an error of ours."""
    with pytest.raises(CacheError):
        decode_head(data)


# The index ---------------------------------------------------------------------------------------
def test_the_index() -> None:
    """What was there, what came, and what went."""
    index = Index((key, float(key)) for key in range(-1000, 1000, 2))
    index.add(7, 70.0)
    index.add(8, 80.0)
    index.discard(10)
    index.discard(11)

    assert [index.stored(key) for key in (-1000, 7, 8, 10, 11, 998, 999)] == [
        -1000.0, 70.0, 80.0, None, None, 998.0, None
    ]  # fmt: skip
    assert len(index) == 1000


def test_the_index_of_100_000_entries_is_small_and_quick() -> None:
    """16 bytes an entry, and a look-up that does not depend on their number."""
    import tracemalloc

    chance = random.Random(0)
    keys = sorted({chance.randrange(-(2**63), 2**63) for _ in range(100_000)})
    tracemalloc.start()
    index = Index((key, 1.0) for key in keys)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    begun = time.perf_counter()
    hits = sum(index.stored(key) is not None for key in keys[::10])

    assert hits == 10_000
    assert size < 3_000_000
    assert time.perf_counter() - begun < 1


# Damage ------------------------------------------------------------------------------------------
def test_no_byte_can_be_changed_unnoticed(folder: Path) -> None:
    """With any byte of the file changed, an entry is read as it was, or not at all."""
    file = opened()
    entries = [entry(n, bytes([n]) * 300, cookie=f"c={n}") for n in range(1, 4)]
    file.write(entries)
    file.close()
    whole = Path("cache", FILE).read_bytes()
    chance = random.Random(1)
    used = [n for n in range(len(whole)) if whole[n]]
    places = sorted({*chance.sample(used, min(len(used), 600)), *range(120)})
    misses = 0
    Path("tried").mkdir()
    for place in places:
        broken = bytearray(whole)
        broken[place] ^= 1 << chance.randrange(8)
        for one in Path("tried").iterdir():
            one.unlink()
        Path("tried", FILE).write_bytes(broken)
        tried = CacheFile("tried")
        try:
            tried.open()
            tried.keys("s/0")
            answers = tried.find([asked(one.key, cookie=f"c={one.key}") for one in entries])
        except CacheError:
            answers = [None] * 3
        for answer, one in zip(answers, entries, strict=True):
            if isinstance(answer, Entry):
                assert (answer.body, answer.head, answer.stored) == (one.body, one.head, one.stored)
            else:
                misses += 1
        try:
            tried.open()
            tried.write([entry(9)])
        except CacheError:
            pass
        tried.close()

    assert 0 < misses < 3 * len(places)


@pytest.mark.parametrize("size", [0, 1, 50, 100, 1000, 4096, 5000, 8192])
def test_a_file_that_was_cut_short(size: int) -> None:
    """It is as if it were empty, and can be written to."""
    file = opened()
    file.write([entry(n, b"x" * 2000) for n in range(10)])
    file.close()
    path = Path("cache", FILE)
    path.write_bytes(path.read_bytes()[:size])
    again = CacheFile("cache")
    for _ in range(3):  # damage may be found by opening, by reading, or by writing
        try:
            again.open()
            again.find([asked(n) for n in range(10)])
            again.write([entry(3, b"new")])
        except CacheError:
            continue
        break

    assert found(again, asked(3)) == [b"new"]
    again.close()


def test_a_damaged_file_is_set_aside_once(folder: Path) -> None:
    """Whoever comes second finds the new file, and does not set that aside."""
    first, second = opened(), opened()
    first.write([entry(n, b"x" * 3000) for n in range(50)])
    for file in (first, second):
        file.keys("s/0")
    with first.using("read") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path = Path("cache", FILE)
    with path.open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\xff" * (path.stat().st_size - 4096))
    third, fourth = opened(), opened()
    for _ in range(2):
        for file in (third, fourth):
            try:
                file.find([asked(n) for n in range(50)])
                file.write([entry(1)])
            except CacheError:
                pass

    assert found(third, asked(1)) == found(fourth, asked(1)) == [b"body"]
    assert [one.name for one in Path("cache").glob("*.broken*")] == [f"{FILE}.broken"]


def test_the_file_of_another_version(caplog: Any) -> None:
    """What another version wrote is not read as if it were ours."""
    file = opened()
    file.write([entry()])
    with file.using("written") as db:
        db.execute("PRAGMA user_version = 99")
    file.close()

    assert found(opened(), asked()) == [None]
    assert "it is of version 99, not 1" in caplog.text


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="root writes anywhere")
def test_a_folder_that_can_only_be_read() -> None:
    """Its entries are read, and nothing is written."""
    file = opened()
    file.write([entry()])
    file.close()
    Path("cache", FILE).chmod(0o400)
    Path("cache").chmod(0o500)
    again = opened()

    assert again.read_only
    assert found(again, asked()) == [b"body"]
    with pytest.raises(CacheError, match="read-only"):
        again.write([entry(2)])
    again.close()
    Path("cache").chmod(0o700)


# Several processes -------------------------------------------------------------------------------
WRITER = """
    import sys, time
    from netspy_scrapy.cache.file import CacheFile
    from tests.cache.test_file import entry
    file = CacheFile("cache")
    file.open()
    start = int(sys.argv[1])
    n = 0
    while n < int(sys.argv[2]):
        file.write([entry(start + n + m, b"%d" % (start + n + m) * 500) for m in range(20)])
        n += 20
        print(n, flush=True)
"""
ROOT = Path(__file__).resolve().parent.parent.parent


def writer(start: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(start), str(count)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_processes_write_and_read_at_once() -> None:
    """Three processes that begin a cache together lose nothing, while a fourth one reads."""
    processes = [writer(start, 400) for start in (0, 10_000, 20_000)]
    file = opened()
    while any(one.poll() is None for one in processes):
        file.find([asked(n) for n in range(0, 400, 50)])
    for one in processes:
        one.communicate()

    assert [one.returncode for one in processes] == [0, 0, 0]
    assert len(file.keys("s/0")) == 1200
    assert found(file, asked(20_399)) == [b"20399" * 500]


def test_a_kill_while_writing_leaves_whole_entries() -> None:
    """After a kill -9 at any moment what can be read is whole, and writing goes on."""
    for attempt in range(8):
        process = writer(attempt * 10_000, 100_000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02 * attempt)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    file = opened()
    keys = [key for key, _ in file.keys("s/0")]
    bodies = [found(file, asked(key))[0] for key in keys]
    file.write([entry(5)])

    assert len(keys) >= 8 * 20
    assert len(keys) % 20 == 0
    assert bodies == [b"%d" % key * 500 for key in keys]
    assert not list(Path("cache").glob("*.broken"))


def test_a_writer_that_holds_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on; writing gives up after a while, with an error of ours."""
    monkeypatch.setattr("netspy_scrapy.cache.file._BUSY", 0.2)
    file = opened()
    file.write([entry()])
    other = sqlite3.connect(Path("cache", FILE), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    assert found(file, asked()) == [b"body"]
    with pytest.raises(CacheError, match="locked"):
        file.write([entry(2)])
    other.execute("COMMIT")
    file.write([entry(2)])
    assert found(file, asked(2)) == [b"body"]


def test_threads_that_open_at_once() -> None:
    """Many that begin the file in the same moment find one cache."""
    errors: list[Exception] = []

    def begin(n: int) -> None:
        try:
            file = opened()
            file.write([entry(n)])
            file.close()
        except Exception as exc:  # noqa: BLE001 - shown below
            errors.append(exc)

    threads = [threading.Thread(target=begin, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert len(opened().keys("s/0")) == 8


# Listing -----------------------------------------------------------------------------------------
def test_deleting_by_domain_and_age_gives_the_disk_back() -> None:
    """Only what is meant goes, and the file becomes smaller."""
    file = opened()
    file.write([entry(n, b"x" * 50_000, stored=float(n)) for n in range(50)])
    file.write([entry(n, b"x" * 50_000, domain="b.test", stored=float(n)) for n in range(50, 60)])
    with file.using("read") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = file.path.stat().st_size

    assert delete(file, domain="a.test", before=10.0) == 10
    assert delete(file, domain="c.test") == 0
    assert [(one.domain, one.entries) for one in use_by_domain(file)] == [
        ("a.test", 40), ("b.test", 10)
    ]  # fmt: skip
    assert delete(file, domain="a.test") == 40
    assert file.path.stat().st_size < before / 3
    assert delete(file) == 10
    assert use_by_domain(file) == []


def test_a_page_is_found_in_another_writing() -> None:
    """By its URL as it was asked for, or one that means the same."""
    file = opened()
    file.write([replace(entry(), url="http://a.test/?a=1&b=2", domain="a.test")])

    assert len(entries_of(file, "http://a.test/?a=1&b=2")) == 1
    assert len(entries_of(file, "http://user:pw@A.test/?b=2&a=1")) == 1
    assert entries_of(file, "http://a.test/?a=1") == []
