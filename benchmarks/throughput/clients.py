"""How the clients of this folder are called; other benchmarks crawl with them too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from common import ChildError, python_of_netspy, run_child

HERE = Path(__file__).resolve().parent

#: Client: its file, and what it is called with.
CLIENTS = {
    "scrapy": ["scrapy_client.py"],
    "facade": ["spider_client.py"],
    "netspy": ["spider_client.py", "--package", "netspy"],
}


def without_netspy(variants, report, options):
    """Return the names of *variants* that can be run: those of netspy only where it is."""
    if python_of_netspy(options):
        return list(variants)
    report.left_out("netspy, which is not installed (pip install netspy)")
    return [name for name, one in variants.items() if one.client != "netspy"]


def run_client(client, url, pages, settings, options, *, failed=0):
    """Crawl with a client; return what it reported. All pages have to be items, or *failed*."""
    python = python_of_netspy(options) if client == "netspy" else sys.executable
    file, *arguments = CLIENTS[client]
    command = [python, str(HERE / file), *arguments, "--url", url, "--pages", str(pages)]
    for name, value in settings.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    found = run_child(command)
    if (found["items"], found["failed"]) != (pages - failed, failed):
        raise ChildError(f"{pages} pages, but {found}: {command}")
    return found
