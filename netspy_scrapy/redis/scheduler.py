"""The scheduler of a node: a small ready queue in memory, filled from the queue in Redis."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING, Any, Final, cast

from scrapy import Request, signals
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import DontCloseSpider
from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.defer import deferred_from_coro

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy import stats as keys
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.http.request import Request as FacadeRequest
from netspy_scrapy.redis import payload
from netspy_scrapy.redis.exchange import Exchange, Outgoing, Question
from netspy_scrapy.redis.holder import Holder, waiting
from netspy_scrapy.redis.leases import Leases
from netspy_scrapy.redis.membership import Membership
from netspy_scrapy.redis.queue import Handed, Push, QueueNames, RedisQueue, Settle
from netspy_scrapy.redis.request_filter import RedisRequestFilter
from netspy_scrapy.redis.seeds import Seeds
from netspy_scrapy.redis.settings import (
    QueueSettings,
    keeps_alive,
    queue_base,
    queue_name,
)
from netspy_scrapy.retry import claim_budget
from netspy_scrapy.scheduling.queue import ReadyQueue
from netspy_scrapy.scheduling.scheduler import Scheduler
from netspy_scrapy.settings import DedupSettings, RuntimeSettings, read_bool, user_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapy import Spider
    from twisted.internet.defer import Deferred

    from netspy_scrapy.domains import DomainState
    from netspy_scrapy.receipts import Receipt

logger = logging.getLogger(__name__)

#: Tasks of one domain that a node takes at once at most; of one with a delay, one.
_WIDTH: Final = 16
#: Seconds by which a task may be here before its domain's delay has passed.
_EARLY: Final = 0.02
#: Tasks that may wait here for their domain's delay, at most.
_LATE: Final = 1000
#: Requests on their way to Redis above which start() and endless callbacks wait.
_UNSENT: Final = 1000
#: Seconds between two looks at what is not sent yet.
_LOOK: Final = 0.02
#: Seconds that what is left may take to reach Redis, where NETSPY_STOP_TIMEOUT sets no limit.
_DRAIN: Final = 60.0


class RedisScheduler(Scheduler):
    """Shares the work of a spider among all nodes (processes) that run it, by Redis.

    Requests are queued in Redis by domain. A node leases a few tasks at a time and puts them into
    a ready queue of its own, where they wait for their domain's delay, concurrency and robots.txt
    as on one machine; what would wait longer goes back. A task is acknowledged once its rows are
    stored (or dumped) and the requests that it yielded are in Redis; retries and redirects stay
    here, under the same lease. If a node dies, another one gets its tasks when the lease runs
    out.

    Settings: SPIDER_TASK_LEASE, COLLECTOR_TASK_COUNT, NETSPY_MAX_UNACKNOWLEDGED,
    NETSPY_MAX_DELIVERIES, REDIS_URL and others of Redis; and of scrapy-redis
    SCHEDULER_QUEUE_KEY, SCHEDULER_DUPEFILTER_KEY, SCHEDULER_PERSIST, SCHEDULER_FLUSH_ON_START,
    REDIS_START_URLS_KEY. Stats: ``netspy/queue/...``.
    """

    df: BaseDupeFilter
    checks_redis = True
    is_shared = True
    """Whether other nodes work on what is queued."""

    # Scrapy's interface --------------------------------------------------------------------------
    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the queue; the crawl does not start if it can never be used."""
        self._choose_filter()
        kind: Any = self.pqclass
        self.pqclass = (
            kind if ReadyQueue in getattr(kind, "__mro__", ()) else cast("Any", ReadyQueue)
        )
        self.mqclass, self._smqclass, self.dqdir = FifoMemoryQueue, None, None
        super().open(spider)
        self.settings = QueueSettings.from_settings(self.crawler.settings)
        self.node = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._connection = self._context.redis
        self.seeds = Seeds(self.crawler, spider)
        base = queue_base(self._connection, self.settings.queue_key, queue_name(spider))
        run = DedupSettings.from_settings(self.crawler.settings).run
        start = f"{base}:start:{run}" if run else f"{base}:start"
        shares = getattr(spider, "netspy_shares_start", False) or read_bool(
            self.crawler.settings, "NETSPY_SHARED_START"
        )
        self.names = QueueNames(base, self.seeds.key, start if shares else "")
        self._filter = self.df if isinstance(self.df, RedisRequestFilter) else None
        store = self._filter.store if self._filter is not None else None
        self.queue = RedisQueue(self.names, store, self.node)
        self.leases = Leases()
        self._ids = itertools.count(1)
        self._paced: dict[str, DomainState] = {}
        """Domains whose delay had not passed when they were last asked."""
        self._others: set[str] = set()
        """Domains that are left to other processes, where Redis could not tell."""
        self._is_pending = True
        """Whether tasks are left somewhere, as far as is known."""
        self.first_sent = self.first_known = 0
        """Requests that no page yielded and that were sent; those which the filter knew."""
        self._is_closing = False
        self.membership = Membership(
            self._connection, self.queue, self.leases, self.settings, self._filter, spider
        )
        self._exchange = Exchange(
            self._connection, self.queue, self.leases, self.settings, self, self.membership.come
        )
        self._receipts = self._context.receipts
        self._receipts.queue_is_durable = True
        self._local = cast("ReadyQueue", self.mqs)
        self._holder = Holder(
            self._context, spider, self._local, self._exchange, self.leases, self._filter,
            self.seeds, is_leased=self.settings.lease > 0,
        )  # fmt: skip
        self._politeness.registry.listeners.append(self._holder)
        self.crawler.signals.connect(self._spider_opened, signals.spider_opened)
        return deferred_from_coro(self.membership.open())

    def enqueue_request(self, request: Request) -> bool:
        """Queue *request*: in Redis, or here, if it is another attempt at a task of this node."""
        self._is_pending = True
        return super().enqueue_request(request)

    def next_request(self) -> Request | None:
        """Return a request that may go now."""
        if self.leases.started >= self.settings.unacknowledged:
            for batcher in self._context.intake.batchers:
                batcher.hurry()  # pages wait for their rows
            self.starved.set()
            return None
        request = super().next_request()
        if request is None:
            if self._exchange.unsent > _UNSENT:
                self.starved.clear()  # it moves: to Redis
            self._exchange.ask()
            return None
        lease = self.leases.get(request.meta.get(metakeys.TASK))
        if lease is not None:
            self.leases.start(lease)
        state = self._politeness.state_of(request)
        if state.gap > 0:
            self._paced[state.name] = state
            self._holder.paced(state)
        if self.leases.fresh_total < self.settings.batch:
            self._exchange.ask()
        return request

    def put_back(self, request: Request) -> None:
        """Queue *request* here, past the filter: it was taken out, or waited, and is not done."""
        lease = self.leases.get(request.meta.get(metakeys.TASK))
        if lease is not None and not lease.is_settled:
            self.leases.wait(lease)
        super().put_back(request)

    def has_pending_requests(self) -> bool:
        """Tell whether the crawl goes on: also for what is queued, or done, by other nodes."""
        return (
            super().has_pending_requests()
            or len(self.leases) > 0
            or self._exchange.is_busy
            or self._is_pending
        )

    @property
    def ready(self) -> int:
        """How many requests of this node are not in Redis yet."""
        return self._exchange.unsent

    async def until_sent(self) -> None:
        """Wait until all requests so far are in Redis."""
        while self._exchange.unsent:
            await asyncio.sleep(_LOOK)

    # Requests ------------------------------------------------------------------------------------
    def _enqueue(self, request: Request, receipt: Receipt | None) -> bool | None:
        if self._politeness.passing.takes_back(request):  # the cache could not answer it
            self.starved.clear()
            self.put_back(request)
            return True
        try:
            if isinstance(request, FacadeRequest):
                request.seal(self.spider)
            claim_budget(request, self.crawler)
            self._politeness.assign(request)
            again = self._receipts.is_next_attempt(request)
            if metakeys.ROBOTS in request.meta:
                self._mqpush(request)
            elif again and metakeys.TASK in request.meta:
                self._go_on(request)
            else:
                self._push(request, receipt)
        except Exception as exc:  # noqa: BLE001 - anything raised here would end Scrapy's worker
            reason = f"it cannot be queued: {type(exc).__name__}: {exc}"
            self._context.failures.fail(request, "unqueueable", reason)
            return None
        return True

    def _push(self, request: Request, receipt: Receipt | None, *, is_known: bool = False) -> None:
        """Send a request to Redis; its parent waits until it is there.

        *is_known*: it comes from there, and passes the filter.
        """
        meta = request.meta
        meta.pop(metakeys.TASK, None)  # copied from another page
        delay = meta.pop(metakeys.DELAY, None) or 0.0
        push = Push(
            id=f"{self.node}-{next(self._ids)}",
            domain=meta[metakeys.DOMAIN],
            score=-request.priority,
            fingerprint=b"" if is_known else self._fingerprint(request),
            delay=max(0.0, delay),
            payload=payload.encode(request, self.spider),
        )
        self._exchange.push(Outgoing(push, request, receipt))
        self._count("scheduler/enqueued")
        self._count("scheduler/enqueued/redis")

    def _go_on(self, request: Request) -> None:
        """Keep the next attempt at a page here, unless it is a page that the filter knows."""
        lease = self.leases.get(request.meta[metakeys.TASK])
        if lease is not None:
            self.leases.wait(lease)
        fingerprint = self._fingerprint(request)
        if fingerprint:
            push = Push(f"{self.node}-{next(self._ids)}", "", 0, fingerprint)
            self._exchange.push(Outgoing(push, request, None))
            return
        self._keep(request)

    def _keep(self, request: Request) -> None:
        seconds = request.meta.pop(metakeys.DELAY, None)
        if seconds is not None and seconds > 0:
            self._wait(request, time.time() + seconds)
        else:
            self.starved.clear()
            self._mqpush(request)

    def _fingerprint(self, request: Request) -> bytes:
        return self._filter.fingerprint(request) if self._filter is not None else b""

    # The exchange --------------------------------------------------------------------------------
    def question(self) -> Question | None:
        """Return what this node wants now."""
        registry = self._politeness.registry
        now = registry.clock() + _EARLY
        # What waits for its domain's delay here takes no place of what could go.
        late = sum(
            count
            for name, count in self.leases.fresh.items()
            if (state := registry.find(name)) is not None and state.ready_at > now
        )
        ready = self.leases.fresh_total - min(late, _LATE)
        wanted = 2 * self.settings.batch - ready
        if self._is_closing or (ready and wanted < self.settings.batch):
            return None
        self._paced = {name: one for name, one in self._paced.items() if one.ready_at > now}
        width = 1 if self._politeness.settings.pace.delay > 0 else _WIDTH
        full = [name for name, count in self.leases.fresh.items() if count >= width]
        settings = self._politeness.settings
        return Question(
            min(wanted, self.settings.batch), width, [*self._paced, *full, *self._others],
            settings.share, settings.places,
        )  # fmt: skip

    @property
    def is_hungry(self) -> bool:
        """Whether the engine waits for an answer of the queue's."""
        leases = self.leases
        return not leases.fresh_total or leases.started >= self.settings.unacknowledged

    def handed(self, answer: Handed) -> None:
        """Take in tasks."""
        for task in answer.tasks:
            request = self._holder.receive(task)
            if request is not None:
                self.starved.clear()
                self._mqpush(request)
                domain = request.meta[metakeys.DOMAIN]
                if self._politeness.settings.is_others(domain):
                    self._others.add(domain)
                    self._holder.give_back(domain)
        for task_id, data in answer.dead:
            reason = (
                f"handed out {self.settings.deliveries} times and never done: the nodes that had "
                "it died (NETSPY_MAX_DELIVERIES)"
            )
            self._holder.bury(task_id, data, reason)
        self._is_pending = answer.total > 0 or answer.start.startswith("running")
        if answer.tasks or not self._is_pending:
            _scrapy.wake(self.crawler)

    def pushed(self, sent: Sequence[Outgoing], taken: Sequence[bool]) -> None:
        """Learn which requests are in the queue, and which the filter knew."""
        self._is_pending = True  # an answer to an older question may have said otherwise
        for one, is_taken in zip(sent, taken, strict=True):
            if one.receipt is None and one.push.payload:
                self.first_sent += 1
                self.first_known += not is_taken
            if not is_taken:
                self.df.log(one.request, self.spider)
                self.crawler.signals.send_catch_log(
                    signals.request_dropped, request=one.request, spider=self.spider
                )
            if one.push.payload:
                if one.receipt is not None:
                    self._receipts.pushed(one.receipt)
            elif is_taken:
                self._keep(one.request)
                _scrapy.wake(self.crawler)
            else:
                self._receipts.refuse(one.request)
        self._exchange.ask()

    def settled(self, sent: Sequence[Settle], still: Sequence[bool]) -> None:
        """Learn of which tasks the queue took note."""
        self._is_pending = True
        for one, is_ours in zip(sent, still, strict=True):
            self.leases.remove(one.lease)
            if one.what == "done":
                self._count(keys.QUEUE_DONE if is_ours else keys.QUEUE_STALE)
        _scrapy.wake(self.crawler)

    # Beginning and end ---------------------------------------------------------------------------
    def _choose_filter(self) -> None:
        """See to it that the request filter is in Redis too, or that there is none."""
        if isinstance(self.df, RedisRequestFilter) or type(self.df) is BaseDupeFilter:
            return
        if user_set(self.crawler.settings, "DUPEFILTER_CLASS"):
            raise ConfigError(
                "DUPEFILTER_CLASS", self.crawler.settings["DUPEFILTER_CLASS"],
                "netspy_scrapy.redis.request_filter.RedisRequestFilter beside RedisScheduler, or "
                "scrapy.dupefilters.BaseDupeFilter (no filter)",
            )  # fmt: skip
        self.df = RedisRequestFilter.from_crawler(self.crawler)

    def _spider_opened(self) -> None:
        _scrapy.watch_closing(self.crawler, self._closing)
        self.membership.live(self._holder.lost)
        self._exchange.start()
        if keeps_alive(self.crawler.settings):
            self.crawler.signals.connect(self._stay, signals.spider_idle)
        if self.crawler.settings.getdict("FEEDS"):
            logger.warning(
                "FEEDS: rows in the feed of a node that is killed are lost, as a feed is stored "
                "when the crawl ends; what must not be lost needs a sink (ITEM_PIPELINES)",
                extra={"spider": self.spider},
            )

    def _stay(self) -> None:
        raise DontCloseSpider

    def _closing(self, _reason: str) -> None:
        self._is_closing = True

    def refused(self, error: ConfigError) -> None:
        """Learn that the queue can never be used: Redis was away when the crawl began."""
        logger.error("%s", error, extra={"spider": self.spider})
        if getattr(self.spider, "netspy_active", False):  # its start() raises it
            self.spider.netspy_start_error = error  # type: ignore[attr-defined]
        _scrapy.fail_exit(self.crawler)
        _scrapy.close_spider(self.crawler, "redis_refused")

    def _job_folder(self) -> str | None:
        """Return None: a job directory keeps nothing of this queue."""
        return None

    def take_unfinished(self) -> Iterator[Request]:
        """Yield what no node would do any more if the process ended now: the rest is leased."""
        if self.settings.lease > 0:
            for one in self._exchange.take_unsent():
                if one.push.payload and one.receipt is None:
                    yield one.request
            return
        yield from super().take_unfinished()

    async def _close(self, reason: str) -> None:
        self._is_closing = True
        self._ended = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._exchange.end(self._seconds_left())
        left = waiting(self._waiting)
        self._waiting = []
        left += [(request, 0.0) for request in self._local.drain()]
        for request in self._holder.give_all_back(left):
            self._push(request, None, is_known=True)
        if not await self._exchange.drain(self._seconds_left()):
            self._keep_unsent(reason)
        await self.membership.leave(reason)
        self.df.close(reason)

    def _seconds_left(self) -> float:
        """Return how long Redis may take to get what is left."""
        settings = RuntimeSettings.from_settings(self.crawler.settings)
        return self._context.stop.left(settings.stop_timeout or _DRAIN)

    def _keep_unsent(self, reason: str) -> None:
        """Dump the requests that never reached Redis and that no other node will yield again."""
        unsent = [one for one in self._exchange.take_unsent() if one.push.payload]
        orphans = [one for one in unsent if one.receipt is None]
        logger.error(
            "Redis is away, or refuses them, at the end: %d requests did not reach the queue. %d "
            "of them are dumped; the pages that yielded the others are fetched again by the next "
            "node, and so are %d that could not be acknowledged or given back",
            len(unsent), len(orphans), self._exchange.unsettled, extra={"spider": self.spider},
        )  # fmt: skip
        if self._context.dump_settings.unfinished:
            for one in orphans:
                self._context.request_dump.add(one.request, reason=f"unfinished: {reason}")
            self._context.stats.inc_value(keys.UNFINISHED_DUMPED, len(orphans))

    def _count(self, key: str) -> None:
        assert self.stats is not None
        self.stats.inc_value(key)
