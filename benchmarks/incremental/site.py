"""A site of large pages with ETags, of which some change overnight; started by run.py.

``/page/<n>`` answers after LATENCY with SIZE bytes of HTML, or with 304 if If-None-Match has its
ETag. ``/ctl/day/<k>`` begins day *k*: every 20th page is another one than on day 1. ``/ctl/stats``
has the bytes of bodies and the number of 304s besides.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from origin import FILLER, Connection, Server, main

SIZE = 420 * 1024
LATENCY = 0.35
CHANGES_EVERY = 20
ASKED = re.compile(rb"(?im)^if-none-match: *([^\r\n]*)")
BODY = FILLER * (SIZE // len(FILLER) + 1)


class Pages(Connection):
    def read(self):
        self.head, end, _ = self.buffer.partition(b"\r\n\r\n")
        if end:
            super().read()

    def handle(self, target):
        if target.startswith("/page/"):
            self.server.counts.arrived(self.id)
            asked = ASKED.search(self.head)
            asyncio.get_running_loop().call_later(
                LATENCY, self.send, int(target[6:]), asked[1] if asked else None
            )
        elif target.startswith("/ctl/day/"):
            self.server.day = int(target[9:])
            self.answer(b"{}", kind=b"application/json")
        else:
            super().handle(target)

    def send(self, number, asked):
        day = self.server.day if number % CHANGES_EVERY == 0 else 1
        etag = b'"page-%d-day-%d"' % (number, day)
        counts = self.server.counts
        if asked == etag:
            counts.unchanged = getattr(counts, "unchanged", 0) + 1
            self.write(b"304 Not Modified", etag, b"")
        else:
            head = b"<!doctype html><title>Page %d, day %d</title>" % (number, day)
            counts.bytes = getattr(counts, "bytes", 0) + SIZE
            self.write(b"200 OK", etag, head + BODY[: SIZE - len(head)])

    def write(self, status, etag, body):
        if not self.transport.is_closing():
            length = b"" if status.startswith(b"304") else b"Content-Length: %d\r\n" % len(body)
            self.transport.write(
                b"HTTP/1.1 %s\r\nContent-Type: text/html; charset=utf-8\r\nETag: %s\r\n%s\r\n"
                % (status, etag, length)
            )
            self.transport.write(body)
        self.busy = False
        if self.buffer:
            asyncio.get_running_loop().call_soon(self.read)


class Site(Server):
    connection = Pages
    day = 1

    def stats(self):
        return {
            **super().stats(),
            "bytes": getattr(self.counts, "bytes", 0),
            "unchanged": getattr(self.counts, "unchanged", 0),
        }


if __name__ == "__main__":
    main(Site())
