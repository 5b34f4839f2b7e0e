"""The origin, with pages of which a script writes a part; started by run.py.

``/page/<n>?js``: as ``/page/<n>``, but its text is "after" once the script has run.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from origin import FILLER, Connection, Server, main

SCRIPTED = (
    b"<!doctype html><title>js</title><p id=text>before</p><script>"
    b"document.getElementById('text').textContent = 'after';"
    b"window.held = new Array(200000).fill(location.href);</script>" + FILLER
)


class Pages(Connection):
    def handle(self, target):
        if target.endswith("?js"):
            self.server.counts.arrived(self.id)
            self.answer(SCRIPTED)
        else:
            super().handle(target)


class Site(Server):
    connection = Pages


if __name__ == "__main__":
    main(Site())
