"""netspy's response: what a netspy callback reads from an answer."""

from __future__ import annotations

from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from parsel.utils import extract_regex
from scrapy.http import TextResponse

if TYPE_CHECKING:
    from collections.abc import Iterator

    import scrapy.http
    from parsel import Selector, SelectorList

    from netspy_scrapy.http.request import Request


class HeaderDict(dict[str, str]):
    """Header values by lower-case name; looked up in any case."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of header *name*, or *default*."""
        return super().get(name.lower(), default)


class Response:
    """The answer as netspy's callbacks know it.

    ``status_code text content headers cookies url ok encoding history elapsed request selector``,
    ``json() xpath() css() re() re_first() urljoin()``. ``raw`` is Scrapy's response; what is not
    listed here (``meta``, ``follow``, ``status``) is looked up there, and link extractors take
    this object as they take Scrapy's.
    """

    def __init__(self, raw: scrapy.http.Response, request: Request | None = None) -> None:
        self.raw = raw
        self.request = request if request is not None else raw.request

    @classmethod
    def of(cls, raw: scrapy.http.Response | None, request: Request) -> Response | None:
        """Wrap *raw*, which may be None where there was no answer."""
        return None if raw is None else cls(raw, request)

    @property
    def url(self) -> str:
        """The URL that answered, after redirects."""
        return self.raw.url

    @property
    def status_code(self) -> int:
        """The HTTP status."""
        return self.raw.status

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.raw.status < 300  # noqa: PLR2004

    @property
    def content(self) -> bytes:
        """The body, decompressed."""
        return self.raw.body

    @cached_property
    def _text_response(self) -> TextResponse:
        if isinstance(self.raw, TextResponse):
            return self.raw
        # netspy decodes whatever arrives, whatever its type says.
        return self.raw.replace(cls=TextResponse)

    @property
    def text(self) -> str:
        """The body as text."""
        return self._text_response.text

    @property
    def encoding(self) -> str:
        """The encoding of the body: as declared, else detected."""
        return self._text_response.encoding

    @cached_property
    def headers(self) -> HeaderDict:
        """The headers; those that are repeated are joined by a comma."""
        return HeaderDict(
            (name.decode("latin-1").lower(), b", ".join(values).decode("latin-1"))
            for name, values in self.raw.headers.items()
        )

    @cached_property
    def cookies(self) -> dict[str, str]:
        """The cookies that this answer sets."""
        jar: SimpleCookie = SimpleCookie()
        for value in self.raw.headers.getlist(b"Set-Cookie"):
            try:
                jar.load(value.decode("latin-1"))
            except CookieError:
                continue
        return {name: morsel.value for name, morsel in jar.items()}

    @property
    def history(self) -> list[str]:
        """The URLs that redirected here, the first one first."""
        request = self.raw.request
        return list(request.meta.get("redirect_urls", ())) if request is not None else []

    @property
    def elapsed(self) -> float:
        """Seconds from sending the request to the end of the headers."""
        request = self.raw.request
        return float(request.meta.get("download_latency", 0.0)) if request is not None else 0.0

    @property
    def selector(self) -> Selector:
        """The selector of the text."""
        return self._text_response.selector

    def xpath(self, query: str, **kwargs: Any) -> SelectorList[Selector]:
        """Select by XPath."""
        return self.selector.xpath(query, **kwargs)

    def css(self, query: str) -> SelectorList[Selector]:
        """Select by CSS."""
        return self.selector.css(query)

    def re(self, regex: Any, replace_entities: bool = True) -> list[str]:  # noqa: FBT001, FBT002
        """Return all matches in the text."""
        return list(extract_regex(regex, self.text, replace_entities))

    def re_first(
        self,
        regex: Any,
        default: str | None = None,
        replace_entities: bool = True,  # noqa: FBT001, FBT002
    ) -> str | None:
        """Return the first match in the text, or *default*."""
        for match in self.re(regex, replace_entities):
            return match
        return default

    def json(self, **kwargs: Any) -> Any:
        """Return the body decoded from JSON."""
        import json  # noqa: PLC0415 - the method's own name hides the module

        return json.loads(self.text, **kwargs)

    def urljoin(self, url: str | None) -> str:
        """Return *url* joined to the URL of this answer (``<base>`` is not looked at)."""
        return urljoin(self.url, url or "")

    @cached_property
    def bs4(self) -> Any:
        """The text as a BeautifulSoup document; needs the package beautifulsoup4."""
        from bs4 import BeautifulSoup  # noqa: PLC0415

        return BeautifulSoup(self.text, "html.parser")

    def __getattr__(self, name: str) -> Any:
        if name == "raw":  # while unpickling
            raise AttributeError(name)
        return getattr(self.raw, name)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a response cannot be iterated")

    def __repr__(self) -> str:
        return f"<Response [{self.status_code}] {self.url}>"
