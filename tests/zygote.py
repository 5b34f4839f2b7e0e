"""Forks processes that have imported Scrapy and this package already; ``tests.nodes`` asks it.

Commands are lines of JSON on its standard input, answers lines on its standard output::

    {"run": [arguments of python], "folder": ..., "log": ...}     -> the process id
    {"poll": process id}                                          -> its status, or null

It ends with its standard input. A process that it forked is its child: nobody else gets the status.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
from importlib import import_module
from typing import Any

#: What a crawl imports; nothing of it may install a reactor or start a thread.
_MODULES = (
    "redis", "scrapy.cmdline", "scrapy.commands.runspider", "scrapy.core.downloader",
    "scrapy.core.engine", "scrapy.core.scraper", "scrapy.crawler", "scrapy.extensions.corestats",
    "scrapy.extensions.logstats", "scrapy.extensions.memusage", "scrapy.spiderloader",
    "netspy_scrapy.addon", "netspy_scrapy.redis.scheduler", "netspy_scrapy.redis.throttle",
    "netspy_scrapy.extensions.runtime", "netspy_scrapy.extensions.summary",
    "netspy_scrapy.spidermiddlewares.outcome", "netspy_scrapy.spidermiddlewares.start",
    "netspy_scrapy.spiders.redis", "netspy_scrapy.spiders.runner",
)  # fmt: skip


def main() -> None:
    for name in _MODULES:
        import_module(name)
    assert "twisted.internet.reactor" not in sys.modules
    gc.freeze()
    for line in sys.stdin:
        wish = json.loads(line)
        if "poll" in wish:
            pid, status = os.waitpid(wish["poll"], os.WNOHANG)
            answer: Any = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                _become(wish["run"], wish["folder"], wish["log"])
                return
        print(json.dumps(answer), flush=True)


def _become(arguments: list[str], folder: str, log: str) -> None:
    """Be what ``python`` with these *arguments* would be; return once that is done."""
    os.chdir(folder)
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(source, target)
    sys.path.insert(0, folder)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
