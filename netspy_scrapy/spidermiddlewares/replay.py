"""Requests of FAILED_REQUEST_PATH, fetched again by the spider that wanted them."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from scrapy import signals

from netspy_scrapy.context import CrawlContext
from netspy_scrapy.dumps.classes import ClassResolver
from netspy_scrapy.dumps.codec import decode_line
from netspy_scrapy.dumps.files import DumpFile
from netspy_scrapy.dumps.revive import revive
from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.logs import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from netspy_scrapy.dumps.claims import ClaimedFile
    from netspy_scrapy.receipts import Verdict

logger = logging.getLogger(__name__)

#: Lines that are read at once, in a thread.
_PORTION = 200
#: Seconds after which finished lines are noted in the file.
_NOTE_AFTER = 0.5


@dataclass
class ReplayOrder:
    """What a replay takes from a dump; ``netspy-retry --requests`` gives it to a crawler."""

    claimed: ClaimedFile | None = None
    """Lines that whoever orders the replay has taken over, and closes; None: the file's, now."""
    only: bool = False
    """Whether ``start()`` is left out."""
    takes_unnamed: bool = False
    """Whether lines that name no spider are this spider's."""
    reason: str = ""
    """Only lines with this text in their reason or status."""
    limit: int | None = None
    """As many lines at most."""
    settled: Callable[[Verdict], None] | None = None
    """Called with the verdict on each line once it is safe."""
    unusable: Callable[[str], None] | None = None
    """Called with the reason for each line of which no request can be made."""


class ReplayMiddleware:
    """Yields the failed requests of earlier runs before what ``start()`` yields.

    They have their retries anew and pass the request filter, and run through the spider's own
    callbacks. A line goes once what came of its request is safe, and that of the requests it led
    to; if it failed again, a new line is there by then. At the end of the crawl, or after a kill,
    the other lines are back.

    Settings: RETRY_FAILED_ON_START, FAILED_REQUEST_PATH.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        context = self._context = CrawlContext.of(crawler)
        self._order = context.replay_order or ReplayOrder()
        self._receipts = context.receipts
        self._claimed = self._order.claimed
        self._taken = 0
        self._told: set[str] = set()
        self._finished: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._noting: asyncio.Task[None] | None = None
        # Feeds are closed after the spider is, and with them the last pages become safe.
        crawler.signals.connect(self._engine_stopped, signals.engine_stopped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    async def process_start(self, start: Any) -> AsyncIterator[Any]:
        """Yield the requests of the dump, then what the spider starts with."""
        begin = getattr(self._crawler.spider, "netspy_begin", None)
        if begin is not None:  # callbacks may need what start_callback prepares
            begin()
        async for request in self._requests():
            yield request
        if self._order.only:
            await start.aclose()
            return
        async for one in start:
            yield one

    async def _requests(self) -> AsyncIterator[Request]:
        if self._claimed is None:
            try:
                await self._claim()
            except (DumpError, OSError) as exc:
                logger.error(  # noqa: TRY400 - the message says it all
                    "Failed requests of earlier runs are not fetched: %s", exc,
                    extra={"spider": self._crawler.spider},
                )  # fmt: skip
        if self._claimed is None:
            return
        lines = self._claimed.lines()
        while portion := await asyncio.to_thread(lambda: list(islice(lines, _PORTION))):
            others = []
            for number, text in portion:
                request = self._request(text)
                if request is None:
                    others.append((number, text))
                    continue
                self._taken += 1
                self._receipts.lasting(request, partial(self._settled, number))
                yield request
            if others and self._order.claimed is None:
                await asyncio.to_thread(self._claimed.put_back, others)
        if self._taken:
            logger.info(
                "%s of earlier runs %s fetched again",
                counted(self._taken, "failed request"), "is" if self._taken == 1 else "are",
                extra={"spider": self._crawler.spider},
            )  # fmt: skip

    async def _claim(self) -> None:
        dump = DumpFile(self._context.dump_settings.request_path)
        claiming = asyncio.ensure_future(asyncio.to_thread(dump.claim))
        try:
            self._claimed = await asyncio.shield(claiming)
        except asyncio.CancelledError:  # a stop: what is taken over has to be put back
            self._claimed = await claiming
            raise

    def _request(self, text: str) -> Request | None:
        """Return the request of a line; None: it is not for this crawl."""
        order, spider = self._order, self._crawler.spider
        assert spider is not None
        if order.limit is not None and self._taken >= order.limit:
            return None
        try:
            fields = json.loads(text.lstrip("\ufeff"))
        except (RecursionError, ValueError):
            return None
        name = fields.get("spider")
        if name != spider.name and not (order.takes_unnamed and name is None):
            return None
        if order.reason and order.reason not in f"{fields.get('status')} {fields.get('reason')}":
            return None
        try:
            return revive(decode_line(text, ClassResolver()), spider)
        except DumpError as exc:
            self._tell(f"A line of {spider.name} in the dump stays: {exc}")
            return None

    def _tell(self, text: str) -> None:
        if self._order.unusable is not None:
            self._order.unusable(text)
        elif text not in self._told:
            self._told.add(text)
            logger.warning("%s", text, extra={"spider": self._crawler.spider})

    # Finished lines ------------------------------------------------------------------------------
    def _settled(self, number: int, verdict: Verdict) -> None:
        self._finished.append(number)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_NOTE_AFTER, self._note_soon)
        if self._order.settled is not None:
            self._order.settled(verdict)

    def _note_soon(self) -> None:
        self._timer = None
        if self._noting is None:
            self._noting = asyncio.ensure_future(self._note())

    async def _note(self) -> None:
        try:
            while self._finished:
                numbers, self._finished = self._finished, []
                assert self._claimed is not None
                await asyncio.to_thread(self._claimed.done, numbers)
        finally:
            self._noting = None

    async def _engine_stopped(self) -> None:
        """Note the last lines, and put back those that are not finished."""
        if self._timer is not None:
            self._timer.cancel()
        if self._noting is not None:
            await self._noting
        await self._note()
        if self._claimed is not None and self._order.claimed is None:
            try:
                left = await asyncio.to_thread(self._claimed.close)
            except DumpError as exc:
                logger.error(  # noqa: TRY400 - the message says it all
                    "%s; the next run finds the lines all the same", exc,
                    extra={"spider": self._crawler.spider},
                )  # fmt: skip
                return
            if left:
                logger.warning(
                    "%s of earlier runs %s still not done: kept in %s",
                    counted(left, "failed request"), "is" if left == 1 else "are",
                    self._context.dump_settings.request_path,
                    extra={"spider": self._crawler.spider},
                )  # fmt: skip
