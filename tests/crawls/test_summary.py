"""The summary of a run, for people and for programs."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import types
from typing import Any

import pytest
import scrapy
from scrapy.settings import Settings

import netspy_scrapy as mw
from netspy_scrapy.extensions import runtime
from netspy_scrapy.extensions.next_steps import next_steps
from netspy_scrapy.pipelines.base import BasePipeline
from tests.crawling import MemorySink, PlainSpider, crawl


class Refuses(BasePipeline):
    """Refuses every second row."""

    def save_items(self, table: str, items: list[dict[str, Any]]) -> dict[int, str]:
        return {n: "odd" for n, item in enumerate(items) if item["n"] % 2}


#: What replays what a spider of this file left.
ITEMS = f"netspy-retry --items --spider {__file__}"
REQUESTS = f"netspy-retry --requests --spider {__file__}"


class Shop(mw.AirSpider):
    """Rows of two tables, a failure, a retry, a drop, a duplicate."""

    name = "shop"
    base = ""
    __custom_setting__ = {
        "ITEM_PIPELINES": {MemorySink: 300, Refuses: 400}, "SPIDER_MAX_RETRY_TIMES": 1,
        "ROBOTS_OBEY": True,
    }  # fmt: skip

    def start_requests(self) -> Any:
        for path in ("/page/1", "/page/1", "/status/404", "/forbidden", "/busy"):
            yield mw.Request(self.base + path)

    def parse(self, request: Any, response: Any) -> Any:
        if "/page/1" in request.url:
            for n in range(4):
                yield {"n": n}
        if "/busy" in request.url:
            item = mw.Item()
            item.table_name = "books"
            item.n = 7
            yield item


def test_the_line_for_programs(site: Any, caplog: Any) -> None:
    """One line of JSON with netspy's counts under its names, and ours."""
    site.set("/robots.txt", body=b"User-agent: *\nDisallow: /forbidden\n")
    site.set("/busy", body=b"page")
    site.set("/busy", status=503, headers={"Retry-After": "1"}, times=1)
    crawl(Shop, base=site.url("").rstrip("/"))

    found = record(caplog)
    domain = f"127.0.0.1:{site.port}"
    expected = {
        "schema": 1, "spider": "shop", "request_ok": 2, "request_failed": 1, "retry": 1,
        "dropped": 1, "robots_dropped": 1, "content_type_dropped": 0, "parse_error": 0,
        "dedup_dropped": 1, "dedup_degraded": 0, "items": 5, "item_dedup_dropped": 0,
        "item_failed": 3, "reason": "finished", "pages": 3, "retries": {"503": 1},
        "drops": {"robots": 1}, "failures": {"404": 1}, "requests_dumped": 1, "requests_lost": 0,
        "sinks": {
            "MemorySink": {"items": {"stored": 4}, "books": {"stored": 1}},
            "Refuses": {
                "items": {"refused": 2, "stored": 2, "dumped": 2},
                "books": {"refused": 1, "dumped": 1},
            },
        },
        "exit_status": 0, "findings": {"rows_dumped": 3, "requests_failed": 1},
        "next_steps": [
            f"3 rows in failed_items.jsonl: {ITEMS} stores them",
            f"1 request in failed_requests.jsonl: {REQUESTS} fetches it",
        ],
        "incremental": {},
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    rested = found["domains"][domain]
    assert (rested["rests"], rested["circuits"]) == (1, 0)
    assert 0.9 < rested["seconds"] <= 1.01
    assert found["statuses"] == {"200": 3, "404": 1, "503": 1}
    assert 1 < found["elapsed"] < 30
    assert found["bytes"] > 0


def test_the_block_for_people(site: Any, caplog: Any) -> None:
    """What came of the run, of each sink and table, and what to do next."""
    site.set("/robots.txt", body=b"User-agent: *\nDisallow: /forbidden\n")
    site.set("/busy", body=b"page")
    site.set("/busy", status=503, headers={"Retry-After": "1"}, times=1)
    crawl(Shop, base=site.url("").rstrip("/"))

    lines = block(caplog)
    received = lines.pop(2)
    assert re.fullmatch(r"  bytes    [1-9][\d.]* KB", received)
    rest = lines.pop(6)
    assert re.fullmatch(rf"    127\.0\.0\.1:{site.port}: 1 rest, (0\.9\d*|1) s", rest)
    assert lines == [
        "Run summary of shop (finished)",
        "  pages    3  (200 3, 404 1, 503 1)",
        "  retries  1  (503 1)",
        "  drops    1  (robots 1)",
        "  failures 1  (404 1)",
        "  rests    1",
        "  filtered 1  (duplicate requests 1)",
        "  items    5",
        "  MemorySink: rows 5 stored, 0 refused, 0 dumped",
        "    items: 4 stored, 0 refused, 0 dumped",
        "    books: 1 stored, 0 refused, 0 dumped",
        "  Refuses: rows 2 stored, 3 refused, 3 dumped",
        "    items: 2 stored, 2 refused, 2 dumped",
        "    books: 0 stored, 1 refused, 1 dumped",
        f"  ! 3 rows in failed_items.jsonl: {ITEMS} stores them",
        f"  ! 1 request in failed_requests.jsonl: {REQUESTS} fetches it",
    ]


class Slow(BasePipeline):
    """Takes three seconds for a batch."""

    async def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        await asyncio.sleep(3)
        return True


@pytest.mark.timed
def test_a_rest_that_the_end_of_the_run_cuts(site: Any, caplog: Any) -> None:
    """It counts the seconds until the stop, not those that it was to last or the sinks took."""
    site.set("/busy", status=429, headers={"Retry-After": "50"})

    class Yields(PlainSpider):
        def parse(self, response: Any) -> Any:
            yield {"url": response.url}

    settings = {
        "SPIDER_MAX_RUNTIME": 1.5, "ITEM_PIPELINES": {Slow: 1}, "BUFFER_FLUSH_INTERVAL": 600,
    }  # fmt: skip
    crawl(Yields, settings, urls=(site.url("/busy"), site.url("/page/1", host="127.0.0.2")))

    domain = f"127.0.0.1:{site.port}"
    found = record(caplog)
    assert found["elapsed"] > 4.4
    assert 0.5 < found["domains"][domain]["seconds"] < 2.9
    (line,) = [one for one in block(caplog) if domain in one]
    rest = re.fullmatch(r".*: 1 rest, ([\d.]+) s", line)
    assert rest is not None
    assert 0.5 < float(rest[1]) < 2.9


def test_the_share_of_unchanged_pages(site: Any, caplog: Any, tmp_path: Any) -> None:
    """The line for programs has what came of asking sites, as the block has."""
    site.set("/p", body="x" * 3000, headers={"ETag": '"1"'}, conditional=True)
    site.set("/q", body="y", headers={"ETag": '"1"'})
    urls = (site.url("/p"), site.url("/q"))
    for _ in range(2):
        caplog.clear()
        crawl(PlainSpider, {"NETSPY_INCREMENTAL": True}, urls=urls)

    expected = {"asked": 2, "not_modified": 1, "share": 0.5, "bytes_saved": 3000}
    assert record(caplog)["incremental"] == expected
    assert any("unchanged 1 of 2 pages that were" in one for one in block(caplog))


def test_rows_that_a_hung_sink_held(site: Any, caplog: Any, monkeypatch: Any) -> None:
    """Rows that are dumped since a sink hangs at a stop are in the summary."""
    monkeypatch.setattr(runtime, "_SINK_TIMEOUT", 0.2)

    class Hangs(BasePipeline):
        async def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
            await asyncio.sleep(600)
            return True

    class Yields(PlainSpider):
        def parse(self, response: Any) -> Any:
            yield {"url": response.url}
            raise scrapy.exceptions.CloseSpider("enough")

    settings = {"ITEM_PIPELINES": {Hangs: 1}, "NETSPY_STOP_TIMEOUT": 0.2}
    crawl(Yields, settings, urls=(site.url("/page/1"),))

    assert "  Hangs: rows 0 stored, 0 refused, 1 dumped  (items)" in block(caplog)
    assert "  ! 1 row in failed_items.jsonl: netspy-retry --items stores it" in block(caplog)
    assert record(caplog)["sinks"] == {"Hangs": {"items": {"dumped": 1}}}


@pytest.mark.parametrize(
    ("modules", "own", "items", "requests"),
    [
        (["shop.spiders"], {}, "--items", "--requests"),
        (["shop.spiders"], {"SQLITE_PATH": "a.db"}, "--items --spider books", "--requests"),
        ([], {}, "--items", "--requests --spider books.py"),
        ([], {"SQLITE_PATH": "a.db"}, "--items --spider books.py", "--requests --spider books.py"),
    ],
)
def test_the_commands_find_the_spider(
    monkeypatch: Any, tmp_path: Any, modules: list[str], own: Any, items: str, requests: str
) -> None:
    """They work as they are printed, and store rows where the spider would."""
    module = types.ModuleType("shop.spiders.books")
    module.__file__ = str(tmp_path / "books.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    cls = type("Books", (scrapy.Spider,), {"name": "books", "custom_settings": own})
    cls.__module__ = module.__name__
    settings = Settings({"SPIDER_MODULES": modules})
    context: Any = types.SimpleNamespace(
        crawler=types.SimpleNamespace(spidercls=cls, settings=settings),
        dump_settings=types.SimpleNamespace(item_path="i.jsonl", request_path="r.jsonl"),
    )
    stats = {"netspy/rows/Sink/dumped": 2, "netspy/requests/dumped": 1}

    assert next_steps(stats, context, {}) == [
        f"2 rows in i.jsonl: netspy-retry {items} stores them",
        f"1 request in r.jsonl: netspy-retry {requests} fetches it",
    ]


def block(caplog: Any) -> list[str]:
    """Return the lines of the block."""
    texts = [one.getMessage() for one in caplog.records]
    (text,) = [one for one in texts if one.startswith("Run summary")]
    return str(text).split("\n")


def record(caplog: Any) -> dict[str, Any]:
    """Return what the line for programs says."""
    texts = [one.getMessage() for one in caplog.records]
    (line,) = [one for one in texts if one.startswith("NETSPY_RUN_SUMMARY ")]
    found: dict[str, Any] = json.loads(line.partition(" ")[2])
    return found


def test_no_summary_where_none_is_wanted(site: Any, caplog: Any) -> None:
    """RUN_SUMMARY_ENABLE = False leaves out both."""
    crawl(Shop, {"RUN_SUMMARY_ENABLE": False}, base=site.url("").rstrip("/"))

    text = " ".join(one.getMessage() for one in caplog.records)
    assert "Run summary" not in text
    assert "NETSPY_RUN_SUMMARY" not in text
