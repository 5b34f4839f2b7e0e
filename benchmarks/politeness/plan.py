"""What a client is told to crawl: one JSON object on its command line.

``settings``
    The crawler's settings.
``parts``
    Lists of [URL with ``{n}``, number of pages]. What is in one part takes turns, each in
    proportion to its number. All parts but the last are queued at once, the last is yielded by
    ``start()``.
``settle``
    Seconds between two parts.
``until``
    [start of URL, pages]: the client stops when the callback has seen so many. Null: at the end.
``limit``
    Seconds after which it stops whatever has happened.
``pause``
    Scrapy only: pause the download slot of whoever answers 429.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import threading

from child import tell


def read():
    return json.loads(sys.argv[1])


def urls(part):
    if len({pages for _, pages in part}) == 1:
        for number in range(part[0][1]):
            for url, _ in part:
                yield url.replace("{n}", str(number))
    else:
        yield from (url for _, url in heapq.merge(*(_spread(*one) for one in part)))


class Outcome:
    """Counts what reached the callback and what failed, and ends the process in time."""

    def __init__(self, plan):
        self.handled = 0
        self.failed = 0
        self._until = plan["until"]
        self._seen = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._stop_at, args=(plan["limit"],), daemon=True).start()

    def page(self, url):
        with self._lock:
            self.handled += 1
            if self._until and url.startswith(self._until[0]):
                self._seen += 1
                if self._seen == self._until[1]:
                    self._stop("done")

    def failure(self):
        with self._lock:
            self.failed += 1

    def report(self, end="idle"):
        tell({"handled": self.handled, "failed": self.failed, "end": end})

    def _stop_at(self, seconds):
        threading.Event().wait(seconds)
        with self._lock:
            self._stop("limit")

    def _stop(self, end):
        # An orderly end would wait for what rests.
        self.report(end)
        os._exit(0)


def _spread(url, pages):
    for number in range(pages):
        yield (number + 0.5) / pages, url.replace("{n}", str(number))
