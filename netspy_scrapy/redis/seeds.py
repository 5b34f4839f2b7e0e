"""Start URLs that others push into Redis, as scrapy-redis' spiders take them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from scrapy import Request

from netspy_scrapy.redis.settings import seeds_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Spider
    from scrapy.crawler import Crawler


class Seeds:
    """The start URLs of a spider with a ``redis_key``: a list, a set or a sorted set.

    They become tasks of the queue in one step, so a node that dies loses none. A spider of
    scrapy-redis no longer asks for them itself, which it does on the event loop; what it makes of
    them (``make_request_from_data``) and when it ends (MAX_IDLE_TIME_BEFORE_CLOSE) stays its own.
    """

    def __init__(self, crawler: Crawler, spider: Spider) -> None:
        self.key = seeds_key(crawler.settings, spider)
        self._spider: Any = spider
        self._is_theirs = hasattr(spider, "setup_redis")
        if self.key and self._is_theirs:
            spider.fetch_data = _nothing  # type: ignore[attr-defined]
            spider.count_size = _none  # type: ignore[attr-defined]
            # It counts from when its module was imported.
            spider.spider_idle_start_time = int(time.time())  # type: ignore[attr-defined]

    def requests(self, data: bytes) -> Iterable[Request]:
        """Return the requests of one start URL; raises what the spider raises."""
        if self._is_theirs:
            self._spider.spider_idle_start_time = int(time.time())
        made = self._spider.make_request_from_data(data)
        if made is None:
            return []
        return [made] if isinstance(made, Request) else list(made)


def _nothing(*_: Any) -> list[bytes]:
    return []


def _none(*_: Any) -> int:
    return 0
