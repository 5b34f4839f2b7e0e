"""The summary of a run, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

import netspy_scrapy as mw
from netspy_scrapy.pipelines.base import BasePipeline
from tests.crawling import MemorySink, crawl


class Refuses(BasePipeline):
    """Refuses every second row."""

    def save_items(self, table: str, items: list[dict[str, Any]]) -> dict[int, str]:
        return {n: "odd" for n, item in enumerate(items) if item["n"] % 2}


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

    (line,) = [
        one.getMessage() for one in caplog.records if one.getMessage().startswith("NETSPY_RUN_SUM")
    ]
    found = json.loads(line.partition(" ")[2])
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
        "domains": {domain: {"rests": 1, "seconds": 1.0, "circuits": 0}},
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["statuses"] == {"200": 3, "404": 1, "503": 1}
    assert 1 < found["elapsed"] < 30
    assert found["bytes"] > 0


def test_no_summary_where_none_is_wanted(site: Any, caplog: Any) -> None:
    """RUN_SUMMARY_ENABLE = False leaves out both."""
    crawl(Shop, {"RUN_SUMMARY_ENABLE": False}, base=site.url("").rstrip("/"))

    text = " ".join(one.getMessage() for one in caplog.records)
    assert "Run summary" not in text
    assert "NETSPY_RUN_SUMMARY" not in text
