"""A netspy spider: of this package, or of netspy itself."""

from __future__ import annotations

import os
from importlib import import_module
from typing import ClassVar

from client import begin, links, options, report, row

os.environ.setdefault("NETSPY_LOG_LEVEL", "CRITICAL")  # netspy reads it when it is imported
mw = import_module(options.package)


class DocsSpider(mw.Spider if options.node else mw.AirSpider):
    name = "docs"
    __custom_setting__: ClassVar = options.settings

    def start_requests(self):
        begin()
        yield mw.Request(options.url)

    def parse(self, request, response):
        yield row(response)
        for url in links(response):
            yield mw.Request(url)


begin()  # a second node runs no start_requests
DocsSpider().start()
report()
