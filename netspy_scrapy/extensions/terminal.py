"""The last line of a terminal, which is drawn anew while log records scroll by above it."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO
from unicodedata import east_asian_width

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CLEAR = "\r\x1b[K"


def is_for_people(stream: TextIO | None, environment: Mapping[str, str]) -> bool:
    """Tell whether *stream* is a terminal that somebody looks at, and that can clear a line."""
    return (
        _is_terminal(stream)
        and environment.get("TERM", "dumb") != "dumb"
        and not environment.get("CI")
    )


class TerminalLine:
    """Draws one line with a part for each crawl, and steps aside for log records.

    Each handler of the root logger that writes to a terminal gets its ``emit`` wrapped: the line
    is cleared before a record and drawn after it. Scrapy makes a handler anew with each crawler,
    so handlers are looked for at each drawing. Records come from any thread.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._parts: dict[object, str] = {}
        self._lock = threading.RLock()
        self._is_drawn = False
        self._handlers: dict[logging.Handler, Any] = {}
        """Those that step aside, each with the ``emit`` that somebody else had given it."""

    def show(self, owner: object, text: str) -> None:
        """Draw the line with *text* as the part of *owner*."""
        with self._lock:
            self._parts[owner] = text
            self._adopt_handlers()
            self._draw()

    def remove(self, owner: object) -> None:
        """Take out the part of *owner*; with the last one the line is gone."""
        with self._lock:
            self._parts.pop(owner, None)
            self._clear()
            if self._parts:
                self._draw()
            else:
                self._release_handlers()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave the terminal to others meanwhile."""
        with self._lock:
            self._clear()
            try:
                yield
            finally:
                if self._parts:
                    self._draw()

    # Own methods -------------------------------------------------------------------------------
    def _draw(self) -> None:
        text = " | ".join(self._parts.values())
        self._write(_CLEAR + _fitting(text, self._columns()))
        self._is_drawn = True

    def _clear(self) -> None:
        if self._is_drawn:
            self._write(_CLEAR)
            self._is_drawn = False

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone; the crawl goes on
            self._stream.write(text)
            self._stream.flush()

    def _columns(self) -> int:
        with suppress(OSError, ValueError):
            return os.get_terminal_size(self._stream.fileno()).columns
        return 0

    def _adopt_handlers(self) -> None:
        for handler in logging.root.handlers:
            if handler not in self._handlers and _writes_to_terminal(handler):
                self._handlers[handler] = handler.__dict__.get("emit")
                self._wrap(handler)

    def _wrap(self, handler: logging.Handler) -> None:
        emit = handler.emit

        def emit_aside(record: logging.LogRecord) -> None:
            with self.aside():
                emit(record)

        handler.emit = emit_aside  # type: ignore[method-assign]

    def _release_handlers(self) -> None:
        for handler, own in self._handlers.items():
            if own is None:
                handler.__dict__.pop("emit", None)
            else:
                handler.emit = own  # type: ignore[method-assign]
        self._handlers.clear()


def _writes_to_terminal(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and _is_terminal(handler.stream)


def _is_terminal(stream: Any) -> bool:
    """Tell whether *stream* is a terminal; None, or what is closed or no file, is none."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _fitting(text: str, columns: int) -> str:
    """Return as much of *text* as fits: a line that wraps could not be cleared."""
    room = (columns or 80) - 1
    shown = []
    for char in text:
        room -= 2 if east_asian_width(char) in "WF" else 1
        if room < 0:
            break
        shown.append(char if char.isprintable() else "?")
    return "".join(shown)
