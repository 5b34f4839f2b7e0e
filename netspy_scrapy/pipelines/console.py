"""A sink that shows rows in the log."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from netspy_scrapy.pipelines.base import BasePipeline

if TYPE_CHECKING:
    from netspy_scrapy.pipelines.sql import Refused

_MAX_VALUE = 200
_MAX_ROW = 2000


class ConsolePipeline(BasePipeline):
    """Logs each row at INFO, one line a row; for looking on while a spider is written.

    ::

        [ConsolePipeline] INFO: news: url='https://example.com/1', title='The first one'
        [ConsolePipeline] INFO: news (update by url): url='https://example.com/1', views=7

    Long values and long rows are shortened; a value that cannot be shown does no harm. An update
    is shown, whether the row exists or not.
    """

    def save_items(self, table: str, items: list[dict[str, Any]]) -> Refused:
        """Log new rows."""
        self._show(table, items)
        return {}

    def update_items(
        self, table: str, items: list[dict[str, Any]], update_keys: list[str]
    ) -> Refused:
        """Log changes of rows."""
        self._show(f"{table} (update by {', '.join(map(str, update_keys))})", items)
        return {}

    def _show(self, head: str, items: list[dict[str, Any]]) -> None:
        short = _new_repr()
        head = _on_one_line(head)
        for item in items:
            self.logger.info("%s: %s", head, _row_text(item, short))


def _row_text(item: dict[str, Any], short: reprlib.Repr) -> str:
    parts: list[str] = []
    room = _MAX_ROW
    for name, value in item.items():
        part = _on_one_line(f"{str(name)[:_MAX_VALUE]}={_value_text(value, short)}")
        room -= len(part) + 2
        if room < 0:
            parts.append(f"... ({len(item) - len(parts)} more fields)")
            break
        parts.append(part)
    return ", ".join(parts)


def _value_text(value: Any, short: reprlib.Repr) -> str:
    if isinstance(value, (bytes, bytearray)) and len(value) > _MAX_VALUE:
        return f"{bytes(value[:40])!r}... ({len(value)} bytes)"
    try:
        text = short.repr(value)
    except Exception as exc:  # noqa: BLE001 - a user's __repr__ or __len__ may raise anything
        text = f"<{type(value).__qualname__}: {type(exc).__name__}>"
    if len(text) <= 2 * _MAX_VALUE:
        return text
    return text[: 2 * _MAX_VALUE] + "..."


def _on_one_line(text: str) -> str:
    """Escape what ends a line, moves the cursor or has no UTF-8."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _new_repr() -> reprlib.Repr:
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _MAX_VALUE
    short.maxlevel = 4
    short.maxdict = short.maxlist = short.maxtuple = short.maxset = short.maxfrozenset = 10
    return short
