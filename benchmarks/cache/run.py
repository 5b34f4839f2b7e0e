"""The development cache: a first run and a cached re-run; beside Scrapy's HTTP cache and netspy's.

::

    python benchmarks/cache/run.py [--pages 2000] [--runs 3] [--only 1,100] [--json FILE]

The clients are those of ``benchmarks/throughput``: 1 KB pages of one host, a title parsed and an
item counted, with the concurrency that each client has by default. Each variant runs twice on one
cache folder, against a site that answers in 1 ms and in 100 ms. A re-run of ours that sends a
request ends the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLIENTS = HERE.parent / "throughput"
sys.path.insert(0, str(HERE.parent))

from common import ChildError, Origin, in_turns, median, run_child, table, write_json  # noqa: E402

ADDON = {"ADDONS": {"netspy_scrapy.Addon": 500}}
OURS = {"RESPONSE_CACHE_ENABLE": True}
#: The least that a re-run has to gain over the first run, by the milliseconds of the site.
TARGETS = {1: 1.5, 100: 5.0}


@dataclass
class Variant:
    """One client with its cache, and what came of it in each round."""

    label: str
    client: str
    settings: dict
    folder: str
    """The setting that names the folder."""
    ours: bool = True
    results: list = field(default_factory=list)


def variants():
    return {
        "a": Variant(
            "add-on in a Scrapy project", "scrapy", {**ADDON, **OURS},
            "RESPONSE_CACHE_PATH",
        ),
        "b": Variant("netspy spider of ours", "facade", OURS, "RESPONSE_CACHE_PATH"),
        "c": Variant(
            "Scrapy with its HTTP cache", "scrapy", {"HTTPCACHE_ENABLED": True},
            "HTTPCACHE_DIR", ours=False,
        ),
        "d": Variant(
            "the same, CONCURRENT_ITEMS=4", "scrapy",
            {"HTTPCACHE_ENABLED": True, "CONCURRENT_ITEMS": 4}, "HTTPCACHE_DIR",
            ours=False,
        ),
        "e": Variant(
            "netspy with its cache (4 threads)", "netspy",
            OURS, "RESPONSE_CACHE_PATH", ours=False,
        ),
    }  # fmt: skip


def main():
    options = _options()
    chosen = variants()
    if find_spec("netspy") is None and options.netspy_python is None:
        print("netspy is not installed: it is left out", file=sys.stderr)
        del chosen["e"]
    delays = [int(one) for one in options.only.split(",")] if options.only else list(TARGETS)
    names = [(name, delay) for delay in delays for name in chosen]
    with Origin() as origin:
        for run, (name, delay) in in_turns(names, options.runs):
            result = _measure(origin, chosen[name], delay, options)
            chosen[name].results.append({"delay": delay, **result})
            print(run + 1, name, delay, "ms", result, file=sys.stderr, flush=True)
    print(_table(chosen, delays, options))
    if options.json:
        write_json(options.json, {name: one.results for name, one in chosen.items()})


def _options():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", help="milliseconds of the site: 1 or 100")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--netspy-python", metavar="FILE", help="a Python that has netspy, if this one has not"
    )
    return parser.parse_args()


def _measure(origin, variant, delay, options):
    python = (variant.client == "netspy" and options.netspy_python) or sys.executable
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as folder:
        command = [python, str(CLIENTS / f"{variant.client}_client.py")]
        command += ["--pages", str(options.pages)]
        command += ["--url", origin.url(f"/page/{{n}}?ms={delay}")]
        for name, value in {**variant.settings, variant.folder: folder}.items():
            command += ["--set", f"{name}={json.dumps(value)}"]
        first, first_cpu, sent = _run(origin, command, options)
        if sent != options.pages:
            raise ChildError(f"{variant.label}: the first run sent {sent} requests")
        again, again_cpu, sent = _run(origin, command, options)
        if sent and variant.ours:
            raise ChildError(f"{variant.label}: the re-run sent {sent} requests")
    return {
        "first": first, "again": again, "ratio": again / first,
        "cpu_ratio": first_cpu / again_cpu, "sent": sent,
        "load": os.getloadavg()[0],
    }  # fmt: skip


def _run(origin, command, options):
    """Return pages per second, CPU seconds, and how many requests the site saw."""
    origin.reset()
    found = run_child(command)
    if found["items"] != options.pages:
        raise ChildError(f"{options.pages} pages, but {found}")
    return options.pages / found["wall_s"], found["cpu_s"], origin.stats()["requests"]


def _table(chosen, delays, options):
    head = ("", "first run", "re-run", "ratio", "range", "CPU ratio", "sent again", "target")
    rows = []
    for delay in delays:
        for name, variant in chosen.items():
            found = [one for one in variant.results if one["delay"] == delay]
            ratios = [one["ratio"] for one in found]
            rows.append(
                (
                    f"{delay:3} ms  {name} {variant.label}",
                    f"{median([one['first'] for one in found]):.0f}",
                    f"{median([one['again'] for one in found]):.0f}",
                    f"{median(ratios):.2f}",
                    f"{min(ratios):.2f}-{max(ratios):.2f}",
                    f"{median([one['cpu_ratio'] for one in found]):.2f}",
                    f"{max(one['sent'] for one in found)}",
                    f">= {TARGETS[delay]}" if variant.ours and delay in TARGETS else "",
                )
            )
    return (
        f"{options.pages} pages; pages per second from the first request to the end of the crawl, "
        f"medians of {options.runs} rounds\n" + table(head, rows)
    )


if __name__ == "__main__":
    main()
