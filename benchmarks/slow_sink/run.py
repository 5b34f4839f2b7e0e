"""What does a sink that needs 1.5 s for each batch cost the crawl, while it keeps up?

::

    python benchmarks/slow_sink/run.py [--pages 3000] [--seconds 1.5] [--runs 3]

Each page (20 ms at the site) yields one row. Shown are the pages per second from the first request
to the last answer, beside the same crawl with a sink that answers at once, and the most rows that
were on their way.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ChildError, Origin, Parser, median, of, ratios, run_variants  # noqa: E402
from report import Report  # noqa: E402

#: What a sink that keeps up may leave of the speed.
TARGET = 0.95


def main():
    options = _options()
    report = Report(options)
    slow = f"{options.seconds:g} s a batch"
    with Origin() as origin:
        shared = ["--url", origin.url("/page/{n}?ms=20"), "--pages", options.pages, "--seconds"]
        variants = {"at once": [*shared, 0], slow: [*shared, options.seconds]}
        results = run_variants(HERE / "crawl.py", variants, report)
    for name, found in results.items():
        if set(of(found, "stored")) != {options.pages}:
            raise ChildError(f"{name}: {options.pages} rows, but {found}")
    alone = results["at once"]
    report.table(
        ("sink", "pages/s", "of at once", "most rows under way"),
        [
            (
                name, f"{median(of(found, 'rate')):.0f}",
                f"{median(ratios(found, alone, 'rate')):.3f}", str(max(of(found, "held"))),
            )
            for name, found in results.items()
        ],
        f"{options.pages:,} pages of 20 ms, a row each.",
    )  # fmt: skip
    report.compare(
        f"{slow}: pages/s, of a sink that answers at once",
        ratios(results[slow], alone, "rate"), at_least=TARGET,
    )  # fmt: skip
    report.finish()


def _options():
    parser = Parser(__doc__)
    parser.add_argument("--pages", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=1.5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
