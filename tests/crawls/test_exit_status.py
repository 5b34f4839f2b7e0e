"""A run that went wrong says so: in its stats, in its summary, and by its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import netspy_scrapy as mw
from netspy_scrapy.pipelines.base import BasePipeline
from tests.crawling import MEMORY, PlainSpider, crawl, netspy_stats

FAILED = "netspy/exit_status"
NOTHING = "netspy/nothing_stored"


class RefusesAll(BasePipeline):
    """Stores nothing."""

    def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        return False


class Yields(PlainSpider):
    """Yields an item a page."""

    def parse(self, response: Any) -> Any:
        yield {"url": response.url}


class Silent(mw.AirSpider):
    """A netspy spider whose callbacks yield nothing."""

    seeds: Any = ()

    def start_requests(self) -> Any:
        for url in self.seeds:
            yield mw.Request(url)

    def parse(self, request: Any, response: Any) -> Any:
        return None


def outcome(crawler: Any) -> tuple[Any, Any]:
    """Return the exit status in the stats, and of how many pages nothing was stored."""
    stats = netspy_stats(crawler)
    return stats.get(FAILED, 0), stats.get(NOTHING, 0)


# What counts -------------------------------------------------------------------------------------
def test_a_failed_page_fails_no_run(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One 404 leaves a line in the dump, and the status stays 0."""
    crawler = crawl(Yields, MEMORY, urls=(site.url("/page/1"), site.url("/status/404")))

    assert outcome(crawler) == (0, 0)
    assert "exit status" not in caplog.text


def test_findings_can_be_chosen(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """NETSPY_FAIL_ON = ["requests_failed"] makes it 1, and a warning and the summary say why."""
    settings = {**MEMORY, "NETSPY_FAIL_ON": ["requests_failed"]}
    crawler = crawl(Yields, settings, urls=(site.url("/page/1"), site.url("/status/404")))

    assert outcome(crawler) == (1, 0)
    assert (
        "The exit status is 1: requests that failed are in FAILED_REQUEST_PATH (requests_failed)"
        in caplog.text
    )
    assert "\n  ! the exit status is 1: requests_failed" in caplog.text
    assert '"exit_status": 1, "findings": {"requests_failed": 1}' in caplog.text


@pytest.mark.parametrize("on", [["nothing_stored"], []])
def test_all_rows_are_refused(site: Any, caplog: pytest.LogCaptureFixture, on: list[str]) -> None:
    """Pages came and no row was stored: status 1, unless NETSPY_FAIL_ON leaves it out."""
    settings = {"ITEM_PIPELINES": {RefusesAll: 1}, "NETSPY_FAIL_ON": on}
    crawler = crawl(Yields, settings, urls=(site.url("/page/1"), site.url("/page/2")))

    assert outcome(crawler) == (len(on), 2)
    assert (
        "  ! nothing was stored although 2 pages were fetched: no sink took any of 2 items"
        in caplog.text
    )
    assert crawler.spider is not None


def test_no_callback_yields_anything(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """So it is where sinks wait for rows and no callback yields one."""
    crawler = crawl(PlainSpider, MEMORY, urls=(site.url("/page/1"),))

    assert outcome(crawler) == (1, 1)
    assert (
        "nothing was stored although 1 page was fetched: no callback yielded an item" in caplog.text
    )


def test_every_page_fails(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """And where no page came at all."""
    crawler = crawl(Yields, MEMORY, urls=(site.url("/status/404"),))

    assert outcome(crawler) == (1, 1)
    assert "nothing was stored: 1 request failed, and no page came" in caplog.text


def test_a_crawl_without_sinks(site: Any) -> None:
    """Where nothing is to be stored nothing is missed: no sink, or netspy's default one."""
    plain = crawl(PlainSpider, urls=(site.url("/page/1"),))
    foreign = crawl(Yields, urls=(site.url("/page/1"),))
    netspy = crawl(Silent, seeds=[site.url("/page/1")])

    assert [outcome(one) for one in (plain, foreign, netspy)] == [(0, 0)] * 3


def test_what_a_feed_took_is_stored(site: Any) -> None:
    """A sink that refuses all is no empty run where a feed has the items."""
    settings = {"ITEM_PIPELINES": {RefusesAll: 1}, "FEEDS": {"items.jl": {"format": "jsonlines"}}}
    crawler = crawl(Yields, settings, urls=(site.url("/page/1"),))

    assert outcome(crawler) == (0, 0)


# Processes ---------------------------------------------------------------------------------------
SPIDER = """
import sys
import netspy_scrapy as mw
from netspy_scrapy import BasePipeline


class Sink(BasePipeline):
    def open(self):
        {opening}

    def save_items(self, table, items):
        {saving}


class S(mw.AirSpider):
    name = "s"
    __custom_setting__ = {{"ITEM_PIPELINES": [Sink], **{settings}}}

    def start_requests(self):
        yield mw.Request("{url}")

    def parse(self, request, response):
        yield {{"url": request.url}}


if __name__ == "__main__":
    status = S().start()
    print("RETURNED", status)
    sys.exit(status)
"""


def run(folder: Any, way: str) -> subprocess.CompletedProcess[str]:
    """Run the spider of the folder in one of the ways there are."""
    command = ["spider.py"] if way == "script" else ["-m", "scrapy", "runspider", "spider.py"]
    if way == "crawl":
        (folder / "scrapy.cfg").write_text("[settings]\ndefault = settings_of_it\n")
        (folder / "settings_of_it.py").write_text("SPIDER_MODULES = ['spider']\n")
        command = ["-m", "scrapy", "crawl", "s"]
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=60,
        check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip


def write(folder: Any, site: Any, **parts: Any) -> None:
    """Write the spider; *parts*: opening, saving, settings."""
    given = {"opening": "pass", "saving": "return True", "settings": {}, **parts}
    (folder / "spider.py").write_text(SPIDER.format(url=site.url("/page/1"), **given))


WAYS = ["crawl", "runspider", "script"]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_stored_is_status_1(site: Any, folder: Any, way: str) -> None:
    """The process says so: scrapy crawl, scrapy runspider, and a script that passes it on."""
    write(folder, site, saving="return False")
    done = run(folder, way)

    assert done.returncode == 1, done.stderr
    assert "The exit status is 1: no row was stored" in done.stderr
    assert "Traceback" not in done.stderr
    assert ("RETURNED 1" in done.stdout) == (way == "script")


@pytest.mark.parametrize("way", WAYS[1:])
def test_a_sink_that_failed_is_status_1(site: Any, folder: Any, way: str) -> None:
    """Rows that could be neither stored nor dumped are status 1, whatever NETSPY_FAIL_ON says."""
    (folder / "file").touch()
    settings = {"FAILED_ITEM_PATH": "file/items.jsonl", "NETSPY_FAIL_ON": []}
    write(folder, site, saving="return False", settings=settings)
    done = run(folder, way)

    assert done.returncode == 1, done.stderr
    assert "rows could be neither stored nor dumped (sink_failed)" in done.stderr
    assert ("SinkFailedError" in done.stderr) == (way == "script")


@pytest.mark.parametrize("way", WAYS[1:])
def test_a_sink_that_cannot_be_opened_is_status_1(site: Any, folder: Any, way: str) -> None:
    """A sink that raises when it is opened ends the crawl before a page is fetched."""
    write(folder, site, opening='raise ValueError("no such table")')
    done = run(folder, way)

    assert done.returncode == 1, done.stderr
    assert "no such table" in done.stderr
    assert site.log() == []


def test_all_is_well_is_status_0(site: Any, folder: Any) -> None:
    """A run that stored its rows ends with 0."""
    write(folder, site)
    done = run(folder, "script")

    assert done.returncode == 0, done.stderr
    assert "RETURNED 0" in done.stdout


def test_a_trial_stores_nothing(site: Any, folder: Any) -> None:
    """scrapy fetch and its like end with 0 although a sink is there."""
    write(folder, site)
    (folder / "scrapy.cfg").write_text("[settings]\ndefault = settings_of_it\n")
    (folder / "settings_of_it.py").write_text(
        "SPIDER_MODULES = ['spider']\n"
        "ADDONS = {'netspy_scrapy.Addon': 500}\n"
        "ITEM_PIPELINES = {'netspy_scrapy.pipelines.csv.CsvPipeline': 1}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "scrapy", "fetch", "--spider", "s", site.url("/page/1")],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert len(site.log()) == 1
    assert "nothing was stored" not in done.stderr


def test_two_crawls_of_a_process(site: Any, folder: Any) -> None:
    """A program with a CrawlerProcess finds it there, and in the stats of each crawler."""
    write(folder, site, saving="return False")
    (folder / "both.py").write_text(
        "from scrapy.crawler import AsyncCrawlerProcess\n"
        "from spider import S\n"
        "class Fine(S):\n"
        "    name = 'fine'\n"
        "    __custom_setting__ = {'ITEM_PIPELINES': []}\n"
        "process = AsyncCrawlerProcess()\n"
        "crawlers = [process.create_crawler(one) for one in (S, Fine)]\n"
        "for one in crawlers: process.crawl(one)\n"
        "process.start()\n"
        "print([one.stats.get_value('netspy/exit_status', 0) for one in crawlers])\n"
        "print([one.spider.name for one in crawlers], process.bootstrap_failed)\n"
    )
    done = subprocess.run(
        [sys.executable, "both.py"], cwd=folder, capture_output=True, text=True, timeout=60,
        check=False, env=os.environ,
    )  # fmt: skip

    assert done.stdout.splitlines() == ["[1, 0]", "['s', 'fine'] True"], done.stderr
