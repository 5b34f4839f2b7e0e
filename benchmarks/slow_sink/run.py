"""What does a sink that needs 1.5 s for each batch cost the crawl, while it keeps up?

::

    python benchmarks/slow_sink/run.py [--pages 3000] [--seconds 1.5] [--runs 3]

Each page (20 ms at the site) yields one row. Shown are the pages per second from the first request
to the last answer, beside the same crawl with a sink that answers at once, and the most rows that
were on their way.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import Origin, in_turns, median, run_child, table, write_json  # noqa: E402


def main():
    options = _options()
    variants = {"at once": 0.0, f"{options.seconds:g} s a batch": options.seconds}
    results = {name: [] for name in variants}
    with Origin() as origin:
        for run, name in in_turns(list(variants), options.runs):
            found = run_child(
                [
                    sys.executable, str(HERE / "crawl.py"), "--url", origin.url("/page/{n}?ms=20"),
                    "--pages", str(options.pages), "--seconds", str(variants[name]),
                ]
            )  # fmt: skip
            assert found["stored"] == options.pages
            results[name].append(found)
            print(f"{run + 1} {name}: {found}", file=sys.stderr, flush=True)
    print(_table(results))
    if options.json:
        write_json(options.json, results)


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    return parser.parse_args()


def _table(results):
    alone = next(iter(results.values()))
    rows = []
    for name, found in results.items():
        ratios = [one["rate"] / base["rate"] for base, one in zip(alone, found, strict=True)]
        rows.append(
            (
                name, f"{median([one['rate'] for one in found]):.0f}", f"{median(ratios):.3f}",
                str(max(one["held"] for one in found)),
            )
        )  # fmt: skip
    return table(("sink", "pages/s", "of at once", "rows under way"), rows)


if __name__ == "__main__":
    main()
