"""The price of a queue by the number of domains: Scrapy's DownloaderAwarePriorityQueue and ours.

::

    python benchmarks/queue/run.py [--runs 3] [--only crawl,bare] [--handled 6000] [--control]
        [--json FILE]

``crawl``
    CPU time for each request of a whole crawl whose download handler answers at once. 200,000
    requests are queued; the first 6,000 (``--handled``) are measured, fewer where Scrapy would
    take minutes for them, see "measured". Both have CONCURRENT_ITEMS=4. "Flat": how much a request
    costs beside one at 100 domains. With ``--control`` also plain Scrapy with a queue that knows no
    domains: what else gets dearer with their number (download slots).
``bare``
    The queue alone: CPU time for a push, a pop and a ``len()``.

Every run has all variants, every second run backwards; figures are medians, ratios those of the
pairs in one run.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ADDON, Parser, median, of, ratios, run_child  # noqa: E402
from report import Report  # noqa: E402

SETTINGS = {
    "Scrapy": {},
    "add-on": ADDON,
    "no domains": {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"},
}
#: With so many domains Scrapy's queue is not asked for more requests than this.
SCRAPY_MOST = {5_000: 1_000, 50_000: 100}
FLAT_FROM = 100
TARGET = 1.2


def main():
    options = _options()
    report = Report(options)
    domains = [int(number) for number in options.domains.split(",")]
    kinds = options.only.split(",")
    queues = ["add-on"] if options.skip_scrapy else ["Scrapy", "add-on"]
    chosen = {"crawl": queues + ["no domains"] * options.control, "bare": queues}
    names = [
        (kind, queue, number) for kind in kinds for number in domains for queue in chosen[kind]
    ]
    results = defaultdict(list)
    for run, name in report.in_turns(names):
        found = _measure(name, options)
        results[name].append(found)
        report.progress(run + 1, *name, found)
    for kind in kinds:
        show = {"crawl": _show_crawl, "bare": _show_bare}[kind]
        show(report, results, chosen[kind], domains, options)
    for kind, key in (("crawl", "crawl_us"), ("bare", "pop_us")):
        _compare(report, results, kind, key, domains)
    report.finish()


def _options():
    parser = Parser(
        __doc__, quick={"queued": 30_000, "handled": 3000, "pops": 5000, "domains": "1,100,5000"}
    )
    parser.add_argument("--queued", type=int, default=200_000)
    parser.add_argument("--handled", type=int, default=6_000, help="requests that are measured")
    parser.add_argument("--pops", type=int, default=10_000, help="of a bare queue")
    parser.add_argument("--domains", default="1,100,5000,50000")
    parser.add_argument("--only", default="crawl,bare")
    parser.add_argument("--skip-scrapy", action="store_true")
    parser.add_argument("--control", action="store_true")
    return parser.parse_args()


def _bounded(queue, domains, most):
    return min(most, SCRAPY_MOST.get(domains, most)) if queue == "Scrapy" else most


def _measure(name, options):
    kind, queue, domains = name
    if kind == "crawl":
        command = [
            str(HERE / "crawl.py"), "--queued", str(options.queued),
            "--handled", str(_bounded(queue, domains, options.handled)),
            "--settings", json.dumps(SETTINGS[queue]),
        ]  # fmt: skip
    else:
        pops = _bounded(queue, domains, options.pops)
        command = [str(HERE / "bare.py"), "--queue", queue, "--pops", str(pops)]
    return run_child([sys.executable, *command, "--domains", str(domains)])


def _show_crawl(report, results, queues, domains, options):
    rows = []
    for number in domains:
        for queue in queues:
            found = results["crawl", queue, number]
            spent = of(found, "crawl_us")
            rows.append(
                (
                    queue,
                    f"{number:,}",
                    f"{_bounded(queue, number, options.handled):,}",
                    f"{median(spent):,.0f}",
                    f"{min(spent):,.0f}-{max(spent):,.0f}",
                    f"{median(of(found, 'queue_us')):.1f}",
                )
            )
    report.table(
        ("us a request, in a crawl", "domains", "measured", "crawl", "range", "to queue it"), rows,
        f"{options.queued:,} requests queued, medians of {options.runs} runs.",
    )  # fmt: skip


def _show_bare(report, results, queues, domains, options):
    rows = []
    for number in domains:
        for queue in queues:
            figures = [
                f"{median(of(results['bare', queue, number], key)):,.1f}"
                for key in ("push_us", "pop_us", "len_us")
            ]
            pops = f"{_bounded(queue, number, options.pops):,}"
            rows.append((queue, f"{number:,}", pops, *figures))
    report.table(("us, queue alone", "domains", "pops", "push", "pop", "len()"), rows)


def _compare(report, results, kind, key, domains):
    what = {"crawl": "a request of a crawl", "bare": "a pop"}[kind]
    for number in domains:
        ours = results[kind, "add-on", number]
        report.compare(
            f"{what}, {number:,} domains", ratios(ours, results[kind, "Scrapy", number], key),
            peer="Scrapy", less_is_better=True, digits=3,
        )  # fmt: skip
        if kind == "crawl" and number > FLAT_FROM:
            report.compare(
                f"{what}, {number:,} domains, beside {FLAT_FROM} domains",
                ratios(ours, results[kind, "add-on", FLAT_FROM], key), at_most=TARGET,
            )  # fmt: skip


if __name__ == "__main__":
    main()
