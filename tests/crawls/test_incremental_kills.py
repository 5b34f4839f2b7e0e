"""Incremental crawls that are killed while sinks fail: no changed page is ever taken for stored."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.site import Site

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = 120
LISTS = 6

SPIDER = """
import json, os, random, sys
import scrapy
from netspy_scrapy.incremental import store
from netspy_scrapy.pipelines.base import BasePipeline

store.FLUSH_INTERVAL = 0.02  # so that a kill meets a store that is written all the time


class Sink(BasePipeline):
    def save_items(self, table, items):
        dice = random.Random()
        if dice.random() < float(os.environ["FAILS"]):
            raise RuntimeError("the sink fails")
        with open("rows.jsonl", "a") as file:
            for item in items:
                file.write(json.dumps(item) + "\\n")
            file.flush()
            os.fsync(file.fileno())
        return True


class Pages(scrapy.Spider):
    name = "pages"
    custom_settings = {
        "ADDONS": {"netspy_scrapy.Addon": 500}, "NETSPY_INCREMENTAL": True,
        "NETSPY_INCREMENTAL_ON_304": os.environ["MODE"], "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
        "ITEM_PIPELINES": {Sink: 300}, "TELNETCONSOLE_ENABLED": False, "LOG_LEVEL": "WARNING",
        "RETRY_ENABLED": False,
    }

    async def start(self):
        print("READY", flush=True)
        for path in json.loads(os.environ["PATHS"]):
            yield scrapy.Request(os.environ["SITE"] + path)

    def parse(self, response):
        if "/list/" in response.url:
            for link in response.css("a"):
                yield response.follow(link)
        else:
            yield {"page": response.url.rpartition("/")[2], "version": response.text}

    def closed(self, reason):
        stats = self.crawler.stats
        print(json.dumps({"unchanged": stats.get_value("netspy/incremental/not_modified", 0)}))


if __name__ == "__main__":
    from scrapy.crawler import AsyncCrawlerProcess
    process = AsyncCrawlerProcess()
    process.crawl(Pages)
    process.start()
"""


def start(folder: Path, site: Site, mode: str, fails: float) -> subprocess.Popen[str]:
    paths = [f"/list/{n}" for n in range(LISTS)] if mode == "follow" else [
        f"/p/{n}" for n in range(PAGES)
    ]  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "SITE": site.url("").rstrip("/"), "MODE": mode,
        "PATHS": json.dumps(paths), "FAILS": str(fails),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "pages.py"], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def change(site: Site, n: int, version: int) -> None:
    site.set(f"/p/{n}", body=f"v{version}", headers={"ETag": f'"{n}-{version}"'}, conditional=True,
             delay=0.01)  # fmt: skip


def safe_rows(folder: Path) -> set[tuple[str, str]]:
    """Return the rows that are stored, and those that a replay will store."""
    found = set()
    for name in ("rows.jsonl", "failed_items.jsonl"):
        path = folder / name
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:  # the line that the kill cut off
                continue
            row = row.get("data", row)
            found.add((row["page"], row["version"]))
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["skip", "follow"])
def test_nothing_that_changed_is_lost(site: Site, tmp_path: Path, mode: str) -> None:
    """After 20 kills at random moments, the next run stores what changed since the beginning."""
    chance = random.Random(6)
    (tmp_path / "pages.py").write_text(SPIDER)
    versions = dict.fromkeys(range(PAGES), 0)
    for n in range(PAGES):
        change(site, n, 0)
    per_list = PAGES // LISTS
    for one in range(LISTS):
        links = "".join(
            f"<a href=/p/{n}>x</a>" for n in range(one * per_list, (one + 1) * per_list)
        )
        site.set(f"/list/{one}", body=links, headers={"ETag": f'"list {one}"'}, conditional=True)
    for turn in range(1, 21):
        process = start(tmp_path, site, mode, fails=0.3)
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        time.sleep(chance.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for n in chance.sample(range(PAGES), 6):
            versions[n] = turn
            change(site, n, turn)
    reports: list[dict[str, Any]] = []
    for _ in range(2):
        process = start(tmp_path, site, mode, fails=0.0)
        out, _ = process.communicate(timeout=60)
        reports.append(json.loads(out.splitlines()[-1]))
    rows = safe_rows(tmp_path)
    lost = [n for n, version in versions.items() if (str(n), f"v{version}") not in rows]

    assert lost == []
    # The store was in use, and the run after has nothing to do.
    assert 0 < reports[0]["unchanged"] < PAGES
    assert reports[1]["unchanged"] == PAGES + (LISTS if mode == "follow" else 0)
