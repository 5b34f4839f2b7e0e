"""What each capability costs when it is on, in microseconds of CPU time a page.

::

    python benchmarks/capabilities/run.py [--pages 2000] [--runs 5] [--only "A;B"] [--json FILE]

One host, 1 KB pages without latency, concurrency 32, CONCURRENT_ITEMS 4 everywhere. Each
capability is switched on alone, beside a crawl that is the same without it; both take turns, every
second round backwards, and the cost is the median of the differences within a round. "The same once
more" shows how far two equal crawls are apart.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ChildError, Origin, in_turns, median, run_child, table, write_json  # noqa: E402

_ADDON = {"ADDONS": {"netspy_scrapy.Addon": 500}}
_STATUS = {
    "DOWNLOADER_MIDDLEWARES": {
        "scrapy.downloadermiddlewares.retry.RetryMiddleware": None,
        "netspy_scrapy.downloadermiddlewares.status.StatusPolicyMiddleware": 550,
    },
    "SPIDER_MIDDLEWARES": {
        "scrapy.spidermiddlewares.httperror.HttpErrorMiddleware": None,
        "netspy_scrapy.spidermiddlewares.outcome.OutcomeMiddleware": 50,
    },
}
_QUEUE = {
    "SCHEDULER": "netspy_scrapy.scheduling.scheduler.Scheduler",
    "SCHEDULER_PRIORITY_QUEUE": "netspy_scrapy.scheduling.queue.ReadyQueue",
}
_RECEIPTS = {"EXTENSIONS": {"crawl.ReceiptsOn": 0}}
_SUMMARY = {"EXTENSIONS": {"netspy_scrapy.extensions.summary.RunSummary": 0}}
_MB = 1024 * 1024


@dataclass
class Variant:
    """A crawl, and the one it is compared with."""

    label: str
    settings: dict
    base: str | None
    path: str = "/page/{n}"
    warm: bool = False
    """Whether the same crawl runs before, in the same folder, unmeasured."""
    results: list = field(default_factory=list)


VARIANTS = {
    "scrapy": Variant("Scrapy", {}, None),
    "scrapy2": Variant("Scrapy: the same once more", {}, "scrapy"),
    "status": Variant("status policy and outcome", _STATUS, "scrapy"),
    "queue": Variant("queue: rests, delays, turns of domains", _QUEUE, "scrapy"),
    "queue+receipts": Variant("queue and receipts", {**_QUEUE, **_RECEIPTS}, "scrapy"),
    "summary": Variant("run summary", _SUMMARY, "scrapy"),
    "addon": Variant("the add-on as it comes", _ADDON, "scrapy"),
    "addon2": Variant("the add-on: the same once more", _ADDON, "addon"),
    "off": Variant(
        "all of it switched off by name",
        {
            **_ADDON, "CIRCUIT_FAILURE_THRESHOLD": 0, "ROBOTS_OBEY": False,
            "RESPONSE_CACHE_ENABLE": False, "NETSPY_INCREMENTAL": False, "MAX_RESPONSE_SIZE": 0,
            "NETSPY_MAX_INFLIGHT_BYTES": 0, "ITEM_FILTER_ENABLE": False,
            "NETSPY_CALLBACK_THREADS": 0, "ANTIBOT_DETECT": False,
        },
        "addon",
    ),
    "breaker": Variant("circuit breaker", {**_ADDON, "CIRCUIT_FAILURE_THRESHOLD": 10}, "addon"),
    "robots": Variant("robots.txt", {**_ADDON, "ROBOTS_OBEY": True}, "addon"),
    "antibot": Variant("challenge pages", {**_ADDON, "ANTIBOT_DETECT": True}, "addon"),
    "receipts": Variant("receipts", {**_ADDON, **_RECEIPTS}, "addon"),
    "filter": Variant(
        "request filter in bounded memory", {**_ADDON, "DEDUP_FILTER": "memory"}, "addon"
    ),
    "size": Variant("limit of size", {**_ADDON, "MAX_RESPONSE_SIZE": 32 * _MB}, "addon"),
    "types": Variant("limit of types", {**_ADDON, "ALLOWED_CONTENT_TYPES": ["text/"]}, "addon"),
    "budget": Variant(
        "budget of bytes", {**_ADDON, "NETSPY_MAX_INFLIGHT_BYTES": 256 * _MB}, "addon"
    ),
    "cache, first run": Variant(
        "response cache: pages are stored", {**_ADDON, "RESPONSE_CACHE_ENABLE": True}, "addon"
    ),
    "cache, second run": Variant(
        "response cache: pages are read", {**_ADDON, "RESPONSE_CACHE_ENABLE": True}, "addon",
        warm=True,
    ),
    "incremental, first run": Variant(
        "incremental: pages are new", {**_ADDON, "NETSPY_INCREMENTAL": True}, "addon"
    ),
    "incremental, second run": Variant(
        "incremental: pages are unchanged (304)", {**_ADDON, "NETSPY_INCREMENTAL": True}, "addon",
        warm=True,
    ),
    "threads": Variant(
        "callbacks in threads", {**_ADDON, "NETSPY_CALLBACK_THREADS": 2}, "addon"
    ),
    "aiohttp": Variant("aiohttp", {**_ADDON, "NETSPY_DOWNLOADER": "aiohttp"}, "addon"),
    "uvloop": Variant(
        "aiohttp on uvloop",
        {**_ADDON, "NETSPY_DOWNLOADER": "aiohttp", "ASYNCIO_EVENT_LOOP": "uvloop.Loop"},
        "addon",
    ),
    "jobdir": Variant("job directory that survives a kill", {**_ADDON, "JOBDIR": "job"}, "addon"),
    "404": Variant("pages that fail, in Scrapy", {}, None, path="/gone/{n}"),
    "dump": Variant("pages that fail: a dump line each", _ADDON, "404", path="/gone/{n}"),
}  # fmt: skip


def main():
    options = _options()
    names = [name for name in VARIANTS if not options.only or name in options.only.split(";")]
    wanted = {VARIANTS[name].base for name in names} - {None}
    wanted |= {VARIANTS[name].base for name in wanted} - {None}
    names = [name for name in VARIANTS if name in names or name in wanted]
    with Origin(HERE / "site.py") as origin:
        for run, name in in_turns(names, options.runs):
            variant = VARIANTS[name]
            variant.results.append(_measure(origin, variant, options.pages))
            print(
                f"{run + 1} {name:24} {variant.results[-1]:8.1f} us  load {os.getloadavg()[0]:.1f}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    print(_table(names, options))
    if options.json:
        write_json(options.json, {name: VARIANTS[name].results for name in names})


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", metavar="NAME;...")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    return parser.parse_args()


def _measure(origin, variant, pages):
    """Return the microseconds that a page cost."""
    settings = dict(variant.settings)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name, file in (
            ("RESPONSE_CACHE_PATH", "cache"), ("NETSPY_INCREMENTAL_PATH", "pages.db"),
            ("JOBDIR", "job"), ("FAILED_REQUEST_PATH", "failed.jsonl"),
        ):  # fmt: skip
            if name != "JOBDIR" or name in settings:
                settings[name] = str(Path(folder) / file)
        command = [sys.executable, str(HERE / "crawl.py"), "--pages", str(pages)]
        command += ["--url", origin.url(variant.path)]
        for name, value in settings.items():
            command += ["--set", f"{name}={json.dumps(value)}"]
        for _ in range(1 + variant.warm):
            found = run_child(command)
    seen = found["failed" if "gone" in variant.path else "items"]
    skipped = variant.warm and settings.get("NETSPY_INCREMENTAL")
    if seen != (0 if skipped else pages):
        raise ChildError(f"{variant.label}: {pages} pages, but {found}")
    return found["cpu_s"] / pages * 1e6


def _table(names, options):
    rows = []
    for name in names:
        variant = VARIANTS[name]
        cells = [variant.label, f"{median(variant.results):.0f}"]
        if variant.base is not None:
            base = VARIANTS[variant.base]
            pairs = zip(variant.results, base.results, strict=True)
            differences = [one - other for one, other in pairs]
            cells += [
                base.label.partition(":")[0], f"{median(differences):+.0f}",
                f"{min(differences):+.0f} to {max(differences):+.0f}",
            ]  # fmt: skip
        else:
            cells += ["", "", ""]
        rows.append(cells)
    head = ["", "CPU us a page", "beside", "cost", "range"]
    return f"{options.pages} pages, medians of {options.runs} runs\n" + table(head, rows)


if __name__ == "__main__":
    main()
