"""What the processes share that are measured: they run a crawl, and tell what they found."""

from __future__ import annotations

import json

#: A child tells what it measured about itself in one line that begins with this.
MARK = "BENCH "


def tell(found):
    """Hand *found* to the benchmark, see :func:`common.run_child`."""
    print(MARK + json.dumps(found), flush=True)


def crawl(spider, settings):
    """Run a Scrapy spider to its end."""
    from scrapy.crawler import AsyncCrawlerProcess  # noqa: PLC0415 - clients of netspy need none

    process = AsyncCrawlerProcess(
        {"LOG_LEVEL": "WARNING", "TELNETCONSOLE_ENABLED": False, **settings}
    )
    process.crawl(spider)
    process.start()
