"""How crawls in trouble end when they are stopped: in time, and with nothing lost."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import signals

from netspy_scrapy import _scrapy
from tests.crawling import PlainSpider, crawl, dumped, reason
from tests.servers.browser import browser_settings
from tests.stops import HOW, Process, stopped_crawl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.redis import Redis
    from tests.site import Site

SPIDER = """
import time
import netspy_scrapy as mw
from netspy_scrapy.pipelines.base import BasePipeline


class Works(BasePipeline):
    def save_items(self, table, items):
        with open("rows.txt", "a") as file:
            file.writelines(item["url"] + "\\n" for item in items)
        return True


class Hangs(BasePipeline):
    def save_items(self, table, items):
        time.sleep(3600)


class HangsAtClose(Works):
    def close(self):
        time.sleep(3600)


class Loses(BasePipeline):
    def save_items(self, table, items):
        return False


class S(mw.{spider}):
    name = "s"
    __custom_setting__ = dict(
        ITEM_PIPELINES=[{sink}], LOG_LEVEL="INFO", SPIDER_THREAD_COUNT=16, **{settings}
    )

    def start_requests(self):
        for path, arguments in {wanted}:
            yield mw.Request("{site}" + path, **arguments)

    def parse(self, request, response):
        yield {{"url": request.url}}
        print("GOT", request.url, flush=True)


if __name__ == "__main__":
    S().start()
"""

#: Seconds that any stop may take, with room for a busy machine: NETSPY_STOP_TIMEOUT is 1 or 3 here,
#: and what follows takes a second or two.
LIMIT = 10.0

#: An answer that takes ten minutes to come.
SLOW = "/drip?kb=64&pieces=600&ms=1000&n="
HTML = {"Content-Type": "text/html"}


@dataclass
class Trouble:
    """What keeps a crawl from ending by itself."""

    wanted: list[tuple[str, dict[str, Any]]]
    sink: str = "Works"
    settings: dict[str, Any] = field(default_factory=dict)
    spider: str = "AirSpider"


def slow_site(site: Site) -> Trouble:
    """Answers trickle."""
    return Trouble([("/page/1", {}), *((f"{SLOW}{n}", {}) for n in range(20))])


def long_rest(site: Site) -> Trouble:
    """The domain rests for an hour, with pages queued and one that waits for its retry."""
    site.set("/busy", status=429, headers={"Retry-After": "3600"})
    paths = ["/page/1", "/busy", *(f"/page/{n}" for n in range(2, 30))]
    settings = {"RETRY_AFTER_MAX": 7200, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    return Trouble([(path, {}) for path in paths], settings=settings)


def browser(site: Site) -> Trouble:
    """One page loads for ever, one computes for ever, one waits for what never comes."""
    site.set("/loop", body=b"<p>x</p><script>while (true) {}</script>", headers=HTML)
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("/page/1", {"render": True}),
        (f"{SLOW}1", {"render": True}),
        ("/loop", {"render": True}),
        ("/page/2", {"render": True, "wait_for": "#never"}),
        *((f"/page/{n}", {"render": True, "wait_for": "#never"}) for n in range(3, 12)),
    ]
    return Trouble(wanted, settings=browser_settings())


def sink(site: Site) -> Trouble:
    """The sink hangs, and a sink of another kind is idle."""
    return Trouble([(f"/page/{n}", {}) for n in range(1, 10)], sink="Hangs, Works")


def sink_that_closes(site: Site) -> Trouble:
    """The sink stores rows, and hangs when it is closed."""
    return Trouble([("/page/1", {}), ("/hang", {})], sink="HangsAtClose")


TROUBLES = [slow_site, long_rest, browser, sink, sink_that_closes]


def begin(folder: Path, site: Site, trouble: Trouble, **settings: Any) -> Process:
    """Begin the crawl; it has handled its first page."""
    script = SPIDER.format(
        spider=trouble.spider, sink=trouble.sink, wanted=trouble.wanted,
        settings={**trouble.settings, **settings}, site=site.url("").rstrip("/"),
    )  # fmt: skip
    process = Process(folder, script, ["spider.py"])
    process.wait_for("GOT")
    return process


def accounted(folder: Path, site: Site) -> set[str]:
    """Return the paths of all pages that are stored or in a dump."""
    rows = folder / "rows.txt"
    urls = rows.read_text().split() if rows.exists() else []
    urls += [line["data"]["url"] for line in dumped(str(folder / "failed_items.jsonl"))]
    urls += [line["url"] for line in dumped(str(folder / "failed_requests.jsonl"))]
    base = site.url("").rstrip("/")
    return {url.removeprefix(base) for url in urls}


def wanted(trouble: Trouble) -> set[str]:
    """Return the paths of all pages that the crawl yields."""
    return {path for path, _ in trouble.wanted}


@pytest.mark.timed
@pytest.mark.parametrize(
    ("how", "trouble"),
    [
        *(("SIGTERM", trouble) for trouble in TROUBLES),
        # A browser may need longer to start than the crawl is given.
        *(("max runtime", trouble) for trouble in TROUBLES if trouble is not browser),
    ],
)
def test_a_crawl_in_trouble_ends(
    site: Site, folder: Path, trouble: Callable[[Site], Trouble], how: str
) -> None:
    """A stop ends soon after NETSPY_STOP_TIMEOUT, and each page is accounted for."""
    it = trouble(site)
    runtime = 6.0 if how == "max runtime" else 0.0
    process = begin(folder, site, it, NETSPY_STOP_TIMEOUT=1, SPIDER_MAX_RUNTIME=runtime)
    time.sleep(0.7)
    if not runtime:
        process.process.send_signal(signal.SIGTERM)
    seconds, _, err = process.end(within=30)

    assert seconds < runtime + LIMIT
    assert accounted(folder, site) == wanted(it), err[-3000:]
    assert "Task was destroyed" not in err
    assert process.process.returncode == 0


@pytest.mark.timed
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_second_signal_ends_at_once(
    site: Site, folder: Path, trouble: Callable[[Site], Trouble]
) -> None:
    """A second signal ends the process, and what was queued or under way is in the dump too."""
    it = trouble(site)
    process = begin(folder, site, it)
    for _ in range(2):
        time.sleep(0.7)
        process.process.send_signal(signal.SIGINT)
    seconds, _, err = process.end(within=30)

    # With a browser that hangs the process itself needs some seconds to end.
    assert seconds < (5 if trouble is not browser else 20)
    assert accounted(folder, site) == wanted(it), err[-3000:]


@pytest.mark.timed
@pytest.mark.parametrize("gone", ["kill", "freeze"])
def test_redis_is_gone(
    site: Site, folder: Path, own_redis: Callable[..., Redis], gone: str
) -> None:
    """A node stops in time though its Redis was killed, or does not answer any more."""
    server = own_redis()
    it = Trouble(
        [(f"/page/{n}", {}) for n in range(1, 9)] + [(f"{SLOW}1", {})], spider="Spider",
        settings={"REDIS_URL": server.url, "DEDUP_FILTER": "redis", "GLOBAL_THROTTLE": True,
                  "NETSPY_INCREMENTAL": True, "NETSPY_INCREMENTAL_STORE": "redis"},
    )  # fmt: skip
    process = begin(folder, site, it, NETSPY_STOP_TIMEOUT=3)
    time.sleep(0.5)
    getattr(server, gone)()
    process.process.send_signal(signal.SIGTERM)
    seconds, _, err = process.end(within=30)

    assert seconds < LIMIT
    assert process.process.returncode == 0, err[-3000:]


@pytest.mark.timed
def test_all_at_once(site: Site, folder: Path) -> None:
    """Slow answers, a long rest, a browser and a sink that hang: ten seconds by default."""
    it = Trouble(
        browser(site).wanted + slow_site(site).wanted + [("/busy", {})], sink="Hangs",
        settings={**browser_settings(), "RETRY_AFTER_MAX": 7200},
    )  # fmt: skip
    site.set("/busy", status=429, headers={"Retry-After": "3600"})
    process = begin(folder, site, it)
    time.sleep(1)
    process.process.send_signal(signal.SIGTERM)
    seconds, _, err = process.end(within=30)

    assert seconds < 10 + 5  # room for a busy machine
    assert accounted(folder, site) == wanted(it), err[-3000:]


@pytest.mark.timed
def test_what_can_be_neither_stored_nor_dumped(site: Site, folder: Path) -> None:
    """``sink_failed`` ends in time on a slow site, and says what is lost; requests are kept."""
    (folder / "file").touch()
    it = slow_site(site)
    it.sink = "Loses"
    settings = {"FAILED_ITEM_PATH": "file/failed_items.jsonl", "NETSPY_STOP_TIMEOUT": 1}
    process = begin(folder, site, it, **settings)
    seconds, _, err = process.end(within=30)

    assert seconds < LIMIT
    assert process.process.returncode == 1
    assert "Spider closed (sink_failed)" in err
    assert "LOST: 1 rows" in err
    assert accounted(folder, site) == wanted(it) - {"/page/1"}


@pytest.mark.timed
def test_a_crawl_that_is_done_is_stopped_while_its_sink_hangs(site: Site, folder: Path) -> None:
    """A single signal is enough where the crawl has closed by itself, and a sink keeps it."""
    it = Trouble([("/page/1", {})], sink="Hangs")
    process = begin(folder, site, it, NETSPY_STOP_TIMEOUT=1)
    time.sleep(1.5)
    process.process.send_signal(signal.SIGTERM)
    seconds, _, err = process.end(within=30)

    assert seconds < LIMIT
    assert accounted(folder, site) == {"/page/1"}
    assert "Spider closed (finished)" in err


@pytest.mark.timed
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.15])
def test_a_signal_at_the_very_start(site: Site, folder: Path, seconds: float) -> None:
    """A signal that comes before the crawl runs ends it too."""
    script = SPIDER.format(
        spider="AirSpider", sink="Works", wanted=[(f"/page/{n}", {}) for n in range(400)],
        settings={"DOWNLOAD_DELAY": 1.0}, site=site.url("").rstrip("/"),
    ).replace("S().start()", "print('BEGUN', flush=True); S().start()")  # fmt: skip
    process = Process(folder, script, ["spider.py"])
    process.wait_for("BEGUN")
    time.sleep(seconds)
    process.process.send_signal(signal.SIGINT)
    took, _, err = process.end(within=30)

    assert took < LIMIT, err[-3000:]


class StopsTheStart:
    """Stops the crawl while the signal that it starts is being sent, as Ctrl-C may."""

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler
        crawler.signals.connect(self.started, signals.engine_started)

    @classmethod
    def from_crawler(cls, crawler: Any) -> StopsTheStart:
        return cls(crawler)

    async def started(self) -> None:
        _scrapy.keep(self._crawler, _scrapy.stop(self._crawler))
        await asyncio.sleep(0.05)


def test_a_stop_while_the_engine_starts(site: Site) -> None:
    """Scrapy's engine runs only after that signal; a stop meanwhile is not lost."""
    crawler = crawl(PlainSpider, {"EXTENSIONS": {StopsTheStart: 0}}, urls=(site.url("/page/1"),))

    assert reason(crawler) == "shutdown"
    assert site.log() == []


@pytest.mark.parametrize(
    ("spider", "how", "moment", "failing"),
    [
        ("netspy", "SIGINT", 0.5, True),
        ("scrapy", "SIGTERM", 0.9, False),
        ("scrapy", "max runtime", 1.0, True),
        ("netspy", "SIGINT twice", 0.8, False),
    ],
)
def test_each_page_is_accounted_for(
    site: Site, folder: Path, spider: str, how: str, moment: float, failing: bool
) -> None:
    """Each page that was yielded is stored or in a dump (``benchmarks/stops`` does it 50 times)."""
    assert how in HOW
    found = stopped_crawl(
        folder, site, spider=spider, how=how, moment=moment, pages=500, failing=failing
    )

    assert found.missing == [], found.log[-3000:]
    assert 0 < found.seconds < 12
