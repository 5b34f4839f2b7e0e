"""AirSpider: netspy's spider of one process."""

from __future__ import annotations

import asyncio
import inspect
import logging
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, cast

import scrapy
from itemadapter import is_item
from scrapy import signals

from netspy_scrapy import _scrapy
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import (
    EscapedError,
    HookError,
    HttpStatusError,
    NotRetryError,
    RequestError,
    SpiderError,
)
from netspy_scrapy.http.request import Request
from netspy_scrapy.http.response import Response
from netspy_scrapy.spiders.adapter import FunctionCallback, adapt_callbacks, view, views
from netspy_scrapy.spiders.logger import SpiderLogger
from netspy_scrapy.spiders.setup import configure
from netspy_scrapy.stats import ITEMS_REFUSED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from twisted.python.failure import Failure
    from typing_extensions import Self

    from netspy_scrapy.escapes import Escapes

_PLAIN_HOOKS = ("validate", "exception_request", "failed_request", "start_callback", "end_callback")


class AirSpider(scrapy.Spider):
    """A netspy spider: ``start_requests`` and callbacks ``(self, request, response)``.

    ::

        class NewsSpider(AirSpider):
            __custom_setting__ = {"SPIDER_THREAD_COUNT": 8}

            def start_requests(self):
                yield Request("https://example.com")

            def parse(self, request, response):
                yield {"url": request.url, "title": response.css("title::text").get()}

        NewsSpider().start()        # blocks until the crawl is done

    Callbacks yield requests, items, dicts, and callables (which are called). Hooks:
    ``download_midware``, ``validate``, ``exception_request``, ``failed_request``,
    ``start_callback``, ``end_callback``. It runs by ``start()``, ``scrapy runspider`` and
    ``scrapy crawl`` alike; the add-on is switched on for it.
    """

    __custom_setting__: ClassVar[dict[str, Any] | None] = None

    netspy_active = False
    """Whether a crawl is running this instance, so that ``start()`` is Scrapy's to call."""

    netspy_start_error: BaseException | None = None
    """What ``start_callback`` or ``start_requests`` raised."""

    netspy_loop: asyncio.AbstractEventLoop | None = None
    """The loop that the crawl runs in."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("name"):
            cls.name = cls.__name__
        own = cls.__dict__.get("start")
        if inspect.isfunction(own) and not inspect.isasyncgenfunction(own):
            cls.start = _blocking(own)  # type: ignore[method-assign]
        elif own is None:
            # Below Scrapy 2.15 a start_requests() without a start() beside it is called deprecated.
            cls.start = cls.start  # type: ignore[method-assign]
        adapt_callbacks(cls)

    def __init__(
        self,
        *args: Any,
        thread_count: int | None = None,
        pipelines: list[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("item_handler") is not None:
            raise SpiderError("item_handler= is not supported: write a pipeline (BasePipeline)")
        super().__init__(*args, **kwargs)
        self.netspy_arguments: dict[str, Any] = {
            name: value
            for name, value in (
                ("SPIDER_THREAD_COUNT", thread_count),
                ("ITEM_PIPELINES", pipelines),
            )
            if value is not None
        }

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        """Add netspy's defaults, its ``setting.py``, environment and ``__custom_setting__``."""
        super().update_settings(settings)
        configure(cls, settings)

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Build the spider for a crawl, or take the instance whose ``start()`` was called."""
        if isinstance(getattr(cls, "settings", None), property):
            raise SpiderError(
                f"{cls.__name__}.settings is a property, and Scrapy keeps the crawl's settings "
                "there: give it another name"
            )
        instance = kwargs.pop("netspy_instance", None)
        if instance is None:
            spider = super().from_crawler(crawler, *args, **kwargs)
        else:
            spider = cast("Self", instance)
            spider._set_crawler(crawler)  # noqa: SLF001
        for name in _PLAIN_HOOKS:
            if inspect.iscoroutinefunction(getattr(spider, name)):
                raise SpiderError(
                    f"{cls.__name__}.{name} is async, and would never be awaited: of the hooks "
                    "only download_midware may be"
                )
        spider.netspy_active = True
        spider.netspy_start_error = None
        crawler.signals.connect(spider.netspy_closed, signals.spider_closed)
        return spider

    # What netspy users override ------------------------------------------------------------------
    def start_requests(self) -> Any:
        """Yield the first requests."""
        for url in self.start_urls:
            yield Request(url, filter_repeat=False)

    def download_midware(self, request: Request) -> Any:
        """Change *request* before each attempt; return it, another one, or None."""

    def validate(self, request: Request, response: Response) -> Any:
        """Look at an answer before the callback.

        ValidationError fetches the page again; NotRetryError, or returning False, drops it.
        """

    def exception_request(
        self, request: Request, response: Response | None, exception: Exception
    ) -> Any:
        """See each retry before it is sent; *response* is None if there was no answer."""

    def failed_request(self, request: Request, response: Response | None) -> Any:
        """Handle a request that failed for good; may yield requests and items."""

    def start_callback(self) -> Any:
        """Prepare the crawl, before ``start_requests``."""

    def end_callback(self) -> Any:
        """Finish the crawl; called once, also after a limit or a signal."""

    @property
    def logger(self) -> Any:
        """A logger of the class's name that takes ``{}`` and ``%s`` messages."""
        return SpiderLogger(logging.getLogger(type(self).__name__), {"spider": self})

    # Running -------------------------------------------------------------------------------------
    def start(self) -> Any:
        """Run the spider until it is done; return the exit status that the run deserves.

        That is 1 for a run with one of the findings in NETSPY_FAIL_ON, else 0, as in
        ``sys.exit(MySpider().start())``. Rows that are lost raise :exc:`SinkFailedError`.

        May be called several times in a process, and where an event loop is running. (Scrapy
        calls it too, once the crawl runs, for the first requests.)
        """
        if self.netspy_active:
            return self.netspy_start()
        from netspy_scrapy.spiders.runner import run  # noqa: PLC0415 - installs a reactor

        return run(self)

    def stop(self) -> None:
        """End the crawl: what runs is finished, what is queued is dumped. For any thread."""
        if not self.netspy_active:
            return
        if self.netspy_loop is None:  # start() has not been asked yet: this is the crawl's thread
            _scrapy.close_spider(self.crawler, "stopped")
        else:
            self.netspy_loop.call_soon_threadsafe(_scrapy.close_spider, self.crawler, "stopped")

    # What the crawl calls ------------------------------------------------------------------------
    def netspy_begin(self) -> None:
        """Call ``start_callback``, once, before anything is fetched."""
        if self.netspy_loop is None:
            self.netspy_loop = asyncio.get_running_loop()
            try:
                self.netspy_escapes.call(self.start_callback)
            except Exception as exc:
                self.netspy_start_error = exc.raised if isinstance(exc, EscapedError) else exc
                raise

    async def netspy_start(self) -> AsyncIterator[Any]:
        """Yield the first requests as Scrapy takes them."""
        self.netspy_begin()
        try:
            escapes = self.netspy_escapes
            given = escapes.call(self.start_requests)
            output = self.netspy_output(given, "start_requests")
            if inspect.isawaitable(output):
                output = await escapes.awaited(output)
            output = escapes.output(output)
            if hasattr(output, "__aiter__"):
                async for one in output:
                    yield one
            else:
                for one in output:
                    yield one
        except Exception as exc:
            self.netspy_start_error = exc.raised if isinstance(exc, EscapedError) else exc
            raise

    def netspy_closed(self) -> None:
        """Call ``end_callback`` once the crawl is over."""
        self.netspy_active = False
        self.netspy_loop = None
        try:
            self.netspy_escapes.call(self.end_callback)
        except Exception:
            self.logger.exception("end_callback raised")

    @property
    def netspy_escapes(self) -> Escapes:
        """What makes failures of whatever this spider's code raises."""
        return CrawlContext.of(self.crawler).escapes

    def netspy_output(self, output: Any, where: str) -> Any:
        """Convert what a callback gave: requests are sealed, callables called."""
        if inspect.isawaitable(output):
            return self._converted_coroutine(output, where)
        if hasattr(output, "__aiter__"):
            return self._converted_async(output, where)
        return self._converted(output, where)

    def netspy_validate(self, response: scrapy.http.Response) -> None:
        """Ask ``validate`` before the callback."""
        if type(self).validate is AirSpider.validate:
            return
        if self.validate(*views(response)) is False:
            raise NotRetryError("validate returned False")

    def netspy_before_retry(
        self,
        again: scrapy.Request,
        response: scrapy.http.Response | None,
        exception: Exception | None,
    ) -> None:
        """Call ``exception_request`` before a retry; it may change the request in place."""
        if type(self).exception_request is AirSpider.exception_request:
            return
        if isinstance(again, Request):
            again.unseal()
            if response is not None and isinstance(response.request, Request):
                again.__dict__.update(view(response.request).custom)
        try:
            seen: Any = again
            self.netspy_escapes.call(
                self.exception_request, seen, Response.of(response, seen),
                _cause(response, exception),
            )  # fmt: skip
        except Exception:
            self.logger.exception("exception_request raised")
        if isinstance(again, Request):
            again.seal(self, restart=False)

    def netspy_failed(
        self, request: scrapy.Request, response: scrapy.http.Response | None
    ) -> Iterable[Any]:
        """Call ``failed_request`` for a request that failed for good; return what it yields."""
        if type(self).failed_request is AirSpider.failed_request:
            return
        try:
            if response is not None and response.request is request:
                seen: tuple[Any, ...] = views(response)
            else:
                seen = view(request), Response.of(response, view(request))
            answer = self.netspy_escapes.call(self.failed_request, *seen)
            yield from self.netspy_escapes.output(self._converted(answer, "failed_request"))
        except Exception:
            self.logger.exception("failed_request raised")

    def netspy_errback(self, failure: Failure) -> Any:
        """Call ``failed_request`` for a download that failed for good.

        A page that was dropped on purpose (robots.txt, a refused type) has no hook. What was raised
        after the download (``validate``, a refused status) is raised again, so
        that it reaches the spider middleware, which decides on it.
        """
        if not getattr(failure.value, "netspy_download_failed", False):
            failure.raiseException()
        if getattr(failure.value, "netspy_dropped", False):
            return ()
        return self.netspy_failed(failure.request, None)  # type: ignore[attr-defined]

    def netspy_seal(self, request: Request) -> Request:
        """Make *request* ready for Scrapy."""
        request.seal(self)
        for asked in request.without_effect:
            name = asked.partition("=")[0]
            told: set[str] = self.__dict__.setdefault("netspy_told", set())
            if name not in told:
                told.add(name)
                self.logger.warning(
                    "%s has no effect in netspy_scrapy%s", asked,
                    ": set DOWNLOAD_VERIFY_CERTIFICATES" if name == "verify" else "",
                )  # fmt: skip
        callback = self._adapted_late(request)
        if (
            callback is not None
            and not hasattr(callback, "netspy_callback")
            and getattr(callback, "__self__", None) is not self
        ):
            request.callback = FunctionCallback(self, callback)
        if request.errback is None:
            request.errback = self.netspy_errback
        return request

    def _adapted_late(self, request: Request) -> Any:
        """Return the callback; a method that the class got after its creation is adapted now."""
        callback: Any = request.callback
        if getattr(callback, "__self__", None) is self and not hasattr(callback, "netspy_callback"):
            adapt_callbacks(type(self))
            request.callback = callback = getattr(self, callback.__name__, callback)
        return callback

    # Own methods ---------------------------------------------------------------------------------
    def _converted(self, output: Any, where: str) -> Iterator[Any]:
        if output is None:
            return
        alone = is_item(output) or isinstance(output, (scrapy.Request, str, bytes))
        for one in (output,) if alone or not hasattr(output, "__iter__") else output:
            yield from self._converted_one(one, where)

    def _converted_one(self, one: Any, where: str) -> Iterable[Any]:
        if isinstance(one, Request):
            try:
                return (self.netspy_seal(one),)
            except Exception as exc:  # noqa: BLE001 - whatever its values raise, it fails alone
                return self._unusable(one, exc)
        if isinstance(one, (dict, scrapy.Request)) or is_item(one):
            return (one,)
        if callable(one):
            one()  # what it returns is its own affair, as in netspy
        elif one is not None:
            self.logger.error(
                "%s yielded %s %.80r, which is neither a Request nor an Item, a dict or a callable",
                where, type(one).__name__, one,
            )  # fmt: skip
            CrawlContext.of(self.crawler).stats.inc_value(ITEMS_REFUSED)
        return ()

    async def _converted_async(self, output: AsyncIterator[Any], where: str) -> AsyncIterator[Any]:
        async for one in output:
            for converted in self._converted_one(one, where):
                yield converted

    async def _converted_coroutine(self, output: Any, where: str) -> Any:
        return self.netspy_output(await output, where)

    def _unusable(self, request: Request, exc: Exception) -> Iterable[Any]:
        """Fail a request that cannot be sent, as a download that failed."""
        reason = str(exc) if isinstance(exc, RequestError) else f"{type(exc).__name__}: {exc}"
        CrawlContext.of(self.crawler).failures.fail(request, "RequestError", reason)
        return self.netspy_failed(request, None)


def _blocking(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return an overridden ``start()`` in a form that Scrapy may call too."""

    @wraps(start)
    def either(self: AirSpider, *args: Any, **kwargs: Any) -> Any:
        return self.netspy_start() if self.netspy_active else start(self, *args, **kwargs)

    return either


def _cause(response: scrapy.http.Response | None, exception: Exception | None) -> Exception:
    """Return what ``exception_request`` is to see: a network's failure is a RequestError."""
    if isinstance(exception, HookError):
        cause = exception.__cause__
        return cause if isinstance(cause, Exception) else exception
    if response is not None:
        return exception or HttpStatusError(response, "fetched again")
    assert exception is not None
    if isinstance(exception, SpiderError):
        return exception
    failed = RequestError(f"{type(exception).__name__}: {exception}")
    failed.__cause__ = exception
    return failed
