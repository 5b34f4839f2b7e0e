"""A replay of many failed requests: does its memory stay flat?

::

    python benchmarks/replay/run.py [--lines 10000,100000] [--only retry|start] [--bare]

A dump of so many lines is replayed by ``netspy-retry --requests`` and by a crawl with
RETRY_FAILED_ON_START against the local origin. The table shows by how much the peak of the resident
memory rose over what it was when the spider was opened, and how long a line took. Each line's page
yields a row; all rows must be stored, and the dump must be gone, or the benchmark fails. With
``--bare`` a handler in the process answers in place of the origin.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import scrapy

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from common import ChildError, Origin, median, run_child, table, write_json  # noqa: E402
from spider import Replayed  # noqa: E402

from netspy_scrapy.dumps.codec import encode_line  # noqa: E402
from netspy_scrapy.dumps.requests import request_record  # noqa: E402

#: MB by which ten times the lines may raise the peak further.
FLAT = 10.0
WAYS = {"retry": "netspy-retry --requests", "start": "RETRY_FAILED_ON_START"}
SETTINGS = {
    "ADDONS": json.dumps({"netspy_scrapy.Addon": 500}), "LOG_LEVEL": "WARNING",
    "TELNETCONSOLE_ENABLED": "False", "CONCURRENT_REQUESTS": "32",
    "CONCURRENT_REQUESTS_PER_DOMAIN": "32", "RUN_SUMMARY_ENABLE": "False",
}  # fmt: skip


def main():
    options = _options()
    counts = [int(one) for one in options.lines.split(",")]
    ways = {way: name for way, name in WAYS.items() if options.only in (None, way)}
    results = {way: {count: [] for count in counts} for way in ways}
    with Origin() as origin, tempfile.TemporaryDirectory(prefix="replay-") as folder:
        for run in range(options.runs):
            for way, name in ways.items():
                for count in counts:
                    found = _replay(Path(folder), origin, way, count, bare=options.bare)
                    results[way][count].append(found)
                    print(run + 1, name, count, found, file=sys.stderr, flush=True)
    print(_table(results, counts))
    if options.json:
        write_json(options.json, results)


def _replay(folder, origin, way, count, *, bare):
    dump = folder / f"{count}.jsonl"
    _write(dump, origin, count)
    settings = {**SETTINGS, "FAILED_REQUEST_PATH": str(dump)}
    settings["ITEM_PIPELINES"] = json.dumps({"spider.CountSink": 300})
    if bare:
        settings["DOWNLOAD_HANDLERS"] = json.dumps({"http": "spider.AtOnceHandler"})
    if way == "start":
        settings["RETRY_FAILED_ON_START"] = "True"
        command = ["-m", "scrapy", "runspider", str(HERE / "spider.py")]
    else:
        command = ["-m", "netspy_scrapy.commands.retry", "--requests", "--spider",
                   str(HERE / "spider.py"), "--path", str(dump)]  # fmt: skip
    for name, value in settings.items():
        command += ["-s", f"{name}={value}"]
    begun = time.monotonic()
    found = run_child([sys.executable, *command], timeout=1800)
    seconds = time.monotonic() - begun
    if found["rows"] != count or dump.exists():
        raise ChildError(f"{count} lines, but {found}; the dump is there: {dump.exists()}")
    return {**found, "seconds": seconds}


def _write(path, origin, count):
    """Write a dump as a crawl does."""
    spider = Replayed()
    with path.open("w") as file:
        for number in range(count):
            request = scrapy.Request(
                origin.url(f"/page/{number}"), cb_kwargs={"number": number},
                headers={"User-Agent": "bench", "Accept-Language": "en"},
            )  # fmt: skip
            record = request_record(request, spider, reason="TimeoutError")
            file.write(encode_line(record) + "\n")


def _table(results, counts):
    head = ("MB over the start", *(f"{count:,} lines" for count in counts), "more",
            f"flat (<= {FLAT:g} MB)", "ms a line")  # fmt: skip
    rows = []
    for way, found in results.items():
        growth = [median([one["growth_mb"] for one in found[count]]) for count in counts]
        more = growth[-1] - growth[0]
        slowest = median([one["seconds"] for one in found[counts[-1]]])
        rows.append(
            (WAYS[way], *(f"{mb:.1f}" for mb in growth), f"{more:+.1f}",
             "yes" if more <= FLAT else "no", f"{1000 * slowest / counts[-1]:.2f}")
        )  # fmt: skip
    return table(head, rows)


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", default="10000,100000", help="with commas, smallest first")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", choices=WAYS)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
