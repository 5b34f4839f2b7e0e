"""Memory of the sinks: does it stay flat while 100,000 items go through?

::

    python benchmarks/sinks_memory/run.py [--items 100000] [--per-page 1000] [--runs 3]

In a real crawl each callback yields many items into SqlitePipeline or CsvPipeline. The table shows
by how much the peak of the resident memory grew over the start of the crawl once so many items had
passed, and at the end. Two controls: no sink at all, and a pipeline that keeps every item.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ChildError, Origin, in_turns, median, run_child, table, write_json  # noqa: E402

LABELS = {
    "sqlite": "SqlitePipeline",
    "csv": "CsvPipeline",
    "none": "control: no sink",
    "list": "control: keeps every item",
}
#: MB that the peak may grow by in the second half of the crawl.
FLAT = 5.0


def main():
    options = _options()
    marks = sorted({options.items // 10, options.items // 2, options.items})
    sinks = [sink for sink in LABELS if sink in ("none", "list") or _is_there(sink)]
    results = {sink: [] for sink in sinks}
    with Origin() as origin:
        for run, sink in in_turns(sinks, options.runs):
            found = run_child(
                [
                    sys.executable, str(HERE / "crawl.py"), "--url", origin.url("/page/{n}"),
                    "--sink", sink, "--marks", ",".join(map(str, marks)),
                    "--per-page", str(options.per_page),
                ]
            )  # fmt: skip
            if found["items"] != options.items or found["stored"] != options.items:
                raise ChildError(f"{LABELS[sink]}: {options.items} items, but {found}")
            results[sink].append(found)
            growth = {mark: round(mb, 1) for mark, mb in found["growth_mb"].items()}
            print(f"{run + 1} {LABELS[sink]}: {growth}", file=sys.stderr, flush=True)
    print(_table(results, marks, options))
    if options.json:
        write_json(options.json, results)


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--per-page", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    return parser.parse_args()


def _is_there(sink):
    if find_spec(f"netspy_scrapy.pipelines.{sink}") is not None:
        return True
    print(f"there is no {LABELS[sink]}", file=sys.stderr)
    return False


def _table(results, marks, options):
    head = ("MB over the start", *(f"{mark:,} items" for mark in marks), "end", "2nd half",
            "items/s", f"flat (<= {FLAT:g} MB)")  # fmt: skip
    rows = []
    for sink, found in results.items():
        at = [median([one["growth_mb"][str(mark)] for one in found]) for mark in (*marks, "end")]
        second = median(
            [one["growth_mb"]["end"] - one["growth_mb"][str(marks[1])] for one in found]
        )
        speed = median([one["items"] / one["seconds"] for one in found])
        rows.append(
            (
                LABELS[sink], *(f"{mb:.1f}" for mb in at), f"{second:+.1f}", f"{speed:,.0f}",
                "yes" if second <= FLAT else "no",
            )
        )  # fmt: skip
    return (
        f"{options.items:,} items, {options.per_page:,} a page, medians of {options.runs} runs\n"
        + table(head, rows)
    )


if __name__ == "__main__":
    main()
