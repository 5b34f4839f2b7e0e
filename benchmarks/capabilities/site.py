"""The site of ``run.py``: that of all benchmarks, with an ETag on each page.

``/page/<n>`` answers 304 to its own ETag; ``/gone/<n>`` is a 404, ``/robots.txt`` allows all.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from origin import Connection, Server, main

ETAG = b'"1"'


class Tagged(Connection):
    def read(self):
        self.conditional = b"if-none-match:" in self.buffer.partition(b"\r\n\r\n")[0].lower()
        super().read()

    def answer(self, body, *, status=b"200 OK", kind=b"text/html; charset=utf-8"):
        if status == b"200 OK":
            kind += b"\r\nETag: " + ETAG
            if self.conditional:
                body, status = b"", b"304 Not Modified"
        super().answer(body, status=status, kind=kind)

    def handle(self, target):
        if target == "/robots.txt":
            self.answer(b"User-agent: *\nDisallow: /private\n", kind=b"text/plain")
        else:
            super().handle(target)


class TaggedServer(Server):
    connection = Tagged


if __name__ == "__main__":
    main(TaggedServer())
