"""What do callbacks that compute cost other pages, on the event loop and in threads?

::

    python benchmarks/callbacks/run.py [--pages 400] [--heavy 60] [--ms 40] [--threads 4] [--runs 3]

One domain has pages that answer after 50 ms, the other has pages whose callback computes for
``--ms`` milliseconds (a key derivation, which leaves the interpreter's lock; pure Python would not
run side by side, but it would not stop the loop either). Shown are the seconds until the last quick
page was handled, and until the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import Origin, Parser, median, of, ratios, run_variants  # noqa: E402
from report import Report  # noqa: E402


def main():
    options = _options()
    report = Report(options)
    threads = f"{options.threads} threads"
    heavy = {"no heavy callback": (0, 0), "on the event loop": (options.heavy, 0),
             threads: (options.heavy, options.threads)}  # fmt: skip
    with Origin() as origin:
        shared = ["--url", origin.url("/page/{n}?ms=50"), "--pages", options.pages,
                  "--ms", options.ms]  # fmt: skip
        variants = {
            name: [*shared, "--heavy", pages, "--threads", number]
            for name, (pages, number) in heavy.items()
        }
        results = run_variants(HERE / "crawl.py", variants, report)
    alone = results["no heavy callback"]
    report.table(
        ("callbacks", "quick pages, s", "speed of alone", "end, s"),
        [
            (
                name, f"{median(of(found, 'quick')):.2f}",
                f"{median(ratios(alone, found, 'quick')):.2f}", f"{median(of(found, 'end')):.2f}",
            )
            for name, found in results.items()
        ],
        f"{options.pages} quick pages, {options.heavy} whose callback takes {options.ms:g} ms.",
    )  # fmt: skip
    report.compare(
        f"{threads}: seconds of the quick pages",
        ratios(results[threads], results["on the event loop"], "quick"),
        peer="callbacks on the event loop", less_is_better=True,
    )  # fmt: skip
    report.finish()


def _options():
    parser = Parser(__doc__)
    parser.add_argument("--pages", type=int, default=400)
    parser.add_argument("--heavy", type=int, default=60)
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--threads", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
