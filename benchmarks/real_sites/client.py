"""What the two spiders share: their command line, which links they follow, what they tell."""

from __future__ import annotations

import argparse
import json
import time
from typing import ClassVar

from child import tell

arguments = argparse.ArgumentParser()
arguments.add_argument("--url", required=True, help="of the first page")
arguments.add_argument("--settings", type=json.loads, default={}, metavar="JSON")
arguments.add_argument("--package", choices=["netspy_scrapy", "netspy"], default="netspy_scrapy")
arguments.add_argument("--node", action="store_true", help="shares the work by Redis")
arguments.add_argument("--keyed", action="store_true", help="a row replaces that of the same page")
options = arguments.parse_args()

site = options.url.rpartition("/")[0] + "/"
begun = [0.0, 0.0]


def begin():
    """The first request is about to be made."""
    begun[:] = time.monotonic(), time.process_time()


def row(response):
    found = {"path": response.url[len(site) :], "title": response.css("title::text").get()}
    return keyed(found) if options.keyed else found


def keyed(found):
    from netspy_scrapy import Item  # noqa: PLC0415 - netspy's spiders do without

    class Page(Item):
        __unique_key__: ClassVar = ["path"]

    return Page(found)


def links(response):
    """Return the URLs of the site's pages that a page links to, each once."""
    urls = (response.urljoin(href.strip()) for href in response.css("a::attr(href)").getall())
    pages = (url.partition("#")[0] for url in urls)
    return dict.fromkeys(url for url in pages if url.startswith(site) and url.endswith(".html"))


def report():
    tell({"seconds": time.monotonic() - begun[0], "cpu_s": time.process_time() - begun[1]})
