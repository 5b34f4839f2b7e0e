"""What the clients share: their command line, and what they report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from memory import Peak


class Client(Peak):
    """Fetches one URL a number of times at once."""

    def __init__(self):
        arguments = argparse.ArgumentParser()
        arguments.add_argument("--url", required=True, help="with {n}")
        arguments.add_argument("--at-once", type=int, required=True)
        arguments.add_argument("--settings", type=json.loads, default={}, metavar="JSON")
        options = arguments.parse_args()
        self.settings = options.settings
        self.at_once = options.at_once
        self._url = options.url
        self.pages = self.failures = 0

    def urls(self):
        """Yield the URLs; the memory is measured from here on."""
        self.begin()
        for number in range(self.at_once):
            yield self._url.replace("{n}", str(number))

    def report(self):
        found = {"growth_mb": self.growth_mb(), "pages": self.pages, "failures": self.failures}
        print("BENCH", json.dumps(found), flush=True)
