"""What user code raises that is no Exception, and so would pass every ``except`` of Scrapy's.

A callback that raises SystemExit, or awaits a task that somebody cancelled, ends a task of
Scrapy's scraper without a word: its request is never done, and the crawl never ends.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from contextlib import suppress
from contextvars import copy_context
from functools import wraps
from typing import TYPE_CHECKING, Any

from scrapy.http import Response

from netspy_scrapy import _scrapy
from netspy_scrapy.exceptions import EscapedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator

    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

#: Finish reasons of a crawl that user code ended so.
_REASONS: dict[type[BaseException], str] = {SystemExit: "exit", KeyboardInterrupt: "interrupted"}


class _WaitCancelledError(asyncio.CancelledError):
    """Our own waiting for a thread was cancelled: no code of the user's raised that."""


def as_exception(exc: BaseException) -> Exception:
    """Return *exc* as an Exception that Scrapy knows how to fail with.

    It is raised again if it is no fault of user code: the loop cancels the running task.
    """
    if isinstance(exc, Exception):
        return exc
    if isinstance(exc, _WaitCancelledError):
        raise exc
    if isinstance(exc, asyncio.CancelledError) and _is_being_cancelled():
        raise exc
    return EscapedError(exc)


def _is_being_cancelled() -> bool:
    try:
        task: Any = asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return False
    # Python 3.10 does not say. Whoever cancels then meets a failure in place of a cancellation;
    # the other way round the crawl would hang.
    return task is not None and hasattr(task, "cancelling") and task.cancelling() > 0


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that blocks in a thread, and return or raise what it does.

    The thread is a daemon: one that hangs for ever does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((function(*args), None))
        except BaseException as exc:  # noqa: BLE001 - a future cannot carry all of them
            outcome.append((None, exc))

    def finish() -> None:
        if not done.done():  # else nobody waits any more
            done.set_result(None)

    def run_in_thread() -> None:
        run()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish)

    context = copy_context()
    name = f"netspy-{getattr(function, '__name__', 'call')}"
    thread = threading.Thread(target=context.run, args=(run_in_thread,), name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the main thread is at its end, and Python starts no thread any more
        run()
    else:
        try:
            await done
        except asyncio.CancelledError as cancelled:  # Python 3.10 could not tell later
            raise _WaitCancelledError from cancelled
    result, exc = outcome[0]
    if exc is not None:
        raise as_exception(exc) from exc
    return result


class Escapes:
    """Makes a failure of one request, item or hook of whatever the spider's code raises.

    SystemExit and KeyboardInterrupt end the crawl as well, as a stop does: what is queued and
    what the sinks hold is kept.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.exit: BaseException | None = None
        """What ended the crawl; ``start()`` raises it once the crawl is closed."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def failure(self, exc: BaseException) -> Exception:
        """Return *exc* as an Exception; see :func:`as_exception`."""
        known = as_exception(exc)
        reason = next((why for kind, why in _REASONS.items() if isinstance(exc, kind)), None)
        if reason is not None and self.exit is None:
            self.exit = exc
            logger.error(
                "The spider's code raised %s: the crawl stops", type(exc).__name__,
                extra={"spider": self._crawler.spider},
            )  # fmt: skip
            if self._loop is None:
                self._end(reason)
            else:  # a callback may run in a thread
                self._loop.call_soon_threadsafe(self._end, reason)
        return known

    def _end(self, reason: str) -> None:
        if not isinstance(self.exit, SystemExit) or self.exit.code:
            _scrapy.fail_exit(self._crawler)
        _scrapy.close_spider(self._crawler, reason)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call user code; it raises Exceptions only."""
        try:
            return function(*args, **kwargs)
        except Exception:
            raise
        except BaseException as exc:
            raise self.failure(exc) from exc

    async def awaited(self, coroutine: Any) -> Any:
        """Await what user code gave; it raises Exceptions only."""
        try:
            return await coroutine
        except Exception:
            raise
        except BaseException as exc:
            raise self.failure(exc) from exc

    def output(self, output: Any) -> Any:
        """Return what a callback gave in a form that raises Exceptions only."""
        if inspect.isasyncgen(output):
            return self._async_output(output)
        return self._output(output) if hasattr(output, "__next__") else output

    # The exceptions of a consumer of these generators come in at the yields, and pass.
    def _output(self, output: Iterable[Any]) -> Iterator[Any]:
        iterator = iter(output)
        while True:
            try:
                one = next(iterator)
            except StopIteration:
                return
            except Exception:
                raise
            except BaseException as exc:
                raise self.failure(exc) from exc
            yield one

    async def _async_output(self, output: AsyncIterator[Any]) -> AsyncIterator[Any]:
        while True:
            try:
                one = await output.__anext__()
            except StopAsyncIteration:
                return
            except Exception:
                raise
            except BaseException as exc:
                raise self.failure(exc) from exc
            yield one

    def guard(self, *, items: bool) -> None:
        """Guard callbacks and errbacks, and with *items* the pipelines."""
        self._loop = asyncio.get_running_loop()
        engine = _scrapy.engine_of(self._crawler)
        assert engine is not None
        scraper: Any = engine.scraper
        call = scraper.call_spider_async

        async def call_spider_async(result: Any, request: Request, *args: Any) -> Any:
            asked = request
            name = "errback"
            if isinstance(result, Response):
                name = "callback"
                asked = result.request or request
            self._guard_next_call(asked, name)
            return await call(result, request, *args)

        scraper.call_spider_async = call_spider_async
        process = getattr(scraper.itemproc, "process_item_async", None)
        if items and process is not None:

            def process_item_async(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
                return self.awaited(process(*args, **kwargs))

            scraper.itemproc.process_item_async = process_item_async

    def _guard_next_call(self, request: Request, name: str) -> None:
        """Guard the callback or errback of *request* for one call.

        Inside the call: what a coroutine raises would not come out of it as it went in.
        """
        given = getattr(request, name)
        function = given
        if function is None:
            if name == "errback":
                return
            function = self._crawler.spider._parse  # type: ignore[union-attr]  # noqa: SLF001

        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            setattr(request, name, given)  # the code that is called sees what it wrote
            output = self.call(function, *args, **kwargs)
            return self.awaited(output) if inspect.iscoroutine(output) else self.output(output)

        guarded.netspy_given = given  # type: ignore[attr-defined]  # for a dump before the call
        setattr(request, name, guarded)
