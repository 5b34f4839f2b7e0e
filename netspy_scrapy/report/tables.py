"""The tables of the report: domains, sinks, causes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from netspy_scrapy.report.charts import share_bar
from netspy_scrapy.report.history import DomainHistory
from netspy_scrapy.report.text import NONE, count, counted, duration, name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netspy_scrapy.report.history import History

#: Rows from which on a table scrolls in itself.
_LONG = 25
#: Rows at most: domains, tables of sinks, causes of one kind.
_DOMAINS = 100
_TABLES = 50
_CAUSES = 12

_OUTCOMES = ("stored", "refused", "dumped", "lost")


class _Cell(NamedTuple):
    shown: str
    value: float = 0
    """What the column is sorted by."""
    css: str = ""


def _table(
    caption: str, titles: Sequence[str], rows: Sequence[Sequence[_Cell]],
    last: Sequence[_Cell] | None = None,
) -> str:  # fmt: skip
    """Return a table whose first cells are names, and whose other ones are numbers."""

    def line(cells: Sequence[_Cell]) -> str:
        first, *others = cells
        data = "".join(
            f'<td data-value="{one.value!r}" class="{one.css}">{one.shown}</td>' for one in others
        )
        return f'<tr><th scope="row">{first.shown}</th>{data}</tr>\n'

    head = "".join(f'<th scope="col">{one}</th>' for one in titles)
    foot = f"<tfoot>{line(last)}</tfoot>" if last else ""
    return (
        f'<div class="scroll{" long" if len(rows) > _LONG else ""}" role="region" tabindex="0" '
        f'aria-label="{caption}"><table>'
        f"<caption>{caption}</caption><thead><tr>{head}</tr></thead>\n"
        f"<tbody>{''.join(map(line, rows))}</tbody>{foot}</table></div>"
    )


def _number(number: int, css: str = "") -> _Cell:
    return _Cell(count(number), number, css if number else "zero")


def _time(seconds: float) -> _Cell:
    return _Cell(duration(seconds) if seconds else NONE, seconds, "" if seconds else "zero")


# Domains -----------------------------------------------------------------------------------------
def domains(record: dict[str, Any], history: History) -> str:
    """Return the table of domain health; what is not listed is summed."""
    rested = record["domains"]
    ranked = sorted(
        history.domains.items(),
        key=lambda pair: (
            -pair[1].failures, -rested.get(pair[0], _NO_RESTS)["seconds"], -pair[1].retries,
            -pair[1].pages, pair[0],
        ),
    )  # fmt: skip
    if not ranked:
        return '<section><h2 id="domains">Domains</h2><p>No domain was asked.</p></section>'
    end = history.elapsed()
    shown, left = ranked[:_DOMAINS], ranked[_DOMAINS:]
    rows = [
        _domain_row(f"<bdi>{name(one)}</bdi>", facts, rested.get(one, _NO_RESTS), end)
        for one, facts in shown
    ]
    number = len(left) + history.folded
    last = None
    if number:
        listed = {one for one, _ in shown}
        rest = {
            key: sum(facts[key] for one, facts in rested.items() if one not in listed)
            for key in _NO_RESTS
        }
        total = DomainHistory()
        for facts in [history.others, *(facts for _, facts in left)]:
            total.add_all(facts)
        # A domain that came back after it was summed is counted twice.
        about = "up to " if history.folded else ""
        last = _domain_row(f"{about}{counted(number, 'more domain')}", total, rest, end)
    order = ", those with the most failures, rests and retries first" * (len(shown) > 1)
    told = (
        f"{counted(len(shown), 'domain')}{order}. A page with a refused status is a failure too. "
        "Median and 95 %: half of its pages came within that time, and 95 in 100."
    )
    table = _table("Domain health", _DOMAIN_TITLES, rows, last)
    return f'<section><h2 id="domains">Domains</h2><p>{told}</p>\n{table}</section>'


_NO_RESTS: dict[str, float] = {"rests": 0, "seconds": 0.0, "circuits": 0}
_DOMAIN_TITLES = ("Domain", "Pages", "Failures", "Retries", "Drops", "Rests", "Rested", "Circuits",
                  "Median", "95 %")  # fmt: skip


def _domain_row(
    title: str, facts: DomainHistory, rested: dict[str, Any], end: float
) -> list[_Cell]:
    latencies = facts.latencies
    half, most = (latencies.quantile(share) if latencies else 0.0 for share in (0.5, 0.95))
    return [
        _Cell(title),
        _number(facts.pages),
        _number(facts.failures, "bad"),
        _number(facts.retries, "warn"),
        _number(facts.drops),
        _number(rested["rests"], "warn"),
        _time(rested["seconds"]),
        _circuit(rested["circuits"], is_open=facts.open_until > end),
        _time(half),
        _time(most),
    ]


def _circuit(times: int, *, is_open: bool) -> _Cell:
    return _Cell(f"{count(times)} (open)", times, "bad") if is_open else _number(times, "bad")


# Sinks -------------------------------------------------------------------------------------------
def rows_by_outcome(record: dict[str, Any]) -> Counter[str]:
    """Return the rows of all sinks by what became of them."""
    total: Counter[str] = Counter()
    for by_table in record["sinks"].values():
        for rows in by_table.values():
            total.update(rows)
    return total


def sinks(record: dict[str, Any]) -> str:
    """Return what became of the rows, by sink and table."""
    lines = [
        (sink, table, rows)
        for sink, by_table in record["sinks"].items()
        for table, rows in (by_table or {NONE: {}}).items()
    ]
    if not lines:
        return '<section><h2 id="sinks">Sinks</h2><p>No sink of this package.</p></section>'
    shown, left = lines[:_TABLES], lines[_TABLES:]
    outcomes = [one for one in _OUTCOMES if one != "lost" or rows_by_outcome(record)["lost"]]
    rows = [
        [_Cell(f"<bdi>{name(sink)}</bdi> <bdi class=table>{name(table)}</bdi>"),
         *_outcomes(counts, outcomes)]
        for sink, table, counts in shown
    ]  # fmt: skip
    last = None
    if left:
        total: Counter[str] = Counter()
        for _, _, counts in left:
            total.update(counts)
        last = [_Cell(counted(len(left), "more table")), *_outcomes(total, outcomes)]
    titles = ["Sink and table", *(one.capitalize() for one in outcomes)]
    return (
        '<section><h2 id="sinks">Sinks</h2><p>Rows by sink and table. A refused row is dumped, so '
        "it is counted twice.</p>\n" + _table("Rows by sink and table", titles, rows, last)
        + "</section>"
    )  # fmt: skip


def _outcomes(counts: dict[str, int], outcomes: Sequence[str]) -> list[_Cell]:
    return [_number(counts.get(one, 0), "" if one == "stored" else "bad") for one in outcomes]


# Causes ------------------------------------------------------------------------------------------
def causes(record: dict[str, Any]) -> str:
    """Return the counts by cause, side by side."""
    filtered = {
        "duplicate requests": record["dedup_dropped"],
        "duplicate items": record["item_dedup_dropped"],
        "from the response cache": record["cache_hits"],
    }
    blocks = (
        ("Failures", record["failures"], "failures", "No failure."),
        ("Drops", record["drops"], "pages", "No drop."),
        ("Retries", record["retries"], "retries", "No retry."),
        ("Answers by status", record["statuses"], "pages", "No answer."),
        ("Not sent, not stored", {k: v for k, v in filtered.items() if v}, "pages", ""),
    )
    shown = "".join(_by_cause(*one) for one in blocks if one[1] or one[3])
    return f'<section><h2 id="causes">Causes</h2><div class="causes">{shown}</div></section>'


def _by_cause(title: str, counts: dict[str, int], css: str, none: str) -> str:
    if not counts:
        return f"<div><h3>{title}</h3><p>{none}</p></div>"
    most = max(counts.values())
    lines = "".join(
        f"<li><span><bdi>{name(cause)}</bdi></span> <b>{count(number)}</b>"
        f"{share_bar(number / most, css)}</li>"
        for cause, number in list(counts.items())[:_CAUSES]
    )
    left = list(counts.values())[_CAUSES:]
    more = f"<p>And {counted(len(left), 'more cause')}: {count(sum(left))}.</p>" if left else ""
    return f"<div><h3>{title}</h3><ul>{lines}</ul>{more}</div>"
