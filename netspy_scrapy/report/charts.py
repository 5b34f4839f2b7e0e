"""Charts as SVG: shapes at percentages, so that they fit every width and their texts stay as large.

Kinds of things differ by pattern or place too, never by colour alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from netspy_scrapy.report.history import BOUNDS, SEVERAL
from netspy_scrapy.report.text import count, counted, duration, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netspy_scrapy.report.history import Latencies, Rest, Timeline

#: Patterns that rests are filled with, by kind; classes of the style sheet.
KINDS = {
    "retry-after": "asked for by the site (Retry-After)",
    "backoff": "backoff after a failed attempt",
    "circuit": "circuit open",
    "several": "several of these",
}

PATTERNS = """<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>
<pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect class="ground" width="6" height="6"/><rect class="ink"
 width="3" height="6"/></pattern>
<pattern id="checks" width="6" height="6" patternUnits="userSpaceOnUse"><rect class="ground bad"
 width="6" height="6"/><rect class="ink bad" width="3" height="3"/><rect class="ink bad" x="3" y="3"
 width="3" height="3"/></pattern>
<pattern id="dots" width="5" height="5" patternUnits="userSpaceOnUse"><rect class="ground" width="5"
 height="5"/><circle class="ink" cx="2.5" cy="2.5" r="1.4"/></pattern>
</defs></svg>"""

#: Seconds between two marks of an axis of time.
_TICKS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
    14_400, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000,
)  # fmt: skip
_MOST_TICKS = 6

#: How far a bar reaches into the next, so that rounding to pixels leaves no gap.
_OVERLAP = 0.0015

#: The share of the time that a bar takes at least, so that it is seen.
_NARROWEST = 0.002

#: Numbers at which a scale may end, and ten times as much.
_ROUND = (1, 2, 2.5, 3, 4, 5, 6, 8)
_MINUTES, _HOURS, _DAYS = 120, 7200, 172_800

#: Classes of latencies that are shown at least, and the one in each decade that begins it.
_FEWEST_CLASSES = 9
_DECADE = 6


def kind_of(cause: str) -> str:
    """Return the kind of a rest, which decides how it is filled."""
    if cause in {"circuit", SEVERAL}:
        return cause
    return "retry-after" if "Retry-After" in cause else "backoff"


# Time --------------------------------------------------------------------------------------------
def time_ticks(span: float) -> list[tuple[float, str]]:
    """Return the marks of an axis of *span* seconds: their places, as shares, and their texts."""
    step = next((one for one in _TICKS if span / one <= _MOST_TICKS), span / _MOST_TICKS)
    if span < _MINUTES:
        unit, per = "s", 1.0
    elif span < _HOURS:
        unit, per = "min", 60.0
    elif span < _DAYS:
        unit, per = "h", 3600.0
    else:
        unit, per = "d", 86_400.0
    number = int(span / step + 1e-9)
    return [
        (n * step / span, f"{n * step / per:.3g} {unit}" if n else "0") for n in range(number + 1)
    ]


def time_axis(span: float) -> str:
    """Return the axis under charts of time."""
    texts = "".join(
        _text(share, text, "start" if share < 0.02 else "end" if share > 0.97 else "middle")  # noqa: PLR2004
        for share, text in time_ticks(span)
    )
    return _band(f'<svg class="axis">{texts}</svg>')


def _grid(span: float) -> str:
    return "".join(
        f'<line class="grid" x1="{_percent(share)}" x2="{_percent(share)}" y1="0" y2="100%"/>'
        for share, _ in time_ticks(span)
    )


def steps(timeline: Timeline, what: str, span: float, label: str) -> str:
    """Return a chart of pages as a rate, of retries or failures as they were counted."""
    width = timeline.width
    counts: list[int] = getattr(timeline, what)
    per = width if what == "pages" else 1
    used = [number / per for number in counts[: int(span / width) + 1]]
    top = nice_top(max(used, default=0))
    bars, hits = [], []
    for n, number in enumerate(used):
        if number:
            x = n * width / span
            wide = width / span + _OVERLAP
            bars.append(_rect(f"bar {what}", x, wide, 1 - number / top, number / top))
            hits.append(_rect("hit", x, width / span, title=_told(timeline, n, span)))
    return _plot([_grid(span), *bars, *hits], label, top, kind="tall" if what == "pages" else "low")


def _told(timeline: Timeline, n: int, span: float) -> str:
    begin, end = n * timeline.width, min((n + 1) * timeline.width, span)
    return (
        f"{duration(begin) if n else '0'} to {duration(end)}: "
        f"{counted(timeline.pages[n], 'page')}, {counted(timeline.retries[n], 'retry')}, "
        f"{counted(timeline.failures[n], 'failure')}"
    )


def lane(rests: Sequence[Rest], span: float, label: str) -> str:
    """Return the rests of one domain as bars over time."""
    bars = []
    for begin, end, cause in rests:
        told = f"{duration(begin)} to {duration(end)}: {duration(end - begin)}, {cause}"
        width = max((end - begin) / span, _NARROWEST)
        bars.append(_rect(f"rest {kind_of(cause)}", begin / span, width, title=told))
    shapes = _grid(span) + "".join(bars)
    return _band(f'<svg class="lane" role="img" aria-label="{sentence(label)}">{shapes}</svg>')


# Latencies ---------------------------------------------------------------------------------------
def latency_chart(latencies: Latencies) -> str:
    """Return how many answers took how long; all classes are drawn alike wide."""
    counts = list(latencies.counts)
    filled = [n for n, number in enumerate(counts) if number]
    missing = max(_FEWEST_CLASSES - (filled[-1] - filled[0] + 1), 0)
    first = max(filled[0] - (missing + 1) // 2 - 1, 0)
    last = min(max(filled[-1] + missing // 2 + 1, first + _FEWEST_CLASSES), len(counts) - 1)
    classes = last - first + 1
    top = nice_top(max(counts))
    shapes = []
    for n in range(first, last + 1):
        x, width, share = (n - first) / classes, 1 / classes, counts[n] / top
        if counts[n]:
            shapes.append(_rect("bar pages", x + width * 0.06, width * 0.88, 1 - share, share))
        low = duration(BOUNDS[n - 1]) if n else "0"
        high = duration(BOUNDS[n]) if n < len(BOUNDS) else "more"
        shapes.append(
            _rect("hit", x, width, title=f"{low} to {high}: {counted(counts[n], 'page')}")
        )
    names = []
    for part, name, anchor in ((0.5, "median", "end"), (0.95, "95 %", "start")):
        at = (_position(latencies.quantile(part)) - first) / classes
        place = _percent(at)
        shapes.append(f'<line class="mark" x1="{place}" x2="{place}" y1="0" y2="100%"/>')
        names.append(_text(at, name, anchor))
    bounds = "".join(
        _text((n + 1 - first) / classes, duration(BOUNDS[n]), "middle")
        for n in range(first, min(last, len(BOUNDS)))
        if n % _DECADE in {0, 3}  # 1 and 3 of each decade
    )
    label = "Pages by how long their answer took"
    return (
        _band(f'<svg class="axis">{"".join(names)}</svg>')
        + _plot(shapes, label, top, kind="tall")
        + _band(f'<svg class="axis">{bounds}</svg>')
    )


def _position(seconds: float) -> float:
    """Return where a latency lies, in classes."""
    for n, bound in enumerate(BOUNDS):
        if seconds <= bound:
            low = BOUNDS[n - 1] if n else 0.0
            return n + (seconds - low) / (bound - low)
    return float(len(BOUNDS))


# Parts -------------------------------------------------------------------------------------------
def share_bar(share: float, kind: str) -> str:
    """Return a bar that shows a share of something."""
    return f'<svg class="share" aria-hidden="true">{_rect(f"bar {kind}", 0, share)}</svg>'


def nice_top(highest: float) -> float:
    """Return a round number that is not below *highest*."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next((power * one for one in _ROUND if power * one >= highest), 10 * power)


def _plot(shapes: list[str], label: str, top: float, *, kind: str) -> str:
    """Return shapes with a scale up to *top*."""
    scale = "".join(
        f'<text class="end" x="100%" y="{y}" dy="{dy}">{_shown(top * share)}</text>'
        for share, y, dy in ((1, "0", 10), (0.5, "50%", 4), (0, "100%", 0))
        if kind == "tall" or share != 0.5  # noqa: PLR2004
    )
    half = '<line class="grid" x1="0" x2="100%" y1="50%" y2="50%"/>'
    plot = f'<svg class="plot" role="img" aria-label="{sentence(label)}">'
    return _band(
        f"{plot}{half}{''.join(shapes)}</svg>",
        f'<svg class="scale" aria-hidden="true">{scale}</svg>',
        kind,
    )


def _band(chart: str, left: str = "<span></span>", kind: str = "") -> str:
    return f'<div class="band {kind}">{left}{chart}</div>\n'


def _shown(number: float) -> str:
    return count(int(number)) if number == int(number) else f"{number:g}"


def _percent(share: float) -> str:
    return f"{min(max(100 * share, 0), 100):.2f}".rstrip("0").rstrip(".") + "%"


def _text(share: float, text: str, anchor: str) -> str:
    gap = {"start": 4, "middle": 0, "end": -4}[anchor] if 0.02 < share < 0.97 else 0  # noqa: PLR2004
    return f'<text class="{anchor}" x="{_percent(share)}" dx="{gap}" y="14">{text}</text>'


def _rect(
    kind: str, x: float, width: float, y: float = 0, height: float = 1, title: str = ""
) -> str:
    wide = _percent(min(width, 1 - x))
    shown = f"><title>{sentence(title)}</title></rect>" if title else "/>"
    return (
        f'<rect class="{kind}" x="{_percent(x)}" y="{_percent(y)}" width="{wide}" '
        f'height="{_percent(height)}"{shown}'
    )
