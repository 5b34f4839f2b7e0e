"""Rows per second of the sinks, beside netspy's own and the fastest way of the raw driver.

::

    python benchmarks/sinks/run.py mysql postgres [--rows 50000] [--batch 5000] [--runs 3]

Each way has a table of its own and writes the rows three times: into an empty table (new), once
more with other values (upsert), and into an empty table with 5 rows that are refused (bad). The
ways take turns batch by batch, so that what else the machine does meets them all. The sinks are
called as the batcher calls them, outside a crawl. A sink is a module of this folder with a
``bench()``. The table has medians; a ratio is one of two results of the same run.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

from common import median, table, write_json  # noqa: E402
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
    tables = {name: f"items_{number}" for number, name in enumerate(ways)}
    results = {name: [] for name in ways}
    for run in range(options.runs):
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
            print(f"{run + 1} {sink} {name}: {found[name]}", file=sys.stderr, flush=True)
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


def _table(sink, results):
    ours, theirs, *raw = results
    kinds = ("new", "upsert", "bad")
    lines = [
        [name, *(f"{median([one[kind] for one in found]):,.0f}" for kind in kinds),
         *(str(max(one[key] for one in found)) for key in ("not stored", "refused"))]
        for name, found in results.items()
    ]  # fmt: skip
    fastest = [
        {kind: max(results[name][run][kind] for name in raw) for kind in kinds}
        for run in range(len(results[ours]))
    ]
    for label, other in ((f"ours / {theirs}", results[theirs]), ("ours / the driver", fastest)):
        pairs = list(zip(results[ours], other, strict=True))
        ratios = [f"{median([a[kind] / b[kind] for a, b in pairs]):.2f}" for kind in kinds]
        lines.append([label, *ratios, "", ""])
    clean = median([one["bad"] / one["new"] for one in results[ours]])
    lines.append(["ours, bad / new", "", "", f"{clean:.2f}", "", ""])
    return f"{sink}\n" + table(
        ["rows/s", "new", "upsert", f"{BAD} bad rows", "not stored", "refused"], lines
    )


if __name__ == "__main__":
    main()
