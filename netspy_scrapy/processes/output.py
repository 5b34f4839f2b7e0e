"""Where the processes' lines go: whole, told apart, and into one log."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, BinaryIO, TextIO

from scrapy.utils.log import get_scrapy_root_handler

if TYPE_CHECKING:
    import asyncio

_CHUNK = 65_536
#: Bytes of a line above which it is passed on before its end.
_LONGEST = 1024 * 1024


class Lines:
    """Cuts what a process writes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete with *data*, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            lines.append(self._rest)
            self._rest = b""
        return lines

    def end(self) -> list[bytes]:
        """Return the line that was not ended."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class LogOutput:
    """The log: what the command's own log lines go to too, a file (LOG_FILE) or stderr."""

    def write(self, label: str, lines: list[bytes]) -> None:
        """Write *lines* of the process *label*, each with its label before it."""
        text = "".join(f"[{label}] {line.decode(errors='replace')}\n" for line in lines)
        handler = get_scrapy_root_handler()
        if not isinstance(handler, logging.StreamHandler):  # the log is switched off
            _write(sys.stderr, text)
            return
        handler.acquire()  # its own lines come in between, not in the midst
        try:
            _write(handler.stream, text)
        finally:
            handler.release()


class PlainOutput:
    """stdout: lines as they are, for a program that reads them."""

    def __init__(self) -> None:
        self._is_open = True

    def write(self, _label: str, lines: list[bytes]) -> None:
        """Write *lines*, until nobody reads them."""
        if not self._is_open:
            return
        out: BinaryIO = sys.stdout.buffer
        try:
            out.write(b"".join(line + b"\n" for line in lines))
            out.flush()
        except OSError:
            self._is_open = False


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        pass  # the terminal is gone; the crawl is not to end for it


async def relay(reader: asyncio.StreamReader, label: str, output: LogOutput | PlainOutput) -> None:
    """Pass on what a process writes until it closes the pipe."""
    lines = Lines()
    while data := await reader.read(_CHUNK):
        if complete := lines.feed(data):
            output.write(label, complete)
    if rest := lines.end():
        output.write(label, rest)
