"""The development cache: a first run and a cached re-run; beside Scrapy's HTTP cache and netspy's.

::

    python benchmarks/cache/run.py [--pages 2000] [--runs 3] [--only 1,100] [--json FILE]

The clients are those of ``benchmarks/throughput``: 1 KB pages of one host, a title parsed and an
item counted, with the concurrency that each client has by default. Each variant runs twice on one
cache folder, against a site that answers in 1 ms and in 100 ms. A re-run of ours that sends a
request ends the benchmark.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "throughput")]

from clients import run_client, without_netspy  # noqa: E402
from common import ADDON, ChildError, Origin, Parser, median, of  # noqa: E402
from report import Report  # noqa: E402

OURS = {"RESPONSE_CACHE_ENABLE": True}
SCRAPYS = {"HTTPCACHE_ENABLED": True}
#: The least that a re-run has to gain over the first run, by the milliseconds of the site.
TARGETS = {1: 1.5, 100: 5.0}


@dataclass
class Variant:
    """One client with its cache, and what came of it in each round."""

    label: str
    client: str
    settings: dict
    folder: str = "RESPONSE_CACHE_PATH"
    """The setting that names the folder."""
    ours: bool = True
    results: list = field(default_factory=list)


VARIANTS = {
    "a": Variant("add-on in a Scrapy project", "scrapy", {**ADDON, **OURS}),
    "b": Variant("netspy spider of ours", "facade", OURS),
    "c": Variant("Scrapy with its HTTP cache", "scrapy", SCRAPYS, "HTTPCACHE_DIR", ours=False),
    "d": Variant(
        "the same, CONCURRENT_ITEMS=4", "scrapy", {**SCRAPYS, "CONCURRENT_ITEMS": 4},
        "HTTPCACHE_DIR", ours=False,
    ),
    "e": Variant("netspy with its cache (4 threads)", "netspy", OURS, ours=False),
}  # fmt: skip


def main():
    options = _options()
    report = Report(options)
    chosen = without_netspy(VARIANTS, report, options)
    delays = [int(one) for one in options.only.split(",")]
    with Origin() as origin:
        for run, (name, delay) in report.in_turns([(n, d) for d in delays for n in chosen]):
            result = {"delay": delay, **_measure(origin, VARIANTS[name], delay, options)}
            VARIANTS[name].results.append(result)
            report.progress(run + 1, name, result)
    for delay in delays:
        _show(report, chosen, delay, options)
    report.finish()


def _options():
    parser = Parser(__doc__, quick={"pages": 400})
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument(
        "--only", default=",".join(map(str, TARGETS)), help="milliseconds of the site: 1 or 100"
    )
    parser.add_netspy()
    return parser.parse_args()


def _measure(origin, variant, delay, options):
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as folder:
        settings = {**variant.settings, variant.folder: folder}
        first, first_cpu, sent = _run(origin, variant, delay, settings, options)
        if sent != options.pages:
            raise ChildError(f"{variant.label}: the first run sent {sent} requests")
        again, again_cpu, sent = _run(origin, variant, delay, settings, options)
        if sent and variant.ours:
            raise ChildError(f"{variant.label}: the re-run sent {sent} requests")
    return {
        "first": first, "again": again, "ratio": again / first,
        "cpu_ratio": first_cpu / again_cpu, "sent": sent,
    }  # fmt: skip


def _run(origin, variant, delay, settings, options):
    """Return pages per second, CPU seconds, and how many requests the site saw."""
    origin.reset()
    url = origin.url(f"/page/{{n}}?ms={delay}")
    found = run_client(variant.client, url, options.pages, settings, options)
    return options.pages / found["wall_s"], found["cpu_s"], origin.stats()["requests"]


def _show(report, chosen, delay, options):
    rows, found = [], {}
    for name in chosen:
        found[name] = [one for one in VARIANTS[name].results if one["delay"] == delay]
        rows.append(
            (
                f"{name} {VARIANTS[name].label}",
                f"{median(of(found[name], 'first')):.0f}",
                f"{median(of(found[name], 'again')):.0f}",
                f"{median(of(found[name], 'ratio')):.2f}",
                f"{median(of(found[name], 'cpu_ratio')):.2f}",
                f"{max(of(found[name], 'sent'))}",
            )
        )
    report.table(
        ("", "first run", "re-run", "ratio", "CPU ratio", "sent again"), rows,
        f"{delay} ms, {options.pages:,} pages: pages per second from the first request to the end "
        f"of the crawl, medians of {options.runs} rounds.",
    )  # fmt: skip
    for name in chosen:
        variant = VARIANTS[name]
        if variant.ours:
            report.compare(
                f"{delay} ms, {variant.label}: re-run / first run", of(found[name], "ratio"),
                at_least=TARGETS.get(delay),
            )  # fmt: skip
            peer = "c" if variant.client == "scrapy" else "e"
            pairs = zip(found[name], found.get(peer, ()), strict=False)
            report.compare(
                f"{delay} ms, {variant.label}: pages/s of the re-run",
                [one["again"] / other["again"] for one, other in pairs],
                peer=VARIANTS[peer].label,
            )  # fmt: skip


if __name__ == "__main__":
    main()
