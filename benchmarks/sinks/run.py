"""Rows per second of the sinks, beside netspy's own and the fastest way of the raw driver.

::

    python benchmarks/sinks/run.py [mysql postgres] [--rows 50000] [--batch 5000] [--runs 3]

Each way has a table of its own and writes the rows three times: into an empty table (new), once
more with other values (upsert), and into an empty table with 5 rows that are refused (bad). The
ways take turns batch by batch, so that what else the machine does meets them all. The sinks are
called as the batcher calls them, outside a crawl. A sink is a module of this folder with a
``bench()``. The table has medians; a ratio is one of two results of the same run.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

from common import Parser, median, of, ratios  # noqa: E402
from report import Report  # noqa: E402
from rows import batches, rows  # noqa: E402

SINKS = sorted(
    one.stem for one in HERE.glob("*.py") if one.stem not in ("run", "rows") and one.stem[0] != "_"
)
BAD = 5
KINDS = {"new": "new rows", "upsert": "upserts", "bad": f"{BAD} bad rows"}
#: The least of netspy's speed, by sink, and of the fastest way of the driver.
NETSPYS = {"mysql": 1.25, "postgres": 1.6}
DRIVERS, CLEAN = 0.85, 0.5


def main():
    options = _options()
    report = Report(options)
    for sink in options.sinks:
        with report.part(sink):
            with import_module(sink).bench() as bench:
                results = _measure(sink, bench, report, options)
            _show(report, sink, results, options)
    report.finish()


def _options():
    parser = Parser(__doc__, quick={"rows": 20_000, "batch": 2_000})
    parser.add_argument("sinks", nargs="*", default=SINKS, metavar="sink", help=", ".join(SINKS))
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=5_000)
    return parser.parse_args()


def _measure(sink, bench, report, options):
    first, second, spoilt = (
        batches(rows(options.rows, generation, bad), options.batch)
        for generation, bad in ((1, 0), (2, 0), (1, BAD))
    )
    ways = {name: way for name, way in bench.ways.items() if way is not None}
    tables = {name: f"items_{number}" for number, name in enumerate(ways)}
    results = {name: [] for name in ways}
    for run, _ in report.in_turns([sink]):
        found = {name: {} for name in ways}
        for name in ways:
            bench.reset(tables[name])
        for kind, parts in (("new", first), ("upsert", second)):
            for name, (seconds, _) in _race(ways, tables, parts).items():
                found[name][kind] = round(options.rows / seconds)
        for name in ways:
            if bench.count(tables[name]) != options.rows:
                raise RuntimeError(f"{name}: not {options.rows} rows in the table")
            bench.reset(tables[name])
        for name, (seconds, refused) in _race(ways, tables, spoilt).items():
            found[name]["bad"] = round(options.rows / seconds)
            found[name]["not stored"] = options.rows - bench.count(tables[name])
            found[name]["refused"] = refused
            results[name].append(found[name])
            report.progress(run + 1, sink, name, found[name])
    return results


def _race(ways, tables, parts):
    """Have each way write *parts*; return their seconds, and the rows that they refused."""
    seconds, refused = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0)
    for number, part in enumerate(parts):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            began = time.perf_counter()
            refused[name] += ways[name](tables[name], part)
            seconds[name] += time.perf_counter() - began
    return {name: (seconds[name], refused[name]) for name in ways}


def _show(report, sink, results, options):
    ours = next(iter(results))
    theirs = next((name for name in results if name.startswith("netspy")), None)
    lines = [
        [name, *(f"{median(of(found, kind)):,.0f}" for kind in KINDS),
         *(str(max(of(found, key))) for key in ("not stored", "refused"))]
        for name, found in results.items()
    ]  # fmt: skip
    report.table(
        ["rows/s", *KINDS.values(), "not stored", "refused"], lines,
        f"{sink}: {options.rows:,} rows, medians of {options.runs} runs.",
    )  # fmt: skip
    if theirs is None:
        report.left_out(f"{sink}: netspy's pipeline, which cannot be imported here")
    raw = [name for name in results if name not in (ours, theirs)]
    fastest = [
        {kind: max(results[name][run][kind] for name in raw) for kind in KINDS}
        for run in range(options.runs)
    ]
    for kind, what in KINDS.items():
        if theirs:
            report.compare(
                f"{ours}, {what}: rows/s", ratios(results[ours], results[theirs], kind),
                peer=theirs, at_least=NETSPYS.get(sink) if kind != "bad" else None,
            )  # fmt: skip
        report.compare(
            f"{ours}, {what}: rows/s", ratios(results[ours], fastest, kind),
            peer="the driver's fastest way", at_least=DRIVERS if kind != "bad" else None,
        )  # fmt: skip
    report.compare(
        f"{ours}, {BAD} bad rows: of its own clean speed",
        [one["bad"] / one["new"] for one in results[ours]], at_least=CLEAN,
    )  # fmt: skip


if __name__ == "__main__":
    main()
