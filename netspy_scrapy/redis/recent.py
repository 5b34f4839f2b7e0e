"""What a node pushed a moment ago: a server that was killed may have forgotten it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from netspy_scrapy.redis.connection import server_info

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from netspy_scrapy.redis.queue import Push

#: Seconds. With ``appendfsync everysec`` Redis may confirm what it writes 2 s later, and a replica
#: that takes over lags behind.
_SECONDS: Final = 5.0
#: Requests at most; each costs about 1 KB.
_MOST: Final = 10_000


class RecentPushes:
    """The requests that Redis confirmed in the last seconds, to be pushed again after a restart.

    That does no harm: a task that is there stays as it is, and one that was done meanwhile is known
    to the request filter. One that passes the filter may be fetched twice.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pushes: dict[str, tuple[float, Push]] = {}
        self._server: str | None = None
        """The run of the server that has confirmed them, as it calls it."""

    def add(self, pushes: Sequence[Push]) -> None:
        """Keep what was confirmed now, and forget what is old."""
        now = self._clock()
        self._pushes.update((one.id, (now, one)) for one in pushes if one.payload)
        while self._pushes:
            first = next(iter(self._pushes))
            if len(self._pushes) <= _MOST and self._pushes[first][0] > now - _SECONDS:
                break
            del self._pushes[first]

    def remove(self, tasks: Sequence[str]) -> None:
        """Forget tasks that are done."""
        for one in tasks:
            self._pushes.pop(one, None)

    def all(self) -> list[Push]:
        """Return them, in their order."""
        return [push for _, push in list(self._pushes.values())]

    def learn_server(self, client: Any) -> None:
        """Note which run of the server it is, once; runs in a thread."""
        if self._server is None:
            self._server = _run_of(client)

    def push_again(self, client: Any, push: Callable[[Any, Sequence[Push]], Any]) -> None:
        """Push them, unless the server still is the one that confirmed them; runs in a thread."""
        run = _run_of(client)
        if not run or run != self._server:
            push(client, self.all())
        self._server = run


def _run_of(client: Any) -> str:
    """Return what the server calls its present run; empty, if it does not say."""
    return str(server_info(client).get("run_id", ""))
