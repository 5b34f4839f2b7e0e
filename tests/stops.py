"""Crawls that write down what they yield, stopped at some moment, and what became of each page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.site import Site

ROOT = Path(__file__).resolve().parent.parent

#: ``spider.py KIND SITE RUN PAGES FAILING MAX_RUNTIME``. A fifth of the pages come from the start,
#: each of which yields four others; every page yields an item. What is yielded is in yielded.txt
#: before the crawl has it. A failing sink refuses or raises at half of its batches.
SPIDER = """
import os, random, sys, time
import scrapy
from scrapy.crawler import AsyncCrawlerProcess
import netspy_scrapy as mw
from netspy_scrapy.pipelines.base import BasePipeline

KIND, SITE, RUN = sys.argv[1:4]
PAGES, FAILING = map(int, sys.argv[4:6])
RUNTIME = float(sys.argv[6])
FIRST = PAGES // 5
FILE = os.open("yielded.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(what, n):
    os.write(FILE, f"{what} {n}\\n".encode())


def url(n):
    if n % 41 == 5 and n >= FIRST:
        return f"{SITE}/status/404?n={n}"
    if n % 29 == 7:
        return f"{SITE}/seq/{RUN}-{n}?codes=503,200&n={n}"
    if n == FIRST // 2:
        return f"{SITE}/seq/{RUN}-{n}?codes=429,200&retry_after=1&n={n}"
    return f"{SITE}/slow?ms={10 + n % 7 * 20}&n={n}"


def outputs(n, make):
    note("item", n)
    yield {"n": n}
    if n < FIRST:
        for child in range(FIRST + 4 * n, FIRST + 4 * n + 4):
            note("page", child)
            yield make(url(child))


def first(make):
    print("YIELDS", flush=True)
    for n in range(FIRST):
        note("page", n)
        yield make(url(n))


def number(url):
    return int(url.rpartition("n=")[2])


class Rows(BasePipeline):
    def save_items(self, table, items):
        time.sleep(0.02)
        refused = {}
        if FAILING and random.random() < 0.5:
            kind = random.randrange(3)
            if kind == 0:
                raise ValueError("unlucky")
            if kind == 1:
                return False
            refused = {n: "unlucky" for n in range(0, len(items), 2)}
        with open("rows.txt", "a") as file:
            file.writelines(f"{one['n']}\\n" for n, one in enumerate(items) if n not in refused)
        return refused or True


SETTINGS = dict(
    ITEM_PIPELINES={Rows: 300}, ITEM_MAX_CACHED_COUNT=20, BUFFER_FLUSH_INTERVAL=0.2,
    CONCURRENT_REQUESTS=16, CONCURRENT_REQUESTS_PER_DOMAIN=16, RETRY_TIMES=2,
    SPIDER_MAX_RUNTIME=RUNTIME, LOG_LEVEL="INFO", TELNETCONSOLE_ENABLED=False,
)


class Netspy(mw.AirSpider):
    __custom_setting__ = {**SETTINGS, "SPIDER_THREAD_COUNT": 16}

    def start_requests(self):
        yield from first(mw.Request)

    def parse(self, request, response):
        yield from outputs(number(request.url), mw.Request)


class Plain(scrapy.Spider):
    name = "plain"

    async def start(self):
        for one in first(scrapy.Request):
            yield one

    def parse(self, response):
        yield from outputs(number(response.url), scrapy.Request)


if __name__ == "__main__":
    print("BEGUN", flush=True)
    if KIND == "netspy":
        Netspy().start()
    else:
        process = AsyncCrawlerProcess({**SETTINGS, "ADDONS": {"netspy_scrapy.Addon": 500}})
        process.crawl(Plain)
        process.start()
"""

#: How a crawl is stopped: the signals that are sent, ``None``: by SPIDER_MAX_RUNTIME.
HOW: dict[str, tuple[signal.Signals, ...] | None] = {
    "SIGINT": (signal.SIGINT,),
    "SIGTERM": (signal.SIGTERM,),
    "max runtime": None,
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
}


class Process:
    """A crawl in a process of its own."""

    def __init__(self, folder: Path, script: str, command: list[str]) -> None:
        (folder / "spider.py").write_text(script)
        self.folder = folder
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip

    def wait_for(self, text: str) -> None:
        """Read the output up to a line that begins with *text*."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(text):
                return
        raise AssertionError(self.process.stderr and self.process.stderr.read())

    def end(self, within: float) -> tuple[float, str, str]:
        """Wait for the end; return the seconds it took, and what was printed.

        What a child of it (a browser's driver) still has to do does not count.
        """
        begun = time.monotonic()
        ended = begun

        def watch() -> None:
            nonlocal ended
            with suppress(ChildProcessError):  # it has been waited for
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            ended = time.monotonic()

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            out, err = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(self.process.communicate()[1][-9000:]) from None
        watching.join(within)
        return ended - begun, out, err


@dataclass(frozen=True)
class Stopped:
    """What came of one crawl."""

    yielded: int
    """Pages that the spider yielded."""
    stored: int
    dumped_items: int
    dumped_requests: int
    missing: list[str]
    """Pages that are nowhere, and items that are neither stored nor dumped."""
    twice: int
    """Rows that are in more than one place, or twice in one."""
    seconds: float
    """From the stop to the end of the process; below 0: it had ended before."""
    log: str


def stopped_crawl(
    folder: Path,
    site: Site,
    *,
    spider: str,
    how: str,
    moment: float,
    pages: int,
    failing: bool,
    within: float = 60.0,
) -> Stopped:
    """Begin a crawl, stop it at some moment, and see what became of each page.

    *moment*: seconds after it yielded its first page; below 0, so many seconds after the process
    had begun, when the crawl may not be there yet.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spider.py").write_text(SPIDER)
    signals = HOW[how]
    runtime = abs(moment) if signals is None else 0.0
    base = site.url("").rstrip("/")
    command = [sys.executable, "spider.py", spider, base, str(time.time_ns()), str(pages),
               str(int(failing)), str(runtime)]  # fmt: skip
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        if moment > 0:
            process.stdout.readline()
        moment = abs(moment)
        begun = time.monotonic()
        try:
            if signals is None:
                process.wait(moment + within)
            else:
                _send(process, signals, moment)
                process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            process.stdout.close()
    seconds = time.monotonic() - begun - moment
    return _account(folder, seconds, strict=how != "SIGINT twice")


def _send(
    process: subprocess.Popen[str], signals: tuple[signal.Signals, ...], moment: float
) -> None:
    for number in signals:
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        moment = 0.2


def _account(folder: Path, seconds: float, *, strict: bool) -> Stopped:
    """*strict*: an item is stored or dumped, even if its page is fetched again anyway."""
    notes = [line.split() for line in _lines(folder / "yielded.txt")]
    pages = {int(n) for what, n in notes if what == "page"}
    items = {int(n) for what, n in notes if what == "item"}
    rows = Counter(int(line) for line in _lines(folder / "rows.txt"))
    dumped = Counter(
        int(json.loads(line)["data"]["n"]) for line in _lines(folder / "failed_items.jsonl")
    )
    requests = {
        int(str(json.loads(line)["url"]).rpartition("n=")[2])
        for line in _lines(folder / "failed_requests.jsonl")
    }
    kept = rows.keys() | dumped.keys()
    missing = [f"page {n}" for n in sorted(pages - kept - requests)]
    missing += [f"item {n}" for n in sorted(items - kept - (set() if strict else requests))]
    log = (folder / "log.txt").read_text(errors="replace")
    return Stopped(
        yielded=len(pages), stored=len(rows), dumped_items=len(dumped),
        dumped_requests=len(requests), missing=missing,
        twice=sum(count - 1 for count in (rows + dumped).values()), seconds=seconds, log=log,
    )  # fmt: skip


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
