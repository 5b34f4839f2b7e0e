"""What do two processes give where callbacks compute?

::

    python benchmarks/processes/run.py [--pages 1500] [--ms 5] [--processes 2] [--runs 3]

``netspy-run`` crawls small pages of one host, each of whose callbacks takes ``--ms`` milliseconds
of the processor, with one process (no Redis) and with several (their own redis-server). Pages per
second are those from the first request that the site saw to the last, so starting up is left out.
``CPU ms/page`` is what all processes of a crawl used, redis-server too, less what a crawl of 20
pages uses. The load is that of the machine before each crawl: where it is not near 0, others had
the cores too, and several processes get more of them than one does; then look at ``by CPU``, what
the same CPU times give on cores of their own.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ChildError, Origin, in_turns, median, table, write_json  # noqa: E402

KINDS = ("Air", "Plain")
#: Pages of a crawl that does little but start.
FEW = 20


def main():
    options = _options()
    variants = {(kind, n): [] for kind in KINDS for n in (1, options.processes)}
    with Origin() as origin:
        for run, (kind, count) in in_turns(list(variants), options.runs):
            start = _crawl(origin, options, kind, count, FEW)
            found = _crawl(origin, options, kind, count, options.pages)
            cpu = (found["cpu"] - start["cpu"]) / (options.pages - FEW)
            found["cpu_ms_page"] = 1000 * cpu
            variants[kind, count].append(found)
            print(f"{run + 1} {kind} {count}: {found}", file=sys.stderr, flush=True)
    print(_table(variants))
    if options.json:
        write_json(options.json, {f"{kind} {n}": found for (kind, n), found in variants.items()})


def _crawl(origin, options, kind, count, wanted):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    load = os.getloadavg()[0]
    origin.reset()
    command = [
        sys.executable, "-m", "netspy_scrapy.commands.run", "one.py", "--processes", str(count),
        "-a", f"pages={wanted}", "-a", f"ms={options.ms}",
        "-a", f"url={origin.url('/page/{n}')}",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        # The file of a command has one spider.
        Path(folder, "one.py").write_text(
            f"from spiders import {kind} as Base\n\n\nclass One(Base):\n    name = 'one'\n"
        )
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
    pages = re.search(r'"pages": (\d+)', done.stderr)
    if done.returncode or pages is None or int(pages[1]) != wanted:
        raise ChildError(done.stderr[-3000:])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = origin.stats()["span_s"]
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "rate": wanted / seconds, "load": load, "cpu": cpu}


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=1500)
    parser.add_argument("--ms", type=float, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    return parser.parse_args()


def _table(variants):
    rows = []
    for (kind, count), found in variants.items():
        ratios = [
            one["seconds"] / each["seconds"]
            for one, each in zip(variants[kind, 1], found, strict=True)
        ]
        rows.append(
            (
                kind, str(count), f"{median([one['rate'] for one in found]):.0f}",
                f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                f"{median([one['cpu_ms_page'] for one in found]):.2f}",
                f"{median(_by_cpu(variants[kind, 1], found, count)):.2f}",
                ", ".join(f"{one['load']:.1f}" for one in found),
            )
        )  # fmt: skip
    return table(
        (
            "spider",
            "processes",
            "pages/s",
            "of one process",
            "CPU ms/page",
            "by CPU",
            "load before",
        ),
        rows,
    )


def _by_cpu(alone, found, count):
    return [
        count * one["cpu_ms_page"] / each["cpu_ms_page"]
        for one, each in zip(alone, found, strict=True)
    ]


if __name__ == "__main__":
    main()
