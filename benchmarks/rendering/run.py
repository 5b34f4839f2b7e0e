"""Rendered pages: do pages and memory stay, and what do they cost the plain requests?

::

    python benchmarks/rendering/run.py [--pages 300] [--plain 2000] [--runs 3]

First a crawl of 300 pages in a real Chromium, four at a time, of which every second one has cookies
of its own and so a browser context of its own. The table has the memory (PSS) of the crawling
process and of the browser's processes along the way, and what was open in the browser at the end of
the crawl, before it was closed. Then 2,000 plain requests of one crawl, without any rendered page
and after one, when the browser is there and idle: requests per second, in turns, and their ratio.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ChildError, Origin, in_turns, median, run_child, table, write_json  # noqa: E402

#: MB that each may grow by from the first third on.
FLAT = {"crawler": 15.0, "browser": 60.0}


def main():
    options = _options()
    marks = [options.pages * part // 6 for part in range(1, 7)]
    with Origin(HERE / "site.py") as origin:
        rendered = _crawl(
            origin, "--rendered", str(options.pages), "--marks", ",".join(map(str, marks))
        )
        if rendered["rendered"] != options.pages:
            raise ChildError(f"{rendered['rendered']} of {options.pages}: {rendered['errors']}")
        print(_memory(rendered, marks), flush=True)
        speeds = {"none": [], "rendered": []}
        for _, first in in_turns(list(speeds), options.runs * 2):
            found = _crawl(origin, "--plain", str(options.plain), "--first", first)
            speeds[first].append(found["plain_per_second"])
            print(f"{first}: {speeds[first][-1]:,.0f}/s", file=sys.stderr, flush=True)
    ratios = [with_it / alone for alone, with_it in zip(*speeds.values(), strict=True)]
    print(f"\n{options.plain:,} plain requests, medians of {len(ratios)} runs")
    print(
        table(
            ("", "requests/s"),
            [
                ("no page is rendered", f"{median(speeds['none']):,.0f}"),
                ("after a rendered page", f"{median(speeds['rendered']):,.0f}"),
                ("ratio", f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"),
            ],
        )
    )
    if options.json:
        write_json(options.json, {"rendered": rendered, "plain": speeds})


def _crawl(origin, *arguments):
    command = [sys.executable, str(HERE / "crawl.py"), "--url", origin.url("/page/{n}")]
    return run_child([*command, *arguments])


def _memory(found, marks):
    at = [found["memory"][str(mark)] for mark in marks]
    rows = []
    for column, name in enumerate(FLAT):
        mb = [one[column] for one in at]
        growth = mb[-1] - mb[1]
        flat = "yes" if growth <= FLAT[name] else "no"
        rows.append(
            (name, *(f"{one:.0f}" for one in mb), f"{growth:+.1f}", f"{flat} (<= {FLAT[name]:g})")
        )
    pages, contexts = found["open"]
    return (
        f"MB after so many of {found['rendered']} rendered pages\n"
        + table(("", *map(str, marks), f"{marks[1]} to {marks[-1]}", "flat"), rows)
        + f"\nleft open in the browser: {pages} pages, {contexts} contexts of single requests"
    )


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--plain", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
