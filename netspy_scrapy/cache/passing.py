"""Requests that are under way to the cache, past what the site is owed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scrapy import Request

#: Requests that the cache may be asked for at a time; more would only fill the memory.
_AT_ONCE = 32


class Passing:
    """What was let go for the cache to answer: it counts for nothing, and must not reach the site.

    One that the cache cannot answer comes back to the queue, once and past the request filter.
    """

    def __init__(self) -> None:
        self._requests: set[Request] = set()
        self._returned: WeakSet[Request] = WeakSet()
        self.is_full: Callable[[], bool] | None = None
        """Tells whether CONCURRENT_REQUESTS are in flight beside these; None: nobody asks."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request in self._requests

    @property
    def has_room(self) -> bool:
        """Whether a queue may let another one go."""
        return len(self._requests) < _AT_ONCE

    @property
    def only(self) -> bool:
        """Whether nothing else may be handed out: the downloader is full."""
        return self.is_full is not None and self.is_full()

    def start(self, request: Request, in_flight: Collection[Request] = ()) -> Request:
        """Let *request* go; return it, or a copy if it is under way."""
        if request in self._requests or request in in_flight:
            request = request.copy()
        self._requests.add(request)
        return request

    def finish(self, request: Request) -> bool:
        """Note that the downloader is through with *request*; False: it was none of these."""
        was_here = request in self._requests
        self._requests.discard(request)
        return was_here

    def give_back(self, request: Request) -> Request:
        """Note that the site has to be asked for *request*; return it."""
        self._returned.add(request)
        return request

    def takes_back(self, request: Request) -> bool:
        """Tell whether *request* comes back to the queue now."""
        is_returned = request in self._returned
        self._returned.discard(request)
        return is_returned
