"""Pages per second: Scrapy with and without the add-on, netspy, and netspy spiders of this package.

::

    python benchmarks/throughput/run.py [--pages 5000] [--runs 3] [--only a,b,d] [--json FILE]

All variants crawl the same local site one after another, several times over, every second time
backwards. "Pages/s" is what the site saw between the first and the last request; "CPU ms" is what
the crawler spent on a page after its start-up, which is steadier on a busy machine. A ratio
compares a variant with its peer in the same run; the table has the median of these.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ChildError, Origin, in_turns, median, run_child, table, write_json  # noqa: E402

_SCRAPY_32 = ("CONCURRENT_REQUESTS=32", "CONCURRENT_REQUESTS_PER_DOMAIN=32")
_FACADE_32 = ("SPIDER_THREAD_COUNT=32", "CONCURRENT_REQUESTS_PER_DOMAIN=32")
_NETSPY_BEST = (
    "SPIDER_THREAD_COUNT=4", "USE_SESSION=true", "CONCURRENT_REQUESTS_PER_DOMAIN=32"
)  # fmt: skip
_ADDON = 'ADDONS={"netspy_scrapy.Addon": 500}'
_ITEMS_4 = "CONCURRENT_ITEMS=4"


@dataclass
class Variant:
    """One way to crawl, and what it is compared with."""

    label: str
    client: str
    settings: tuple[str, ...] = ()
    peer: str | None = None
    target: float | None = None
    """The least ratio to the peer."""
    slow: bool = False
    """Whether each answer takes 100 ms."""
    results: list = field(default_factory=list)


VARIANTS = {
    "a": Variant("Scrapy", "scrapy", _SCRAPY_32),
    "b": Variant("Scrapy + add-on", "scrapy", (*_SCRAPY_32, _ADDON), "a", 1.3),
    "c": Variant("Scrapy, CONCURRENT_ITEMS=4", "scrapy", (*_SCRAPY_32, _ITEMS_4), "a"),
    "d": Variant(
        "Scrapy, CONCURRENT_ITEMS=4 + add-on", "scrapy", (*_SCRAPY_32, _ITEMS_4, _ADDON), "c", 0.92
    ),
    "e": Variant("netspy, best (4 threads, session)", "netspy", _NETSPY_BEST),
    "f": Variant("netspy, default (4 threads)", "netspy", (), "e"),
    "g": Variant("netspy spider of this package", "facade", _FACADE_32, "e"),
    "h": Variant("100 ms: netspy, default", "netspy", slow=True),
    "i": Variant("100 ms: netspy spider of this package, default", "facade", (), "h", 1.9, True),
}


def main():
    options = _options()
    names = [name for name in VARIANTS if not options.only or name in options.only.split(",")]
    if find_spec("netspy") is None and options.netspy_python is None:
        print("netspy is not installed: its variants are left out", file=sys.stderr)
        names = [name for name in names if VARIANTS[name].client != "netspy"]
    with Origin() as origin:
        for run, name in in_turns(names, options.runs):
            _measure(origin, VARIANTS[name], options)
            _show(run, name)
    print(_table(names, options))
    if options.json:
        write_json(options.json, {name: VARIANTS[name].results for name in names})


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=5000)
    parser.add_argument("--slow-pages", type=int, default=400, help="of the variants with 100 ms")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", metavar="a,b,...")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument(
        "--netspy-python", metavar="FILE", help="a Python that has netspy, if this one has not"
    )
    return parser.parse_args()


def _measure(origin, variant, options):
    pages = options.slow_pages if variant.slow else options.pages
    python = (variant.client == "netspy" and options.netspy_python) or sys.executable
    command = [python, str(HERE / f"{variant.client}_client.py"), "--pages", str(pages)]
    command += ["--url", origin.url("/page/{n}" + ("?ms=100" if variant.slow else ""))]
    for setting in variant.settings:
        command += ["--set", setting]
    origin.reset()
    before = origin.stats()["cpu_s"]
    found = run_child(command)
    seen = origin.stats()
    if found["items"] != pages or seen["requests"] != pages:
        raise ChildError(f"{variant.label}: {pages} pages, but {found} and {seen}")
    variant.results.append(
        {
            "pages_s": (pages - 1) / seen["span_s"],
            "cpu_ms": found["cpu_s"] / pages * 1000,
            "rss_mb": found["rss_mb"],
            "connections": seen["connections"],
            "origin_cpu_ms": (seen["cpu_s"] - before) / pages * 1000,
            "load": os.getloadavg()[0],
        }
    )


def _show(run, name):
    variant = VARIANTS[name]
    result = variant.results[-1]
    print(
        f"{run + 1} {name} {variant.label:48} {result['pages_s']:7.1f} pages/s "
        f"{result['cpu_ms']:6.3f} CPU ms  {result['rss_mb']:5.1f} MB  "
        f"{result['connections']} connections  load {result['load']:.1f}",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def _table(names, options):
    head = ("", "pages/s", "range", "CPU ms", "RSS MB", "peer", "ratio", "CPU ratio", "target")
    rows = []
    for name in names:
        variant = VARIANTS[name]
        speed = [result["pages_s"] for result in variant.results]
        peer = VARIANTS[variant.peer] if variant.peer in names else None
        rows.append(
            (
                f"{name} {variant.label}",
                f"{median(speed):.0f}",
                f"{min(speed):.0f}-{max(speed):.0f}",
                f"{median([result['cpu_ms'] for result in variant.results]):.3f}",
                f"{median([result['rss_mb'] for result in variant.results]):.0f}",
                variant.peer if peer else "",
                f"{_ratio(variant, peer, 'pages_s'):.2f}" if peer else "",
                f"{1 / _ratio(variant, peer, 'cpu_ms'):.2f}" if peer else "",
                f">= {variant.target}" if peer and variant.target else "",
            )
        )
    return (
        f"{options.pages} pages ({options.slow_pages} with 100 ms), medians of {options.runs} "
        "runs. CPU ratio over 1: less CPU than the peer.\n" + table(head, rows)
    )


def _ratio(variant, peer, key):
    pairs = zip(variant.results, peer.results, strict=True)
    return median([ours[key] / theirs[key] for ours, theirs in pairs])


if __name__ == "__main__":
    main()
