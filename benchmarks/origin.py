"""The web site that the benchmarks crawl, as a process of its own.

``python benchmarks/origin.py`` binds a free port on 127.0.0.1 and 127.0.0.2, prints
``READY <port>`` and serves HTTP/1.1 with keep-alive until its standard input closes, so it ends
with whatever started it.
With uvloop, which it uses if it can, a page costs it 0.03 to 0.06 ms of CPU time, a twentieth of
what it costs a crawler: it is the crawler that is measured.

``/page/<n>``
    1 KB of HTML with the title ``Page n`` and five links. ``?ms=100``: after that many
    milliseconds.
``/ctl/reset``
    Forgets what was counted.
``/ctl/stats``
    JSON: requests, connections, seconds from the first arrival to the last, CPU seconds.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
import time
from urllib.parse import parse_qsl

PAGE_SIZE = 1024
MAX_LIFE = 3 * 3600
FILLER = b"<p>lorem ipsum dolor sit amet, consectetur adipiscing elit 0123456789</p>\n" * 16


class Counts:
    """What arrived since the last reset."""

    def __init__(self):
        self.requests = 0
        self.connections = set()
        self.first = self.last = 0.0

    def arrived(self, connection):
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.requests += 1
        self.connections.add(connection)


def page(number):
    links = b"".join(
        b'<li><a href="/page/%d">page %d</a></li>\n' % (number + step, number + step)
        for step in range(1, 6)
    )
    head = b"<!doctype html><html><head><title>Page %d</title></head><body><ul>\n%s</ul>" % (
        number, links
    )  # fmt: skip
    tail = b"</body></html>"
    return head + FILLER[: PAGE_SIZE - len(head) - len(tail)] + tail


class Connection(asyncio.Protocol):
    """One connection; its answers go out in the order of its requests."""

    number = 0

    def __init__(self, server):
        Connection.number += 1
        self.id = Connection.number
        self.server = server
        self.buffer = b""
        self.busy = False

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.buffer += data
        if not self.busy:
            self.read()

    def read(self):
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        if end:
            self.buffer = rest
            self.busy = True
            self.handle(head.split(b" ", 2)[1].decode("latin-1"))

    def handle(self, target):
        path, _, query = target.partition("?")
        if path.startswith("/page/"):
            self.server.counts.arrived(self.id)
            body = page(int(path[6:]))
            wait = float(dict(parse_qsl(query)).get("ms", 0)) / 1000
            if wait:
                asyncio.get_running_loop().call_later(wait, self.answer, body)
            else:
                self.answer(body)
        elif path == "/ctl/reset":
            self.server.counts = Counts()
            self.answer(b"{}", kind=b"application/json")
        elif path == "/ctl/stats":
            self.answer(json.dumps(self.server.stats()).encode(), kind=b"application/json")
        else:
            self.answer(b"no such page", status=b"404 Not Found")

    def answer(self, body, *, status=b"200 OK", kind=b"text/html; charset=utf-8"):
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
                % (status, kind, len(body), body)
            )
        self.busy = False
        if self.buffer:
            asyncio.get_running_loop().call_soon(self.read)


class Server:
    """The site, and what it counts."""

    hosts = ("127.0.0.1", "127.0.0.2")
    connection = Connection

    def __init__(self):
        self.counts = Counts()

    def stats(self):
        used = resource.getrusage(resource.RUSAGE_SELF)
        counts = self.counts
        return {
            "requests": counts.requests,
            "connections": len(counts.connections),
            "span_s": counts.last - counts.first,
            "cpu_s": used.ru_utime + used.ru_stime,
        }

    async def serve(self):
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def wait_for_end():
            sys.stdin.read()
            loop.call_soon_threadsafe(over.set)

        threading.Thread(target=wait_for_end, daemon=True).start()
        servers = []
        port = 0
        for host in self.hosts:
            server = await loop.create_server(
                lambda: self.connection(self), host, port, backlog=2048
            )
            servers.append(server)
            port = server.sockets[0].getsockname()[1]
        print("READY", port, flush=True)
        loop.call_later(MAX_LIFE, over.set)
        await over.wait()
        for server in servers:
            server.close()


def main(server):
    try:
        import uvloop  # noqa: PLC0415 - may be missing
    except ImportError:
        asyncio.run(server.serve())
    else:
        loop = uvloop.new_event_loop()
        loop.run_until_complete(server.serve())


if __name__ == "__main__":
    main(Server())
