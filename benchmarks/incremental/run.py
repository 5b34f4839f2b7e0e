"""Two days of a site of which 5 % changes overnight: who needs how long, and what is downloaded?

::

    python benchmarks/incremental/run.py [--pages 1200] [--runs 3] [--only script,http11]

1,200 pages of 420 KB, each after 350 ms, 40 requests at a time: it cannot take less than 10.5 s.
Beside a script of aiohttp that keeps ETags in a JSON file, plain Scrapy, and Scrapy's RFC2616
cache. Times are those of whole processes, start-up included; ratios are taken in the same round.
The aiohttp handler is private in Scrapy 2.19, and not there before.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import Origin, in_turns, median, run_child, table, write_json  # noqa: E402

CONCURRENCY = 40
BASE = {
    "CONCURRENT_REQUESTS": CONCURRENCY, "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENCY,
}  # fmt: skip
AIOHTTP = "scrapy.core.downloader.handlers._aiohttp.AiohttpDownloadHandler"
FAST = {
    "DOWNLOAD_HANDLERS": {"http": AIOHTTP, "https": AIOHTTP, "ftp": None},
    "ASYNCIO_EVENT_LOOP": "uvloop.Loop", "TWISTED_REACTOR_ENABLED": False,
}  # fmt: skip
OURS = {
    "ADDONS": {"netspy_scrapy.Addon": 500}, "NETSPY_INCREMENTAL": True,
    "NETSPY_INCREMENTAL_PATH": "{state}/pages.db",
}  # fmt: skip
CACHE = {
    "HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": "{state}/cache",
    "HTTPCACHE_POLICY": "scrapy.extensions.httpcache.RFC2616Policy",
}  # fmt: skip
VARIANTS = {
    "script": None,
    "aiohttp": {**BASE, **OURS, **FAST},
    "http11": {**BASE, **OURS},
    "scrapy": BASE,
    "scrapy aiohttp": {**BASE, **FAST},
    "cache": {**BASE, **CACHE},
}


def command(variant, url, pages, state):
    settings = VARIANTS[variant]
    arguments = ["--url", url, "--pages", str(pages)]
    if settings is None:
        return [
            sys.executable, str(HERE / "script.py"), *arguments, "--state", state,
            "--concurrency", str(CONCURRENCY),
        ]  # fmt: skip
    text = json.dumps(settings).replace("{state}", state)
    return [sys.executable, str(HERE / "crawl.py"), *arguments, "--settings", text]


def two_days(variant, site, pages):
    state = tempfile.mkdtemp(prefix="bench-")
    try:
        days = []
        for day in (1, 2):
            site.control(f"day/{day}")
            site.reset()
            start = time.perf_counter()
            found = run_child(command(variant, site.url("/page/{n}"), pages, state))
            found["wall"] = time.perf_counter() - start
            days.append({**found, **site.stats()})
        disk = subprocess.run(["du", "-sk", state], capture_output=True, text=True, check=True)
        return {"days": days, "disk_mb": int(disk.stdout.split()[0]) / 1024}
    finally:
        shutil.rmtree(state)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=1200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default=",".join(VARIANTS))
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    options = parser.parse_args()
    names = [name for name in VARIANTS if name in options.only.split(",")]
    results = {name: [] for name in names}
    with Origin(HERE / "site.py") as site:
        for run, name in in_turns(names, options.runs):
            found = two_days(name, site, options.pages)
            results[name].append(found)
            print(f"{run + 1} {name}: {found}", file=sys.stderr, flush=True)
    print(_table(results))
    if options.json:
        write_json(options.json, results)


def _table(results):
    base = results.get("script")
    rows = []
    for name, found in results.items():
        cells = [name]
        for day in (0, 1):
            walls = [one["days"][day]["wall"] for one in found]
            cells.append(f"{median(walls):.2f}")
            ratios = [
                wall / other["days"][day]["wall"]
                for wall, other in zip(walls, base or [], strict=bool(base))
            ]
            cells.append(f"{median(ratios):.2f}" if ratios else "-")
            cells.append(f"{median([one['days'][day]['bytes'] for one in found]) / 1e6:.1f}")
        cells.append(str(found[-1]["days"][1]["parsed"]))
        cells.append(f"{median([one['disk_mb'] for one in found]):.1f}")
        rows.append(tuple(cells))
    head = ("variant", "day 1, s", "ratio", "MB", "day 2, s", "ratio", "MB", "parsed", "disk, MB")
    return table(head, rows)


if __name__ == "__main__":
    main()
