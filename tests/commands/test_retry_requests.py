"""``netspy-retry --requests`` and RETRY_FAILED_ON_START: failed requests are fetched again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SPIDER = """
import os, time
import scrapy
import netspy_scrapy as mw

class Books(mw.AirSpider):
    name = "books"
    __custom_setting__ = {{
        "ITEM_PIPELINES": ["netspy_scrapy.pipelines.csv.CsvPipeline"],
        "SPIDER_MAX_RETRY_TIMES": 1, "CIRCUIT_FAILURE_THRESHOLD": 0, **{settings!r},
    }}

    def start_callback(self):
        self.prepared = True

    def start_requests(self):
        print("START", flush=True)
        for path in {paths!r}:
            yield mw.Request("{site}" + path, book=path, callback=self.book)

    def book(self, request, response):
        assert self.prepared
        yield {{"path": request.book}}
        if "list" in request.book:
            yield mw.Request("{site}/page/9", book="leaf", callback=self.book)

if __name__ == "__main__":
    Books().start()
"""


def spider(site: Any, *paths: str, **settings: Any) -> None:
    """Write the spider's file."""
    base = site.url("").rstrip("/")
    Path("books.py").write_text(SPIDER.format(site=base, paths=paths, settings=settings))


def run(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


def crawl() -> subprocess.CompletedProcess[str]:
    """Run the spider as a script."""
    return run("books.py")


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run netspy-retry --requests with the spider's file."""
    return run("-m", "netspy_scrapy.commands.retry", "--requests", "--spider", "books.py",
               *arguments)  # fmt: skip


def lines() -> list[dict[str, Any]]:
    path = Path("failed_requests.jsonl")
    return [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []


def stored() -> list[str]:
    path = Path("items.csv")
    return sorted(path.read_text().splitlines()[1:]) if path.exists() else []


def leftovers() -> list[str]:
    return [one.name for one in Path().iterdir() if ".replaying-" in one.name]


def fail(site: Any, *paths: str) -> None:
    """Have pages answer 503 twice, and then be there."""
    for path in paths:
        site.set(path, body=b"page")
        site.set(path, status=503, times=2)


def test_failed_pages_are_fetched_by_their_callbacks(site: Any) -> None:
    """Each line runs through the spider's own callback and sink, and what is done is gone."""
    fail(site, "/one", "/two")
    spider(site, "/one", "/page/1", "/two")
    crawl()
    before = (len(lines()), stored())
    done = replay()

    assert before == (2, ["/page/1"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "replayed 2 of 2 requests: 2 done"
    assert "START" not in done.stdout
    assert stored() == ["/one", "/page/1", "/two"]
    assert lines() == []
    assert leftovers() == []


def test_what_fails_again_is_a_fresh_line(site: Any) -> None:
    """A page that fails again has a new line in place of the old one, and its retries anew."""
    site.set("/one", status=503)
    spider(site, "/one")
    crawl()
    (before,) = lines()
    done = replay()
    (after,) = lines()

    assert done.returncode == 1
    assert "0 done, 1 failed again" in done.stdout
    assert site.hits("/one") == 4
    assert after["time"] > before["time"]
    assert after["attempts"] == before["attempts"] == 2
    assert after["request"]["custom"] == {"book": "/one"}


def test_children_are_fetched_too(site: Any) -> None:
    """What a replayed page yields is fetched, although the run before knew it."""
    fail(site, "/list")
    spider(site, "/list")
    crawl()
    done = replay()

    assert done.returncode == 0
    assert stored() == ["/list", "leaf"]


def test_limit_and_reason(site: Any) -> None:
    """--limit takes that many lines, --reason those whose reason or status has the text."""
    fail(site, "/one", "/two", "/three")
    site.set("/gone", status=404)
    spider(site, "/one", "/two", "/three", "/gone")
    crawl()
    limited = replay("--limit", "2", "--reason", "503")
    left = sorted(line["status"] for line in lines())
    rest = replay("--reason", "503")

    assert "replayed 2 of 2 requests: 2 done; 2 lines left" in limited.stdout
    assert left == [404, 503]
    assert "replayed 1 of 1 request: 1 done; 1 line left" in rest.stdout
    assert [line["status"] for line in lines()] == [404]
    assert site.hits("/gone") == 1


def test_probe_only_asks(site: Any) -> None:
    """--probe tells how each site answers now, and changes nothing."""
    site.set("/one", status=503)
    spider(site, "/one")
    crawl()
    before = Path("failed_requests.jsonl").read_text()
    ill = replay("--probe")
    site.set("/one", body=b"page")
    well = replay("--probe")

    assert ill.stdout == f"127.0.0.1:{site.port}: 503 (1 request waits)\n"
    assert ill.returncode == 1
    assert well.stdout == f"127.0.0.1:{site.port}: 200 (1 request waits)\n"
    assert well.returncode == 0
    assert Path("failed_requests.jsonl").read_text() == before
    assert stored() == []


def test_lines_that_cannot_be_used_stay(site: Any) -> None:
    """A callback that is gone, a class that is not imported, another spider: said, and kept."""
    fail(site, "/one")
    spider(site, "/one")
    crawl()
    (line,) = lines()
    bad = [
        {**line, "request": {**line["request"], "callback": "gone"}},
        {**line, "request": {**line["request"], "callback": "books:Books.f.<locals>.<lambda>"}},
        {**line, "request": {**line["request"], "_class": "os.system"}},
        {**line, "spider": "other"},
        {"url": 5, "spider": "books"},
    ]
    with Path("failed_requests.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in bad)
        file.write('{"url": "half a li')
    done = replay()

    assert done.returncode == 1
    assert "1 done; 5 lines left" in done.stdout
    assert "its callback 'gone' is no method of the spider 'books'" in done.stderr
    assert "is a lambda or a function inside another" in done.stderr
    assert "its class os.system is no request class" in done.stderr
    assert "it has no 'url'" in done.stderr
    assert len(lines()) == 5
    assert Path("failed_requests.jsonl.broken").read_text() == '{"url": "half a li\n'


def test_lines_of_netspy_are_understood(site: Any) -> None:
    """A line that netspy wrote, without our own field, is replayed."""
    spider(site)
    line = {
        "url": site.url("/page/1"), "method": "GET", "callback": "book", "priority": 300,
        "retry_times": 3, "filter_repeat": True, "render": False, "cb_kwargs": {},
        "requests_kwargs": {"headers": {"X-Mark": "7"}, "timeout": 5}, "custom": {"book": "old"},
    }  # fmt: skip
    Path("failed_requests.jsonl").write_text(json.dumps(line) + "\n")
    done = replay()

    assert done.returncode == 0, done.stderr
    assert stored() == ["old"]
    assert site.log()[0].headers["x-mark"] == "7"


def test_a_project_finds_the_spiders_of_the_lines(site: Any) -> None:
    """In a Scrapy project each line finds its spider by name; unknown ones stay, and are named."""
    run("-m", "scrapy", "startproject", "shop", ".")
    base = site.url("").rstrip("/")
    for name in ("first", "second"):
        Path(f"shop/spiders/{name}.py").write_text(
            "import scrapy\n"
            f"class Spider(scrapy.Spider):\n    name = '{name}'\n"
            f"    start_urls = ['{base}/{name}']\n    def parse(self, response):\n"
            "        yield {'name': self.name}\n"
        )
    settings = Path("shop/settings.py").read_text().replace("DOWNLOAD_DELAY = 1", "")
    Path("shop/settings.py").write_text(
        settings
        + "\nADDONS = {'netspy_scrapy.Addon': 500}\nRETRY_TIMES = 0\nROBOTSTXT_OBEY = False\n"
        "ITEM_PIPELINES = {'netspy_scrapy.pipelines.csv.CsvPipeline': 300}\n"
    )
    for name in ("first", "second"):
        site.set(f"/{name}", body=b"page")
        site.set(f"/{name}", status=500, times=1)
        run("-m", "scrapy", "crawl", name)
    with Path("failed_requests.jsonl").open("a") as file:
        file.write(json.dumps({**lines()[0], "spider": "third"}) + "\n")
    done = run("-m", "scrapy", "netspy-retry", "--requests")

    assert "1 lines stay: there is no spider 'third'; there are: first, second" in done.stderr
    assert "replayed 2 of 2 requests: 2 done; 1 line left" in done.stdout
    assert stored() == ["first", "second"]
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--items", "--limit", "2"], "--limit belongs to --requests"),
        (["--requests", "--limit", "0"], "at least 1"),
        (["--requests", "--spider", "none.py"], "there is no file none.py"),
    ],
)
def test_wrong_options(arguments: list[str], said: str) -> None:
    """What makes no sense is an error with status 2."""
    done = run("-m", "netspy_scrapy.commands.retry", *arguments)

    assert done.returncode == 2
    assert said in done.stderr


def test_nothing_to_replay() -> None:
    """Without a dump there is nothing to do."""
    done = run("-m", "netspy_scrapy.commands.retry", "--requests")

    assert done.returncode == 0
    assert done.stdout == "nothing to replay: failed_requests.jsonl does not exist\n"


# A stop and a kill -------------------------------------------------------------------------------
def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def until(what: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_replay_that_ends_early_loses_nothing(site: Any, number: int) -> None:
    """After Ctrl-C or kill -9 each page is a row or still a line, and the next replay does it."""
    names = [f"/slow?ms=100&n={n}" for n in range(20)]
    spider(site, *names, CONCURRENT_REQUESTS=2, NETSPY_STOP_TIMEOUT=1, BUFFER_FLUSH_INTERVAL=0.05)
    site.set("/slow", status=500)
    crawl()
    site.reset()
    assert len(lines()) == 20
    process = start("-m", "netspy_scrapy.commands.retry", "--requests", "--spider", "books.py")
    until(lambda: len(stored()) >= 4 or process.poll() is not None)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    if number == signal.SIGINT:
        assert process.returncode == 130, err
        assert len(stored()) + len(lines()) == 20
        assert leftovers() == []
    done = replay()

    assert done.returncode == 0, done.stderr
    assert set(stored()) == set(names)
    assert len(stored()) <= 20 + 5
    assert lines() == []
    assert leftovers() == []


def test_a_crawl_may_append_meanwhile(site: Any) -> None:
    """Lines that a crawl appends while a replay runs stay for the next one."""
    fail(site, "/one")
    spider(site, "/one", "/slow?ms=1500")
    crawl()
    process = start("-m", "netspy_scrapy.commands.retry", "--requests", "--spider", "books.py")
    until(leftovers)
    with Path("failed_requests.jsonl").open("a") as file:
        file.write('{"url": "http://later.invalid/", "spider": "books"}\n')
    process.communicate(timeout=30)

    assert [line["url"] for line in lines()] == ["http://later.invalid/"]


# At the start of a crawl -------------------------------------------------------------------------
def test_failed_requests_come_first(site: Any) -> None:
    """RETRY_FAILED_ON_START fetches the spider's lines before start_requests; others stay."""
    fail(site, "/one")
    spider(site, "/one", "/page/1", RETRY_FAILED_ON_START=True)
    crawl()
    other = {**lines()[0], "spider": "other"}
    with Path("failed_requests.jsonl").open("a") as file:
        file.write(json.dumps(other) + "\n")
    second = crawl()

    assert "1 failed request of earlier runs is fetched again" in second.stderr
    assert stored().count("/one") == 2  # the line's, and that of start_requests
    assert lines() == [other]
    assert leftovers() == []


def test_a_start_that_is_killed_keeps_its_lines(site: Any) -> None:
    """After kill -9 in the middle the lines that were not done are fetched by the next start."""
    names = [f"/slow?ms=100&n={n}" for n in range(12)]
    spider(site, *names, CONCURRENT_REQUESTS=2)
    site.set("/slow", status=500)
    crawl()
    site.reset()
    spider(site, RETRY_FAILED_ON_START=True, CONCURRENT_REQUESTS=2, BUFFER_FLUSH_INTERVAL=0.05)
    process = start("books.py")
    until(lambda: len(stored()) >= 3 or process.poll() is not None)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    crawl()

    assert set(stored()) == set(names)
    assert lines() == []
    assert leftovers() == []
