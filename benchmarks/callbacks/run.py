"""What do callbacks that compute cost other pages, on the event loop and in threads?

::

    python benchmarks/callbacks/run.py [--pages 400] [--heavy 60] [--ms 40] [--threads 4] [--runs 3]

One domain has pages that answer after 50 ms, the other has pages whose callback computes for
``--ms`` milliseconds (a key derivation, which leaves the interpreter's lock; pure Python would not
run side by side, but it would not stop the loop either). Shown are the seconds until the last quick
page was handled, and until the end.
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
    variants = {
        "no heavy callback": (0, 0),
        "on the event loop": (options.heavy, 0),
        f"{options.threads} threads": (options.heavy, options.threads),
    }
    results = {name: [] for name in variants}
    with Origin() as origin:
        for run, name in in_turns(list(variants), options.runs):
            heavy, threads = variants[name]
            found = run_child(
                [
                    sys.executable, str(HERE / "crawl.py"), "--url", origin.url("/page/{n}?ms=50"),
                    "--pages", str(options.pages), "--heavy", str(heavy), "--ms", str(options.ms),
                    "--threads", str(threads),
                ]
            )  # fmt: skip
            results[name].append(found)
            print(f"{run + 1} {name}: {found}", file=sys.stderr, flush=True)
    print(_table(results))
    if options.json:
        write_json(options.json, results)


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=400)
    parser.add_argument("--heavy", type=int, default=60)
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    return parser.parse_args()


def _table(results):
    alone = [one["quick"] for one in next(iter(results.values()))]
    rows = []
    for name, found in results.items():
        ratios = [base / one["quick"] for base, one in zip(alone, found, strict=True)]
        rows.append(
            (
                name, f"{median([one['quick'] for one in found]):.2f}",
                f"{median(ratios):.2f}", f"{median([one['end'] for one in found]):.2f}",
            )
        )  # fmt: skip
    return table(("callbacks", "quick pages, s", "speed of alone", "end, s"), rows)


if __name__ == "__main__":
    main()
