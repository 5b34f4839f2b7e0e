"""One summary of several processes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from netspy_scrapy.logs import bytes_text, counted, seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Domains that are named with their rests.
_DOMAINS = 5


@dataclass
class Part:
    """What one process was, and did."""

    number: int
    label: str
    fate: str
    """How it ended, for people."""
    is_well: bool
    record: dict[str, Any]
    """What it told last, as :func:`~netspy_scrapy.extensions.record.run_record` has it: of one that
    was killed, up to a second before."""

    @property
    def pages(self) -> int:
        """Pages that it fetched."""
        return int(self.record.get("pages", 0))


@dataclass
class Run:
    """All processes of a run."""

    spider: str
    reason: str
    elapsed: float
    parts: Sequence[Part]
    target: str = ""
    """The spider's name in the project, or its file."""
    item_path: str = ""
    """The dump files."""
    request_path: str = ""
    dumped: int = 0
    """Requests of the queue that the command itself dumped at the end."""
    lost: int = 0
    """Those of them that could not be dumped."""
    exit_status: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    """What is not well with the run as a whole."""
    notes: list[str] = field(default_factory=list)
    """What else a person should know."""


def merged_record(run: Run) -> dict[str, Any]:
    """Return the record of a run: counts are sums; ``processes`` names each part."""
    records = [part.record for part in run.parts]
    record: dict[str, Any] = {}
    for one in records:
        record = _added(record, one)
    pages = record.get("pages", 0)
    incremental = record.get("incremental")
    if incremental:
        incremental["share"] = round(incremental["not_modified"] / incremental["asked"], 4)
    # These say something of the whole run, not of a part of it.
    return {
        **record,
        "schema": next((one["schema"] for one in records if one), 1),
        "spider": run.spider,
        "pages": pages,
        "elapsed": round(run.elapsed, 3),
        "rate": round(pages / run.elapsed, 3) if run.elapsed else 0.0,
        "reason": run.reason,
        "exit_status": run.exit_status,
        "findings": {**record.get("findings", {}), **run.findings},
        "requests_dumped": record.get("requests_dumped", 0) + run.dumped,
        "requests_lost": record.get("requests_lost", 0) + run.lost,
        "next_steps": _steps(run, record),
        "processes": [
            {"process": one.label, "pages": one.pages, "ok": one.is_well, "fate": one.fate}
            for one in run.parts
        ],
    }


def stored_nothing(record: dict[str, Any]) -> bool:
    """Tell whether pages came, and sinks of ours stored no row, and knew none from before."""
    sinks = record.get("sinks", {}).values()
    stored = any(_sum_of(tables).get("stored") for tables in sinks)
    known = record.get("item_dedup_dropped") or record.get("incremental")
    return bool(record.get("pages") and sinks and not stored and not known)


def merged_lines(run: Run, record: dict[str, Any]) -> list[str]:
    """Return the summary of a run for people, from its *record*."""

    def causes(name: str) -> dict[str, int]:
        found: dict[str, int] = record.get(name, {})
        return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))

    count = len({one.number for one in run.parts})
    lines = [f"Run summary of {run.spider} ({run.reason}), {count} processes"]
    lines.append(_line("pages", record["pages"], causes("statuses")))
    lines.append(f"  {'bytes':<9}{bytes_text(record.get('bytes', 0))}")
    if record.get("cache_hits"):
        lines.append(_line("cached", record["cache_hits"], {}))
    for label, total, by_cause in (
        ("retries", "retry", "retries"),
        ("drops", "dropped", "drops"),
        ("failures", "request_failed", "failures"),
    ):
        lines.append(_line(label, record.get(total, 0), causes(by_cause)))
    lines += _rests(record.get("domains", {}))
    if filtered := record.get("dedup_dropped", 0):
        lines.append(_line("filtered", filtered, {"duplicate requests": filtered}))
    duplicate = {"duplicate": record.get("item_dedup_dropped", 0)}
    lines.append(_line("items", record.get("items", 0), duplicate))
    sinks = {sink: _sum_of(tables) for sink, tables in record.get("sinks", {}).items()}
    for sink, rows in sinks.items():
        shown = [f"{rows.get(what, 0)} {what}" for what in ("stored", "refused", "dumped")]
        shown += [f"{rows['lost']} LOST"] if rows.get("lost") else []
        lines.append(f"  {sink}: rows {', '.join(shown)}")
    lines += [f"  ! {step}" for step in record["next_steps"]]
    lines += [
        f"  {'process' if one.is_well else '! process'} {one.label}: {one.pages} pages, {one.fate}"
        for one in run.parts
    ]
    return lines


def _line(label: str, total: int, parts: dict[str, int]) -> str:
    shown = ", ".join(f"{cause} {count}" for cause, count in parts.items() if count)
    return f"  {label:<9}{total}" + (f"  ({shown})" if shown else "")


def _rests(domains: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line of all rests, and one for each of the domains that rested longest."""
    if not domains:
        return []
    whole = _sum_of(domains)
    lines = [_line("rests", whole["rests"], {"circuits opened": whole["circuits"]})]
    longest = sorted(domains.items(), key=lambda pair: -pair[1]["seconds"])
    for name, one in longest[:_DOMAINS]:
        text = f"    {name}: {counted(one['rests'], 'rest')}, {seconds_text(one['seconds'])}"
        circuits = one["circuits"]
        lines.append(text + (f", circuit opened {counted(circuits, 'time')}" if circuits else ""))
    if len(longest) > _DOMAINS:
        lines.append(f"    and {counted(len(longest) - _DOMAINS, 'more domain')}")
    return lines


def _steps(run: Run, record: dict[str, Any]) -> list[str]:
    """Return what went wrong or is left, and what helps."""
    steps = []
    spider = f" --spider {shlex.quote(run.target)}" if run.target else ""
    sinks = {sink: _sum_of(tables) for sink, tables in record.get("sinks", {}).items()}
    if rows := sum(one.get("dumped", 0) for one in sinks.values()):
        steps.append(f"{counted(rows, 'row')} in {run.item_path}: netspy-retry --items{spider}")
    if requests := record.get("requests_dumped", 0) + run.dumped:
        steps.append(
            f"{counted(requests, 'request')} in {run.request_path}: netspy-retry --requests{spider}"
        )
    if record.get("dedup_degraded"):
        steps.append("the item filter was down for a while: rows may be stored twice")
    if lost := sum(one.get("lost", 0) for one in sinks.values()):
        steps.append(f"{counted(lost, 'ROW IS', 'ROWS ARE')} LOST: neither stored nor dumped")
    if requests := record.get("requests_lost", 0) + run.lost:
        steps.append(f"{counted(requests, 'request')} could not be written to the dump")
    return steps + run.notes


def _sum_of(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for one in parts.values():
        total = _added(total, one)
    return total


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
