"""A site with bodies that no crawler should take in whole; counts what it got rid of.

``/big?mode=declared&mb=200``
    A body of that size: ``declared`` (with ``Content-Length``), ``chunked``, or ``gzip`` (200 KB
    that open to it).
``/ctl/stats``
    As ``origin.py``, and ``sent``: bytes of bodies that the system took from the site, up to 64 KiB
    a connection too few. They are on their way or received; what a socket buffers counts.
"""

from __future__ import annotations

import functools
import sys
import zlib
from pathlib import Path
from urllib.parse import parse_qsl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from origin import FILLER, Connection, Server, main

MB = 2**20
PIECE = (FILLER * 64)[: 64 * 1024]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"


@functools.cache
def bomb(size):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(bytes(MB)) for _ in range(size // MB)]
    return b"".join([*parts, packer.flush()])


class BigConnection(Connection):
    """One connection; it writes as fast as the client reads."""

    left = 0
    chunked = False
    waiting = 0

    def connection_made(self, transport):
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)

    def handle(self, target):
        path, _, query = target.partition("?")
        if path != "/big":
            super().handle(target)
            return
        self.server.counts.arrived(self.id)
        wish = dict(parse_qsl(query))
        size = int(wish["mb"]) * MB
        if wish["mode"] == "gzip":
            body = bomb(size)
            self.transport.write(
                HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
            self.put(body)
            self.done()
            return
        self.chunked = wish["mode"] == "chunked"
        framing = b"Transfer-Encoding: chunked" if self.chunked else b"Content-Length: %d" % size
        self.transport.write(HEAD + framing + b"\r\n\r\n")
        self.left = size
        self.go_on()

    def put(self, piece):
        self.transport.write(piece)
        if self.transport.get_write_buffer_size():
            self.waiting = len(piece)
        else:
            self.server.sent += len(piece)

    def go_on(self):
        while self.left and not self.waiting and not self.transport.is_closing():
            piece = PIECE[: self.left]
            self.left -= len(piece)
            self.put(b"%x\r\n%s\r\n" % (len(piece), piece) if self.chunked else piece)
            if not self.left:
                if self.chunked:
                    self.transport.write(b"0\r\n\r\n")
                self.done()

    def resume_writing(self):
        self.server.sent += self.waiting
        self.waiting = 0
        self.go_on()

    def done(self):
        self.busy = False


class Target(Server):
    """The site, and what it got rid of."""

    connection = BigConnection

    def __init__(self):
        super().__init__()
        self.sent = 0

    def stats(self):
        return {**super().stats(), "sent": self.sent}


if __name__ == "__main__":
    main(Target())
