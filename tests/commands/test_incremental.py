"""``netspy-incremental`` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netspy_scrapy.commands.incremental import main
from tests.crawling import crawl
from tests.crawls.test_incremental import ON, Pages, Shop, conditions, entries, texts
from tests.site import Site

SPIDER = """
import scrapy


class Pages(scrapy.Spider):
    name = "pages"
    custom_settings = {"NETSPY_INCREMENTAL_PATH": "netspy_incremental.db"}
"""


@pytest.fixture
def known(site: Site) -> Site:
    """A site of which three pages are known; /2 was not seen by the last two runs."""
    for n in range(3):
        site.set(f"/{n}", body="x" * 10, headers={"ETag": f'"{n}"'} if n else {}, conditional=True)
    for last in (3, 2, 2):
        crawl(Pages, ON, urls=tuple(site.url(f"/{n}") for n in range(last)))
    return site


def test_list(known: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each page, with what there is to ask by, and how long it was not seen."""
    assert main(["--list"]) == 0
    out, err = capsys.readouterr()
    cells = [line.split("\t") for line in out.splitlines()]

    assert [(one[1], *one[3:]) for one in cells] == [
        ("200", "", "no validator", "-", known.url("/0")),
        ("304", "", "", '"1"', known.url("/1")),
        ("200", "unseen 2", "", '"2"', known.url("/2")),
    ]
    assert err == "3 pages\n"


def test_list_of_what_was_not_seen(known: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Pages that are linked from nowhere any more can be found, and forgotten."""
    assert main(["--list", "--unseen", "2"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["--list", "--unseen", "3"]) == 1
    assert main(["--forget", "*", "--unseen", "2"]) == 0
    assert sorted(entries()) == ["/0", "/1"]


def test_show(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """All that is known of a page, its requests among it; credentials are not shown."""
    site.set("/list", body='<a href="http://me:secret@127.0.0.1:1/d">x</a>',
             headers={"ETag": '"\xe9"'})  # fmt: skip
    crawl(Shop, {**ON, "NETSPY_INCREMENTAL_ON_304": "follow", "RETRY_ENABLED": False},
          url=site.url("/list"))  # fmt: skip
    assert main(["--show", site.url("/list")]) == 0
    out = capsys.readouterr().out

    assert "last seen     by the last run" in out
    assert '"\\xe9"' in out
    assert "yielded       1 requests" in out
    assert "<GET http://127.0.0.1:1/d>" in out
    assert "secret" not in out
    assert main(["--show", site.url("/other")]) == 1


def test_forget(known: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """What was forgotten is fetched in full again."""
    assert main(["--forget", known.url("/1")]) == 0
    assert main(["--forget", known.url("/1")]) == 1
    crawl(Pages, ON, urls=(known.url("/1"),))

    assert "forgot 1 pages" in capsys.readouterr().out
    assert conditions(known, "/1")[-1] == (None, None)


def test_import_of_the_json_file_of_a_script(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pages of an ETag cache of URLs are not fetched again; what is wrong is counted."""
    site.set("/a", body="x", headers={"ETag": 'W/"a"'}, conditional=True)
    site.set("/b", body="x", headers={"ETag": '"b"'}, conditional=True)
    cache = {
        site.url("/a"): {"etag": 'W/"a"', "ts": 1700000000.5, "status": 200},
        site.url("/b"): {"etag": None, "ts": 1700000000.5, "status": 200},
        "not a URL": {"etag": '"1"', "ts": 1, "status": 200},
        site.url("/c"): "nonsense",
    }
    Path("etag_cache.json").write_text(json.dumps(cache))
    Path("pages_spider.py").write_text(SPIDER)
    command = ["--import", "etag_cache.json", "--spider", "pages_spider.py"]
    assert main(command) == 0
    said = capsys.readouterr().out
    again = main(command)
    crawler = crawl(Pages, ON, urls=(site.url("/a"), site.url("/b")))

    assert said == (
        "imported 2 pages for the spider pages, 2 are no pages with an etag, ts and status\n"
    )
    assert again == 0
    assert "2 were known already" in capsys.readouterr().out
    assert conditions(site, "/a") == [('W/"a"', None)]
    assert conditions(site, "/b") == [(None, None)]
    assert texts(crawler) == ["x"]
    assert entries()["/a"].fetched == 1700000000.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--list"], "NETSPY_INCREMENTAL_PATH"),
        (["--import", "x.json"], "--import needs --spider"),
        (["--import", "missing.json", "--spider", "pages_spider.py"], "missing.json"),
        (["--import", "list.json", "--spider", "pages_spider.py"], "not a JSON object"),
        (["--list", "-s", "NETSPY_INCREMENTAL_ON_304=x"], "NETSPY_INCREMENTAL_ON_304"),
        (["--list", "--spider", "nobody"], "nobody"),
        (["--list", "-s", "nonsense"], "NAME=VALUE"),
    ],
)
def test_what_cannot_be_used(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, and a line that says why; no store is made by looking."""
    Path("pages_spider.py").write_text(SPIDER)
    Path("list.json").write_text("[]")

    assert main(arguments) == 2
    assert said in capsys.readouterr().err
    assert arguments[0] == "--import" or not Path("netspy_incremental.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "-m", "scrapy", "netspy-incremental"),
        (str(Path(sys.executable).with_name("netspy-incremental")),),
        (sys.executable, "-m", "netspy_scrapy.commands.incremental"),
    ],
    ids=["scrapy", "script", "module"],
)
def test_ways_to_run_it(known: Site, command: Any) -> None:
    """As a command of Scrapy, as a script, as a module: the same output and status."""
    done = subprocess.run(
        [*command, "--list"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert known.url("/1") in done.stdout
    assert "3 pages" in done.stderr
