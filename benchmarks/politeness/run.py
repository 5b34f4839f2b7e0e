"""Politeness, measured at the site: rests, retries after a rest, delays; beside Scrapy and netspy.

::

    python benchmarks/politeness/run.py [--runs 3] [--only rest,window,ends,delay] [--json FILE]

``rest``
    A free domain (200 ms a page) alone, and beside domains that answer 429 with a long
    ``Retry-After`` and have 1,000 requests queued each. "Late" are requests that reach a resting
    domain more than 0.1 s after its first refusal left it.
``window``
    One domain refuses everything with ``Retry-After: 2`` until 2 s after its first request.
``ends``
    Ten domains rest 1, 2 or 3 s while a free one is crawled: when the first request comes after.
``delay``
    Gaps between requests that came on connections which had been used before.

Every run has all variants, every second run backwards; the tables have medians (and, where they
say so, the worst of all runs).
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ADDON, Origin, Parser, median, of, python_of_netspy, ratios, run_child  # noqa: E402
from report import Report  # noqa: E402

FREE = "127.0.0.2"
WINDOW = "127.0.0.3"
#: Hosts whose robots.txt has ``Crawl-delay: 0.5``, see hosts.py.
PLAIN = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
JITTER = ("127.0.0.21", "127.0.0.22", "127.0.0.23")
CRAWL_DELAY = ("127.0.0.31", "127.0.0.32", "127.0.0.33")
#: The resting ones.
RESTING = tuple(f"127.0.0.{number}" for number in range(41, 241))

OURS = {**ADDON, "DUMP_UNFINISHED_ON_EXIT": False}
OURS_REST = {**OURS, "RETRY_AFTER_MAX": 3600}
SCRAPY_16 = {"CONCURRENT_REQUESTS": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
NETSPY_16 = {
    "SPIDER_THREAD_COUNT": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 16, "USE_SESSION": True,
    "RETRY_AFTER_MAX": 3600,
}  # fmt: skip

LATE = 0.1
#: Pages of the free domain that are left out: the first connections are made meanwhile.
WARM_UP = 16
REST = 900
SETTLE = 1.5
DELAY = 0.3


@dataclass
class Variant:
    """One crawl, and what came of it in each run."""

    group: str
    label: str
    client: str
    settings: dict
    resting: int = 0
    mixed: bool = False
    """Whether the free pages take turns with the resting ones, instead of being queued last."""
    pause: bool = False
    limit: float = 60
    alone: str | None = None
    """The variant that crawls the free domain alone."""
    once: bool = False
    """Whether it is so slow that it runs only once."""
    results: list = field(default_factory=list)


VARIANTS = {
    "s0": Variant("rest", "Scrapy, alone", "scrapy", SCRAPY_16),
    "s20": Variant("rest", "Scrapy", "scrapy", SCRAPY_16, 20, limit=8, alone="s0"),
    "p20": Variant(
        "rest", "Scrapy, slots paused", "scrapy", SCRAPY_16, 20,
        mixed=True, pause=True, limit=6, alone="s0",
    ),
    "n0": Variant("rest", "netspy, 16 threads, alone", "netspy", NETSPY_16),
    "n20": Variant(
        "rest", "netspy, 16 threads", "netspy", NETSPY_16, 20, mixed=True, limit=6, alone="n0"
    ),
    "a0": Variant("rest", "add-on, alone", "scrapy", {**SCRAPY_16, **OURS_REST}),
    "a1": Variant("rest", "add-on", "scrapy", {**SCRAPY_16, **OURS_REST}, 1, alone="a0"),
    "a20": Variant("rest", "add-on", "scrapy", {**SCRAPY_16, **OURS_REST}, 20, alone="a0"),
    "m20": Variant(
        "rest", "add-on, mixed", "scrapy", {**SCRAPY_16, **OURS_REST}, 20, mixed=True, alone="a0"
    ),
    "a200": Variant("rest", "add-on", "scrapy", {**SCRAPY_16, **OURS_REST}, 200, alone="a0"),
    "ws": Variant("window", "Scrapy, 16 in flight", "scrapy", SCRAPY_16),
    "wn4": Variant("window", "netspy, 4 threads", "netspy", {"RETRY_AFTER_MAX": 60}, once=True),
    "wn16": Variant("window", "netspy, 16 threads", "netspy", NETSPY_16, once=True),
    "wa8": Variant(
        "window", "add-on, 8 in flight", "scrapy",
        {**SCRAPY_16, **OURS, "CONCURRENT_REQUESTS_PER_DOMAIN": 8},
    ),
    "wa16": Variant("window", "add-on, 16 in flight", "scrapy", {**SCRAPY_16, **OURS}),
    "ea": Variant("ends", "add-on", "scrapy", {**SCRAPY_16, **OURS}),
    "ds": Variant("delay", "Scrapy", "scrapy", {"ROBOTSTXT_OBEY": True}),
    "dn": Variant(
        "delay", "netspy", "netspy",
        {
            "DOWNLOAD_DELAY": DELAY, "RANDOMIZE_DOWNLOAD_DELAY": False, "ROBOTS_OBEY": True,
            "SPIDER_THREAD_COUNT": 16, "USE_SESSION": True,
        },
    ),
    "da": Variant("delay", "add-on", "scrapy", {"ROBOTSTXT_OBEY": True, **OURS}),
}  # fmt: skip


def main():
    options = _options()
    report = Report(options)
    groups = options.only.split(",")
    names = [name for name, one in VARIANTS.items() if one.group in groups or name in groups]
    if python_of_netspy(options) is None:
        report.left_out("netspy, which is not installed (pip install netspy)")
        names = [name for name in names if VARIANTS[name].client != "netspy"]
    with Origin(HERE / "hosts.py") as site:
        for run, name in report.in_turns(names):
            variant = VARIANTS[name]
            if run and variant.once:
                continue
            result = _measure(site, variant, options)
            variant.results.append(result)
            found = {key: value for key, value in result.items() if key != "gaps"}
            report.progress(run + 1, name, variant.label, variant.resting, found)
    for group, show in _SHOWN.items():
        chosen = [name for name in names if VARIANTS[name].group == group]
        if chosen:
            show(report, chosen, options)
    report.finish()


def _options():
    parser = Parser(__doc__, quick={"pages": 160})
    parser.add_argument("--pages", type=int, default=304, help="of the free domain")
    parser.add_argument("--queued", type=int, default=1000, help="for each resting domain")
    parser.add_argument("--only", default="rest,window,ends,delay", metavar="GROUP OR VARIANT,...")
    parser.add_netspy()
    return parser.parse_args()


# Crawls ------------------------------------------------------------------------------------------
def _measure(site, variant, options):
    plan = {"settings": variant.settings, "pause": variant.pause, "limit": variant.limit,
            "until": None, "settle": SETTLE}  # fmt: skip
    plan.update(_PLANS[variant.group](site, variant, options))
    python = python_of_netspy(options) if variant.client == "netspy" else sys.executable
    site.reset()
    found = run_child([python, str(HERE / f"{variant.client}_client.py"), json.dumps(plan)])
    end = time.monotonic()
    return {**found, **_READINGS[variant.group](sorted(site.log()), variant, found, end)}


def _plan_rest(site, variant, options):
    free = [site.url("/page/{n}?ms=200", FREE), options.pages]
    resting = [
        [site.url(f"/rest/{{n}}?seconds={REST}&ms=20", host), options.queued]
        for host in RESTING[: variant.resting]
    ]
    parts = [[*resting, free]] if variant.mixed or not resting else [resting, [free]]
    return {"parts": parts, "until": [site.url("/", FREE), options.pages]}


def _plan_window(site, variant, options):
    return {"parts": [[[site.url("/window/{n}?seconds=2&ms=20", WINDOW), 20]]]}


def _plan_ends(site, variant, options):
    free = [site.url("/page/{n}?ms=20", FREE), 1500]
    resting = [
        [site.url(f"/window/{{n}}?seconds={1 + number % 3}&ms=20", host), 20]
        for number, host in enumerate(RESTING[:10])
    ]
    return {"parts": [[*resting, free]]}


def _plan_delay(site, variant, options):
    hosts = [(host, 21) for host in PLAIN] + [(host, 13) for host in CRAWL_DELAY]
    settings = dict(variant.settings)
    if variant.client == "scrapy":
        hosts += [(host, 21) for host in JITTER]
        slots = {host: {"delay": DELAY, "jitter": 0.0} for host in (*PLAIN, *CRAWL_DELAY)}
        slots.update((host, {"delay": DELAY, "jitter": 0.5}) for host in JITTER)
        settings["DOWNLOAD_SLOTS"] = slots
    return {
        "parts": [[[site.url("/page/{n}?ms=20", host), pages] for host, pages in hosts]],
        "settings": settings,
    }


# What the site saw -------------------------------------------------------------------------------
def _read_rest(log, variant, found, end):
    free = [entry[0] for entry in log if entry[1] == FREE]
    if found["end"] == "done":
        rate = (len(free) - 1 - WARM_UP) / (free[-1] - free[WARM_UP])
    else:
        rate = len(free) / (end - log[0][0])
    refused = {}
    late = 0
    resting = [entry for entry in log if entry[1] != FREE]
    for entry in sorted(resting, key=lambda one: one[5]):
        refused.setdefault(entry[1], entry[5])
    for arrived, host, *_ in resting:
        late += arrived > refused[host] + LATE
    return {
        "pages_s": rate, "free": len(free), "to_resting": len(resting), "late": late,
        "asked_hosts": len(refused),
    }  # fmt: skip


def _read_window(log, variant, found, end):
    refusals = [entry for entry in log if entry[3] == 429]
    pages = [entry for entry in log if entry[3] == 200]
    first = refusals[0][0]
    last_refusal = max(entry[5] for entry in refusals)
    return {
        "refusals": len(refusals),
        "late": sum(entry[0] > refusals[0][5] + LATE for entry in refusals),
        "pages": len({entry[2] for entry in pages}),
        "done_s": pages[-1][0] - first if pages else None,
        "rest_over_s": pages[0][0] - last_refusal - 2 if pages else None,
    }


def _read_ends(log, variant, found, end):
    over = []
    for number, host in enumerate(RESTING[:10]):
        entries = [entry for entry in log if entry[1] == host]
        refusals = [entry for entry in entries if entry[3] == 429]
        after = next(entry[0] for entry in entries if entry[3] == 200)
        over.append(after - max(entry[5] for entry in refusals) - (1 + number % 3))
    free = [entry[0] for entry in log if entry[1] == FREE]
    return {"over_s": over, "free_pages_s": (len(free) - 1) / (free[-1] - free[0])}


def _read_delay(log, variant, found, end):
    gaps = {}
    for kind, hosts in (("plain", PLAIN), ("jitter", JITTER), ("crawl-delay", CRAWL_DELAY)):
        gaps[kind] = [gap for host in hosts for gap in _warm_gaps(log, host)]
    return {"gaps": gaps}


def _warm_gaps(log, host):
    """Return the gaps between pages of *host*, both of which came on used connections."""
    used = set()
    warm = []
    for arrived, _, path, _, connection, _ in (entry for entry in log if entry[1] == host):
        warm.append((arrived, connection in used and path != "/robots.txt"))
        used.add(connection)
    return [after[0] - before[0] for before, after in pairwise(warm) if before[1] and after[1]]


_PLANS = {
    "rest": _plan_rest, "window": _plan_window, "ends": _plan_ends, "delay": _plan_delay
}  # fmt: skip
_READINGS = {
    "rest": _read_rest, "window": _read_window, "ends": _read_ends, "delay": _read_delay
}  # fmt: skip


# Tables ------------------------------------------------------------------------------------------
def _show_rest(report, names, options):
    head = ("free domain beside resting ones", "resting", "pages/s", "of alone", "free pages",
            "to resting", "late")  # fmt: skip
    rows = []
    for name in names:
        variant = VARIANTS[name]
        results = variant.results
        alone = VARIANTS[variant.alone].results if variant.alone in names else []
        share = ratios(results, alone, "pages_s")
        rows.append(
            (
                variant.label,
                str(variant.resting),
                f"{median(of(results, 'pages_s')):.1f}",
                f"{median(share):.1%}" if share else "",
                f"{median(of(results, 'free')):.0f}",
                f"{median(of(results, 'to_resting')):.0f}",
                f"{max(of(results, 'late'))}",
            )
        )
        if variant.alone == "a0":
            what = f"{variant.label}, {variant.resting} resting domains"
            report.compare(
                f"{what}: speed of the free domain, of alone", share,
                at_least=None if variant.mixed else 0.98,
            )  # fmt: skip
            report.compare(
                f"{what}: requests to resting ones", of(results, "late"), at_most=0, digits=0,
                in_each_round=True,
            )  # fmt: skip
    report.table(
        head, rows,
        f"{options.pages} free pages, {options.queued:,} queued for each resting domain, "
        f"CONCURRENT_REQUESTS=16, medians of {options.runs} runs (late: the most of all runs).",
    )  # fmt: skip


def _show_window(report, names, options):
    head = ("20 pages, Retry-After: 2", "refusals", "late", "pages handled", "done after", "range",
            "rest over after")  # fmt: skip
    rows = []
    for name in names:
        variant = VARIANTS[name]
        results = variant.results
        done = [one["done_s"] for one in results if one["done_s"] is not None]
        over = [one["rest_over_s"] for one in results if one["rest_over_s"] is not None]
        rows.append(
            (
                variant.label + (" (1 run)" if variant.once else ""),
                f"{median(of(results, 'refusals')):.0f}",
                f"{max(of(results, 'late'))}",
                f"{min(of(results, 'handled'))}",
                f"{median(done):.2f} s" if done else "never",
                f"{min(done):.2f}-{max(done):.2f}" if done else "",
                f"2 s {median(over):+.3f}" if over else "",
            )
        )
        if name.startswith("wa"):
            report.compare(
                f"{variant.label}: pages handled of 20", of(results, "handled"), at_least=20,
                digits=0, in_each_round=True,
            )  # fmt: skip
            report.compare(f"{variant.label}: all done after", done, at_most=3, unit=" s")
    report.table(head, rows)


def _show_ends(report, names, options):
    rows = []
    for name in names:
        label = VARIANTS[name].label
        over = sorted(one for result in VARIANTS[name].results for one in result["over_s"])
        figures = (f"{one * 1000:+.0f} ms" for one in (median(over), over[0], over[-1]))
        rows.append((label, str(len(over)), *figures))
        earliest = [min(result["over_s"]) * 1000 for result in VARIANTS[name].results]
        latest = [max(result["over_s"]) * 1000 for result in VARIANTS[name].results]
        how = {"digits": 0, "unit": " ms", "in_each_round": True}
        report.compare(f"{label}: earliest request after a rest", earliest, at_least=0, **how)
        report.compare(f"{label}: latest request after a rest", latest, at_most=100, **how)
    report.table(("first request after a rest", "rests", "median", "earliest", "latest"), rows)


#: Kind, what it is, the least gap, and the average gap at most.
_DELAYS = (
    ("plain", "delay 0.3", 0.280, 0.315),
    ("jitter", "delay 0.3, jitter 0.5", 0.13, None),
    ("crawl-delay", "Crawl-delay 0.5 (and delay 0.3)", 0.480, None),
)


def _show_delay(report, names, options):
    rows = []
    for kind, what, least, average in _DELAYS:
        for name in names:
            label = VARIANTS[name].label
            found = [result["gaps"][kind] for result in VARIANTS[name].results]
            gaps = [gap for one in found for gap in one]
            if not gaps:
                continue
            figures = (min(gaps), sum(gaps) / len(gaps), max(gaps))
            rows.append((what, label, str(len(gaps)), *(f"{one:.3f}" for one in figures)))
            if name == "da":
                how = {"digits": 3, "unit": " s"}
                shortest = [min(one) for one in found]
                report.compare(
                    f"{label}, {what}: least gap", shortest, at_least=least, in_each_round=True,
                    **how,
                )  # fmt: skip
                if average:
                    means = [sum(one) / len(one) for one in found]
                    report.compare(f"{label}, {what}: average gap", means, at_most=average, **how)
    report.table(("gaps at the site, s", "", "gaps", "least", "average", "most"), rows)


_SHOWN = {
    "rest": _show_rest, "window": _show_window, "ends": _show_ends, "delay": _show_delay
}  # fmt: skip


if __name__ == "__main__":
    main()
