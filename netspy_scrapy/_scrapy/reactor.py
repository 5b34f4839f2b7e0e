"""The reactor and the process that a crawl runs in."""

from __future__ import annotations

import functools
import signal
import threading
from typing import TYPE_CHECKING, Any, cast

from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.reactor import install_reactor, is_reactor_installed

from netspy_scrapy.exceptions import SpiderError

if TYPE_CHECKING:
    import asyncio

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

_ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"


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
