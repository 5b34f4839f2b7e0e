"""What the parts of one crawl share."""

from __future__ import annotations

import logging
import math
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import signals

from netspy_scrapy import _scrapy
from netspy_scrapy._scrapy.receiving import Bodies
from netspy_scrapy.acceptance import Acceptance
from netspy_scrapy.cache.crawl import ResponseCache
from netspy_scrapy.dedup.item_filter import ItemFilter
from netspy_scrapy.dumps.items import ItemDump
from netspy_scrapy.dumps.requests import RequestDump
from netspy_scrapy.durable import WhenDurable
from netspy_scrapy.escapes import Escapes
from netspy_scrapy.failures import Failures
from netspy_scrapy.incremental.crawl import Incremental
from netspy_scrapy.limits import Limits
from netspy_scrapy.pipelines.batcher import Batcher
from netspy_scrapy.pipelines.intake import Intake
from netspy_scrapy.politeness import Politeness
from netspy_scrapy.receipts import Receipts
from netspy_scrapy.settings import (
    CacheSettings,
    DedupSettings,
    DumpSettings,
    RetrySettings,
    SinkSettings,
)
from netspy_scrapy.stopping import Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector

    from netspy_scrapy.pipelines.batcher import Storage
    from netspy_scrapy.redis.connection import Connection
    from netspy_scrapy.report.history import History
    from netspy_scrapy.spidermiddlewares.replay import ReplayOrder

logger = logging.getLogger(__name__)

_ATTRIBUTE = "_netspy_context"


class CrawlContext:
    """The objects that several parts of a crawl use, made when the first part asks.

    One per crawler, so two crawls in a process never meet; any part works without the others.
    """

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.sink_failed = False
        """Whether rows could be neither stored nor dumped."""
        self.from_scheduler: WeakSet[Request] = WeakSet()
        """Requests that our scheduler handed out, and so takes back when they must wait."""
        self.replay_order: ReplayOrder | None = None
        """What a command wants to be replayed."""
        self.has_scheduler = False
        """Whether the crawl's scheduler is ours."""
        self.stop = Stop()

        self.history: History | None = None
        """What collects for the report; None: none is wanted."""

        self.on_queued: Callable[[Request], None] | None = None
        """Who wants to know what our scheduler has queued, if anybody does."""

    def owns(self, request: Request) -> bool:
        """Tell whether the crawl answers for *request*, rather than the code that awaits it."""
        return not self.has_scheduler or request in self.from_scheduler

    @classmethod
    def of(cls, crawler: Crawler) -> CrawlContext:
        """Return the context of *crawler*."""
        context: CrawlContext | None = crawler.__dict__.get(_ATTRIBUTE)
        if context is None:
            context = cls(crawler)
            crawler.__dict__[_ATTRIBUTE] = context
        return context

    @property
    def stats(self) -> StatsCollector:
        """The crawl's stats."""
        stats = self.crawler.stats
        assert stats is not None
        return stats

    @property
    def spider_name(self) -> str:
        """The spider's name, as dump lines give it."""
        return str(getattr(self.crawler.spider or self.crawler.spidercls, "name", ""))

    @cached_property
    def retry_settings(self) -> RetrySettings:
        """The retry policy."""
        return RetrySettings.from_settings(self.crawler.settings)

    @cached_property
    def dump_settings(self) -> DumpSettings:
        """The dump files."""
        return DumpSettings.from_settings(self.crawler.settings)

    @cached_property
    def sink_settings(self) -> SinkSettings:
        """What all sinks share."""
        return SinkSettings.from_settings(self.crawler.settings)

    @cached_property
    def item_dump(self) -> ItemDump:
        """Where rows go that could not be stored."""
        return ItemDump(self.dump_settings.item_path, self.spider_name)

    @cached_property
    def request_dump(self) -> RequestDump:
        """Where requests go that failed for good, or were not done at a stop."""
        dump = RequestDump(self.dump_settings.request_path, self.crawler, self.mark_rose)
        self.crawler.signals.connect(dump.close, signals.spider_closed, weak=False)
        return dump

    @cached_property
    def failures(self) -> Failures:
        """The one place that counts and dumps what failed or was dropped."""
        return Failures(self)

    @cached_property
    def receipts(self) -> Receipts:
        """What tells when a page's outcome is safe; asking for it switches it on for the crawl."""
        return Receipts(self)

    @property
    def receipts_in_use(self) -> Receipts | None:
        """The receipts, if a feature has asked for them."""
        return self.politeness.receipts

    def mark_rose(self) -> None:
        """Note that more rows or dump lines are durable."""
        if self.receipts_in_use is not None:
            self.receipts.look()
        self.when_durable.look()

    @cached_property
    def when_durable(self) -> WhenDurable:
        """What tells the job directory when a request's outcome is durable."""
        return WhenDurable(lambda: [*self.intake.batchers, self.request_dump])

    @cached_property
    def incremental(self) -> Incremental:
        """What is known of pages from earlier runs."""
        return Incremental.from_context(self)

    @cached_property
    def politeness(self) -> Politeness:
        """What is kept to at each domain."""
        return Politeness(self)

    @cached_property
    def cache(self) -> ResponseCache | None:
        """The response cache; None: it is off."""
        settings = CacheSettings.from_settings(self.crawler.settings)
        return ResponseCache(self, settings) if settings.enabled else None

    @cached_property
    def acceptance(self) -> Acceptance:
        """Which statuses reach the callback."""
        return Acceptance(self)

    @cached_property
    def limits(self) -> Limits:
        """The size and the types that are received."""
        return Limits(self.crawler)

    @cached_property
    def bodies(self) -> Bodies | None:
        """What holds bodies to NETSPY_MAX_INFLIGHT_BYTES; None: nothing does."""
        limit = self.limits.settings.max_inflight
        if not limit:
            return None
        return Bodies(
            self.crawler, limit, is_cut=lambda: self.politeness.is_cut, is_queued=self.owns
        )

    @cached_property
    def redis(self) -> Connection:
        """The connection to Redis; nothing is sent before the first call."""
        # Imported here, as what nobody uses costs nothing.
        from netspy_scrapy.redis.connection import Connection  # noqa: PLC0415
        from netspy_scrapy.redis.options import RedisSettings  # noqa: PLC0415

        settings = RedisSettings.from_settings(self.crawler.settings)
        connection = Connection(settings, lambda: self.stop.left(math.inf))
        self.crawler.signals.connect(connection.close, signals.engine_stopped, weak=False)
        return connection

    @cached_property
    def item_filter(self) -> ItemFilter | None:
        """What is known of the items that were stored; None: items are not filtered."""
        dedup = DedupSettings.from_settings(self.crawler.settings)
        if not dedup.items:
            return None
        run = str(self.crawler.settings.get("NETSPY_PROCESS_RUN") or "")
        if not dedup.shared and not run:
            return ItemFilter.from_crawler(self.crawler)
        from netspy_scrapy.dedup.redis_store import redis_store  # noqa: PLC0415 - see redis
        from netspy_scrapy.dedup.shared_filter import SharedItemFilter  # noqa: PLC0415

        if not dedup.shared:  # the processes of one run know together what one would know
            dedup = dedup.of_run(run)
        store = redis_store(dedup, self.redis, self.spider_name, "items")
        return SharedItemFilter(store, self.redis, self.stats)

    @cached_property
    def intake(self) -> Intake:
        """What happens to an item before the first sink."""
        return Intake(self.crawler, self.sink_settings, self.item_filter)

    @cached_property
    def escapes(self) -> Escapes:
        """What makes failures of whatever user code raises."""
        return Escapes(self.crawler)

    def new_batcher(
        self, sink: Storage, name: str, path: str, opener: Callable[[], Any] | None = None
    ) -> Batcher:
        """Make the batches of one sink."""
        item_filter = self.item_filter
        asks = item_filter is not None and not item_filter.decides_at_once
        return Batcher(
            sink,
            name=name,
            path=path,
            settings=self.sink_settings,
            dump=self.item_dump,
            stats=self.stats,
            on_stuck=self._on_stuck,
            on_mark=self.mark_rose,
            opener=opener,
            ask=item_filter.ask if item_filter is not None and asks else None,
        )

    def _on_stuck(self) -> None:
        if not self.sink_failed:
            self.sink_failed = True
            logger.error(
                "Rows can be neither stored nor dumped: the crawl stops. What is held is tried "
                "once more at the end",
                extra={"spider": self.crawler.spider},
            )
            _scrapy.fail_exit(self.crawler)
            _scrapy.close_spider(self.crawler, "sink_failed")
