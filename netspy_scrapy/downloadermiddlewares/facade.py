"""What netspy does to each attempt of a request."""

from __future__ import annotations

import inspect
import random
import secrets
from typing import TYPE_CHECKING, Any

from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.exceptions import IgnoreRequest, NotConfigured

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.domains import domain_of
from netspy_scrapy.exceptions import HookError
from netspy_scrapy.http.agents import USER_AGENTS
from netspy_scrapy.http.request import Request
from netspy_scrapy.settings import read_bool, user_set
from netspy_scrapy.spiders.air import AirSpider

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import scrapy
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

_JAR = "cookiejar"
#: Marks a request that goes through the queue again because download_midware moved it.
_MOVED = "netspy_moved"
_OWN_JAR = "netspy-"
#: For which attempt (``retry_times``) download_midware was called.
_HOOKED = "netspy_hooked"


class FacadeMiddleware:
    """Calls ``download_midware``, draws a User-Agent, keeps the cookies of requests apart.

    Without USE_SESSION each request has cookies of its own, which live through its redirects and
    end with it; ``use_session=True`` on a request, or the setting, shares Scrapy's jar. A
    User-Agent that the request or the project gives is kept.

    Settings: RANDOM_USER_AGENT, USE_SESSION. Only netspy spiders have it in their chain.
    """

    def __init__(self, crawler: Crawler) -> None:
        if not issubclass(crawler.spidercls, AirSpider):
            raise NotConfigured
        self._crawler = crawler
        # A job directory keeps names of jars: those of another run are others.
        self._own_jar = f"{_OWN_JAR}{secrets.token_hex(4)}-"
        self._jars = 0
        self._cookies: dict[Any, Any] | None = None
        """The jars of Scrapy's cookie middleware, once they were looked up."""
        self._escapes = CrawlContext.of(crawler).escapes
        settings = crawler.settings
        self._random_agent = read_bool(settings, "RANDOM_USER_AGENT") and not (
            user_set(settings, "USER_AGENT") and not user_set(settings, "RANDOM_USER_AGENT")
        )
        self._use_session = settings.getbool("USE_SESSION")
        self._has_midware = crawler.spidercls.download_midware is not AirSpider.download_midware

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware."""
        return cls(crawler)

    def process_request(
        self, request: scrapy.Request
    ) -> Request | Coroutine[Any, Any, Request | None] | None:
        """Prepare one attempt."""
        if not isinstance(request, Request):
            return None
        midware = None if self._is_going_on(request) else self._midware(request)
        if midware is not None:
            answer = self._call(midware, request)
            if inspect.isawaitable(answer):
                return self._finish_later(request, answer)
            self._take(request, answer)
            moved = self._moved(request)
            if moved is not None:
                return moved
        self._prepare(request)
        return None

    def process_response(self, request: scrapy.Request, response: Response) -> Response:
        """Forget the cookies of a request that is done."""
        self._drop_jar(request)
        return response

    def process_exception(self, request: scrapy.Request, exception: Exception) -> None:  # noqa: ARG002
        """Forget the cookies of a request that failed."""
        self._drop_jar(request)

    def _is_going_on(self, request: Request) -> bool:
        """Tell whether download_midware has seen this attempt: a redirect, or no cached answer."""
        if request.meta.get(_HOOKED) != request.retry_times:
            return False
        cache = CrawlContext.of(self._crawler).cache
        return bool(request.meta.get("redirect_urls")) or (
            cache is not None and cache.is_missed(request)
        )

    # download_midware ----------------------------------------------------------------------------
    def _midware(self, request: Request) -> Callable[[Request], Any] | None:
        midware = request.download_midware
        if isinstance(midware, str):
            midware = getattr(self._crawler.spider, midware, None)
            if midware is None:
                raise HookError(
                    f"download_midware {request.download_midware!r} is not a method of "
                    f"{self._crawler.spidercls.__name__}"
                )
        if midware is None and self._has_midware:
            midware = self._crawler.spider.download_midware  # type: ignore[union-attr]
        return midware

    def _call(self, midware: Callable[[Request], Any], request: Request) -> Any:
        request.unseal()
        try:
            return self._escapes.call(midware, request)
        except IgnoreRequest:
            raise
        except Exception as exc:
            raise HookError(f"download_midware raised {type(exc).__name__}: {exc}") from exc

    async def _finish_later(self, request: Request, answer: Any) -> Request | None:
        try:
            given = await self._escapes.awaited(answer)
        except Exception as exc:
            raise HookError(f"download_midware raised {type(exc).__name__}: {exc}") from exc
        self._take(request, given)
        moved = self._moved(request)
        if moved is None:
            self._prepare(request)
        return moved

    def _moved(self, request: Request) -> Request | None:
        """Return the request to queue anew if its URL is now another domain's."""
        domain = request.meta.get(metakeys.DOMAIN)
        if request.meta.pop(_MOVED, False) or domain is None or metakeys.OWN_SLOT in request.meta:
            return None
        if domain == domain_of(request.url):
            return None
        moved = request.copy()
        moved.dont_filter = True
        moved.meta[_MOVED] = True
        return moved

    def _take(self, request: Request, given: Any) -> None:
        if given is not None and given is not request:
            if not isinstance(given, Request):
                raise HookError(
                    f"download_midware returned {type(given).__name__}, not a Request or None"
                )
            spider = self._crawler.spider
            assert isinstance(spider, AirSpider)
            for key in ("retry_times", metakeys.RETRY_OWNER, metakeys.DOMAIN, _MOVED):
                if key in request.meta:
                    given.meta.setdefault(key, request.meta[key])
            _scrapy.become(request, spider.netspy_seal(given))
        else:
            request.seal(self._crawler.spider, restart=False)
        request.meta[_HOOKED] = request.retry_times

    # Headers -------------------------------------------------------------------------------------
    def _prepare(self, request: Request) -> None:
        if (
            self._random_agent if request.random_user_agent is None else request.random_user_agent
        ) and b"User-Agent" not in request.headers:
            request.headers[b"User-Agent"] = random.choice(USER_AGENTS)  # noqa: S311
        shares = self._use_session if request.use_session is None else request.use_session
        if not shares and request.meta.get(_JAR) is None:
            self._jars += 1
            request.meta[_JAR] = f"{self._own_jar}{self._jars}"

    def _drop_jar(self, request: scrapy.Request) -> None:
        jar = request.meta.get(_JAR)
        if isinstance(jar, str) and jar.startswith(_OWN_JAR):
            del request.meta[_JAR]
            if self._cookies is None:
                cookies = self._crawler.get_downloader_middleware(CookiesMiddleware)
                self._cookies = cookies.jars if cookies is not None else {}
            self._cookies.pop(jar, None)
