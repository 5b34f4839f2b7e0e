"""Spider: netspy's spider of several processes, which share its work by Redis."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from netspy_scrapy import _scrapy
from netspy_scrapy.exceptions import SpiderError
from netspy_scrapy.redis.first_requests import FirstRequests
from netspy_scrapy.redis.scheduler import RedisScheduler
from netspy_scrapy.spiders.air import AirSpider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy.settings import BaseSettings

#: Over the add-on's own choice, and under a project's.
_PRIORITY: Final = 16


class Spider(AirSpider):
    """A netspy spider whose work is shared by all processes that run it.

    ::

        class NewsSpider(Spider):
            __custom_setting__ = {"REDIS_URL": "redis://10.0.0.5:6379/0"}

            def start_requests(self): ...
            def parse(self, request, response): ...

        NewsSpider().start()        # on each machine, as many times as you like

    One node runs ``start_requests``; if it dies meanwhile, another runs it anew (what is queued
    already is filtered). The others wait for it, and work on what comes. All end when nothing is
    queued, under way or delayed anywhere, unless SPIDER_KEEP_ALIVE. A run that was stopped goes on
    with the next start, without ``start_requests``.

    *redis_key* is the name that processes share, in place of the spider's. *keep_alive* is
    SPIDER_KEEP_ALIVE. See RedisScheduler for the settings.
    """

    netspy_shares_start = True

    def __init__(
        self,
        *args: Any,
        redis_key: str | None = None,
        keep_alive: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if redis_key is not None:
            self.redis_key = redis_key
        if keep_alive is not None:
            self.netspy_arguments["SPIDER_KEEP_ALIVE"] = keep_alive

    redis_key: str | None = None

    @property
    def netspy_queue(self) -> str:
        """The name under which the work is shared."""
        return self.redis_key or self.name

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        """Put the queue into Redis."""
        super().update_settings(settings)
        settings.set("SCHEDULER", RedisScheduler, _PRIORITY)

    async def netspy_start(self) -> AsyncIterator[Any]:
        """Yield the first requests, if that is this node's part; else wait until they are there."""
        scheduler = _scrapy.scheduler_of(self.crawler)
        # isinstance() would ask Scrapy's metaclass, which takes all that looks like a scheduler.
        if RedisScheduler not in type(scheduler).__mro__:
            self.netspy_start_error = SpiderError(
                f"{type(self).__name__} is a Spider, whose SCHEDULER is RedisScheduler: "
                f"{type(scheduler).__name__} does not share its work (an AirSpider needs none)"
            )
            raise self.netspy_start_error
        self.netspy_begin()
        async with aclosing(FirstRequests(scheduler, self).of(super().netspy_start())) as first:
            async for one in first:
                yield one
