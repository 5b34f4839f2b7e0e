"""Stops at random moments: is each page that a spider yielded stored, or in a dump?

::

    python benchmarks/stops/run.py [--rounds 50] [--pages 500] [--seed 1]

Each round crawls 500 pages and is stopped at a random moment: by SIGINT, SIGTERM,
SPIDER_MAX_RUNTIME, or by a second SIGINT 0.2 s after the first. Netspy and Scrapy spiders take
turns, and half of the rounds have a sink that refuses or raises at half of its batches. The spider
writes down each page and item before it yields it. *missing* counts what is then neither among the
stored rows nor in failed_items.jsonl nor in failed_requests.jsonl (where failed pages are, too);
*twice* counts rows that are there more than once. The exit status is 1 if anything is missing.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from common import table, write_json  # noqa: E402

from tests.site import Site  # noqa: E402
from tests.stops import HOW, stopped_crawl  # noqa: E402

HEAD = ("round", "spider", "stop", "at s", "sink", "yielded", "stored", "dumped items",
        "dumped requests", "missing", "twice", "ended in s")  # fmt: skip


def main():
    options = _options()
    chance = random.Random(options.seed)
    ways = itertools.cycle(itertools.product(("netspy", "scrapy"), (False, True), HOW))
    rows, results = [], []
    folder = Path(tempfile.mkdtemp(prefix="stops-"))
    with Site("127.0.0.1") as site:
        # The whole crawl takes as long as a stop that never comes.
        longest = _seconds_of_a_whole_crawl(folder / "whole", site, options.pages)
        for number in range(1, options.rounds + 1):
            spider, failing, how = next(ways)
            moment = chance.uniform(-0.1 * longest, longest)  # some before it has begun
            found = stopped_crawl(
                folder / str(number), site, spider=spider, how=how, moment=moment,
                pages=options.pages, failing=failing,
            )  # fmt: skip
            rows.append(
                (str(number), spider, how, f"{moment:.2f}" if moment > 0 else "start",
                 "fails" if failing else "works",
                 str(found.yielded), str(found.stored), str(found.dumped_items),
                 str(found.dumped_requests), str(len(found.missing)), str(found.twice),
                 f"{found.seconds:.1f}")
            )  # fmt: skip
            results.append({**asdict(found), "how": how, "spider": spider, "moment": moment})
            print("  ".join(rows[-1]), *found.missing[:5], file=sys.stderr, flush=True)
    missing = sum(len(one["missing"]) for one in results)
    print(table(HEAD, rows))
    print(f"{len(rows)} rounds of {options.pages} pages, {missing} missing")
    if options.json:
        write_json(options.json, results)
    if missing:
        print(f"The folders of the rounds are in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)


def _seconds_of_a_whole_crawl(folder, site, pages):
    found = stopped_crawl(
        folder, site, spider="netspy", how="max runtime", moment=600.0, pages=pages, failing=False
    )
    if found.missing or found.yielded != pages:
        sys.exit(f"The whole crawl is not whole: {found.yielded} pages, {found.missing}")
    return 600.0 + found.seconds


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
