"""The SQLite store with 1,000,000 pages: microseconds an update and a look-up, memory, disk.

``python benchmarks/incremental/store.py [--pages 1000000]``
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

from netspy_scrapy.incremental.entry import Entry
from netspy_scrapy.incremental.sqlite import SqliteBackend
from netspy_scrapy.incremental.store import Store


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


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=1000, help="look-ups that come together")
    options = parser.parse_args()
    idle = megabytes()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "pages.db"
        store = Store(SqliteBackend(str(path)), MemoryStatsCollector(Crawler(Spider)))
        await store.open("bench")
        first = await update(store, options.pages, 1, 5000)
        asked = await look_up(store, options.pages, options.at_once)
        again = await update(store, options.pages, 2, 5000)
        await store.close()
        size = path.stat().st_size / 1e6
    print(f"{options.pages} pages: first update {first:.1f} us, look-up {asked:.1f} us, "
          f"update {again:.1f} us each")  # fmt: skip
    print(f"peak memory {megabytes():.0f} MB (before: {idle:.0f} MB), file {size:.0f} MB")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
