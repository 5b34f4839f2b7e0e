"""NETSPY_DOWNLOADER: what fetches pages, and what is said where that cannot be."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import netspy_scrapy as mw
from netspy_scrapy import downloader
from netspy_scrapy.downloader import HANDLER, missing
from tests.crawling import MEMORY, PlainSpider, crawl

needs_aiohttp = pytest.mark.skipif(missing() is not None, reason=f"needs {missing()}")
needs_uvloop = pytest.mark.skipif(
    missing() is not None or find_spec("uvloop") is None, reason="needs aiohttp and uvloop"
)


@pytest.fixture(autouse=True)
def _no_downloader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.crawling.DOWNLOADER", None)


class Facade(mw.AirSpider):
    __custom_setting__ = MEMORY

    def start_requests(self) -> Any:
        yield from ()


class Mine:
    """A handler of the user's own."""

    lazy = True

    async def download_request(self, request: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def handlers(spider: Any, settings: dict[str, Any]) -> Any:
    """Return DOWNLOAD_HANDLERS of a crawl."""
    return crawl(spider, settings).settings.getdict("DOWNLOAD_HANDLERS")


def test_a_plain_project_keeps_what_it_has() -> None:
    """Nothing changes that nobody asked for."""
    assert handlers(PlainSpider, {}) == {}
    assert handlers(PlainSpider, {"NETSPY_DOWNLOADER": "http11"}) == {}


@needs_aiohttp
def test_who_gets_aiohttp() -> None:
    """Who asks for it: a project, or a netspy spider."""
    both = {"http": HANDLER, "https": HANDLER}

    assert handlers(PlainSpider, {"NETSPY_DOWNLOADER": "aiohttp"}) == both
    assert handlers(PlainSpider, {"NETSPY_DOWNLOADER": "auto"}) == both
    assert handlers(Facade, {"NETSPY_DOWNLOADER": "auto"}) == both
    assert handlers(Facade, {}) == {}


@needs_aiohttp
def test_a_handler_of_the_users_own_stays(caplog: pytest.LogCaptureFixture) -> None:
    """What DOWNLOAD_HANDLERS has stays, and asking for aiohttp beside it is named."""
    own = {"DOWNLOAD_HANDLERS": {"http": Mine, "ftp": None}}
    asked = handlers(PlainSpider, {**own, "NETSPY_DOWNLOADER": "aiohttp"})
    said = [one for one in caplog.messages if "NETSPY_DOWNLOADER" in one]
    caplog.clear()
    as_it_comes = handlers(Facade, own)

    assert asked == {"http": Mine, "ftp": None, "https": HANDLER}
    assert "".join(said) == (
        "DOWNLOAD_HANDLERS has a handler of its own for http: NETSPY_DOWNLOADER = 'aiohttp' does "
        "nothing for it"
    )
    assert as_it_comes == own["DOWNLOAD_HANDLERS"]
    assert not [one for one in caplog.messages if "NETSPY_DOWNLOADER" in one]


def test_a_scrapy_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for and not there: the start says what is needed; "auto" does without."""
    monkeypatch.setattr("netspy_scrapy._scrapy.HAS_AIOHTTP_HANDLER", False)

    with pytest.raises(mw.ConfigError, match=r"NETSPY_DOWNLOADER = 'aiohttp'.*Scrapy 2\.19"):
        crawl(PlainSpider, {"NETSPY_DOWNLOADER": "aiohttp"})
    assert handlers(Facade, {"NETSPY_DOWNLOADER": "auto"}) == {}


def test_a_missing_aiohttp_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start says what to install."""
    monkeypatch.setattr("netspy_scrapy._scrapy.HAS_AIOHTTP_HANDLER", True)
    monkeypatch.setattr(downloader, "find_spec", lambda _: None)

    with pytest.raises(mw.ConfigError, match=r"pip install 'netspy-scrapy\[fast\]'"):
        crawl(PlainSpider, {"NETSPY_DOWNLOADER": "aiohttp"})
    assert handlers(Facade, {"NETSPY_DOWNLOADER": "auto"}) == {}


@needs_aiohttp
def test_parts_that_changed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Scrapy or aiohttp that this package does not know: "auto" does without, and all goes on."""
    monkeypatch.setattr(downloader, "HANDLER", "netspy_scrapy._scrapy.aiohttp_handler.Gone")

    with pytest.raises(mw.ConfigError, match=r"something is missing.*Gone"):
        crawl(PlainSpider, {"NETSPY_DOWNLOADER": "aiohttp"})
    assert handlers(Facade, {"NETSPY_DOWNLOADER": "auto"}) == {}


@pytest.mark.parametrize("value", ["httpx", "", 1, None])
def test_a_wrong_value_is_named(value: Any) -> None:
    """The error says what is allowed."""
    with pytest.raises(mw.ConfigError, match='"auto" or "http11" or "aiohttp"'):
        crawl(PlainSpider, {"NETSPY_DOWNLOADER": value})


# The loop --------------------------------------------------------------------------------------
HEAD = """
import asyncio, sys
import scrapy
import netspy_scrapy as mw


def told(self, *_):
    print("LOOP", type(asyncio.get_running_loop()).__module__)
    yield {"a": 1}


class Own(mw.AirSpider):
    __custom_setting__ = {SETTINGS}

    def start_requests(self):
        yield mw.Request(sys.argv[-1])

    parse = told


class Plain(scrapy.Spider):
    name = "plain"
    start_urls = sys.argv[-1:]
    custom_settings = {SETTINGS}
    parse = told

"""
START = "Own().start()\nOwn().start()\n"
PROCESS = """
from scrapy.crawler import CrawlerProcess
process = CrawlerProcess({"ADDONS": {"netspy_scrapy.Addon": 500}, "NETSPY_DOWNLOADER": "aiohttp"})
process.crawl(Plain)
process.start()
"""


BOTH = """
from scrapy.crawler import CrawlerProcess
process = CrawlerProcess()
crawlers = [process.create_crawler(one) for one in (Plain, Own)]  # before there is a loop
for one in crawlers:
    process.crawl(one)
process.start()
"""


def loops(site: Any, folder: Path, way: str, settings: str = "") -> list[str]:
    """Run a script; return the modules of the loops that its callbacks ran in."""
    path = folder / "spider.py"
    path.write_text(HEAD.replace("SETTINGS", settings) + way)
    command = [sys.executable, "spider.py", site.url("/page/1")]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("LOOP")]


@needs_uvloop
def test_uvloop_runs_where_nobody_chose_a_loop(site: Any, folder: Path) -> None:
    """start(), also a second one, and CrawlerProcess use it beside aiohttp that was asked for."""
    asked = '"NETSPY_DOWNLOADER": "aiohttp"'

    assert loops(site, folder, START, asked) == ["uvloop", "uvloop"]
    assert loops(site, folder, PROCESS) == ["uvloop"]


def test_a_loop_that_is_chosen_stays(site: Any, folder: Path) -> None:
    """ASYNCIO_EVENT_LOOP counts; where aiohttp is not asked for by name the loop is asyncio's."""
    chosen = '"ASYNCIO_EVENT_LOOP": "asyncio.SelectorEventLoop"'

    assert loops(site, folder, START, chosen) == ["asyncio.unix_events"] * 2
    assert loops(site, folder, BOTH) == ["asyncio.unix_events"] * 2
    assert loops(site, folder, START) == ["asyncio.unix_events"] * 2
