"""Two days of a site of which 5 % changes overnight: who needs how long, and what is downloaded?

::

    python benchmarks/incremental/run.py [--pages 1200] [--runs 3] [--only 'add-on;Scrapy']

1,200 pages of 420 KB, each after 350 ms, 40 requests at a time: it cannot take less than 10.5 s.
Beside a script of aiohttp that keeps ETags in a JSON file, plain Scrapy, and Scrapy's RFC2616
cache. Times are those of whole processes, start-up included; ratios are taken in the same round.
The aiohttp handler is private in Scrapy 2.19, and not there before.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ADDON, Origin, Parser, median, run_child  # noqa: E402
from report import Report  # noqa: E402

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
    **ADDON, "NETSPY_INCREMENTAL": True, "NETSPY_INCREMENTAL_PATH": "{state}/pages.db",
}  # fmt: skip
CACHE = {
    "HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": "{state}/cache",
    "HTTPCACHE_POLICY": "scrapy.extensions.httpcache.RFC2616Policy",
}  # fmt: skip
SCRIPT = "script of aiohttp"
VARIANTS = {
    SCRIPT: None,
    "add-on, aiohttp handler": {**BASE, **OURS, **FAST},
    "add-on": {**BASE, **OURS},
    "Scrapy": BASE,
    "Scrapy, aiohttp handler": {**BASE, **FAST},
    "Scrapy, RFC2616 cache": {**BASE, **CACHE},
}
#: The most of the script's time, on day 1 and on day 2.
TARGETS = {"add-on, aiohttp handler": (1.15, 1.10), "add-on": (1.30, 1.15)}
#: MB on disk for 1,200 pages.
DISK = 2.0
#: The least that a page of the site has; 5 % of them change.
PAGE, CHANGES_EVERY = 420 * 1024, 20


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
    options = _options()
    report = Report(options)
    names = [name for name in VARIANTS if _can_run(name, report)]
    if options.only:
        names = [name for name in names if name in options.only.split(";")]
    results = {name: [] for name in names}
    with Origin(HERE / "site.py") as site:
        for run, name in report.in_turns(names):
            found = two_days(name, site, options.pages)
            results[name].append(found)
            report.progress(run + 1, name, found)
    _table(report, results, options)
    _compare(report, results, options)
    report.finish()


def _options():
    parser = Parser(__doc__, quick={"pages": 300})
    parser.add_argument("--pages", type=int, default=1200)
    parser.add_argument("--only", default="", metavar="VARIANT;...")
    return parser.parse_args()


def _can_run(name, report):
    if "aiohttp" in name and not (find_spec("aiohttp") and find_spec("uvloop")):
        report.left_out(f"{name}: pip install aiohttp uvloop")
        return False
    if name.endswith("handler") and not find_spec(AIOHTTP.rpartition(".")[0]):
        report.left_out(f"{name}: this Scrapy has none")
        return False
    return True


def _table(report, results, options):
    rows = []
    for name, found in results.items():
        cells = [name]
        for day in (0, 1):
            cells.append(f"{median(_of_day(found, day, 'wall')):.2f}")
            cells.append(f"{median(_of_day(found, day, 'bytes')) / 1e6:.1f}")
        cells.append(str(found[-1]["days"][1]["parsed"]))
        cells.append(f"{median([one['disk_mb'] for one in found]):.1f}")
        rows.append(cells)
    report.table(
        ("", "day 1, s", "MB", "day 2, s", "MB", "parsed on day 2", "disk, MB"), rows,
        f"{options.pages:,} pages of 420 KB, medians of {options.runs} runs.",
    )  # fmt: skip


def _compare(report, results, options):
    changed = (options.pages - 1) // CHANGES_EVERY + 1
    for name, targets in TARGETS.items():
        found = results.get(name, [])
        for day, target in enumerate(targets):
            pairs = zip(
                _of_day(found, day, "wall"),
                _of_day(results.get(SCRIPT, []), day, "wall"), strict=False,
            )  # fmt: skip
            report.compare(
                f"{name}: seconds of day {day + 1}", [one / other for one, other in pairs],
                peer=SCRIPT, at_most=target,
            )  # fmt: skip
        report.compare(
            f"{name}: MB of day 2", [one / 1e6 for one in _of_day(found, 1, "bytes")],
            at_most=round(changed * PAGE / 1e6, 1), digits=1, unit=" MB", in_each_round=True,
        )  # fmt: skip
        report.compare(
            f"{name}: disk", [one["disk_mb"] for one in found], at_most=DISK, digits=1,
            unit=" MB", in_each_round=True,
        )  # fmt: skip


def _of_day(found, day, key):
    return [one["days"][day][key] for one in found]


if __name__ == "__main__":
    main()
