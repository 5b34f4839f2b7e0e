"""Memory and traffic of bodies of 200 MB, under a limit of 32 MiB: this package, netspy, Scrapy.

::

    python benchmarks/bounds/run.py [--mb 200] [--runs 3] [--json FILE]

Each cell is a process of its own that fetches one such body, or four at once. *MB* is the growth of
its resident memory at the peak, over what it was before the first request; *sent* what the site got
rid of, socket buffers included.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common import ChildError, Origin, in_turns, median, run_child, table, write_json  # noqa: E402

LIMIT = 32 * 2**20
BUDGET = 64 * 2**20
#: MB that a socket of the loopback buffers at most, on both sides together.
_SOCKET_MB = 6.0

#: Mode, how many at once, largest growth in MB, most MB sent.
ROWS = {
    "declared": ("declared", 1, 2.0, _SOCKET_MB),
    "chunked": ("chunked", 1, 36.0, LIMIT / 1e6 + _SOCKET_MB),
    "gzip": ("gzip", 1, 36.0, 0.25),
    "four gzip at once": ("gzip", 4, 100.0, 1.0),
    "four chunked at once": ("chunked", 4, 100.0, None),
}
_ADDON = {"ADDONS": {"netspy_scrapy.Addon": 500}}
CLIENTS = {
    "add-on": ("scrapy", {**_ADDON, "MAX_RESPONSE_SIZE": LIMIT}),
    "add-on, budget 64 MiB": (
        "scrapy", {**_ADDON, "MAX_RESPONSE_SIZE": LIMIT, "NETSPY_MAX_INFLIGHT_BYTES": BUDGET}
    ),
    "netspy spider, budget 64 MiB": ("facade", {"NETSPY_MAX_INFLIGHT_BYTES": BUDGET}),
    "netspy": ("netspy", {"SPIDER_THREAD_COUNT": 4}),
    "Scrapy, DOWNLOAD_MAXSIZE": ("scrapy", {"DOWNLOAD_MAXSIZE": LIMIT}),
}  # fmt: skip


def main():
    options = _options()
    clients = list(CLIENTS)
    if find_spec("netspy") is None:
        print("netspy is not installed: it is left out", file=sys.stderr)
        clients.remove("netspy")
    results = {(row, client): [] for row in ROWS for client in clients}
    with Origin(HERE / "target.py") as target:
        for run, (row, client) in in_turns(list(results), options.runs):
            found = _measure(target, row, client, options)
            results[row, client].append(found)
            print(f"{run + 1} {row}, {client}: {found}", file=sys.stderr, flush=True)
    print(_table(results, clients, options))
    if options.json:
        write_json(options.json, [[*cell, found] for cell, found in results.items()])


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    return parser.parse_args()


def _measure(target, row, client, options):
    mode, at_once, _, _ = ROWS[row]
    name, settings = CLIENTS[client]
    before = target.stats()
    found = run_child(
        [
            sys.executable, str(HERE / f"{name}_client.py"), "--at-once", str(at_once),
            "--url", target.url(f"/big?mode={mode}&mb={options.mb}&n={{n}}"),
            "--settings", json.dumps(settings),
        ]
    )  # fmt: skip
    time.sleep(0.2)
    sent = (target.stats()["sent"] - before["sent"]) / 1e6
    if (found["pages"], found["failures"]) != (0, at_once):
        raise ChildError(f"{client}, {row}: every body is too large, but {found}")
    return {"growth_mb": round(found["growth_mb"], 1), "sent_mb": round(sent, 1)}


def _table(results, clients, options):
    head = ("", *(f"{row}: MB / sent" for row in ROWS))
    rows = []
    for client in clients:
        cells = []
        for row in ROWS:
            found = results[row, client]
            growth = median([one["growth_mb"] for one in found])
            sent = median([one["sent_mb"] for one in found])
            cells.append(f"{growth:.1f} / {sent:.1f}")
        rows.append((client, *cells))
    target = (
        f"<= {growth:g} / {'-' if sent is None else f'<= {sent:.1f}'}"
        for _, _, growth, sent in ROWS.values()
    )
    rows.append(("target", *target))
    return f"bodies of {options.mb} MiB, limit 32 MiB, medians of {options.runs} runs\n" + table(
        head, rows
    )


if __name__ == "__main__":
    main()
