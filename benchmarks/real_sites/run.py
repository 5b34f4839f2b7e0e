"""Real sites from Debian packages, by nginx: is each page that is linked stored exactly once?

::

    python benchmarks/real_sites/run.py [--sites python3-doc] [--only full,changes,nodes,kill]

The pages that a crawl has to find are read from the disk, by another parser than the crawl's. Each
part is done by a Scrapy project with the add-on, and by a netspy spider of this package.

``full``
    All pages from ``index.html`` on, into SQLite, without an item filter, so that a row that is
    stored twice shows. Beside it the same crawl by plain Scrapy and by netspy, into CSV.
``changes``
    The same crawl on three days with NETSPY_INCREMENTAL: everything is new; nothing has changed;
    every 20th file is newer. Only those may be sent and stored on the third day.
``nodes``
    Two nodes on one Redis, which write to one database.
``kill``
    The same with a key; half way one node is killed (SIGKILL) and another one starts.

*Wrong rows* are pages that are missing, stored more than once, or not of the site. Links that lead
to no file have to be in failed_requests.jsonl, all of them and no others. Sent are the answers with
a page, counted by nginx.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import redis

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from common import (  # noqa: E402
    ADDON,
    Parser,
    median,
    of,
    python_of_netspy,
    ratios,
    result_of,
    run_child,
    start_child,
)
from disk import read  # noqa: E402
from report import Report  # noqa: E402

from tests.servers.nginx import Nginx  # noqa: E402
from tests.servers.redis import Redis  # noqa: E402

#: Package: where its pages are.
SITES = {
    "python3-doc": Path("/usr/share/doc/python3/html"),
    "libboost1.74-doc": Path("/usr/share/doc/libboost1.74-doc/doc/html"),
}
SHORT = "python3-doc"
CHANGES_EVERY = 20

_QUIET = {"LOG_LEVEL": "CRITICAL"}
_16 = {"CONCURRENT_REQUESTS": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
_SQLITE = "netspy_scrapy.pipelines.sqlite.SqlitePipeline"
_PLAIN = {"ITEM_FILTER_ENABLE": False, "SQLITE_PATH": "rows.db"}
ADDON_PROJECT, SPIDER, SCRAPY, NETSPY = "add-on project", "netspy spider", "Scrapy", "netspy"
#: Client and settings of each kind.
KINDS = {
    ADDON_PROJECT: (
        ["scrapy_client.py"],
        {**_QUIET, **_16, **ADDON, **_PLAIN, "ITEM_PIPELINES": {_SQLITE: 300}},
    ),
    SPIDER: (
        ["spider_client.py"],
        {
            **_QUIET, **_PLAIN, "SPIDER_THREAD_COUNT": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
            "ITEM_PIPELINES": [_SQLITE],
        },
    ),
    SCRAPY: (
        ["scrapy_client.py"],
        {**_QUIET, **_16, "TELNETCONSOLE_ENABLED": False,
         "FEEDS": {"rows.csv": {"format": "csv"}}},
    ),
    NETSPY: (
        ["spider_client.py", "--package", "netspy"],
        {
            "SPIDER_THREAD_COUNT": 4, "USE_SESSION": True, "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
            "ITEM_FILTER_ENABLE": False, "CSV_OUTPUT_DIR": ".",
            "ITEM_PIPELINES": ["netspy.pipelines.csv.CsvPipeline"],
        },
    ),
}  # fmt: skip
OURS = {ADDON_PROJECT: SCRAPY, SPIDER: NETSPY}
INCREMENTAL = {"NETSPY_INCREMENTAL": True, "NETSPY_INCREMENTAL_ON_304": "follow"}
SHARED = {
    ADDON_PROJECT: {
        "SCHEDULER": "netspy_scrapy.redis.scheduler.RedisScheduler",
        "DUPEFILTER_CLASS": "netspy_scrapy.redis.request_filter.RedisRequestFilter",
    },
    SPIDER: {},
}


class Site:
    """One of the packages: its pages, nginx before them, and crawls of it."""

    def __init__(self, name, nginx, expected, options):
        self.name = name
        self.nginx = nginx
        self.expected = expected
        self._options = options

    def command(self, kind, settings, *arguments):
        client, own = KINDS[kind]
        python = python_of_netspy(self._options) if kind == NETSPY else sys.executable
        return [
            python, str(HERE / client[0]), *client[1:], "--url", f"{self.nginx.url}/index.html",
            "--settings", json.dumps({**own, **settings}), *arguments,
        ]  # fmt: skip

    def crawl(self, kind, folder, settings=None):
        """Crawl it in one process; return what came of it."""
        self.nginx.forget()
        begun = time.monotonic()
        found = run_child(self.command(kind, settings or {}), folder=folder, timeout=1200)
        return {**found, "wall": time.monotonic() - begun, **self.seen()}

    def seen(self):
        """Return what nginx answered."""
        statuses = Counter()
        sent = 0
        for status, size, path in self.nginx.requests():
            if path != "/robots.txt":
                statuses[status] += 1
                sent += size * (status == 200)
        return {"sent": statuses[200], "mb": sent / 1e6, "unchanged": statuses[304]}

    def judge(self, rows, folder, expected=None):
        """Return how many rows are wrong, and how many of the failures."""
        expected = self.expected.pages if expected is None else expected
        stored = Counter(rows)
        dumped = Path(folder) / "failed_requests.jsonl"
        lines = dumped.read_text(encoding="utf-8").splitlines() if dumped.exists() else []
        failed = Counter(json.loads(line)["url"].split("/", 3)[3] for line in lines)
        return {
            "rows": len(rows),
            "missing": len(expected - set(stored)),
            "twice": len(rows) - len(stored),
            "foreign": len(set(stored) - expected),
            "failed": len(failed),
            "failed_wrong": len(set(failed) ^ self.expected.broken),
            "failed_twice": failed.total() - len(failed),
        }


def stored(folder, name="rows.db"):
    """Return the paths of all rows, from SQLite or CSV."""
    path = Path(folder) / name
    if path.exists():
        with closing(sqlite3.connect(path)) as database:
            tables = [
                table for (table,) in database.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table'"
                )
            ]  # fmt: skip
            return [
                row for table in tables for (row,) in database.execute(f"SELECT path FROM {table}")
            ]
    files = [*Path(folder).glob("*.csv")] if name == "rows.db" else []
    rows = []
    for file in files:
        with file.open(encoding="utf-8", newline="") as lines:
            rows += [row["path"] for row in csv.DictReader(lines)]
    return rows


def wrong(found):
    return found["missing"] + found["twice"] + found["foreign"]


# Parts -------------------------------------------------------------------------------------------
def full(site, kind):
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = site.crawl(kind, folder)
        return {**found, **site.judge(stored(folder), folder)}


def changes(site, kind):
    """Three days; every 20th file is newer on the third."""
    days = []
    touched = set(sorted(site.expected.pages)[::CHANGES_EVERY])
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for day, expected in enumerate((site.expected.pages, set(), touched), 1):
            for path in touched if day == 3 else ():
                os.utime(site.nginx.root / path)
            name = f"day{day}.db"
            found = site.crawl(kind, folder, {**INCREMENTAL, "SQLITE_PATH": name})
            days.append({**found, **site.judge(stored(folder, name), folder, expected)})
            (Path(folder) / "failed_requests.jsonl").unlink(missing_ok=True)
    return days


def nodes(site, kind, server, *, killed=False):
    """Two nodes; one of them is killed half way, and another one starts."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    site.nginx.forget()
    settings = {**SHARED[kind], "REDIS_URL": server.url, "SPIDER_TASK_LEASE": 3}
    arguments = ["--node"] * (kind == SPIDER) + ["--keyed"] * killed
    command = site.command(kind, settings, *arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        begun = time.monotonic()
        alive = [start_child(command, folder) for _ in range(2)]
        try:
            if killed:
                half = len(site.expected.pages) // 2
                until(lambda: site.seen()["sent"] >= half, alive)
                alive.pop(0).kill()
                alive.append(start_child(command, folder))
            for node in alive:
                result_of(node, timeout=1200)
        finally:
            for node in alive:
                node.kill()
                node.wait()
        wall = time.monotonic() - begun
        return {"wall": wall, **site.seen(), **site.judge(stored(folder), folder)}


def until(condition, processes, *, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end or all(one.poll() is not None for one in processes):
            raise TimeoutError("the nodes did not get half way")
        time.sleep(0.05)


def main():
    options = _options()
    report = Report(options)
    for name in options.sites.split(","):
        with report.part(name), tempfile.TemporaryDirectory(prefix="bench-") as root:
            source = SITES[name]
            if not source.is_dir():
                report.left_out(f"{name}: apt-get install {name}")
                continue
            copy(source.resolve(), Path(root))
            expected = read(root)
            report.progress(
                name, len(expected.pages), "pages,", len(expected.broken), "broken links"
            )
            with Nginx(Path(root)) as nginx, Redis() as server:
                measure(report, Site(name, nginx, expected, options), server, options)
    report.finish()


def copy(source, root):
    """Copy the pages, so that files can be made newer."""
    for file in source.rglob("*.html"):
        target = root / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.resolve(), target)
        os.utime(target, (1_600_000_000, 1_600_000_000))
    root.chmod(0o755)


def _options():
    parser = Parser(__doc__, runs=1, quick={"sites": SHORT, "only": "full,kill"})
    parser.add_argument("--sites", default=",".join(SITES))
    parser.add_argument("--only", default="full,changes,nodes,kill")
    parser.add_netspy()
    return parser.parse_args()


def measure(report, site, server, options):
    parts = options.only.split(",")
    kinds = list(KINDS)
    if python_of_netspy(options) is None:
        report.left_out("netspy, which is not installed (pip install netspy)")
        kinds.remove(NETSPY)
    results = {}
    chosen = [("full", kind) for kind in kinds] + [
        (part, kind) for part in ("changes", "nodes", "kill") for kind in OURS
    ]
    for _, (part, kind) in report.in_turns([one for one in chosen if one[0] in parts]):
        if part == "full":
            found = full(site, kind)
        elif part == "changes":
            found = changes(site, kind)
        else:
            found = nodes(site, kind, server, killed=part == "kill")
        results.setdefault((part, kind), []).append(found)
        report.progress(site.name, part, kind, found)
    _show(report, site, results)
    _compare(report, site, results)


# Results -----------------------------------------------------------------------------------------
def _show(report, site, results):
    pages, broken = len(site.expected.pages), len(site.expected.broken)
    rows = []
    for (part, kind), found in results.items():
        days = [[one] for one in found] if part != "changes" else found
        for day, label in enumerate(_DAYS if part == "changes" else (_LABELS[part],)):
            one = [run[day] for run in days]
            rows.append(
                (
                    f"{label}, {kind}", f"{median(of(one, 'wall')):.1f}",
                    f"{median(of(one, 'sent')):,.0f}", f"{median(of(one, 'mb')):.1f}",
                    f"{median(of(one, 'unchanged')):,.0f}", f"{median(of(one, 'rows')):,.0f}",
                    *(str(max(of(one, key))) for key in ("missing", "twice", "foreign")),
                    "" if kind in OURS.values() else f"{max(of(one, 'failed'))}",
                )
            )  # fmt: skip
    report.table(
        ("", "seconds", "sent", "MB", "304", "rows", "missing", "twice", "foreign", "failed"), rows,
        f"{site.name}: {pages:,} pages that are linked, {broken} links that lead to no file.",
    )  # fmt: skip


_LABELS = {"full": "all pages", "nodes": "two nodes", "kill": "one of two nodes killed"}
_DAYS = ("day 1", "day 2, nothing changed", "day 3, every 20th changed")


def _compare(report, site, results):
    exact = {"at_most": 0, "digits": 0, "in_each_round": True}
    for (part, kind), found in results.items():
        if kind not in OURS:
            continue
        flat = [day for run in found for day in run] if part == "changes" else found
        label = _LABELS.get(part, "three days")
        what = f"{site.name}, {label}, {kind}"
        report.compare(f"{what}: wrong rows", [wrong(one) for one in flat], **exact)
        failures = [one["failed_wrong"] + one["failed_twice"] * (part != "kill") for one in flat]
        report.compare(f"{what}: wrong failures", failures, **exact)
        if part == "changes":
            sent = [day["sent"] - day["rows"] for run in found for day in run]
            report.compare(f"{what}: pages sent without need", sent, **exact)
        if part == "full":
            report.compare(
                f"{what}: seconds", ratios(found, results.get(("full", OURS[kind]), []), "wall"),
                peer=OURS[kind], less_is_better=True,
            )  # fmt: skip
        if part == "nodes":
            alone = results.get(("full", kind), [])
            report.compare(f"{what}: speed of one process", ratios(alone, found, "wall"))


if __name__ == "__main__":
    main()
