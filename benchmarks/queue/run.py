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

import argparse
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import in_turns, median, run_child, table, write_json  # noqa: E402

SETTINGS = {
    "Scrapy": {},
    "add-on": {"ADDONS": {"netspy_scrapy.Addon": 500}},
    "no domains": {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"},
}
#: With so many domains Scrapy's queue is not asked for more requests than this.
SCRAPY_MOST = {5_000: 1_000, 50_000: 100}
FLAT_FROM = 100
TARGET = 1.2


def main():
    options = _options()
    domains = [int(number) for number in options.domains.split(",")]
    kinds = options.only.split(",")
    queues = ["add-on"] if options.skip_scrapy else ["Scrapy", "add-on"]
    chosen = {"crawl": queues + ["no domains"] * options.control, "bare": queues}
    names = [
        (kind, queue, number) for kind in kinds for number in domains for queue in chosen[kind]
    ]
    results = defaultdict(list)
    for run, name in in_turns(names, options.runs):
        found = {**_measure(name, options), "load": os.getloadavg()[0]}
        results[name].append(found)
        print(run + 1, *name, json.dumps(found), file=sys.stderr, flush=True)
    if "crawl" in kinds:
        print(_show_crawl(results, chosen["crawl"], domains, options) + "\n")
    if "bare" in kinds:
        print(_show_bare(results, queues, domains, options))
    if options.json:
        write_json(
            options.json,
            [{"kind": kind, "queue": queue, "domains": number, "results": found}
             for (kind, queue, number), found in results.items()],
        )  # fmt: skip


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--queued", type=int, default=200_000)
    parser.add_argument("--handled", type=int, default=6_000, help="requests that are measured")
    parser.add_argument("--pops", type=int, default=10_000, help="of a bare queue")
    parser.add_argument("--domains", default="1,100,5000,50000")
    parser.add_argument("--only", default="crawl,bare")
    parser.add_argument("--skip-scrapy", action="store_true")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
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


def _show_crawl(results, queues, domains, options):
    head = ("us a request, in a crawl", "domains", "measured", "crawl", "range", "of Scrapy",
            "flat", "target", "to queue it")  # fmt: skip
    rows = []
    for number in domains:
        for queue in queues:
            found = results["crawl", queue, number]
            spent = [one["crawl_us"] for one in found]
            flat = _ratio(results, ("crawl", queue, number), ("crawl", queue, FLAT_FROM))
            ours = queue == "add-on"
            rows.append(
                (
                    queue,
                    f"{number:,}",
                    f"{_bounded(queue, number, options.handled):,}",
                    f"{median(spent):,.0f}",
                    f"{min(spent):,.0f}-{max(spent):,.0f}",
                    _ratio(results, ("crawl", queue, number), ("crawl", "Scrapy", number))
                    if ours else "",
                    flat,
                    f"<= {TARGET}" if ours and number > FLAT_FROM else "",
                    f"{median([one['queue_us'] for one in found]):.1f}",
                )
            )  # fmt: skip
    return f"{options.queued:,} requests queued, medians of {options.runs} runs\n" + table(
        head, rows
    )


def _show_bare(results, queues, domains, options):
    head = ("us, queue alone", "domains", "pops", "push", "pop", "len()", "pop, of Scrapy")
    rows = []
    for number in domains:
        for queue in queues:
            found = results["bare", queue, number]
            rows.append(
                (
                    queue,
                    f"{number:,}",
                    f"{_bounded(queue, number, options.pops):,}",
                    *(
                        f"{median([one[key] for one in found]):,.1f}"
                        for key in ("push_us", "pop_us", "len_us")
                    ),
                    _ratio(
                        results, ("bare", queue, number), ("bare", "Scrapy", number), "pop_us", 4
                    )
                    if queue == "add-on" else "",
                )
            )  # fmt: skip
    return table(head, rows)


def _ratio(results, name, peer, key="crawl_us", digits=2):
    if not results.get(name) or not results.get(peer):
        return ""
    pairs = zip(results[name], results[peer], strict=True)
    return f"{median([one[key] / other[key] for one, other in pairs]):.{digits}f}"


if __name__ == "__main__":
    main()
