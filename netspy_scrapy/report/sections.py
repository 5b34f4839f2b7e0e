"""The parts of the report that are drawn: the run over time, rests, latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netspy_scrapy.report import charts
from netspy_scrapy.report.text import count, counted, duration, name

if TYPE_CHECKING:
    from netspy_scrapy.report.history import History

#: Domains whose rests are drawn, and causes that are named of each.
_LANES = 12
_CAUSES = 4


def over_time(history: History, span: float) -> str:
    """Return pages, retries and failures over time."""
    timeline = history.timeline.readable(span)
    parts = ['<section><h2 id="time">Over time</h2>']
    for what, one, title in (
        ("pages", "page", "Pages a second"),
        ("retries", "retry", "Retries"),
        ("failures", "failure", "Failures"),
    ):
        total = sum(getattr(timeline, what))
        if not total:
            parts.append(f'<p class="none">No {one}.</p>')
            continue
        told = f"{counted(total, one)}, in steps of {duration(timeline.width)}"
        parts.append(f'<p class="what"><b>{title}</b> {told}</p>')
        parts.append(charts.steps(timeline, what, span, f"{title}: {told}"))
    if timeline.is_used:
        parts.append(charts.time_axis(span))
    return "\n".join([*parts, "</section>"])


def rests(rested: dict[str, dict[str, Any]], history: History, span: float) -> str:
    """Return when which domains were not asked: those that rested longest, the others summed."""
    if not rested:
        return '<section><h2 id="rests">Rests</h2><p>No domain had to rest.</p></section>'
    ranked = sorted(rested, key=lambda one: (-rested[one]["seconds"], one))
    shown = [one for one in ranked if one in history.domains][:_LANES]
    kinds = {charts.kind_of(rest.cause) for one in shown for rest in history.domains[one].rests}
    legend = "".join(
        f'<li><svg class="swatch" aria-hidden="true"><rect class="rest {kind}" width="100%" '
        f'height="100%"/></svg> {text}</li>'
        for kind, text in charts.KINDS.items()
        if kind in kinds
    )
    parts = [
        '<section><h2 id="rests">Rests</h2><p>When domains were not asked, and why.</p>',
        f'<ul class="legend">{legend}</ul>',
    ]
    for one in shown:
        known = history.domains[one]
        causes = ", ".join(
            f"{_brief(cause)} {count(number)}×"  # noqa: RUF001 - times
            for cause, number in known.causes.most_common(_CAUSES)
        )
        told = f"{_sum([rested[one]])}: {causes}"
        parts.append(f'<p class="what"><b><bdi>{name(one)}</bdi></b> {told}</p>')
        parts.append(charts.lane(known.rests, span, f"Rests of {one}"))
    parts.append(charts.time_axis(span))
    if left := [rested[one] for one in ranked if one not in shown]:
        parts.append(f"<p>And {counted(len(left), 'more domain')}: {_sum(left)}.</p>")
    return "\n".join([*parts, "</section>"])


def _sum(rested: list[dict[str, Any]]) -> str:
    times = counted(sum(one["rests"] for one in rested), "rest")
    return f"{times}, {duration(sum(one['seconds'] for one in rested))}"


def _brief(cause: str) -> str:
    """Return a cause with its kind in brackets.

    >>> _brief("HTTP status 503, Retry-After"), _brief("circuit")
    ('503 (Retry-After)', 'circuit')
    """
    why, _, kind = cause.removeprefix("HTTP status ").partition(", ")
    return name(f"{why} ({kind})" if kind else why)


def latencies(history: History, pages: int) -> str:
    """Return how long answers took."""
    all_of_them = history.latencies
    total = all_of_them.total()
    if not total:
        return '<section><h2 id="latency">Latency</h2><p>No answer was measured.</p></section>'
    half, most = (duration(all_of_them.quantile(share)) for share in (0.5, 0.95))
    unmeasured = f" {counted(pages - total, 'page')} not measured (cached)." * (pages > total)
    return (
        '<section><h2 id="latency">Latency</h2><p>From the request until the answer begins. Half '
        f"of {counted(total, 'page')} within <b>{half}</b>, 95 % within <b>{most}</b>, the slowest "
        f"after <b>{duration(all_of_them.slowest)}</b>.{unmeasured}</p>\n"
        f"{charts.latency_chart(all_of_them)}</section>"
    )
