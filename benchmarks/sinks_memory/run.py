"""Memory of the sinks: does it stay flat while 100,000 items go through?

::

    python benchmarks/sinks_memory/run.py [--items 100000] [--per-page 1000] [--runs 3]

In a real crawl each callback yields many items into SqlitePipeline or CsvPipeline. The table shows
by how much the peak of the resident memory grew over the start of the crawl once so many items had
passed, and at the end. Two controls: no sink at all, and a pipeline that keeps every item.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ChildError, Origin, Parser, median, run_variants  # noqa: E402
from report import Report  # noqa: E402

LABELS = {
    "sqlite": "SqlitePipeline",
    "csv": "CsvPipeline",
    "none": "control: no sink",
    "list": "control: keeps every item",
}
OURS = ("sqlite", "csv")
#: MB that the peak may grow by in the second half of the crawl.
FLAT = 5.0


def main():
    options = _options()
    report = Report(options)
    marks = sorted({options.items // 10, options.items // 2, options.items})
    with Origin() as origin:
        shared = ["--url", origin.url("/page/{n}"), "--marks", ",".join(map(str, marks)),
                  "--per-page", options.per_page, "--sink"]  # fmt: skip
        variants = {LABELS[sink]: [*shared, sink] for sink in LABELS}
        results = run_variants(HERE / "crawl.py", variants, report)
    for label, found in results.items():
        for one in found:
            if one["items"] != options.items or one["stored"] != options.items:
                raise ChildError(f"{label}: {options.items} items, but {one}")
    rows = []
    for label, found in results.items():
        at = [median([one["growth_mb"][str(mark)] for one in found]) for mark in (*marks, "end")]
        second = [one["growth_mb"]["end"] - one["growth_mb"][str(marks[1])] for one in found]
        speed = median([one["items"] / one["seconds"] for one in found])
        rows.append((label, *(f"{mb:.1f}" for mb in at), f"{median(second):+.1f}", f"{speed:,.0f}"))
        if label in (LABELS[sink] for sink in OURS):
            report.compare(
                f"{label}: growth in the second half", second, at_most=FLAT, digits=1, unit=" MB"
            )
    report.table(
        ("MB over the start", *(f"{mark:,} items" for mark in marks), "end", "2nd half", "items/s"),
        rows,
        f"{options.items:,} items, {options.per_page:,} a page, medians of {options.runs} runs.",
    )
    report.finish()


def _options():
    parser = Parser(__doc__, quick={"items": 20_000})
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--per-page", type=int, default=1000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
