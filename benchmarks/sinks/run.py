"""Rows per second of the sinks, beside netspy's own and the fastest way of the raw driver.

::

    python benchmarks/sinks/run.py mysql postgres [--rows 50000] [--batch 5000] [--runs 3]

Each way writes the rows three times, in batches: into an empty table (new), once more with other
values (upsert), and into an empty table with 5 rows that the database refuses (bad). The sinks are
called as the batcher calls them, outside a crawl. A sink is a module of this folder with a
``bench()``. The table has the best of the runs: another program on the machine only makes one
slower.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]

from common import in_turns, table, write_json  # noqa: E402
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
    best = {
        name: {kind: max(one[kind] for one in found) for kind in kinds}
        for name, found in results.items()
    }
    lines = [
        [name, *(f"{best[name][kind]:,}" for kind in kinds),
         *(str(max(one[key] for one in found)) for key in ("not stored", "refused"))]
        for name, found in results.items()
    ]  # fmt: skip
    fastest = {kind: max(best[name][kind] for name in raw) for kind in kinds}
    for label, other in ((f"ours / {theirs}", best[theirs]), ("ours / the driver", fastest)):
        ratios = [f"{best[ours][kind] / other[kind]:.2f}" for kind in kinds]
        lines.append([label, *ratios, "", ""])
    lines.append(
        ["ours, bad / new", "", "", f"{best[ours]['bad'] / best[ours]['new']:.2f}", "", ""]
    )
    return f"{sink}\n" + table(
        ["rows/s", "new", "upsert", f"{BAD} bad rows", "not stored", "refused"], lines
    )


if __name__ == "__main__":
    main()
