"""Receipts: they tell when what came of a request is safe, so that it may be remembered.

A receipt follows one page through retries and redirects until the engine is through with its
last attempt, and further until everything that it produced is durable. Only then do those hear of
it who remember pages: validators of incremental crawling, leases of shared queues, lines of a
replay. Nothing is told of a page whose crawl ends before.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from scrapy import Request, signals
from scrapy.exceptions import IgnoreRequest
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from netspy_scrapy import meta as metakeys
from netspy_scrapy._scrapy import scraping
from netspy_scrapy.exceptions import CutOffError, NotRetryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from netspy_scrapy.context import CrawlContext


class Verdict(Enum):
    """How the last attempt at a page ended."""

    DONE = "done"
    """Its callback ran to the end, and every pipeline took its items."""
    DROPPED = "dropped"
    """It was given up on purpose: by a middleware, robots.txt, ``validate``, the request filter."""
    FAILED = "failed"
    """It is in the dump; or its callback, its errback or a pipeline raised."""


class Durable(Protocol):
    """Something that stores in portions: rows of a sink, lines of a dump.

    ``accepted`` counts what it took, ``mark`` is the count up to which all of it is durable.
    """

    accepted: int
    mark: int


class Receipt:
    """One page, from its first attempt until its outcome is safe."""

    __slots__ = (
        "callbacks", "is_passed_on", "is_returned", "lasting", "marks", "number", "open", "parent",
        "replacement", "verdict",
    )  # fmt: skip

    def __init__(self, number: int, parent: Receipt | None) -> None:
        self.number = number
        self.parent = parent
        self.open = 1
        """Itself until its rows are durable, and each request it yielded that is not safe yet."""
        self.verdict: Verdict | None = None
        self.callbacks: list[Callable[[Verdict], None]] = []
        """Who asked about the present attempt."""
        self.lasting: list[Callable[[Verdict], None]] = []
        """Who asked about the page, whatever attempts it takes."""
        self.marks: list[tuple[Durable, int]] = []
        """What has to become durable after the engine is through with it."""
        self.replacement: Request | None = None
        """The request of the next attempt, until the scheduler has it."""
        self.is_passed_on = False
        """Whether the scheduler has taken the next attempt."""
        self.is_returned = False
        """Whether the request itself went back to the queue: the crawl stops."""


class Receipts:
    """The receipts of a crawl, made when the first feature asks for it; without one there are none.

    What a request yielded counts as safe once it is safe itself: a process that is killed loses
    what is queued, and only a parent that is not remembered yet yields it again. What the job
    directory keeps at the end of a crawl is safe too.

    Where the queue itself is durable (Redis), a request that was yielded is safe once it is there:
    whoever owns that queue sets ``queue_is_durable`` and calls :meth:`pushed`.

    Another pipeline is trusted when its ``process_item`` returns; one that buffers is not covered.
    A feed is a sink that becomes durable when it is closed. Requests of a scheduler that is not
    ours have no parents.
    """

    def __init__(self, context: CrawlContext) -> None:
        self.queue_is_durable = False
        """Whether what a page yielded outlives this process once it is pushed. Feeds, which end
        with the crawl, are trusted then as other pipelines are."""
        self._context = context
        self._crawler = context.crawler
        self._numbers = itertools.count(random.getrandbits(40) << 20)  # unlike those of other runs
        self._receipts: dict[int, Receipt] = {}
        self._under_way: dict[Request, Receipt] = {}
        self._replaced: dict[Request, Receipt] = {}
        """The next attempt at each page whose present attempt the engine still has."""
        self._finished: deque[Receipt] = deque()
        """Those that wait for rows to become durable, in the order in which they finished."""
        self._is_queue_kept = False
        self._parent: Receipt | None = None
        """Who yields the request that the engine is about to schedule."""
        context.politeness.receipts = self  # it stands before the downloader
        self._feed = FeedMark(self) if self._crawler.settings.getdict("FEEDS") else None
        connect = self._crawler.signals.connect
        connect(self._spider_opened, signals.spider_opened)
        connect(self._spider_error, signals.spider_error)
        connect(self._item_error, signals.item_error)

    # For features --------------------------------------------------------------------------------
    def on_safe(self, request: Request, callback: Callable[[Verdict], None]) -> None:
        """Call *callback* with the verdict once what came of this attempt at *request* is safe.

        Never, if another attempt replaces it, or the crawl ends before.
        """
        receipt = self._of(request)
        if receipt is not None:
            receipt.callbacks.append(callback)

    def lasting(self, request: Request, callback: Callable[[Verdict], None]) -> None:
        """Call *callback* with the verdict once what came of *request* is safe in the end.

        However often it is tried again or redirected. *request* may be one that is not yielded
        yet.
        """
        receipt = self._of(request)
        if receipt is None:
            receipt = self._replaced.get(request)
        if receipt is None:
            receipt = self._new(None)
            self._replace(receipt, request)
        receipt.lasting.append(callback)

    def forget(self, request: Request) -> None:
        """Tell nobody of the page of *request*: it is somebody else's now."""
        self._receipts.pop(request.meta.pop(metakeys.RECEIPT, -1), None)

    @contextmanager
    def page(self, callback: Callable[[Verdict], None]) -> Iterator[None]:
        """Let what is scheduled in the block belong to a page that the engine never had."""
        receipt = self._new(None)
        receipt.lasting.append(callback)
        self._parent = receipt
        try:
            yield
        finally:
            self._parent = None
            self._finish(receipt)

    def is_kept(self, request: Request) -> bool:
        """Tell whether somebody keeps *request*, or a page that led to it, until it is safe."""
        receipt = self._of(request) or self._receipts.get(request.meta.get(metakeys.PARENT, -1))
        while receipt is not None and not receipt.lasting:
            receipt = receipt.parent
        return receipt is not None

    def __len__(self) -> int:
        """Return how many pages are not safe yet."""
        return len(self._receipts)

    # What happens to requests --------------------------------------------------------------------
    def replace(self, request: Request, again: Request) -> None:
        """Note that *again* is the next attempt at *request*."""
        receipt = self._of(request)
        if receipt is not None:
            self._replace(receipt, again)

    def fail(self, request: Request) -> None:
        """Note that *request* failed."""
        self._judge(self._of(request), Verdict.FAILED)

    def drop(self, request: Request) -> None:
        """Note that *request* is given up on purpose."""
        self._judge(self._of(request), Verdict.DROPPED)

    def give_back(self, request: Request) -> None:
        """Note that *request* is not done, and goes back to the queue."""
        receipt = self._of(request)
        if receipt is not None:
            receipt.is_returned = True

    # The scheduler -------------------------------------------------------------------------------
    def adopt(self, request: Request) -> Receipt | None:
        """Write into *request* whose it is, before it is queued; return who gets it."""
        meta = request.meta
        meta.pop(metakeys.PARENT, None)
        receipt = self._replaced.pop(request, None)
        if receipt is not None:
            meta[metakeys.RECEIPT] = receipt.number
            return receipt
        meta.pop(metakeys.RECEIPT, None)  # copied from another page
        if self._parent is not None and not self.queue_is_durable:
            meta[metakeys.PARENT] = self._parent.number
        return self._parent

    def adopted(self, receipt: Receipt | None, request: Request, *, queued: bool) -> None:
        """Note whether the scheduler took what :meth:`adopt` saw."""
        if receipt is None:
            return
        if receipt.replacement is request:
            receipt.replacement = None
            receipt.is_passed_on = queued
            if not queued:
                self._judge(receipt, Verdict.DROPPED)
                if receipt not in self._under_way.values():  # its first attempt
                    self._end(receipt)
        elif queued:
            receipt.open += 1

    def is_next_attempt(self, request: Request) -> bool:
        """Tell whether :meth:`adopt` found *request* to be the next attempt at a page."""
        receipt = self._receipts.get(request.meta.get(metakeys.RECEIPT, -1))
        return receipt is not None and receipt.replacement is request

    def pushed(self, receipt: Receipt) -> None:
        """Note that a request which the page of *receipt* yielded is in a durable queue."""
        self._close(receipt)

    def refuse(self, request: Request) -> None:
        """End a page whose next attempt the scheduler had taken: the filter knows it after all."""
        receipt = self._of(request)
        if receipt is None:
            return
        receipt.is_passed_on = False
        self._judge(receipt, Verdict.DROPPED)
        if receipt not in self._under_way.values():  # else the engine is not through with it yet
            self._finish(receipt)

    def queue_is_kept(self) -> None:
        """Note that what is queued is durable: a job directory holds it."""
        self._is_queue_kept = True
        for receipt in list(self._receipts.values()):
            self._tell_if_safe(receipt)

    # The engine ----------------------------------------------------------------------------------
    def _spider_opened(self) -> None:
        scraping.watch_requests(
            self._crawler, self._yields, self._yielded, self._errback, self._removed
        )

    def begin(self, request: Request) -> None:
        """Begin an attempt: the engine hands *request* to the downloader."""
        meta = request.meta
        receipt = self._receipts.get(meta.get(metakeys.RECEIPT, -1))
        if receipt is None:
            parent = self._receipts.get(meta.pop(metakeys.PARENT, -1))
            receipt = self._new(parent)
            meta[metakeys.RECEIPT] = receipt.number
        receipt.is_passed_on = receipt.is_returned = False
        receipt.verdict = None
        receipt.callbacks = []
        self._under_way[request] = receipt

    def downloaded(self, request: Request, result: Any) -> None:
        """Note what the downloader made of *request*."""
        receipt = self._under_way.get(request)
        if receipt is None:
            return
        if isinstance(result, Request):
            self._replace(receipt, result)
        elif isinstance(result, Failure):
            if isinstance(result.value, CutOffError):
                receipt.is_returned = True
            dropped = isinstance(result.value, IgnoreRequest)
            self._judge(receipt, Verdict.DROPPED if dropped else Verdict.FAILED)

    def _yields(self, output: Any, source: Any) -> None:
        """Take in what a callback or an errback yielded, right before the engine gets it."""
        if not isinstance(output, Request):
            return
        receipt = self._of(getattr(source, "request", None))
        if receipt is None:
            return
        if output not in self._replaced:
            if self._is_retry(output, source.request):
                self._replace(receipt, output)
            else:
                self._parent = receipt

    def _yielded(self) -> None:
        self._parent = None

    def _errback(self, failure: Failure) -> None:
        """Note that an errback is asked, whatever it makes of the failure."""
        receipt = self._of(getattr(failure, "request", None))
        if receipt is not None and receipt.verdict is None:
            error = failure.value
            dropped = isinstance(error, (IgnoreRequest, NotRetryError))
            dropped = dropped and not isinstance(error, HttpError)
            self._judge(receipt, Verdict.DROPPED if dropped else Verdict.FAILED)

    def _removed(self, request: Request) -> None:
        """End an attempt: the engine is through with *request* and all that came of it."""
        receipt = self._under_way.pop(request, None)
        if receipt is None:
            return
        if receipt.replacement is not None:  # nobody scheduled it
            self._replaced.pop(receipt.replacement, None)
            receipt.replacement = None
            self._judge(receipt, Verdict.DROPPED)
        if receipt.is_passed_on or receipt.is_returned:
            return
        self._finish(receipt)

    def _finish(self, receipt: Receipt) -> None:
        receipt.verdict = receipt.verdict or Verdict.DONE
        self._end(receipt)

    def _end(self, receipt: Receipt) -> None:
        receipt.marks = [(one, one.accepted) for one in self._durables() if one.accepted > one.mark]
        if receipt.marks:
            self._finished.append(receipt)
        else:
            self._close(receipt)

    def _spider_error(self, response: Any) -> None:
        # Of an errback it is the failure.
        self._judge(self._of(getattr(response, "request", None)), Verdict.FAILED)

    def _item_error(self, response: Any) -> None:
        self._judge(self._of(getattr(response, "request", None)), Verdict.FAILED)

    # Becoming safe -------------------------------------------------------------------------------
    def look(self) -> None:
        """See which outcomes are durable now that a mark rose."""
        finished = self._finished
        # Marks only rise, and who finished later waits for no less.
        while finished and all(one.mark >= number for one, number in finished[0].marks):
            receipt = finished.popleft()
            receipt.marks = []
            self._close(receipt)

    def _close(self, receipt: Receipt) -> None:
        current: Receipt | None = receipt
        while current is not None:  # no recursion: a chain of pages may be long
            current.open -= 1
            if not self._tell_if_safe(current):
                return
            current = current.parent

    def _tell_if_safe(self, receipt: Receipt) -> bool:
        if receipt.verdict is None or receipt.marks or receipt.is_returned:
            return False
        if receipt.open > 0 and not self._is_queue_kept:
            return False
        callbacks = [*receipt.callbacks, *receipt.lasting]
        receipt.callbacks, receipt.lasting = [], []
        for callback in callbacks:
            callback(receipt.verdict)
        self._receipts.pop(receipt.number, None)
        return True

    # Own methods ---------------------------------------------------------------------------------
    def _durables(self) -> Iterable[Durable]:
        yield from self._context.intake.batchers
        yield self._context.request_dump
        if self._feed is not None and not self.queue_is_durable:
            yield self._feed

    def _of(self, request: Request | None) -> Receipt | None:
        """Return the receipt of a request that is under way, or of a copy of it."""
        if request is None:
            return None
        receipt = self._under_way.get(request)
        if receipt is None:
            receipt = self._receipts.get(request.meta.get(metakeys.RECEIPT, -1))
        return receipt

    def _new(self, parent: Receipt | None) -> Receipt:
        receipt = Receipt(next(self._numbers), parent)
        self._receipts[receipt.number] = receipt
        return receipt

    def _replace(self, receipt: Receipt, again: Request) -> None:
        if receipt.replacement is not None:
            self._replaced.pop(receipt.replacement, None)
        receipt.replacement = again
        self._replaced[again] = receipt

    @staticmethod
    def _judge(receipt: Receipt | None, verdict: Verdict) -> None:
        """Note a verdict; the first that is worse than done stays."""
        if receipt is not None and receipt.verdict is not Verdict.FAILED:
            receipt.verdict = verdict

    def _is_retry(self, output: Request, request: Request) -> bool:
        """Tell whether a callback asks for its own page again (``get_retry_request``)."""
        times = output.meta.get("retry_times", 0)
        if times <= request.meta.get("retry_times", 0):
            return False
        fingerprinter = self._crawler.request_fingerprinter
        assert fingerprinter is not None
        return fingerprinter.fingerprint(output) == fingerprinter.fingerprint(request)


class FeedMark:
    """The feeds of a crawl as one sink: durable once they are closed, if each of them was stored.

    One that could not even be opened is in neither of Scrapy's counts.
    """

    def __init__(self, receipts: Receipts) -> None:
        self.accepted = 0
        self.mark = 0
        self._receipts = receipts
        self._crawler = receipts._crawler  # noqa: SLF001 - a part of it
        self._crawler.signals.connect(self._scraped, signals.item_scraped)
        self._crawler.signals.connect(self._closed, signals.feed_exporter_closed)

    def _scraped(self) -> None:
        self.accepted += 1

    def _closed(self) -> None:
        stats = self._crawler.stats
        assert stats is not None
        counts = stats.get_stats()
        failed = any(key.startswith("feedexport/failed_count/") for key in counts)
        stored = sum(
            count for key, count in counts.items() if key.startswith("feedexport/success_count/")
        )
        if not failed and stored >= len(self._crawler.settings.getdict("FEEDS")):
            self.mark = self.accepted
            self._receipts.look()
