"""The loop in which ``start()`` runs its crawls: one of the process, shared by all threads."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

from scrapy.utils.reactor import is_reactor_installed

from netspy_scrapy import _scrapy
from netspy_scrapy.exceptions import SpiderError
from netspy_scrapy.wakeup import woken_by_signals

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

    from scrapy.settings import BaseSettings

#: What is noted on the reactor: who runs its loop, which process it belongs to, and, after a fork,
#: the reactor of the parent.
_HOST = "_netspy_host"
_PROCESS = "_netspy_process"
_PARENT = "_netspy_parent"

_lock = threading.Lock()


class Crawling(Protocol):
    """What is run."""

    loop: asyncio.AbstractEventLoop | None

    def crawl(self) -> Coroutine[Any, Any, None]:
        """Crawl until done."""

    def stop(self) -> None:
        """End the crawl soon; for any thread."""


class Host:
    """Runs the loop for the first crawl, and until the crawls of other threads are done too."""

    def __init__(self) -> None:
        self.runs: list[Crawling] = []
        self.guests: list[Future[None]] = []
        """The crawls of other threads."""
        self.is_open = True
        """Whether others may still come."""

    async def run(self, own: Crawling) -> None:
        """Crawl, then wait for the others."""
        try:
            await own.crawl()
        except KeyboardInterrupt:  # at once
            raise
        except BaseException:
            await self._wait_for_guests()
            raise
        await self._wait_for_guests()

    async def _wait_for_guests(self) -> None:
        while True:
            with _lock:
                waiting = [one for one in self.guests if not one.done()]
                if not waiting:
                    self.is_open = False
                    return
            await asyncio.wait([asyncio.wrap_future(one) for one in waiting])


def run(crawling: Crawling, settings: BaseSettings) -> None:
    """Run *crawling* until it is done, in the loop that another thread may be running.

    Raises :exc:`SpiderError` where the loop is not ours to run.
    """
    with _lock:
        parent = _leave_reactor_to_parent()
        loop = crawling.loop = _scrapy.reactor_loop(settings)
        reactor = _reactor()
        setattr(reactor, _PROCESS, os.getpid())
        if parent is not None:
            setattr(reactor, _PARENT, parent)
        host: Host | None = getattr(reactor, _HOST, None)
        guest: Future[None] | None = None
        if host is not None and host.is_open:
            guest = asyncio.run_coroutine_threadsafe(crawling.crawl(), loop)
            host.guests.append(guest)
        elif loop.is_running():
            raise SpiderError(
                "a crawl of Scrapy's is running in this process: add the spider to it "
                "(process.crawl(MySpider)), start() cannot be called beside it"
            )
        else:
            host = Host()
            setattr(reactor, _HOST, host)
        host.runs.append(crawling)
    if guest is not None:
        guest.result()
        return
    asyncio.set_event_loop(loop)
    try:
        with woken_by_signals(loop):
            loop.run_until_complete(host.run(crawling))
    finally:
        with _lock:
            host.is_open = False
        for one in host.guests:  # the loop was left in the midst of them
            one.cancel()


def all_runs() -> list[Crawling]:
    """Return all crawls that are running in the loop."""
    if not is_reactor_installed():  # to ask for it would install one
        return []
    host: Host | None = getattr(_reactor(), _HOST, None)
    return [] if host is None else list(host.runs)


def is_within_a_crawl() -> bool:
    """Tell whether this is the thread that runs the loop: nothing that blocks may wait for it."""
    if not is_reactor_installed():
        return False
    try:
        return asyncio.get_running_loop() is getattr(_reactor(), "_asyncioEventloop", None)
    except RuntimeError:
        return False


def _reactor() -> Any:
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

    return reactor


def _leave_reactor_to_parent() -> Any:
    """Take the reactor out of a process that was forked after it was started, and return it.

    Its loop shares the selector with the parent's, and the threads of its pool are not there. It
    has to be kept: a loop that is disposed of takes its sockets out of the selector of both.
    """
    if not is_reactor_installed() or getattr(_reactor(), _PROCESS, os.getpid()) == os.getpid():
        return None
    from twisted import internet  # noqa: PLC0415

    parents = _reactor()
    del sys.modules["twisted.internet.reactor"]
    del internet.reactor
    asyncio.set_event_loop(asyncio.new_event_loop())
    return parents
