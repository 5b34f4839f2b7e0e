"""Pages fetched by a browser (scrapy-playwright), in a crawl whose other pages are not."""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextlib import suppress
from hashlib import sha1
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import signals
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.request import RequestFingerprinter

from netspy_scrapy import meta as metakeys
from netspy_scrapy._scrapy import handlers
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import ConfigError, CutOffError, RenderError
from netspy_scrapy.settings import RenderSettings

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    import scrapy
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)

#: Seconds that the closing of a page, or of a context, may take before it is given up.
_CLOSE_TIMEOUT = 10.0

#: Seconds that a page may take where nothing says so.
_TIMEOUT = 180.0

#: Begins the names of cookie jars that one request has for itself.
_OWN_JAR = "netspy-"
_CONTEXT = "playwright_context"


def options_of(request: scrapy.Request) -> Mapping[str, Any] | None:
    """Return how a browser is to fetch *request*; None: it is fetched without one."""
    options = request.meta.get(metakeys.RENDER)
    if not options:
        return None
    return options if isinstance(options, dict) else {}


class RenderFingerprinter(RequestFingerprinter):
    """Scrapy's fingerprints, and others for pages that a browser fetches."""

    def fingerprint(self, request: scrapy.Request) -> bytes:
        """Return the fingerprint of *request*."""
        found = super().fingerprint(request)
        if options_of(request) is None:
            return found
        return sha1(found + b"rendered", usedforsecurity=False).digest()


class Rendering:
    """Hands requests that are to be rendered to a browser; begins with the first of them.

    The browser starts with the first such request, so a crawl without one pays nothing, and other
    requests go their usual way. A page is closed whatever becomes of it. Requests that share
    cookies share a browser context; one with cookies of its own has a context of its own.

    What scrapy-playwright needs is put into a copy of the request: its objects can be written
    neither to a job directory nor to a dump.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._context = CrawlContext.of(crawler)
        self._settings = RenderSettings.from_settings(crawler.settings)
        self._rendering: set[asyncio.Future[Response]] = set()
        self._is_cut = False
        self._pages = asyncio.Semaphore(self._settings.pages)
        self._starting = asyncio.Lock()
        self._handler: Any = None
        self._names = itertools.count()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the extension."""
        rendering = cls(crawler)
        crawler.signals.connect(rendering.spider_opened, signals.spider_opened)
        return rendering

    def spider_opened(self) -> None:
        """Take over the downloads of requests that are to be rendered."""
        handlers.divert_downloads(self._crawler, self._download, self._close)
        self._context.politeness.on_cut.append(self._cut)

    def _download(self, request: scrapy.Request) -> Any:
        """Return the download of *request*, to be awaited; None: it is not rendered."""
        options = options_of(request)
        return None if options is None else self._tracked(request, options)

    async def _tracked(self, request: scrapy.Request, options: Mapping[str, Any]) -> Response:
        if self._is_cut:
            raise _cut_off()
        task = asyncio.ensure_future(self._render(request, options))
        self._rendering.add(task)
        task.add_done_callback(self._rendering.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_cut:  # Scrapy's downloader waits for an exception that it knows
                raise _cut_off() from None
            raise

    def _cut(self) -> None:
        """End what is being rendered, or waits for a page: the engine waits for it no more."""
        self._is_cut = True
        for task in self._rendering:
            task.cancel()

    async def _render(self, request: scrapy.Request, options: Mapping[str, Any]) -> Response:
        timeout = self._settings.timeout or request.meta.get("download_timeout") or _TIMEOUT
        async with self._pages:
            handler = await self._started()
            page = _Page(request)
            rendered = self._for_browser(request, options, page)
            try:
                response: Response = await asyncio.wait_for(
                    handler.download_request(rendered), timeout
                )
            except asyncio.TimeoutError as exc:
                raise RenderError(f"the page was not rendered within {timeout:g} s") from exc
            except Exception as exc:
                if type(exc).__module__.startswith("playwright"):
                    first = str(exc).partition("\n")[0]
                    raise RenderError(f"the browser: {first}") from exc
                raise
            finally:
                await self._end(handler, page, rendered)
        for name in ("redirect_urls", "redirect_reasons", "redirect_times", "download_latency"):
            if name in rendered.meta:
                request.meta[name] = rendered.meta[name]
        self._check_size(request, response)
        return response.replace(request=request)

    def _for_browser(
        self, request: scrapy.Request, options: Mapping[str, Any], page: _Page
    ) -> scrapy.Request:
        """Return a copy of *request* as scrapy-playwright reads it."""
        from scrapy_playwright.page import PageMethod  # noqa: PLC0415 - an extra

        settings = self._settings
        methods = []
        wait_for = options.get("wait_for") or settings.wait_for
        if wait_for:
            methods.append(PageMethod("wait_for_selector", wait_for))
        seconds = options.get("time")
        seconds = settings.time if seconds is None else seconds
        if seconds:
            methods.append(PageMethod("wait_for_timeout", seconds * 1000))
        if options.get("script"):
            methods.append(PageMethod("evaluate", options["script"]))
        copy = request.copy()
        copy.headers.pop(b"Cookie", None)  # a browser takes none from there
        copy.meta.update(
            playwright=True,
            playwright_page_methods=[*methods, *copy.meta.get("playwright_page_methods", ())],
            playwright_page_init_callback=page.opened,
        )
        goto = {"wait_until": settings.wait_until} if settings.wait_until else {}
        copy.meta["playwright_page_goto_kwargs"] = {
            **goto, **copy.meta.get("playwright_page_goto_kwargs", {})
        }  # fmt: skip
        jar = copy.meta.get("cookiejar")
        page.has_own_context = isinstance(jar, str) and jar.startswith(_OWN_JAR)
        if page.has_own_context:
            copy.meta[_CONTEXT] = f"{_OWN_JAR}{next(self._names)}"
        elif jar is not None:
            copy.meta.setdefault(_CONTEXT, f"cookiejar-{jar}")
        copy.meta.setdefault("playwright_context_kwargs", dict(settings.context))
        return copy

    async def _end(self, handler: Any, page: _Page, rendered: scrapy.Request) -> None:
        """Close the page, also after a time-out or a cancellation, and a context of its own."""
        closing = []
        if page.page is not None and not page.page.is_closed():
            closing.append(page.page.close())
        if page.has_own_context:
            wrapper = handler.context_wrappers.get(rendered.meta[_CONTEXT])
            if wrapper is not None:
                closing.append(wrapper.context.close())
        for one in closing:
            with suppress(Exception):  # the browser may be gone, and the page with it
                await asyncio.wait_for(asyncio.shield(one), _CLOSE_TIMEOUT)

    def _check_size(self, request: scrapy.Request, response: Response) -> None:
        limits = self._context.limits
        limit = limits.size_of(request)
        if limit and len(response.body) > limit:
            raise limits.too_large(request, f"{len(response.body)} bytes once it was rendered")

    # The browser ---------------------------------------------------------------------------------
    async def _started(self) -> Any:
        async with self._starting:
            if self._handler is None:
                self._handler = await self._start()
            return self._handler

    async def _start(self) -> Any:
        try:
            from scrapy_playwright.handler import (  # noqa: PLC0415 - an extra
                ScrapyPlaywrightDownloadHandler,
            )
        except ImportError as exc:
            raise RenderError(
                'a page is to be rendered: pip install "netspy-scrapy[render]"'
            ) from exc
        handler = build_from_crawler(ScrapyPlaywrightDownloadHandler, self._crawler)
        # It would do so when the engine starts, which is long ago.
        await handler._launch()  # noqa: SLF001 - there is no other way to start it later
        return handler

    async def _close(self) -> None:
        if self._handler is not None:
            handler, self._handler = self._handler, None
            closing: asyncio.Future[Any] = asyncio.ensure_future(
                _quietly(handlers.close_handler(handler))
            )
            seconds = self._context.stop.left(_CLOSE_TIMEOUT)
            ending: set[asyncio.Future[Any]] = {closing, *self._rendering}
            await asyncio.wait(ending, timeout=seconds)


def _cut_off() -> CutOffError:
    return CutOffError("the crawl is being stopped")


async def _quietly(closing: Coroutine[Any, Any, None]) -> None:
    with suppress(Exception):  # the browser may be gone
        await closing


class _Page:
    """The browser's page of one request."""

    def __init__(self, request: scrapy.Request) -> None:
        self._request = request
        self.page: Any = None
        self.has_own_context = False

    async def opened(self, page: Any, _request: Any) -> None:
        """Keep the page, to close it, and give it the request's cookies."""
        self.page = page
        # The path of most cookies, so that they replace those that the browser was set itself.
        place = {"domain": urlsplit(self._request.url).hostname, "path": "/"}
        cookies = cookies_of(self._request)
        if cookies:
            await page.context.add_cookies(
                [{"name": name, "value": value, **place} for name, value in cookies.items()]
            )


def cookies_of(request: scrapy.Request) -> dict[str, str]:
    """Return the cookies of the request's Cookie header."""
    header = request.headers.get(b"Cookie")
    if header is None:
        return {}
    jar = SimpleCookie()
    try:
        jar.load(header.decode("latin-1"))
    except CookieError:
        return {}
    return {name: morsel.coded_value for name, morsel in jar.items()}


def launch_options(webdriver: Mapping[str, Any]) -> dict[str, Any]:
    """Return scrapy-playwright's settings for netspy's WEBDRIVER.

    Raises :exc:`~netspy_scrapy.exceptions.ConfigError` for a value that cannot be used.
    """
    if not isinstance(webdriver, dict):
        raise ConfigError("WEBDRIVER", webdriver, "a dict")
    launch: dict[str, Any] = {}
    found: dict[str, Any] = {}
    browser = webdriver.get("browser")
    if browser is not None:
        if browser not in ("chromium", "firefox", "webkit"):
            raise ConfigError("WEBDRIVER['browser']", browser, '"chromium", "firefox" or "webkit"')
        found["PLAYWRIGHT_BROWSER_TYPE"] = browser
    for name in ("headless", "channel"):
        if webdriver.get(name) is not None:
            launch[name] = webdriver[name]
    if webdriver.get("proxy"):
        proxy = webdriver["proxy"]
        launch["proxy"] = proxy if isinstance(proxy, dict) else {"server": proxy}
    if launch:
        found["PLAYWRIGHT_LAUNCH_OPTIONS"] = launch
    if webdriver.get("load_images") is False:
        found["PLAYWRIGHT_ABORT_REQUEST"] = "netspy_scrapy.render.is_image"
    return found


def is_image(request: Any) -> bool:
    """Tell whether a browser's request is for an image (``load_images: False``)."""
    return bool(request.resource_type == "image")
