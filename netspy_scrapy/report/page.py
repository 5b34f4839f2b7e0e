"""The report of a run as one HTML page that needs nothing else: no network, no font, no library.

Whatever is shown of a site is escaped, and a policy in the page forbids every script but its own.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import scrapy

import netspy_scrapy
from netspy_scrapy.logs import bytes_text
from netspy_scrapy.report import charts, sections, tables
from netspy_scrapy.report.text import count, counted, duration, name, sentence

if TYPE_CHECKING:
    from netspy_scrapy.report.history import History


class _Tile(NamedTuple):
    """A number that is seen at once."""

    what: str
    number: int
    small: str
    css: str = ""
    """How it stands out unless it is 0."""

    def html(self) -> str:
        number, _, what = counted(self.number, self.what).partition(" ")
        css, small = (self.css, self.small) if self.number else ("", "")
        inner = f"<b>{number}</b> <span>{what}</span> <small>{small}</small>"
        return f'<div class="tile {css}">{inner}</div>'


@dataclass(frozen=True)
class Report:
    """What a page is made of."""

    record: dict[str, Any]
    """The run summary for programs: see ``netspy_scrapy.extensions.record``."""
    history: History
    began: datetime
    seconds: float

    def html(self) -> str:
        """Return the page."""
        style, script = _asset("report.css"), _asset("report.js")
        policy = (
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        )
        record, history, span = self.record, self.history, max(self.seconds, 0.01)
        body = "\n".join(
            [
                self._head(),
                self._tiles(),
                self._steps(),
                sections.over_time(history, span),
                sections.rests(record["domains"], history, span),
                tables.causes(record),
                tables.domains(record, history),
                sections.latencies(history, record["pages"]),
                tables.sinks(record),
                self._foot(),
            ]
        )
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{name(self.record['spider'])}: report of a run</title>\n"
            f'<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
            f"<body>\n{charts.PATTERNS}\n<main>\n{body}\n</main>\n<script>{script}</script>\n"
            "</body>\n</html>\n"
        )

    # Sections ------------------------------------------------------------------------------------
    def _head(self) -> str:
        end = self.began + timedelta(seconds=self.seconds)
        same_day = end.date() == self.began.date()
        ended = f"{end:%H:%M:%S}" if same_day else f"{end:%Y-%m-%d %H:%M:%S}"
        status = self.record["exit_status"]
        failed = f'<span class="pill bad">exit status {status}</span> ' if status else ""
        return (
            f"<header><h1><bdi>{name(self.record['spider'])}</bdi></h1>\n"
            f'<p><span class="pill">{name(self.record["reason"])}</span> {failed}'
            f"{self.began:%Y-%m-%d %H:%M:%S} to {ended} UTC, {duration(self.seconds)}</p></header>"
        )

    def _tiles(self) -> str:
        record = self.record
        rows = tables.rows_by_outcome(record)
        rate = record["pages"] / self.seconds if self.seconds else 0.0
        rested = record["domains"].values()
        rests, circuits = (sum(one[what] for one in rested) for what in ("rests", "circuits"))
        opened = f"{counted(circuits, 'circuit')} opened" if circuits else ""
        speed = f"{rate:.3g} a second, {bytes_text(record['bytes'])}"
        of_items = f"from {counted(record['items'], 'item')}"
        tiles = [
            _Tile("page", record["pages"], speed),
            _Tile("retry", record["retry"], _most(record["retries"]), "warn"),
            _Tile("failure", record["request_failed"], _most(record["failures"]), "bad"),
            _Tile("drop", record["dropped"], _most(record["drops"])),
            _Tile("rest", rests, opened, "warn"),
            _Tile("stored row", rows["stored"], of_items),
            _Tile("dumped row", rows["dumped"], f"{count(rows['refused'])} refused", "bad"),
        ]
        if rows["lost"]:
            tiles.append(_Tile("LOST row", rows["lost"], "neither stored nor dumped", "bad"))
        cells = "".join(tile.html() for tile in tiles)
        return f'<section class="tiles" aria-label="In numbers">{cells}</section>'

    def _steps(self) -> str:
        title = "<h2>What to do next</h2>"
        steps = self.record["next_steps"]
        if not steps:
            came = self.record["pages"]
            nothing = "Nothing is left to do." if came else "No page came: see the log."
            return f'<section class="next">{title}<p>{nothing}</p></section>'
        items = "".join(f"<li>{sentence(step)}</li>" for step in steps)
        return f'<section class="next todo">{title}<ul>{items}</ul></section>'

    def _foot(self) -> str:
        now = datetime.now(timezone.utc)
        versions = f"netspy_scrapy {netspy_scrapy.__version__}, Scrapy {scrapy.__version__}"
        return f"<footer>Written {now:%Y-%m-%d %H:%M:%S} UTC by {versions}.</footer>"


def _most(causes: dict[str, int]) -> str:
    """Return the cause that counts most, as a tile shows it."""
    if not causes:
        return ""
    cause, number = max(causes.items(), key=lambda pair: pair[1])
    return f"most: {name(cause)} ({count(number)})" if len(causes) > 1 else name(cause)


@cache
def _asset(file: str) -> str:
    return (resources.files("netspy_scrapy.report") / file).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
