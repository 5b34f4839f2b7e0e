"""Jobs whose process is killed, and what the next run makes of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy import squeues
from scrapy.crawler import AsyncCrawlerRunner

from netspy_scrapy.exceptions import ConfigError
from tests.crawling import ADDON, PlainSpider, crawl, netspy_stats

PAGES = 80

SPIDER = """
import os
import sys
import scrapy
from netspy_scrapy.pipelines.base import BasePipeline

BASE, FATE = sys.argv[-2:]


class Rows(BasePipeline):
    def save_items(self, table, items):
        with open("rows.txt", "a") as file:
            file.writelines(f"{{item['n']}}\\n" for item in items)
        return True


class Job(scrapy.Spider):
    name = "job"
    custom_settings = {{
        "JOBDIR": "job", "ADDONS": {{"netspy_scrapy.Addon": 500}}, "ITEM_PIPELINES": {{Rows: 300}},
        "CONCURRENT_REQUESTS": 2, "BUFFER_FLUSH_INTERVAL": 0.01, "LOG_LEVEL": "INFO", **{settings}
    }}
    done = 0

    async def start(self):
        yield scrapy.Request(f"http://127.0.0.1:{{BASE}}/page/0", cb_kwargs={{"n": 0}})

    def parse(self, response, n):
        self.done += 1
        if FATE == "dies" and self.done == 25:
            os.kill(os.getpid(), 9)
        yield {{"n": n}}
        for child in (2 * n + 1, 2 * n + 2):
            if child < {pages}:
                url = f"http://127.0.0.{{child % 3 + 1}}:{{BASE}}/slow?ms=20&n={{child}}"
                yield scrapy.Request(url, cb_kwargs={{"n": child}}, priority=child % 2)


if __name__ == "__main__":
    from scrapy.crawler import AsyncCrawlerProcess

    process = AsyncCrawlerProcess()
    process.crawl(Job)
    process.start()
"""


def run(folder: Path, site: Any, fate: str, **settings: Any) -> str:
    """Run the job once in a process of its own; return what it logged."""
    text = SPIDER.format(settings=settings, pages=PAGES)
    (folder / "spider.py").write_text(text)
    port = site.url("").rstrip("/").rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "spider.py", port, fate],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == (-9 if fate == "dies" else 0), done.stderr[-3000:]
    return done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"},
        {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.MarshalLifoDiskQueue", "DEDUP_FILTER": "lite"},
        pytest.param(
            {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoSQLiteQueue"},
            marks=pytest.mark.skipif(
                not hasattr(squeues, "PickleFifoSQLiteQueue"),
                reason="this Scrapy has no such queue: newer ones do",
            ),
        ),
        {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"},
    ],
    ids=["lifo", "fifo", "marshal", "sqlite", "no-domains"],
)
def test_a_killed_job_goes_on(site: Any, folder: Path, settings: dict[str, Any]) -> None:
    """After kill -9 the next run does all that was queued or under way; no row is missing."""
    for fate in ("dies", "dies"):
        run(folder, site, fate, **settings)
    third = run(folder, site, "ends", **settings)

    assert {int(n) for n in (folder / "rows.txt").read_text().split()} == set(range(PAGES))
    assert "The last run of the job in job was killed. The crawl goes on with" in third
    assert "Lost by the kill" not in third
    # What was done, and is safe, is not done again: each kill repeats what was under way only.
    assert PAGES <= len(site.log()) <= PAGES + 2 * 20
    left = (folder / "job" / "requests.queue").rglob("*")
    # Scrapy 2.14 leaves empty chunks behind.
    assert {one.name for one in left if one.is_file() and one.stat().st_size} == {"active.json"}
    assert not (folder / "job" / "netspy_running").exists()
    assert "was killed" not in run(folder, site, "ends", **settings)


DELAYED = """
import os
import sys
import time
import netspy_scrapy as mw


class Job(mw.AirSpider):
    __custom_setting__ = {"JOBDIR": "job", "ITEM_PIPELINES": []}

    def start_requests(self):
        yield mw.Request(sys.argv[1] + "/page/1", meta={"netspy_delay": 3.0})
        yield mw.Request(sys.argv[1] + "/page/2", callback=lambda request, response: None,
                         meta={"netspy_delay": 3600})
        yield mw.Request(sys.argv[1] + "/page/3", callback=self.third)

    def third(self, request, response):
        if sys.argv[2] == "dies":
            time.sleep(0.3)
            os.kill(os.getpid(), 9)

    def parse(self, request, response):
        print("GOT", request.url)
        self.stop()


Job().start()
"""


@pytest.mark.timed
def test_what_waits_survives_a_kill(site: Any, folder: Path) -> None:
    """A delayed request goes on after a kill, not early; what no disk can take is named."""
    (folder / "spider.py").write_text(DELAYED)
    begun = time.monotonic()
    said = []
    for fate in ("dies", "ends"):
        command = [sys.executable, "spider.py", site.url("").rstrip("/"), fate]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        said.append(done)

    assert said[0].returncode == -9
    assert said[1].returncode == 0, said[1].stderr
    assert f"GOT {site.url('/page/1')}" in said[1].stdout
    assert time.monotonic() - begun >= 3
    assert "Lost by the kill: requests that could not be written to disk" in said[1].stderr


def test_a_plain_killed_job_goes_on(site: Any, folder: Path) -> None:
    """A job that plain Scrapy was killed in, and that it never closed, is taken up."""
    (folder / "plain.py").write_text(
        "import os, sys, scrapy\n"
        "class Job(scrapy.Spider):\n"
        "    name = 'plain'\n"
        "    custom_settings = {'JOBDIR': 'job', 'CONCURRENT_REQUESTS': 1,\n"
        "        'SCHEDULER_DISK_QUEUE': 'scrapy.squeues.PickleFifoDiskQueue',\n"
        "        'SCHEDULER_START_DISK_QUEUE': None}\n"
        "    async def start(self):\n"
        "        yield scrapy.Request(f'{sys.argv[-1]}/page/0')\n"
        "    def parse(self, response):\n"
        "        if response.url.endswith('n=3'):\n"
        "            os.kill(os.getpid(), 9)\n"
        "        for n in range(40):\n"
        "            yield scrapy.Request(f'{sys.argv[-1]}/slow?ms=50&n={n}')\n"
        "from scrapy.crawler import AsyncCrawlerProcess\n"
        "process = AsyncCrawlerProcess()\n"
        "process.crawl(Job)\n"
        "process.start()\n"
    )
    base = site.url("").rstrip("/")
    done = subprocess.run([sys.executable, "plain.py", base], cwd=folder, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL

    class Job(PlainSpider):
        async def start(self) -> Any:
            return
            yield

    crawler = crawl(
        Job,
        {"JOBDIR": "job", "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
         "SCHEDULER_START_DISK_QUEUE": None},
    )  # fmt: skip

    # What it had taken out is gone, as in Scrapy; all that was queued is there.
    left = {f"{base}/slow?ms=50&n={n}" for n in range(20, 40)}
    assert {url for url, _ in crawler.spider.pages} >= left
    assert netspy_stats(crawler)["netspy/requests/recovered"] >= 20


def test_two_crawls_do_not_share_a_job(site: Any, folder: Path) -> None:
    """A second crawl in a folder where one is running is refused, and leaves the first alone."""
    refused: list[BaseException] = []

    class Second(PlainSpider):
        name = "second"

    class First(PlainSpider):
        async def parse(self, response: Any) -> Any:
            self.pages.append((response.url, response.status))
            if len(self.pages) == 1:
                runner = AsyncCrawlerRunner({**ADDON, "JOBDIR": "job"})
                try:
                    await runner.crawl(Second, urls=(site.url("/page/9"),))
                except ConfigError as exc:
                    refused.append(exc)
                yield scrapy.Request(site.url("/page/2"), callback=self.parse)

    crawler = crawl(First, {"JOBDIR": "job"}, urls=(site.url("/page/1"),))

    assert [str(one) for one in refused] == [
        "JOBDIR = 'job' cannot be used: expected a folder in which no other crawl is running"
    ]
    assert len(crawler.spider.pages) == 2
