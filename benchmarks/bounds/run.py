"""Memory and traffic of bodies of 200 MB, under a limit of 32 MiB: this package, netspy, Scrapy.

::

    python benchmarks/bounds/run.py [--mb 200] [--runs 3] [--json FILE]

Each cell is a process of its own that fetches one such body, or four at once. *MB* is the growth of
its resident memory at the peak, over what it was before the first request; *sent* what the site got
rid of, socket buffers included.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "throughput")]

from clients import run_client, without_netspy  # noqa: E402
from common import ADDON, Origin, Parser, median, of  # noqa: E402
from report import Report  # noqa: E402

LIMIT = 32 * 2**20
BUDGET = 64 * 2**20
#: MB that a socket of the loopback buffers at most, on both sides together.
_SOCKET_MB = 6.0

#: Mode, how many at once, largest growth in MB, most MB sent.
ROWS = {
    "declared": ("declared", 1, 2.0, _SOCKET_MB),
    "chunked": ("chunked", 1, 36.0, LIMIT / 1e6 + _SOCKET_MB),
    "gzip": ("gzip", 1, 36.0, 0.25),
    "four gzip at once": ("gzip", 4, 100.0, 1.0),
    "four chunked at once": ("chunked", 4, 100.0, None),
}


@dataclass
class Variant:
    """One client with its limits."""

    client: str
    settings: dict
    ours: bool = True


_QUIET = {"LOG_LEVEL": "CRITICAL"}
_BUDGET = {"NETSPY_MAX_INFLIGHT_BYTES": BUDGET}
VARIANTS = {
    "add-on": Variant("scrapy", {**_QUIET, **ADDON, "MAX_RESPONSE_SIZE": LIMIT}),
    "add-on, budget 64 MiB": Variant(
        "scrapy", {**_QUIET, **ADDON, "MAX_RESPONSE_SIZE": LIMIT, **_BUDGET}
    ),
    "netspy spider, budget 64 MiB": Variant("facade", {**_QUIET, **_BUDGET}),
    "netspy": Variant("netspy", {"SPIDER_THREAD_COUNT": 4}, ours=False),
    "Scrapy, DOWNLOAD_MAXSIZE": Variant(
        "scrapy", {**_QUIET, "DOWNLOAD_MAXSIZE": LIMIT}, ours=False
    ),
}


def main():
    options = _options()
    report = Report(options)
    names = without_netspy(VARIANTS, report, options)
    results = {(row, name): [] for row in ROWS for name in names}
    with Origin(HERE / "target.py") as target:
        for run, (row, name) in report.in_turns(list(results)):
            found = _measure(target, row, VARIANTS[name], options)
            results[row, name].append(found)
            report.progress(run + 1, row, name, found)
    _show(report, results, names, options)
    report.finish()


def _options():
    parser = Parser(__doc__, quick={"mb": 64})
    parser.add_argument("--mb", type=int, default=200)
    parser.add_netspy()
    return parser.parse_args()


def _measure(target, row, variant, options):
    mode, at_once, _, _ = ROWS[row]
    before = target.stats()
    url = target.url(f"/big?mode={mode}&mb={options.mb}&n={{n}}")
    found = run_client(variant.client, url, at_once, variant.settings, options, failed=at_once)
    time.sleep(0.2)
    sent = (target.stats()["sent"] - before["sent"]) / 1e6
    return {"growth_mb": round(found["growth_mb"], 1), "sent_mb": round(sent, 1)}


def _show(report, results, names, options):
    rows = []
    for name in names:
        cells = []
        for row in ROWS:
            found = results[row, name]
            growth, sent = median(of(found, "growth_mb")), median(of(found, "sent_mb"))
            cells.append(f"{growth:.1f} / {sent:.1f}")
        rows.append((name, *cells))
    report.table(
        ("", *(f"{row}: MB / sent" for row in ROWS)), rows,
        f"Bodies of {options.mb} MiB, limit 32 MiB, medians of {options.runs} runs.",
    )  # fmt: skip
    for name in (name for name in names if VARIANTS[name].ours):
        for row, (_, _, growth, sent) in ROWS.items():
            found = results[row, name]
            how = {"digits": 1, "unit": " MB"}
            if "budget" in name or row != "four chunked at once":  # else each may have 32 MiB
                grown = of(found, "growth_mb")
                report.compare(f"{name}, {row}: growth", grown, at_most=growth, **how)
            if sent is not None:
                sent_mb = of(found, "sent_mb")
                report.compare(f"{name}, {row}: sent", sent_mb, at_most=round(sent, 1), **how)


if __name__ == "__main__":
    main()
