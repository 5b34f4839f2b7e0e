"""One summary of several processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from netspy_scrapy import stats as keys
from netspy_scrapy.extensions.summary import SummaryFacts, summary_lines
from netspy_scrapy.health import DomainRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netspy_scrapy.processes.job import Report


@dataclass
class Part:
    """What one process was, and did."""

    number: int
    label: str
    fate: str
    """How it ended, for people."""
    is_well: bool
    report: Report
    """What it told last; of one that was killed, up to a second before."""

    @property
    def pages(self) -> int:
        """Pages that it fetched."""
        return int(self.report.record.get("pages", 0))


@dataclass
class Run:
    """All processes of a run."""

    spider: str
    reason: str
    elapsed: float
    parts: Sequence[Part]
    dumped: int = 0
    """Requests of the queue that the command itself dumped at the end."""
    lost: int = 0
    """Those of them that could not be dumped."""
    notes: list[str] = field(default_factory=list)
    """What else a person should know."""


def merged_record(run: Run) -> dict[str, Any]:
    """Return the record of a run: counts are sums; ``processes`` names each part."""
    records = [part.report.record for part in run.parts]
    record: dict[str, Any] = {}
    for one in records:
        record = _added(record, one)
    pages = record.get("pages", 0)
    # These say something of the whole run, not of a part of it.
    return {
        **record,
        "schema": next((one["schema"] for one in records if one), 1),
        "spider": run.spider,
        "pages": pages,
        "elapsed": round(run.elapsed, 3),
        "rate": round(pages / run.elapsed, 3) if run.elapsed else 0.0,
        "reason": run.reason,
        "requests_dumped": record.get("requests_dumped", 0) + run.dumped,
        "requests_lost": record.get("requests_lost", 0) + run.lost,
        "processes": [
            {"process": one.label, "pages": one.pages, "ok": one.is_well, "fate": one.fate}
            for one in run.parts
        ],
    }


def merged_lines(run: Run) -> list[str]:
    """Return the summary of a run for people."""
    stats: Counter[str] = Counter()
    for part in run.parts:
        stats.update(part.report.stats)
    stats[keys.REQUESTS_DUMPED] += run.dumped
    stats[keys.REQUESTS_LOST] += run.lost
    facts = _merged_facts(run.parts)
    head, *rest = summary_lines(run.spider, run.reason, dict(stats), facts)
    lines = [f"{head}, {len({one.number for one in run.parts})} processes", *rest]
    lines += [
        f"  {'process' if one.is_well else '! process'} {one.label}: {one.pages} pages, {one.fate}"
        for one in run.parts
    ]
    return lines + [f"  ! {note}" for note in run.notes]


def _merged_facts(parts: Sequence[Part]) -> SummaryFacts:
    merged = SummaryFacts()
    for part in parts:
        if not part.report.facts:
            continue
        one = SummaryFacts.from_dict(part.report.facts)
        merged.sinks += [name for name in one.sinks if name not in merged.sinks]
        for name, record in one.domains.items():
            known = merged.domains.setdefault(name, DomainRecord())
            known.rests += record.rests
            known.seconds += record.seconds
            known.circuits += record.circuits
        merged.item_path = one.item_path or merged.item_path
        merged.request_path = one.request_path or merged.request_path
        merged.cache_path = one.cache_path or merged.cache_path
        merged.cache_age = max(merged.cache_age, one.cache_age)
    return merged


def _added(first: Any, second: Any) -> Any:
    """Return the sum of two values of a record: of numbers, and of dicts field by field."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {
            name: _added(first[name], second[name])
            if name in first and name in second
            else first.get(name, second.get(name))
            for name in {**first, **second}
        }
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        total = first + second
        return round(total, 3) if isinstance(total, float) else total
    return first
