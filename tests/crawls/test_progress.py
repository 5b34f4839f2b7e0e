"""The line at the foot of a terminal, while a crawl runs."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import pty
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from netspy_scrapy.extensions.terminal import TerminalLine, is_for_people
from tests.crawling import PlainSpider, crawl

SPIDER = """
import scrapy


class S(scrapy.Spider):
    name = "books"
    custom_settings = {{
        "ADDONS": {{"netspy_scrapy.Addon": 500}}, "CONCURRENT_REQUESTS": 1,
        "TELNETCONSOLE_ENABLED": False, **{settings},
    }}

    async def start(self):
        for n in range({pages}):
            yield scrapy.Request("{url}" + f"&n={{n}}")
        yield scrapy.Request("{rests}", priority=9, meta={{"max_retry_times": 9}})

    def parse(self, response):
        for n in range(3):
            self.logger.info("line %d of %s", n, response.url)
        yield {{"url": response.url}}
"""


class Tty(io.StringIO):
    """A terminal as far as Python can tell."""

    def isatty(self) -> bool:
        return not super().isatty()  # which raises once it is closed


def on_a_terminal(folder: Any, *arguments: str) -> str:
    """Run Python with a terminal as its stderr, 100 columns wide; return all that it got."""
    master, slave = pty.openpty()
    os.set_blocking(master, True)
    subprocess.run(["stty", "cols", "100"], stdin=slave, check=True)
    variables = {name: value for name, value in os.environ.items() if name != "CI"}
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=slave,
        stdin=subprocess.DEVNULL, env={**variables, "TERM": "xterm"},
    )  # fmt: skip
    os.close(slave)
    received = bytearray()

    def read() -> None:
        while True:
            try:
                data = os.read(master, 65_536)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            received.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(timeout=60) == 0
    reader.join(timeout=10)
    os.close(master)
    return received.decode()


def screen(received: str) -> list[str]:
    """Return the lines that a person sees in the end."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+", received):
        if part == "\r":
            column = 0
        elif part == "\n":
            lines.append("")
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
            column += len(part)
    return lines


def write(folder: Any, site: Any, *, pages: int = 6, **settings: Any) -> None:
    """Write a spider that takes half a second a page, and meets a site that asks for patience."""
    site.set("/busy", status=429, headers={"Retry-After": "2"}, times=1)
    slow = site.url("/slow?ms=500", host="127.0.0.2")
    text = SPIDER.format(url=slow, rests=site.url("/busy"), pages=pages, settings=settings)
    (folder / "spider.py").write_text(text)


@pytest.mark.timed
def test_a_line_among_log_records(site: Any, folder: Any) -> None:
    """It is drawn about once a second, and leaves no trace in the log on the same terminal."""
    write(folder, site)
    received = on_a_terminal(folder, "-m", "scrapy", "runspider", "spider.py")

    drawn = re.findall(r"\r\x1b\[K(books: [^\r\n\x1b]+)", received)
    assert len(drawn) > 2
    assert all(len(one) < 100 for one in drawn)
    assert any(
        re.fullmatch(
            rf"books: \d\.\d pages/s, [1-6] pages?, [1-6] queued, [01] in flight, "
            rf"1 resting \(127\.0\.0\.1:{site.port} [0-2] s\), \d items?",
            one,
        )
        for one in drawn
    ), drawn
    seen = screen(received)
    assert not any("pages/s" in one for one in seen)
    assert sum("INFO: line" in one for one in seen) == 3 * 6
    assert all(re.match(r"\d{4}-\d\d-\d\d ", one) for one in seen if "line" in one)


@pytest.mark.timed
def test_a_line_beside_a_log_file(site: Any, folder: Any) -> None:
    """Where the log is a file the terminal has the line alone, and the file is plain text."""
    write(folder, site, LOG_FILE="crawl.log")
    received = on_a_terminal(folder, "-m", "scrapy", "runspider", "spider.py")

    assert received.count("pages/s") > 2
    seen = screen(received)
    assert seen[-1] == ""
    assert not any("pages/s" in one for one in seen)
    log = (folder / "crawl.log").read_text()
    assert "pages/s" not in log
    assert "\x1b" not in log
    assert "\r" not in log


def test_where_it_is_not_wanted(site: Any, folder: Any) -> None:
    """NETSPY_PROGRESS = False: there is none, nor anything else that is not text."""
    write(folder, site, pages=3, NETSPY_PROGRESS=False)
    received = on_a_terminal(folder, "-m", "scrapy", "runspider", "spider.py")

    assert "pages/s" not in received
    assert "\x1b" not in received
    assert "Run summary of books" in received


def test_none_in_the_shell(site: Any, folder: Any) -> None:
    """What a person types in scrapy shell is not drawn over."""
    options = "-s", 'ADDONS={"netspy_scrapy.Addon": 500}', "-c", "__import__('time').sleep(2)"
    received = on_a_terminal(folder, "-m", "scrapy", "shell", site.url("/page/1"), *options)

    assert "Crawled (200)" in received
    assert "pages/s" not in received


@pytest.mark.timed
def test_a_stop_ends_the_line(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C it is gone: a second one would end the process in the midst of it."""
    terminal = Tty()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    drawn: list[str] = []

    class Stops(PlainSpider):
        async def parse(self, response: Any) -> Any:
            await asyncio.sleep(1.3)
            drawn.append(terminal.getvalue())
            stopping = asyncio.ensure_future(self.crawler.stop_async())
            await asyncio.sleep(0.1)
            drawn.append(terminal.getvalue())
            del stopping

    crawl(Stops, {"NETSPY_STOP_TIMEOUT": 1.5}, urls=(site.url("/hang"), site.url("/page/1")))

    before, after = drawn
    assert screen(before)[-1].startswith("plain: ")
    # Log lines may be there, of a handler that an earlier test left behind.
    assert not [line for line in screen(after) if line.startswith("plain: ")]
    assert "plain: " not in terminal.getvalue()[len(after) :]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "CI": ""}, True), ({"TERM": "dumb"}, False),
     ({}, False), ({"TERM": "xterm", "CI": "1"}, False)],
)  # fmt: skip
def test_terminals(environment: dict[str, str], *, expected: bool) -> None:
    """A terminal that somebody looks at, and that can clear a line."""
    closed = Tty()
    closed.close()

    assert is_for_people(Tty(), environment) == expected
    assert not is_for_people(io.StringIO(), environment)
    assert not is_for_people(closed, environment)


def test_crawls_of_one_process_share_the_line() -> None:
    """Each has its part, and the line is gone with the last; wide letters count twice."""
    terminal = Tty()
    line = TerminalLine(terminal)
    line.show(1, "a: 1 page")
    line.show(2, "b: 2 pages\x1b")
    assert screen(terminal.getvalue()) == ["a: 1 page | b: 2 pages?"]
    line.remove(1)
    assert screen(terminal.getvalue()) == ["b: 2 pages?"]
    line.show(2, "书" * 60)
    assert screen(terminal.getvalue()) == ["书" * 39]
    line.remove(2)
    assert screen(terminal.getvalue()) == [""]


def test_handlers_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is back after a record, and the handlers are left alone once it is gone."""
    terminal = Tty()
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(logging.root, "handlers", [handler])
    line = TerminalLine(terminal)
    line.show(1, "a: 1 page")
    logging.getLogger("tests").warning("a record")

    assert screen(terminal.getvalue()) == ["a record", "a: 1 page"]
    line.remove(1)
    logging.getLogger("tests").warning("another")
    assert screen(terminal.getvalue()) == ["a record", "another", ""]
    assert "emit" not in vars(handler)
