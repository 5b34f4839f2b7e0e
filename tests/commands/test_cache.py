"""netspy-cache, as a person runs it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from netspy_scrapy.cache.entries import Asked, Entry, Head, encode_head
from netspy_scrapy.cache.file import FILE, CacheFile
from netspy_scrapy.commands.cache import age, main

SECRET = "hunter2"
HOURS = 3600.0


def fill(folder: str = ".netspy_cache", **hours: float) -> None:
    """Store a page for each domain, so many hours ago (``a_test=2``: two hours)."""
    file = CacheFile(folder)
    file.open()
    entries = []
    for n, (name, old) in enumerate(hours.items()):
        domain = name.replace("_", ".")
        url = f"http://{domain}/page?id={n}"
        head = Head(
            url, 200,
            {"Content-Type": [b"text/html"], "Set-Cookie": [b"sid=" + SECRET.encode()],
             "X-Title": [b"\x1b[2Jcaf\xe9"]},
            [], None, None,
            {"Authorization": [b"Basic " + SECRET.encode()], "X-Csrf-Token": [SECRET.encode()],
             "Accept": [b"*/*"]},
        )  # fmt: skip
        asked = Asked("books/0", n, b"", "", {})
        entries.append(
            Entry("books/0", n, asked.variant(("accept-encoding",)), "accept-encoding", b"",
                  time.time() - old * HOURS, domain, url, 200, encode_head(head), b"x" * 3000)
        )  # fmt: skip
    file.write(entries)
    file.close()


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def domains() -> list[str]:
    with sqlite3.connect(Path(".netspy_cache", FILE)) as db:
        return [row[0] for row in db.execute("SELECT domain FROM entries ORDER BY domain")]


def test_the_list(capsys: Any) -> None:
    """Each domain with its entries, their size and age, and the sum."""
    fill(a_test=50, b_test=0.5)
    status, out, _ = run(capsys)
    lines = [line.split("  ") for line in out.splitlines()]

    assert status == 0
    assert [cell.strip() for cell in lines[0] if cell] == [
        "domain", "entries", "size", "oldest", "newest"
    ]  # fmt: skip
    assert out.splitlines()[1].split() == ["a.test", "1", "3.3", "kB", "2", "days", "2", "days"]
    assert out.splitlines()[2].split()[:2] == ["b.test", "1"]
    assert out.splitlines()[3].split()[:3] == ["in", "all", "2"]
    assert ".netspy_cache takes" in out


def test_the_list_of_some(capsys: Any) -> None:
    """--domain and --older-than choose what is shown, and change nothing."""
    fill(a_test=50, b_test=0.5)

    assert "b.test" not in run(capsys, "--older-than", "2d")[1]
    assert "a.test" not in run(capsys, "--domain", "B.test")[1]
    assert "No entries." in run(capsys, "--domain", "b.test", "--older-than", "2h")[1]
    assert domains() == ["a.test", "b.test"]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ([], []), (["--domain", "a.test"], ["b.test", "c.test"]),
        (["--older-than", "2d"], ["b.test", "c.test"]), (["--older-than", "90s"], []),
        (["--domain", "b.test", "--older-than", "1h"], ["a.test", "c.test"]),
        (["--domain", "nowhere.test"], ["a.test", "b.test", "c.test"]),
    ],
)  # fmt: skip
def test_clearing(capsys: Any, options: list[str], left: list[str]) -> None:
    """All entries, or only those of a domain, or older ones, or both."""
    fill(a_test=50, b_test=3, c_test=1)
    status, out, _ = run(capsys, "--clear", *options)

    assert status == 0
    assert domains() == left
    assert f"{3 - len(left)} entr" in out
    assert f"{len(left)} left" in out


def test_one_page(capsys: Any) -> None:
    """Its status, age and headers; secrets only if they are asked for."""
    fill(a_test=2)
    status, out, _ = run(capsys, "http://a.test/page?id=0")
    _, unmasked, _ = run(capsys, "http://a.test/page?id=0", "--show-secrets")

    assert status == 0
    assert "  status   200" in out
    assert "(2 hours ago)" in out
    assert "  spider   books" in out
    assert "    Accept: */*" in out
    assert "    Set-Cookie: ***" in out
    assert SECRET not in out
    assert unmasked.count(SECRET) == 3
    assert "\x1b" not in out
    assert "café" in out


def test_a_page_that_is_not_there(capsys: Any) -> None:
    """Status 1, and no password of the URL on the screen."""
    assert run(capsys, "http://a.test/")[0] == 1
    fill(a_test=2)
    status, out, err = run(capsys, f"http://me:{SECRET}@a.test/other")

    assert status == 1
    assert "has no entry of http://a.test/other" in out
    assert SECRET not in out + err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://a.test/", "--clear"], "do not go with it"),
        (["--path", "file"], "file cannot be used: it is no folder"),
        (
            ["-s", "RESPONSE_CACHE_PATH="],
            "RESPONSE_CACHE_PATH cannot be used: expected a text that is not empty",
        ),
        (["-s", "nonsense"], "invalid -s value"),
    ],
)
def test_what_cannot_be_done(capsys: Any, arguments: list[str], said: str) -> None:
    """Status 2, and a message that says why."""
    Path("file").write_text("")
    status, _, err = run(capsys, *arguments)

    assert status == 2
    assert err.startswith("netspy-cache: error: ")
    assert said in err


@pytest.mark.parametrize("text", ["2x", "-1d", "", "d", "1e3s", "٣d", "inf", "1 d"])
def test_an_age_that_is_none(capsys: Any, text: str) -> None:
    """The message names the value and shows what is allowed."""
    with pytest.raises(SystemExit) as exit_:
        main([f"--older-than={text}"])

    assert exit_.value.code == 2
    assert f"{text!r} is no age such as 90s, 30m, 12h, 2d or 1w" in capsys.readouterr().err


def test_ages() -> None:
    """Units, and fractions of them."""
    assert [age(one) for one in ("90s", "1.5m", "2h", "2d", "1w")] == [
        90, 90, 7200, 172_800, 604_800
    ]  # fmt: skip


def test_there_is_no_cache(capsys: Any) -> None:
    """Nothing is made by looking, and nothing is wrong."""
    for arguments in ((), ("--clear",)):
        status, out, _ = run(capsys, *arguments)
        assert (status, out) == (0, "There is no cache in .netspy_cache.\n")
    assert not Path(".netspy_cache").exists()


def test_a_damaged_cache(capsys: Any) -> None:
    """Looking says what to do, --clear does it, and a part of it cannot be cleared."""
    Path(".netspy_cache").mkdir()
    file = Path(".netspy_cache", FILE)
    file.write_bytes(b"no database" * 1000)

    status, _, err = run(capsys)
    assert status == 2
    assert "netspy-cache --clear begins the cache anew" in err
    assert run(capsys, "--clear", "--domain", "a.test")[0] == 2
    assert file.exists()
    status, out, _ = run(capsys, "--clear")
    assert status == 0
    assert "removed" in out
    assert not file.exists()


def test_it_reads_the_settings_of_the_project(capsys: Any) -> None:
    """RESPONSE_CACHE_PATH of setting.py, of a variable, of -s; --path goes before."""
    fill("one", a_test=1)
    fill("two", b_test=1)
    Path("setting.py").write_text('RESPONSE_CACHE_PATH = "one"\n')

    assert "a.test" in run(capsys)[1]
    assert "b.test" in run(capsys, "-s", "RESPONSE_CACHE_PATH=two")[1]
    assert "b.test" in run(capsys, "--path", "two")[1]


def test_as_a_command_of_scrapy() -> None:
    """``scrapy netspy-cache`` does the same, with the same exit status."""
    fill(a_test=1)
    command = [sys.executable, "-m", "scrapy", "netspy-cache"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    page = subprocess.run(
        [*command, "http://a.test/page?id=0"], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    missing = subprocess.run(
        [*command, "http://x.test/"], capture_output=True, text=True, timeout=60, check=False
    )

    assert (shown.returncode, page.returncode, missing.returncode) == (0, 0, 1)
    assert "a.test" in shown.stdout
    assert "Set-Cookie: ***" in page.stdout


def test_while_a_crawl_has_it_open(capsys: Any) -> None:
    """Entries go, the crawl's connection stays usable."""
    fill(a_test=1, b_test=1)
    crawl = CacheFile(".netspy_cache")
    crawl.open()
    wanted = Asked("books/0", 0, b"", "", {})
    assert crawl.find([wanted]) != [None]

    assert run(capsys, "--clear")[0] == 0
    assert crawl.find([wanted]) == [None]
    fill(a_test=1)
    assert crawl.find([wanted]) != [None]
    crawl.close()
