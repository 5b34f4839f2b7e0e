"""Pages per second: Scrapy with and without the add-on, netspy, and netspy spiders of this package.

::

    python benchmarks/throughput/run.py [--pages 5000] [--runs 3] [--only a,b,d] [--json FILE]

All variants crawl the same local site one after another, several times over, every second time
backwards. "Pages/s" is what the site saw between the first and the last request; "CPU ms" is what
the crawler spent on a page after its start-up, which is steadier on a busy machine. A ratio
compares a variant with its peer in the same run. Pages that take 100 ms are fewer, but where many
are fetched at once.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from clients import run_client, without_netspy  # noqa: E402
from common import ADDON, ChildError, Origin, Parser, median, of, ratios  # noqa: E402
from report import Report  # noqa: E402

_SCRAPY_32 = {"CONCURRENT_REQUESTS": 32, "CONCURRENT_REQUESTS_PER_DOMAIN": 32}
_FACADE_32 = {"SPIDER_THREAD_COUNT": 32, "CONCURRENT_REQUESTS_PER_DOMAIN": 32}
_NETSPY_BEST = {
    "SPIDER_THREAD_COUNT": 4, "USE_SESSION": True, "CONCURRENT_REQUESTS_PER_DOMAIN": 32
}  # fmt: skip
_ITEMS_4 = {"CONCURRENT_ITEMS": 4}
_SCRAPY_64 = {"CONCURRENT_REQUESTS": 64, "CONCURRENT_REQUESTS_PER_DOMAIN": 64}
_NETSPY_64 = {
    "SPIDER_THREAD_COUNT": 64, "USE_SESSION": True, "CONCURRENT_REQUESTS_PER_DOMAIN": 64
}  # fmt: skip
_FACADE_64 = {"SPIDER_THREAD_COUNT": 64, "CONCURRENT_REQUESTS_PER_DOMAIN": 64}


@dataclass
class Variant:
    """One way to crawl, and what it is compared with."""

    label: str
    client: str
    settings: dict
    peer: str | None = None
    target: float | None = None
    """The least ratio to the peer."""
    slow: bool = False
    """Whether each answer takes 100 ms."""
    at_once: int | None = None
    """How many requests are in flight then: what the speed is limited by."""
    results: list = field(default_factory=list)


VARIANTS = {
    "a": Variant("Scrapy", "scrapy", _SCRAPY_32),
    "b": Variant("Scrapy + add-on", "scrapy", {**_SCRAPY_32, **ADDON}, "a", 1.3),
    "c": Variant("Scrapy, CONCURRENT_ITEMS=4", "scrapy", {**_SCRAPY_32, **_ITEMS_4}),
    "d": Variant(
        "Scrapy, CONCURRENT_ITEMS=4 + add-on", "scrapy", {**_SCRAPY_32, **_ITEMS_4, **ADDON},
        "c", 0.92,
    ),
    "e": Variant("netspy, best (4 threads, session)", "netspy", _NETSPY_BEST),
    "f": Variant("netspy, default (4 threads)", "netspy", {}),
    "g": Variant("netspy spider of this package", "facade", _FACADE_32, "e", 1.0),
    "h": Variant("100 ms: netspy, default", "netspy", {}, slow=True),
    "i": Variant("100 ms: netspy spider of this package, default", "facade", {}, "h", 1.9, True),
    "j": Variant("100 ms, 64 at once: Scrapy", "scrapy", _SCRAPY_64, slow=True, at_once=64),
    "k": Variant(
        "100 ms, 64 at once: Scrapy + add-on", "scrapy", {**_SCRAPY_64, **ADDON},
        "j", slow=True, at_once=64,
    ),
    "l": Variant("100 ms, 64 at once: netspy", "netspy", _NETSPY_64, slow=True, at_once=64),
    "m": Variant(
        "100 ms, 64 at once: netspy spider of this package", "facade", _FACADE_64,
        "l", slow=True, at_once=64,
    ),
}  # fmt: skip


def main():
    options = _options()
    report = Report(options)
    names = [
        name for name in without_netspy(VARIANTS, report, options)
        if not options.only or name in options.only.split(",")
    ]  # fmt: skip
    with Origin() as origin:
        for run, name in report.in_turns(names):
            result = _measure(origin, VARIANTS[name], options)
            VARIANTS[name].results.append(result)
            report.progress(run + 1, name, VARIANTS[name].label, result)
    _table(report, names, options)
    _compare(report, names)
    report.finish()


def _options():
    parser = Parser(__doc__, quick={"pages": 1500, "slow_pages": 200})
    parser.add_argument("--pages", type=int, default=5000)
    parser.add_argument("--slow-pages", type=int, default=400, help="of the variants with 100 ms")
    parser.add_argument("--only", default="", metavar="a,b,...")
    parser.add_netspy()
    return parser.parse_args()


def _measure(origin, variant, options):
    pages = options.slow_pages if variant.slow and not variant.at_once else options.pages
    origin.reset()
    before = origin.stats()["cpu_s"]
    url = origin.url("/page/{n}" + ("?ms=100" if variant.slow else ""))
    found = run_client(variant.client, url, pages, variant.settings, options)
    seen = origin.stats()
    if seen["requests"] != pages:
        raise ChildError(f"{variant.label}: {pages} pages, but the site saw {seen}")
    return {
        "pages_s": round((pages - 1) / seen["span_s"], 1),
        "cpu_ms": round(found["cpu_s"] / pages * 1000, 3),
        "rss_mb": round(found["rss_mb"], 1),
        "connections": seen["connections"],
        "origin_cpu_ms": round((seen["cpu_s"] - before) / pages * 1000, 3),
    }


def _table(report, names, options):
    rows = []
    for name in names:
        results = VARIANTS[name].results
        speed = of(results, "pages_s")
        rows.append(
            (
                f"{name} {VARIANTS[name].label}",
                f"{median(speed):.0f}",
                f"{min(speed):.0f}-{max(speed):.0f}",
                f"{median(of(results, 'cpu_ms')):.3f}",
                f"{median(of(results, 'rss_mb')):.0f}",
            )
        )
    report.table(
        ("", "pages/s", "range", "CPU ms a page", "RSS MB"), rows,
        f"{options.pages:,} pages of 1 KB ({options.slow_pages} in h and i), medians of "
        f"{options.runs} runs.",
    )  # fmt: skip


def _compare(report, names):
    for name in names:
        variant = VARIANTS[name]
        if variant.peer in names:
            peer = VARIANTS[variant.peer]
            report.compare(
                f"{variant.label}: pages/s", ratios(variant.results, peer.results, "pages_s"),
                peer=peer.label, at_least=variant.target,
            )  # fmt: skip
            report.compare(
                f"{variant.label}: CPU a page", ratios(variant.results, peer.results, "cpu_ms"),
                peer=peer.label, less_is_better=True,
            )  # fmt: skip
        if variant.at_once and variant.peer:
            limit = variant.at_once * 10  # each answer takes 100 ms
            report.compare(
                f"{variant.label}: of the {limit} pages/s that are possible",
                [one / limit for one in of(variant.results, "pages_s")], at_least=0.9,
            )  # fmt: skip


if __name__ == "__main__":
    main()
