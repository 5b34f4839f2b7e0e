"""Text for a terminal: aligned, not too wide, without secrets."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy.settings import BaseSettings

#: Columns of the longest line.
WIDTH = 100
_GAP = "  "

_SECRET_NAME = re.compile(r"PASS|SECRET|TOKEN|KEY(?!_PREFIX)|CREDENTIAL", re.IGNORECASE)
_IN_URL = re.compile(r"://[^\s/?#]*@")
_IN_QUERY = re.compile(
    r"([?&][^=&\s]*(?:pass|secret|token|key)[^=&\s]*=)[^&#\s'\"]+", re.IGNORECASE
)
#: Characters of the shortest secret that is looked for in all texts.
_SHORTEST = 4


class Secrets:
    """What must not be shown: values of settings with a telling name, credentials in URLs."""

    def __init__(self) -> None:
        self._patterns: list[re.Pattern[str]] = []

    def learn(self, *all_settings: BaseSettings) -> None:
        """Take in the secrets of some settings; Scrapy's defaults are none."""
        values = {
            secret
            for settings in all_settings
            for name in settings
            if (settings.getpriority(name) or 0) > 0
            for secret in _secrets(name, settings[name])
        }
        self._patterns = [
            re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
            for value in sorted(values, key=len, reverse=True)
        ]

    def mask(self, text: str) -> str:
        """Return *text* without secrets."""
        for pattern in self._patterns:
            text = pattern.sub("***", text)
        return _IN_QUERY.sub(r"\1***", _IN_URL.sub("://***@", text))


def is_secret(name: Any) -> bool:
    """Tell whether a setting of that name holds something that must not be shown."""
    return isinstance(name, str) and bool(_SECRET_NAME.search(name))


def _secrets(name: Any, value: Any) -> Iterator[str]:
    if hasattr(value, "items"):
        for key, inner in value.items():
            yield from _secrets(name if is_secret(name) else key, inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _secrets(name, inner)
    elif isinstance(value, (str, int)) and not isinstance(value, bool) and is_secret(name):
        for text in {str(value), repr(value).strip("'\"")}:
            if len(text) >= _SHORTEST:
                yield text


class Page:
    """Lines of text, none longer than WIDTH, and no secret in them."""

    def __init__(self, secrets: Secrets) -> None:
        self.lines: list[str] = []
        self.secrets = secrets

    def title(self, text: str) -> None:
        """Begin a part."""
        self.text()
        start = len(self.lines)
        self.text(text)
        self.text("=" * max(map(len, self.lines[start:])))

    def head(self, text: str) -> None:
        """Begin a section."""
        self.text()
        self.text(text)
        self.text("-" * len(self.lines[-1]))

    def text(self, text: str = "", *, hanging: int = 0) -> None:
        """Add a paragraph; its further lines are indented by *hanging*."""
        self.lines += _wrapped(self.secrets.mask(text), WIDTH, hanging)

    def table(self, widths: Sequence[int], rows: Iterable[Sequence[str]], *head: str) -> None:
        """Add rows of cells, below a head if there is one; a cell that is too long goes on."""
        cells = [[self.secrets.mask(cell) for cell in row] for row in rows]
        if not cells:
            return
        self.text()
        if head:
            cells.insert(0, list(head))
            cells.insert(1, ["-" * len(cell) for cell in head])
        for row in cells:
            self._row(widths, row)

    def _row(self, widths: Sequence[int], row: Sequence[str]) -> None:
        if not any(row[1:]):
            self.lines += _wrapped(row[0], WIDTH, 0)
            return
        columns = [_wrapped(cell, width, 2) for cell, width in zip(row, widths, strict=True)]
        for place in range(max(map(len, columns))):
            parts = [
                (column[place] if place < len(column) else "").ljust(width)
                for column, width in zip(columns, widths, strict=True)
            ]
            self.lines.append(_GAP.join(parts).rstrip())


def _wrapped(text: str, width: int, hanging: int) -> list[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + hanging)
        lines += textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [
            ""
        ]
    return lines
