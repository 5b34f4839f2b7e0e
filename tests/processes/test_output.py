"""What processes write is passed on whole, and told apart."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from typing import Any

import pytest
from scrapy.settings import Settings
from scrapy.utils.log import configure_logging

from netspy_scrapy.processes.output import Lines, LogOutput, PlainOutput, relay


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_in_any_pieces(size: int) -> None:
    """However a pipe cuts what is written, lines come out whole; the last may have no end."""
    text = "one\n\nzwei äöü\n  three".encode()
    lines = Lines()
    found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]

    assert [*found, *lines.end()] == [b"one", b"", "zwei äöü".encode(), b"  three"]
    assert lines.end() == []


def test_a_line_without_end() -> None:
    """It is passed on before it fills the memory."""
    lines = Lines()
    found = [line for _ in range(40) for line in lines.feed(b"x" * 65_536)]

    assert sum(map(len, [*found, *lines.end()])) == 40 * 65_536
    assert len(found) >= 2


async def _relayed(pieces: list[bytes], label: str, output: Any) -> None:
    reader = asyncio.StreamReader()
    for one in pieces:
        reader.feed_data(one)
    reader.feed_eof()
    await relay(reader, label, output)


def test_the_log_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line has the process it came from before it, in the log that the command writes to."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    monkeypatch.setattr("netspy_scrapy.processes.output.get_scrapy_root_handler", lambda: handler)

    async def both() -> None:
        await asyncio.gather(
            _relayed([b"a\nb", b"b\n\xff\n"], "1", LogOutput()),
            _relayed([b"Traceback\n  File", b" x\n"], "2b", LogOutput()),
        )

    asyncio.run(both())

    assert sorted(stream.getvalue().splitlines()) == [
        "[1] a", "[1] bb", "[1] \ufffd", "[2b]   File x", "[2b] Traceback",
    ]  # fmt: skip


def test_a_log_that_cannot_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the log's encoding has no letter for is written out; the crawl does not end for it."""
    raw = io.BytesIO()
    handler = logging.StreamHandler(io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setattr("netspy_scrapy.processes.output.get_scrapy_root_handler", lambda: handler)
    LogOutput().write("1", ["zwölf".encode(), b"ok"])

    assert raw.getvalue().splitlines() == [b"[1] zw\\xf6lf", b"[1] ok"]


def test_nobody_reads_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is gone (``| head``) does not end the crawl."""

    class Gone(io.BytesIO):
        def write(self, _data: Any) -> int:
            raise BrokenPipeError

    class Stdout:
        buffer = Gone()

    monkeypatch.setattr(sys, "stdout", Stdout())
    output = PlainOutput()
    output.write("1", [b"row"])
    output.write("1", [b"row"])


def test_the_log_is_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    """With LOG_ENABLED = False what a process still says goes to stderr."""
    configure_logging(Settings({"LOG_ENABLED": False}))
    LogOutput().write("3", [b"Fatal Python error"])

    assert capsys.readouterr().err == "[3] Fatal Python error\n"
