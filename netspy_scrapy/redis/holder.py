"""The tasks that a node holds: from the moment they are handed to it until it is rid of them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from scrapy.utils.misc import arg_to_iter

from netspy_scrapy import meta as metakeys
from netspy_scrapy import stats as keys
from netspy_scrapy.dumps.classes import ClassResolver
from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.receipts import Verdict
from netspy_scrapy.redis import payload
from netspy_scrapy.redis.leases import Lease, Leases, Stage
from netspy_scrapy.redis.queue import Settle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request, Spider

    from netspy_scrapy.context import CrawlContext
    from netspy_scrapy.domains import DomainState
    from netspy_scrapy.redis.exchange import Exchange
    from netspy_scrapy.redis.queue import Task
    from netspy_scrapy.redis.request_filter import RedisRequestFilter
    from netspy_scrapy.redis.seeds import Seeds
    from netspy_scrapy.scheduling.queue import ReadyQueue

logger = logging.getLogger(__name__)


class Holder:
    """Turns tasks into requests of this node, and acknowledges them or gives them back.

    It hears of what happens to domains: tasks of one that rests go back, and all nodes leave it
    alone; of one with a delay this node holds one task at a time.
    """

    def __init__(
        self,
        context: CrawlContext,
        spider: Spider,
        queue: ReadyQueue,
        exchange: Exchange,
        leases: Leases,
        request_filter: RedisRequestFilter | None,
        seeds: Seeds,
        *,
        is_leased: bool,
    ) -> None:
        self._context = context
        self._spider = spider
        self._queue = queue
        self._exchange = exchange
        self._leases = leases
        self._filter = request_filter
        self._seeds = seeds
        self._is_leased = is_leased
        """Whether a task is a node's for a time; else it is for good."""
        self._receipts = context.receipts
        self._classes = ClassResolver()

    # Tasks ---------------------------------------------------------------------------------------
    def receive(self, task: Task) -> Request | None:
        """Return the request of a task, to be queued here; None: there is none to queue."""
        known = self._leases.get(task.id)
        if known is not None:  # another node never got it: this one was only late
            known.delivery = task.delivery
            return None
        if task.delivery > 1:
            self._context.stats.inc_value(keys.QUEUE_REDELIVERED)
        try:
            if task.payload.startswith(payload.SEED):
                self._sow(task)
                return None
            request = payload.decode(task.payload, self._spider, self._classes)
            self._context.politeness.assign(request)
        except Exception as exc:  # noqa: BLE001 - the spider makes requests of start URLs
            self._refuse(task, exc)
            return None
        if self._is_leased:
            lease = self._lease(task, request.meta[metakeys.DOMAIN], -request.priority)
            request.meta[metakeys.TASK] = task.id
            self._receipts.lasting(request, lambda verdict: self._is_safe(lease, verdict))
            self._receipts.adopted(self._receipts.adopt(request), request, queued=True)
        return request

    def bury(self, task: str, data: bytes, reason: str) -> None:
        """Dump a task that was handed out too often; Redis keeps it among the dead ones."""
        self._context.stats.inc_value(keys.QUEUE_DEAD)
        try:
            request = payload.decode(data, self._spider, self._classes)
        except DumpError as exc:
            logger.error("The task %s is dead, and cannot be read: %s", task, exc)  # noqa: TRY400
            return
        self._context.failures.fail(request, "dead", reason)

    def _lease(self, task: Task, domain: str, score: float) -> Lease:
        lease = Lease(task.id, task.delivery, domain, score, task.payload)
        self._leases.add(lease)
        return lease

    def _is_safe(self, lease: Lease, verdict: Verdict) -> None:
        """Acknowledge a task: all that came of it is durable."""
        if lease.is_settled or self._leases.get(lease.id) is not lease:
            return
        lease.is_settled = True
        fingerprint = b""
        known = self._filter
        if verdict is Verdict.FAILED and known is not None and known.forgets_failed:
            request = payload.decode(lease.payload, self._spider, self._classes)
            fingerprint = known.fingerprint(request)
        self._exchange.settle(Settle("done", lease, fingerprint))

    def _sow(self, task: Task) -> None:
        """Queue the requests of a start URL; once they are in Redis, its task is done."""
        requests = arg_to_iter(self._seeds.requests(task.payload[len(payload.SEED) :]))
        lease = None
        if self._is_leased:
            lease = self._lease(task, "", 0.0)
            self._leases.start(lease)

        def done(verdict: Verdict) -> None:
            if lease is not None:
                self._is_safe(lease, verdict)

        engine = self._context.crawler.engine
        assert engine is not None
        with self._receipts.page(done):
            for request in requests:
                engine.crawl(request)

    def _refuse(self, task: Task, exc: Exception) -> None:
        text = task.payload.decode(errors="replace")
        logger.error(
            "A task cannot be read, and is put among the dead ones: %s: %s: %.200s",
            type(exc).__name__, exc, text, extra={"spider": self._spider},
        )  # fmt: skip
        self._context.stats.inc_value(keys.QUEUE_DEAD)
        if self._is_leased:
            lease = self._lease(task, "", 0.0)
            lease.is_settled = True
            self._exchange.settle(Settle("dead", lease))

    # Giving back ---------------------------------------------------------------------------------
    def give_back(self, domain: str, *, keep: int = 0) -> None:
        """Give the tasks of *domain* back that the engine has not had, but for *keep* of them."""
        for request in self._queue.take_out(domain):
            lease = self._leases.get(request.meta.get(metakeys.TASK))
            if lease is None or lease.stage is not Stage.FRESH:
                self._queue.push(request)
            elif keep > 0:
                keep -= 1
                self._queue.push(request)
            else:
                self._release(request, lease)

    def give_all_back(self, requests: Iterable[tuple[Request, float]]) -> list[Request]:
        """Give back what is left at the end: *requests* (with seconds they wait), and the rest.

        Returns the requests that are no task of the queue (robots.txt are none, and left out).
        """
        others = []
        for request, delay in requests:
            lease = self._leases.get(request.meta.get(metakeys.TASK))
            if lease is not None and not lease.is_settled:
                self._release(request, lease, delay, anew=lease.stage is not Stage.FRESH)
            elif metakeys.ROBOTS not in request.meta and metakeys.TASK not in request.meta:
                others.append(request)
        for lease in self._leases:
            if not lease.is_settled:  # e.g. its rows could be neither stored nor dumped
                lease.is_settled = True
                self._exchange.settle(Settle("back", lease))
        return others

    def lost(self, leases: Iterable[Lease]) -> None:
        """Let go of tasks that another node has by now; pages under way are finished."""
        gone = [one for one in leases if self._leases.get(one.id) is one and not one.is_settled]
        fresh = {one.id for one in gone if one.stage is Stage.FRESH}
        for domain in {one.domain for one in gone if one.id in fresh}:
            for request in self._queue.take_out(domain):
                if request.meta.get(metakeys.TASK) in fresh:
                    self._receipts.forget(request)
                    self._leases.remove(self._leases.get(request.meta[metakeys.TASK]))  # type: ignore[arg-type]
                else:
                    self._queue.push(request)
        if gone:
            self._context.stats.inc_value(keys.QUEUE_LOST, len(gone))
            logger.warning(
                "%d leases ran out before they could be renewed: this process stood still, or could"
                " not reach Redis, for longer than SPIDER_TASK_LEASE. Other nodes have the tasks; "
                "%d pages were under way and are fetched twice", len(gone), len(gone) - len(fresh),
                extra={"spider": self._spider},
            )  # fmt: skip

    def _release(
        self, request: Request, lease: Lease, delay: float = 0.0, *, anew: bool = False
    ) -> None:
        data = b""
        if anew:  # with what its attempts have cost so far
            try:
                data = payload.encode(request, self._spider)
            except (DumpError, ValueError) as exc:
                logger.debug("A retry goes back as it came: %s", exc)
        self._receipts.forget(request)
        lease.is_settled = True
        self._leases.remove(lease)
        self._exchange.settle(Settle("back", lease, data, delay))

    # What happens to domains ---------------------------------------------------------------------
    def domain_rested(self, state: DomainState, seconds: float) -> None:
        """Let the domain rest for all nodes."""
        self._exchange.rest("rest", state.name, seconds)
        self.give_back(state.name)

    def circuit_opened(self, state: DomainState, failures: int) -> None:
        """Nothing to do: a rest follows."""

    def domain_changed(self, state: DomainState) -> None:
        """Nothing to do: the ready queue sees to it."""

    def paced(self, state: DomainState) -> None:
        """Note that a domain has a delay: what must wait for it waits in Redis."""
        if self._leases.fresh[state.name] > 1:
            self._exchange.rest("width", state.name, 1)
            self.give_back(state.name, keep=1)


def waiting(heap: Iterable[tuple[float, int, Any]]) -> list[tuple[Request, float]]:
    """Return the requests of the scheduler's heap, and how long each has to wait."""
    now = time.time()
    return [(request, max(0.0, due - now)) for due, _, request in heap]
