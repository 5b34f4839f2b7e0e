"""The SQLite store of incremental crawls with 1,000,000 pages: updates, look-ups, memory, disk.

``python benchmarks/incremental_store/run.py [--pages 1000000] [--runs 1]``
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import resource
import sys
import tempfile
import time
from pathlib import Path

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.statscollectors import MemoryStatsCollector

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from child import tell
from common import Parser, median, of, run_variants
from report import Report

from netspy_scrapy.incremental.entry import Entry
from netspy_scrapy.incremental.sqlite import SqliteBackend
from netspy_scrapy.incremental.store import Store

#: Microseconds a page, and MB.
TARGET, MEMORY = 50, 100


def entry(n, run):
    return Entry(
        key=hashlib.blake2b(b"%d" % n, digest_size=16).digest(), spider="bench",
        url=f"https://example.com/catalogue/category-{n % 977}/product-{n}.html",
        etag=b'"%x-%d"' % (n, run), fetched=1e9, checked=1e9 + run, run=run, size=420_000,
    )  # fmt: skip


def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def update(store, pages, run, at_once):
    start = time.perf_counter()
    for n in range(pages):
        store.put(entry(n, run))
        if n % at_once == 0:
            await store.flush()
    await store.flush()
    return (time.perf_counter() - start) / pages * 1e6


async def look_up(store, pages, at_once):
    start = time.perf_counter()
    found = 0
    for first in range(0, pages, at_once):
        # Spread over all, as the order of a crawl has nothing to do with that of the keys.
        some = [entry((first + n) * 7919 % pages, 0).key for n in range(at_once)]
        found += sum(one is not None for one in await asyncio.gather(*map(store.get, some)))
    assert found == pages, found
    return (time.perf_counter() - start) / pages * 1e6


async def measure(pages, at_once):
    idle = megabytes()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "pages.db"
        store = Store(SqliteBackend(str(path)), MemoryStatsCollector(Crawler(Spider)))
        await store.open("bench")
        found = {
            "first_us": await update(store, pages, 1, 5000),
            "look_up_us": await look_up(store, pages, at_once),
            "again_us": await update(store, pages, 2, 5000),
        }
        await store.close()
        found["disk_mb"] = path.stat().st_size / 1e6
    return {**found, "idle_mb": idle, "peak_mb": megabytes()}


def main():
    options = _options()
    if options.child:
        tell(asyncio.run(measure(options.pages, options.at_once)))
        return
    report = Report(options)
    variants = {"store": ["--child", "--pages", options.pages, "--at-once", options.at_once]}
    found = run_variants(__file__, variants, report)["store"]
    head = ("us a page", "first update", "look-up", "update", "peak MB", "idle MB", "file MB")
    keys = ("first_us", "look_up_us", "again_us", "peak_mb", "idle_mb", "disk_mb")
    figures = [f"{median(of(found, key)):.1f}" for key in keys]
    report.table(head, [(f"{options.pages:,} pages", *figures)])
    for what, key in (("an update", "again_us"), ("a look-up", "look_up_us")):
        report.compare(what, of(found, key), at_most=TARGET, digits=1, unit=" us")
    report.compare("peak of the memory", of(found, "peak_mb"), at_most=MEMORY, unit=" MB", digits=0)
    report.finish()


def _options():
    parser = Parser(__doc__, runs=1, quick={"pages": 100_000})
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=1000, help="look-ups that come together")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
