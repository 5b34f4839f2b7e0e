"""The first requests of a run: one node yields them, the others wait until they are there."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from netspy_scrapy.dedup.redis_store import RUN_TTL
from netspy_scrapy.exceptions import RedisFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from scrapy import Spider

    from netspy_scrapy.redis.scheduler import RedisScheduler

logger = logging.getLogger(__name__)

#: Seconds within which the node that yields the first requests says that it still does.
_CLAIM: Final = 20.0
#: Seconds between two questions whether they are all there.
_ASK: Final = 0.25


class FirstRequests:
    """Lets one node of all run ``start()``; if it dies meanwhile, another runs it anew."""

    def __init__(self, scheduler: RedisScheduler, spider: Spider) -> None:
        self._scheduler = scheduler
        self._spider = spider

    async def of(self, start: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """Yield what *start* yields if that is this node's part; else wait for who does."""
        scheduler = self._scheduler
        state = await self._claim()
        if not state.startswith("running:"):
            return
        unclaim = scheduler.membership.keep_claim(_CLAIM)
        try:
            async for one in start:
                yield one
            await scheduler.until_sent()
        except BaseException:
            unclaim()
            await self._tell("free")
            raise
        unclaim()
        await self._tell("done")
        if scheduler.first_sent and scheduler.first_sent == scheduler.first_known:
            logger.warning(
                "All %s first requests were fetched before: the request filter of this spider has "
                "them. Give each run a RUN_ID of its own, or leave DEDUP_SCOPE at 'auto'",
                scheduler.first_sent, extra={"spider": self._spider},
            )  # fmt: skip

    async def _claim(self) -> str:
        """Wait until this node has the first requests to yield, or they are all there."""
        said = ""
        while True:
            try:
                state = await self._scheduler.membership.first_requests("claim", _CLAIM)
            except RedisFailedError:
                await asyncio.sleep(_ASK)
                continue
            if state == f"running:{self._scheduler.node}":
                return state
            if state == "over":
                named = self._spider.crawler.settings["RUN_ID"]
                self._say(
                    "The run is over already: it ended before this node had come"
                    + ("; a new one needs another RUN_ID" if named else "")
                )
                return state
            if state == "done":
                self._say("start_requests was run before: this node works on what is queued")
                return state
            if state != said:
                said = state
                self._say("start_requests is " + state.replace("running:", "run by "))
            await asyncio.sleep(_ASK)

    async def _tell(self, what: str) -> None:
        """Tell the others; while Redis is away, the claim runs out and another node takes it."""
        kept = RUN_TTL if self._spider.crawler.settings["RUN_ID"] else 0.0
        while True:
            try:
                await self._scheduler.membership.first_requests(
                    what, kept if what == "done" else 0.0
                )
            except RedisFailedError:
                if what == "free":
                    return
                await asyncio.sleep(_ASK)
            else:
                return

    def _say(self, text: str) -> None:
        logger.info("%s", text, extra={"spider": self._spider})
