"""What a crawl of a folder of HTML has to find: the pages that links lead to, from the disk."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

_NO_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


@dataclass
class Site:
    """A folder of HTML, as its links show it from one page on."""

    pages: set[str] = field(default_factory=set)
    """Paths of pages that are there."""
    broken: set[str] = field(default_factory=set)
    """Paths that are linked, and not there."""


class _Links(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.found += [value for name, value in attributes if name == "href" and value]


def read(root, first="index.html"):
    """Follow the links of all pages under *root*, beginning with *first*."""
    site = Site()
    waiting = [first]
    known = {first}
    while waiting:
        path = waiting.pop()
        file = Path(root) / unquote(path)
        # Servers refuse a URL with a "%" that begins no escape (operator%.html).
        if _NO_ESCAPE.search(path) or not file.is_file():
            site.broken.add(path)
            continue
        site.pages.add(path)
        for link in links(file.read_text(encoding="utf-8", errors="replace"), path):
            if link not in known:
                known.add(link)
                waiting.append(link)
    return site


def links(text, path):
    """Return the paths of the pages of the site that a page links to."""
    parser = _Links()
    parser.feed(text)
    parser.close()
    found = set()
    for href in parser.found:
        try:
            url = urlsplit(urldefrag(urljoin(f"http://site/{path}", href.strip())).url)
        except ValueError:  # no URL at all
            continue
        if url.netloc == "site" and url.path.endswith(".html") and not url.query:
            found.add(url.path.lstrip("/"))
    return found
