"""The request filter that nodes share."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.request import referer_str

from netspy_scrapy.context import CrawlContext
from netspy_scrapy.dedup.redis_store import RedisStore, redis_store
from netspy_scrapy.dedup.request_filter import FILTERED
from netspy_scrapy.logs import shown
from netspy_scrapy.redis.settings import QueueSettings, keeps_alive, queue_name, rendered
from netspy_scrapy.settings import DedupSettings

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class RedisRequestFilter(BaseDupeFilter):
    """The fingerprints that a run, or a spider, has seen, in Redis; asked by RedisScheduler.

    Set it as ``DUPEFILTER_CLASS`` beside that scheduler, which records a fingerprint in the same
    step in which it queues the request. What makes two requests the same is up to
    REQUEST_FINGERPRINTER_CLASS. ``DEDUP_FILTER = "redis"`` makes it a bloom filter (4 bytes a
    request); else it is an exact set (about 80 bytes).

    Where the filter outlives the run, the fingerprint of a request that failed for good is
    forgotten, so that it may be tried again. Elsewhere it is not: a link that many pages have and
    that leads nowhere would be followed from each of them.

    It is forgotten when the run is over, unless RUN_ID names the run (then a week later),
    ``DEDUP_SCOPE = "spider"``, or SCHEDULER_PERSIST is on. Other settings:
    SCHEDULER_DUPEFILTER_KEY, DUPEFILTER_DEBUG. Stat: ``dupefilter/filtered``.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter that the crawler's settings ask for."""
        dedup = DedupSettings.from_settings(crawler.settings)
        queue = QueueSettings.from_settings(crawler.settings)
        context = CrawlContext.of(crawler)
        kind = dedup.kind if dedup.kind == "redis" else "redis-set"
        name = queue_name(crawler.spider)
        store = redis_store(replace(dedup, kind=kind), context.redis, name, "requests")
        if queue.filter_key:
            store.key = rendered("SCHEDULER_DUPEFILTER_KEY", queue.filter_key, name)
        ends = not (dedup.run or queue.persist or crawler.settings["DEDUP_SCOPE"] == "spider")
        endless = keeps_alive(crawler.settings)
        return cls(crawler, store, ends_with_run=ends, forgets_failed=endless or not ends)

    def __init__(
        self, crawler: Crawler, store: RedisStore, *, ends_with_run: bool, forgets_failed: bool
    ) -> None:
        self.store = store
        self.ends_with_run = ends_with_run
        self.forgets_failed = forgets_failed
        self._crawler = crawler
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._logged = False

    def fingerprint(self, request: Request) -> bytes:
        """Return what stands for *request* in the filter; empty: it is not filtered."""
        if request.dont_filter:
            return b""
        fingerprinter = self._crawler.request_fingerprinter
        assert fingerprinter is not None
        return fingerprinter.fingerprint(request)

    def log(self, request: Request, spider: Spider) -> None:
        """Count a filtered request, and log it: the first one only, without DUPEFILTER_DEBUG."""
        stats = self._crawler.stats
        assert stats is not None
        stats.inc_value(FILTERED)
        if self._debug or not self._logged:
            self._logged = True
            more = "" if self._debug else " - no more are shown (see DUPEFILTER_DEBUG)"
            logger.debug("Filtered duplicate request: %s (referer: %s)%s", shown(request),
                         referer_str(request), more, extra={"spider": spider})  # fmt: skip
