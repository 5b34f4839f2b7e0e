"""Many hosts that ask for rests or for delays, and note when each request arrived.

Serves on 127.0.0.1 to 127.0.0.250, one port, as ``origin.py`` does (Linux has all these addresses).

``/page/<n>?ms=200``
    A page after that many milliseconds.
``/rest/<n>?seconds=900&ms=20``
    429 with ``Retry-After``, always.
``/window/<n>?seconds=2&ms=20``
    429 with ``Retry-After`` until so long after the host's first request, then a page.
``/robots.txt``
    ``Crawl-delay: 0.5`` on 127.0.0.31 to 127.0.0.39, 404 elsewhere.
``/ctl/log``
    All arrivals since the last reset: [time (monotonic clock), host, path, status, connection, time
    of the answer].
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from urllib.parse import parse_qsl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from origin import Connection, Counts, Server, main, page

ROBOTS = b"User-agent: *\nCrawl-delay: 0.5\n"


class Log(Counts):
    """Every arrival, and when each host was first asked."""

    def __init__(self):
        super().__init__()
        self.entries = []
        self.asked = {}


class PoliteConnection(Connection):
    """One connection to one of the hosts."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self.host = transport.get_extra_info("sockname")[0]

    def handle(self, target):
        path, _, query = target.partition("?")
        if path == "/ctl/reset":
            self.server.counts = Log()
            self.answer(b"{}", kind=b"application/json")
        elif path == "/ctl/log":
            entries = self.server.counts.entries
            self.answer(json.dumps(entries).encode(), kind=b"application/json")
        elif path == "/robots.txt":
            delay = self.host.startswith("127.0.0.3") and len(self.host) == len("127.0.0.31")
            status = b"200 OK" if delay else b"404 Not Found"
            self.note(path, int(status[:3]))
            self.answer(ROBOTS if delay else b"", status=status, kind=b"text/plain")
        elif path.startswith(("/page/", "/rest/", "/window/")):
            self.reply_later(path, dict(parse_qsl(query)))
        else:
            super().handle(target)

    def reply_later(self, path, query):
        now = time.monotonic()
        _, kind, number = path.split("/")
        first = self.server.counts.asked.setdefault(self.host, now)
        refuses = kind == "rest" or (kind == "window" and now - first < float(query["seconds"]))
        if refuses:
            after = query["seconds"].encode()
            status, body = b"429 Too Many Requests\r\nRetry-After: " + after, b"slow down"
        else:
            status, body = b"200 OK", page(int(number))
        entry = self.note(path, int(status[:3]))
        wait = float(query.get("ms", 0)) / 1000
        asyncio.get_running_loop().call_later(wait, self.reply, entry, status, body)

    def note(self, path, status):
        self.server.counts.arrived(self.id)
        now = self.server.counts.last
        entry = [now, self.host, path, status, self.id, now]
        self.server.counts.entries.append(entry)
        return entry

    def reply(self, entry, status, body):
        entry[5] = time.monotonic()
        self.answer(body, status=status)


class Site(Server):
    """The hosts."""

    hosts = tuple(f"127.0.0.{number}" for number in range(1, 251))
    connection = PoliteConnection

    def __init__(self):
        super().__init__()
        self.counts = Log()


if __name__ == "__main__":
    main(Site())
