"""What each client measures about itself, and its command line."""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import sys
import time

from child import tell
from memory import Peak


class Meter(Peak):
    """Counts items, CPU time and seconds from the first request to the end of the crawl."""

    def __init__(self):
        self.items = 0
        self.failed = 0
        self._cpu = 0.0
        self._begun = 0.0

    def begin(self):
        """The first request is about to be made: imports and the start-up are over."""
        super().begin()
        self._cpu = time.process_time()
        self._begun = time.monotonic()

    def report(self):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        tell(
            {
                "items": self.items,
                "failed": self.failed,
                "cpu_s": time.process_time() - self._cpu,
                "wall_s": time.monotonic() - self._begun,
                "rss_mb": peak / (2**20 if sys.platform == "darwin" else 1024),
                "growth_mb": self.growth_mb(),
            }
        )


def parser():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--url", required=True, help="with {n}")
    arguments.add_argument("--pages", type=int, required=True)
    arguments.add_argument(
        "--set", action="append", default=[], metavar="KEY=JSON", help="a setting"
    )
    arguments.add_argument("--profile", metavar="FILE", help="write cProfile's table by own time")
    return arguments


def urls(options):
    return (options.url.replace("{n}", str(number)) for number in range(options.pages))


def settings_of(options):
    pairs = (one.split("=", 1) for one in options.set)
    return {name: json.loads(value) for name, value in pairs}


def profiled(options, function):
    """Call *function*, under cProfile if that was asked for."""
    if not options.profile:
        function()
        return
    profile = cProfile.Profile()
    profile.runcall(function)
    with open(options.profile, "w", encoding="utf-8") as file:  # noqa: PTH123
        pstats.Stats(profile, stream=file).sort_stats("tottime").print_stats(60)
