"""The reactor and the process that a crawl runs in."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.reactor import install_reactor, is_reactor_installed

from netspy_scrapy.exceptions import SpiderError

if TYPE_CHECKING:
    import asyncio

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

_ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
_ENDED = "_netspy_ended"

_IMPORTED = time.monotonic()


def reactor_loop(settings: BaseSettings) -> asyncio.AbstractEventLoop:
    """Return the loop of the asyncio reactor, which is installed and started if there is none.

    The reactor counts as running from then on; it does its work whenever the loop runs. Its
    threads (DNS look-ups) end with the process.
    """
    if not is_reactor_installed():
        install_reactor(_ASYNCIO_REACTOR, settings["ASYNCIO_EVENT_LOOP"])
    from twisted.internet import reactor as installed  # noqa: PLC0415 - importing it installs one

    reactor: Any = installed
    loop = getattr(reactor, "_asyncioEventloop", None)
    if loop is None:
        raise SpiderError(
            f"{type(reactor).__name__} is installed as the reactor of this process: "
            "start() needs Twisted's AsyncioSelectorReactor, or none"
        )
    if not loop.is_running() and not getattr(reactor, "_started", False):
        pool = reactor.getThreadPool()
        pool.threadFactory = functools.partial(threading.Thread, daemon=True)
        reactor.startRunning(installSignalHandlers=False)
    return cast("asyncio.AbstractEventLoop", loop)


def process_start() -> float:
    """Return when this process was started (``time.monotonic()``); where none says: imported this.

    A forked one counts from the fork.
    """
    now = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks = int(fields[19])  # since the machine was started
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (AttributeError, IndexError, OSError, ValueError):
        return _IMPORTED
    return now - age


def note_end() -> None:
    """Note on the reactor, which is the process's, that a crawl has ended in it."""
    if is_reactor_installed():
        from twisted.internet import reactor  # noqa: PLC0415

        setattr(reactor, _ENDED, time.monotonic())


def last_end() -> float:
    """Return when a crawl last ended in this process (``time.monotonic()``); 0: none has."""
    if not is_reactor_installed():
        return 0.0
    from twisted.internet import reactor  # noqa: PLC0415

    return float(getattr(reactor, _ENDED, 0.0))


def install_resolver(crawler: Crawler) -> None:
    """Let the reactor look up names as the settings say, as Scrapy's process does at its start."""
    from twisted.internet import reactor as installed  # noqa: PLC0415

    reactor: Any = installed
    settings = crawler.settings
    path = settings.get("TWISTED_DNS_RESOLVER") or settings["DNS_RESOLVER"]
    build: Any = build_from_crawler  # typed for components that take a crawler alone
    resolver = build(load_object(path), crawler, reactor=reactor)
    resolver.install_on_reactor()
    threads = settings.getint("REACTOR_THREADPOOL_MAXSIZE")
    reactor.getThreadPool().adjustPoolsize(maxthreads=threads)


def shutdown_handlers() -> dict[int, Any]:
    """Return the handlers of the signals that end a process."""
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def restore_handlers(handlers: dict[int, Any]) -> None:
    """Put back what :func:`shutdown_handlers` returned."""
    for number, handler in handlers.items():
        signal.signal(number, handler)
