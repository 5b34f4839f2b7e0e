"""Rows per second of the sinks, beside netspy's own and the fastest way of the raw driver.

::

    python benchmarks/sinks/run.py mysql postgres [--rows 50000] [--batch 5000] [--runs 3]

Each way writes the rows three times, in batches: into an empty table (new), once more with other
values (upsert), and into an empty table with 5 rows that the database refuses (bad). The sinks are
called as the batcher calls them, outside a crawl. A sink is a module of this folder with a
``bench()``. The table has medians; a ratio is one of two results of the same round.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

from common import in_turns, median, table, write_json  # noqa: E402
from rows import batches, rows  # noqa: E402

SINKS = sorted(
    one.stem for one in HERE.glob("*.py") if one.stem not in ("run", "rows") and one.stem[0] != "_"
)
BAD = 5


def main():
    options = _options()
    found = {}
    for sink in options.sinks:
        with import_module(sink).bench() as bench:
            found[sink] = _measure(sink, bench, options)
        print(_table(sink, found[sink]), flush=True)
    if options.json:
        write_json(options.json, found)


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sinks", nargs="+", choices=SINKS, metavar="sink", help=", ".join(SINKS))
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", help="write the results to this file")
    return parser.parse_args()


def _measure(sink, bench, options):
    first, second, spoilt = (
        batches(rows(options.rows, generation, bad), options.batch)
        for generation, bad in ((1, 0), (2, 0), (1, BAD))
    )
    ways = {name: way for name, way in bench.ways.items() if way is not None}
    results = {name: [] for name in ways}
    for run, name in in_turns(list(ways), options.runs):
        bench.reset()
        result = {
            "new": _rate(ways[name], first, options),
            "upsert": _rate(ways[name], second, options),
        }
        if bench.count() != options.rows:
            raise RuntimeError(f"{name}: {bench.count()} rows instead of {options.rows}")
        bench.reset()
        lost = []
        result["bad"] = _rate(ways[name], spoilt, options, lost)
        result["not stored"] = options.rows - bench.count()
        result["refused"] = sum(lost)
        results[name].append(result)
        print(f"{run + 1} {sink} {name}: {result}", file=sys.stderr, flush=True)
    return results


def _rate(way, parts, options, lost=None):
    """Return rows per second."""
    began = time.perf_counter()
    refused = [way(part) for part in parts]
    if lost is not None:
        lost += refused
    return round(options.rows / (time.perf_counter() - began))


def _table(sink, results):
    ours, theirs, *raw = results
    kinds = ("new", "upsert", "bad")
    best = [
        {kind: max(results[name][run][kind] for name in raw) for kind in kinds}
        for run in range(len(results[ours]))
    ]
    lines = [
        [name, *(f"{median([one[kind] for one in found]):,.0f}" for kind in kinds),
         *(str(max(one[key] for one in found)) for key in ("not stored", "refused"))]
        for name, found in results.items()
    ]  # fmt: skip
    for label, others in (
        (f"ours / {theirs}", results[theirs]),
        ("ours / best of the driver", best),
    ):
        ratios = [
            f"{median([a[kind] / b[kind] for a, b in zip(results[ours], others, strict=True)]):.2f}"
            for kind in kinds
        ]
        lines.append([label, *ratios, "", ""])
    clean = median([one["bad"] / one["new"] for one in results[ours]])
    lines.append(["ours, bad / new", "", "", f"{clean:.2f}", "", ""])
    return f"{sink}\n" + table(
        ["rows/s", "new", "upsert", f"{BAD} bad rows", "not stored", "refused"], lines
    )


if __name__ == "__main__":
    main()
