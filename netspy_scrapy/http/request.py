"""netspy's request: a Scrapy request that a netspy spider can write and read as it is used to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import scrapy
from scrapy.http import Headers
from scrapy.utils.request import request_from_dict

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.exceptions import RequestError
from netspy_scrapy.http.body import basic_auth, encode_body, proxy_for, url_with_params
from netspy_scrapy.http.values import (
    as_dict,
    seconds,
    usable_cookies,
    usable_dict,
    usable_headers,
    usable_url,
    user_info_auth,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider
    from typing_extensions import Self

#: netspy's default priority. There small numbers go first; Scrapy's priority is the distance.
NETSPY_PRIORITY = 300

#: The keywords that say what is sent. They are kept in ``request.requests_kwargs``.
HTTP_KEYWORDS = frozenset(
    {
        "headers", "cookies", "params", "timeout", "json", "data", "content", "files", "auth",
        "proxies", "proxy", "verify", "cert", "allow_redirects", "follow_redirects",
    }
)  # fmt: skip

#: Keywords of netspy that do nothing here, with the value at which that makes no difference.
_WITHOUT_EFFECT: dict[str, Any] = {
    "auto_request": True, "impersonate": None, "verify": True, "cert": None,
}  # fmt: skip

#: The keywords that make URL and body.
_URL_AND_BODY = ("params", "data", "json", "content")

#: What a redirect leaves in meta; a request that goes out anew starts without it.
_REDIRECT_META = ("redirect_times", "redirect_ttl", "redirect_urls", "redirect_reasons")

#: Where a request in the core keeps what the spider's code has seen of it and its answer.
SEEN = "_seen"
ANSWER = "_answer"


class Request(scrapy.Request):
    """A request of a netspy spider.

    *priority*: small goes first, default 300. *filter_repeat*: whether the request filter may
    drop it. *callback*: a method, a function, or a method's name. *cb_kwargs*: further arguments
    of the callback. HTTP keywords: headers, cookies, params, data, json, content, files, timeout
    (seconds), auth, proxy, proxies, allow_redirects. *download_midware*: a function or a method's
    name that is called for this request in place of the spider's. Every other keyword becomes an
    attribute that survives retries, job directories and dumps.

    While the spider has it, it shows netspy's values (``priority``, the ``url`` as written); once
    it is yielded it is *sealed*: then Scrapy's core, and everything that copies it, sees Scrapy's.
    What the spider changed before is put into effect at that moment.
    """

    attributes: tuple[str, ...] = (
        *(name for name in scrapy.Request.attributes if name != "priority"),
        "scrapy_priority",
        "given_url",
        "given_method",
        "requests_kwargs",
        "download_midware",
        "use_session",
        "random_user_agent",
        "custom",
    )

    _sealed = False
    _core_priority = 0
    _invalid: str | None = None
    _seen_cookie: bytes | None = None
    """The Cookie header that a hook or callback found: what Scrapy made of cookies."""

    _seen_by_hook: str | None = None
    """What a hook found, to see what it changed; None: no hook has it."""

    def __init__(
        self,
        url: str,
        method: str = "GET",
        *,
        callback: Callable[..., Any] | str | None = None,
        priority: int = NETSPY_PRIORITY,
        retry_times: int = 0,
        filter_repeat: bool = True,
        render: bool = False,
        render_time: float | None = None,
        wait_for: str | None = None,
        render_script: str | None = None,
        cb_kwargs: dict[str, Any] | None = None,
        download_midware: Callable[..., Any] | str | None = None,
        use_session: bool | None = None,
        random_user_agent: bool | None = None,
        body: bytes | str | None = None,
        headers: Any = None,
        cookies: Any = None,
        meta: dict[str, Any] | None = None,
        encoding: str = "utf-8",
        dont_filter: bool | None = None,
        errback: Callable[..., Any] | str | None = None,
        flags: list[str] | None = None,
        scrapy_priority: int | None = None,
        given_url: str | None = None,
        given_method: str | None = None,
        requests_kwargs: dict[str, Any] | None = None,
        custom: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        self._sealed = scrapy_priority is not None
        usable, self._invalid = usable_url(url)
        given_headers = headers
        if headers is not None and not self._sealed:
            headers, invalid = usable_headers(headers, encoding)
            self._invalid = self._invalid or invalid
        dont_filter = not filter_repeat if dont_filter is None else dont_filter
        self._set_up(
            usable,
            method=method,
            body=body,
            headers=headers,
            cookies=cookies,
            meta=meta,
            encoding=encoding,
            dont_filter=dont_filter,
            flags=flags,
            cb_kwargs=cb_kwargs,
        )
        # After the call above, which refuses names: they are resolved once the spider is known.
        self.callback = cast("Any", callback)
        self.errback = cast("Any", errback)
        self.given_url = given_url if self._sealed else url
        self.given_method = given_method or self.method
        self.requests_kwargs: dict[str, Any] = dict(requests_kwargs or {})
        for name in HTTP_KEYWORDS & others.keys():
            self.requests_kwargs[name] = others.pop(name)
        if not self._sealed:
            if given_headers is not None:
                self.requests_kwargs["headers"] = given_headers
            if cookies is not None:
                self.requests_kwargs["cookies"] = cookies
        self.download_midware = download_midware
        self.use_session = use_session
        self.random_user_agent = random_user_agent
        if scrapy_priority is not None:
            self._core_priority = scrapy_priority
        else:
            self._take_priority(priority)
        if retry_times:
            self.retry_times = retry_times
        if render:
            self.meta[metakeys.RENDER] = {
                "time": render_time, "wait_for": wait_for, "script": render_script
            }  # fmt: skip
        self._applied_headers = as_dict(self.requests_kwargs.get("headers"))
        self._applied_cookies = self.requests_kwargs.get("cookies")
        self._own = frozenset(self.__dict__)
        self.__dict__.update(self._without_methods({**(custom or {}), **others}))

    # What cannot be used fails once it is yielded: an exception here would end start_requests.
    def _set_up(self, url: str, **given: Any) -> None:
        try:
            if not isinstance(given["method"], str):
                raise TypeError(f"method {given['method']!r} is not a text")
            given["cookies"] = usable_cookies(given["cookies"])
            for name in ("meta", "cb_kwargs"):
                given[name] = usable_dict(name, given[name])
            super().__init__(url, **given)
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            self._invalid = self._invalid or str(exc)
            super().__init__(url, dont_filter=given["dont_filter"])

    def _take_priority(self, priority: Any) -> None:
        try:
            self.priority = priority
        except (TypeError, ValueError):
            self._invalid = self._invalid or f"priority {priority!r} is not a number"

    def _without_methods(self, own: dict[str, Any]) -> dict[str, Any]:
        methods = [name for name in own if callable(getattr(type(self), name, None))]
        for name in methods:
            del own[name]
            self._invalid = self._invalid or f"the keyword {name!r} is a method of requests"
        return own

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the spider's own."""

    # What netspy users read and write ------------------------------------------------------------
    @property
    def priority(self) -> int:
        """Netspy's order (small first) in the spider's hands, Scrapy's (large first) after."""
        return self._core_priority if self._sealed else NETSPY_PRIORITY - self._core_priority

    @priority.setter
    def priority(self, value: int) -> None:
        self._core_priority = value if self._sealed else NETSPY_PRIORITY - int(value)

    @property
    def scrapy_priority(self) -> int:
        """The priority in Scrapy's order, wherever the request is."""
        return self._core_priority

    @property
    def url(self) -> str:
        """The URL as the spider wrote it, or, once sealed, as it is fetched."""
        return super().url if self._sealed or self.given_url is None else self.given_url

    @url.setter
    def url(self, value: str) -> None:
        if self.given_url is not None and self.headers.get(b"Authorization") == user_info_auth(
            self.given_url
        ):
            # It is for the site that the old URL named.
            self.headers.pop(b"Authorization", None)
        self.given_url = value
        usable, self._invalid = usable_url(value)
        _scrapy.set_url(self, usable)
        for key in _REDIRECT_META:
            self.meta.pop(key, None)

    @property
    def retry_times(self) -> int:
        """How often the page was fetched again so far."""
        return int(self.meta.get("retry_times", 0))

    @retry_times.setter
    def retry_times(self, value: int) -> None:
        self.meta["retry_times"] = value

    @property
    def filter_repeat(self) -> bool:
        """Whether the request filter may drop it."""
        return not self.dont_filter

    @filter_repeat.setter
    def filter_repeat(self, value: bool) -> None:
        self.dont_filter = not value

    @property
    def render(self) -> bool:
        """Whether a browser fetches the page."""
        return bool(self.meta.get(metakeys.RENDER))

    @property
    def custom(self) -> dict[str, Any]:
        """The attributes that are the spider's own."""
        own = self._own
        return {
            key: value
            for key, value in self.__dict__.items()
            if key not in own and not key.startswith("_") and key not in HTTP_KEYWORDS
        }

    @property
    def callback_name(self) -> str | None:
        """The callback's name."""
        callback: Any = self.callback
        return callback if isinstance(callback, str) else getattr(callback, "__name__", None)

    @property
    def without_effect(self) -> list[str]:
        """What the request asks for that is not there, as ``name=value``."""
        asked = {**self.custom, **self.requests_kwargs}
        return [
            f"{name}={asked[name]!r}"
            for name, harmless in _WITHOUT_EFFECT.items()
            if name in asked and asked[name] != harmless
        ]

    @property
    def is_sealed(self) -> bool:
        """Whether it is in the core's hands."""
        return self._sealed

    # Between spider and core ---------------------------------------------------------------------
    def seal(self, spider: Spider | None = None, *, restart: bool = True) -> Self:
        """Put what the spider wrote into effect, and show Scrapy's values from now on.

        A request that was redirected and is yielded again starts anew where it started; with
        *restart* False (after a hook) it goes on from where it is, save for what the hook changed.
        Raises :exc:`RequestError` if it cannot be sent. Sealing twice changes nothing.
        """
        if self._sealed:
            return self
        if self._invalid is not None:
            raise RequestError(self._invalid)
        if spider is not None:
            self.callback = _method(self.callback, spider, "callback")
            self.errback = _method(self.errback, spider, "errback")
        kwargs = self.requests_kwargs
        for name in HTTP_KEYWORDS & self.__dict__.keys() - self._own:  # request.params = {...}
            kwargs[name] = self.__dict__.pop(name)
        headers: Any = self.headers
        if not isinstance(headers, Headers):  # request.headers = {...}, below Scrapy 2.19
            self.headers = Headers(headers)
        redirected = restart and bool(self.meta.get("redirect_urls"))
        if redirected:
            # netspy fetches the page anew from where it started.
            for key in _REDIRECT_META:
                self.meta.pop(key, None)
        if kwargs or redirected:
            self._apply(kwargs, redirected=redirected)
        self._take_cookie_header()
        self._take_user_info(super().url)
        self._sealed = True
        return self

    def unseal(self) -> None:
        """Show the spider's values again, for a hook that may change the request in place."""
        self._sealed = False
        self._seen_by_hook = self._where_and_what()
        self._seen_cookie = self.headers.get(b"Cookie")

    def unsealed(self) -> Self:
        """Return this request as the spider is to see it: a new object that shares its meta."""
        other = _scrapy.shallow_copy(self)
        other.__dict__.update(
            _sealed=False, _seen_by_hook=None, _seen_cookie=self.headers.get(b"Cookie")
        )
        for name in (SEEN, ANSWER):
            other.__dict__.pop(name, None)
        if other.meta.get("redirect_urls"):
            other.method = other.given_method  # a redirect may have made a GET of it
        return other

    def _where_and_what(self) -> str:
        """Return all that decides on URL and body, so that a change can be seen."""
        kwargs = self.requests_kwargs
        return repr((self.given_url, *(kwargs.get(name) for name in _URL_AND_BODY)))

    def to_dict(self, *, spider: Spider | None = None) -> dict[str, Any]:
        """Return the request's data; see :meth:`scrapy.Request.to_dict`."""
        state = super().to_dict(spider=spider)
        midware = self.download_midware
        if callable(midware):
            if spider is not None and getattr(midware, "__self__", None) is not spider:
                raise ValueError(f"download_midware {midware!r} is not a method of the spider")
            state["download_midware"] = midware.__name__
        return state

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Build a request from what netspy's ``to_dict``, or :meth:`to_dict`, returned.

        Callbacks stay names until the request is yielded.
        """
        if "scrapy_priority" in data:
            return request_from_dict({**data, "_class": f"{cls.__module__}.{cls.__qualname__}"})
        fields = dict(data)
        custom, kwargs = fields.pop("custom", None), fields.pop("requests_kwargs", None)
        return cls(**fields, **(kwargs or {}), **(custom or {}))

    def download(self, *_: Any) -> Any:
        """Refuse to block the loop, with what to write in its place."""
        raise RequestError(
            "request.download() would stop every other download: write the callback as "
            "`async def`, and `await self.crawler.engine.download_async(request)`"
        )

    def replace(self, *args: Any, **kwargs: Any) -> Any:
        """Return a request with some attributes changed; priority and url in the order shown."""
        if "priority" in kwargs:
            value = kwargs.pop("priority")
            kwargs["scrapy_priority"] = value if self._sealed else NETSPY_PRIORITY - value
        cls = kwargs.get("cls")
        if cls is not None and not issubclass(cls, Request):
            kwargs.setdefault("priority", kwargs.pop("scrapy_priority", self._core_priority))
            for name in scrapy.Request.attributes:
                kwargs.setdefault(name, getattr(self, name))
            return cls(*args, **{key: value for key, value in kwargs.items() if key != "cls"})
        new = super().replace(*args, **kwargs)
        if not self._sealed and isinstance(new, Request):
            new.__dict__["_sealed"] = False
            if "url" in kwargs:
                new.given_url = kwargs["url"]
        return new

    def _apply(self, kwargs: dict[str, Any], *, redirected: bool) -> None:
        url = self.given_url or super().url
        is_new = self._seen_by_hook is None or self._seen_by_hook != self._where_and_what()
        if is_new and (kwargs.get("params") is not None or redirected):
            try:
                _scrapy.set_url(self, url_with_params(url, kwargs.get("params")))
            except ValueError as exc:
                raise RequestError(f"{url!r} cannot be used with these params: {exc}") from exc
        self._apply_headers(kwargs)
        if is_new and any(
            kwargs.get(name) is not None for name in ("data", "json", "content", "files")
        ):
            body, kind = encode_body(
                data=kwargs.get("data"),
                json_=kwargs.get("json"),
                content=kwargs.get("content"),
                files=kwargs.get("files"),
            )
            _scrapy.set_body(self, body)
            if kind is not None:
                self.headers.setdefault("Content-Type", kind)
        if "timeout" in kwargs:
            self.meta["download_timeout"] = seconds(kwargs["timeout"])
        if False in (kwargs.get("allow_redirects"), kwargs.get("follow_redirects")):
            self.meta["dont_redirect"] = True
        proxy = proxy_for(url, kwargs.get("proxy") or kwargs.get("proxies"))
        if proxy is not None:
            self.meta["proxy"] = proxy

    def _apply_headers(self, kwargs: dict[str, Any]) -> None:
        try:
            for name, value in as_dict(kwargs.get("headers")).items():
                if self._applied_headers.get(name) != value:
                    self.headers[name] = value
        except (TypeError, ValueError) as exc:
            raise RequestError(f"headers cannot be sent: {exc}") from exc
        if kwargs.get("auth") is not None:
            self.headers["Authorization"] = basic_auth(kwargs["auth"])
        cookies = kwargs.get("cookies")
        if cookies is not self._applied_cookies:
            try:
                self.cookies = usable_cookies(cookies)
            except ValueError as exc:
                raise RequestError(str(exc)) from exc

    def _take_cookie_header(self) -> None:
        """Make cookies of a Cookie header, which Scrapy takes away where it manages cookies."""
        header = self.headers.get(b"Cookie")
        if header and header != self._seen_cookie:
            pairs = (one.strip().partition("=") for one in header.decode("latin-1").split(";"))
            self.cookies = {name: value for name, _, value in pairs if name}

    def _take_user_info(self, url: str) -> None:
        """Make Basic authentication of ``user:password@`` in the URL."""
        auth = user_info_auth(url)
        if auth is not None:
            self.headers.setdefault("Authorization", auth)
            parts = urlsplit(url)
            host = parts.netloc.rpartition("@")[2]
            _scrapy.set_url(self, parts._replace(netloc=host).geturl())


def _method(target: Any, spider: Spider, what: str) -> Any:
    if not isinstance(target, str):
        return target
    method = getattr(spider, target, None)
    if not callable(method):
        raise RequestError(f"{what} {target!r} is not a method of {type(spider).__name__}")
    return method
