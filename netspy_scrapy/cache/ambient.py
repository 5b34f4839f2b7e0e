"""Cookies that a site hands out to everybody, and that therefore say nothing about a page."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from netspy_scrapy.domains import domain_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request
    from scrapy.http import Response

_NONE: frozenset[str] = frozenset()


class AmbientCookies:
    """Finds out which cookies are session numbers of anonymous visitors.

    Scrapy's requests share a jar. The first ones go out together, without a cookie; a site with
    sessions gives each of them another number, and later pages are asked with whichever came last.
    In the next run that is another one. If such numbers counted, hardly a page would be found.

    A cookie is ambient if two pages gave it, with different values, to requests that had none of
    that name. None is once the spider gave it itself, or sent the site anything but a GET (a
    login): then its value may be what makes the page. Sessions that the spider keeps apart
    (``meta["cookiejar"]``) are left alone.
    """

    def __init__(self, known: Iterable[tuple[str, str]] = ()) -> None:
        """Take in pairs of domain and name that were found in earlier runs."""
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        for domain, name in known:
            self._names[domain].add(name)
        self._first: dict[tuple[str, str], tuple[str, bytes]] = {}
        self._given: defaultdict[str, set[str]] = defaultdict(set)
        self._closed: set[str] = set()
        self.found: list[tuple[str, str]] = []
        """What was found since the owner last emptied the list."""

    def names(self, request: Request) -> frozenset[str]:
        """Return the names of cookies that do not count for *request*."""
        if not self._names:
            return _NONE
        domain = domain_of(request.url)
        if domain not in self._names or domain in self._closed or _has_own_jar(request):
            return _NONE
        return frozenset(self._names[domain] - self._given[domain])

    def asked(self, request: Request, domain: str) -> None:
        """Look at a request before it is answered."""
        if request.method != "GET":
            self._closed.add(domain)
        if request.cookies:
            self._given[domain].update(given_cookies(request))

    def answered(self, request: Request, response: Response, domain: str) -> None:
        """Look at an answer, be it from the site or from the cache."""
        cookies = response.headers.getlist(b"Set-Cookie")
        if not cookies or domain in self._closed or _has_own_jar(request):
            return
        sent = request.headers.get(b"Cookie") or b""
        has = {one.strip().partition(b"=")[0] for one in sent.split(b";")}
        for cookie in cookies:
            raw, _, value = cookie.partition(b";")[0].strip().partition(b"=")
            name = raw.decode("latin-1")
            if raw in has or name in self._names[domain]:
                continue
            first = self._first.setdefault((domain, name), (request.url, value))
            if first[0] != request.url and first[1] != value:
                del self._first[domain, name]
                self._names[domain].add(name)
                self.found.append((domain, name))


def given_cookies(request: Request) -> dict[str, str]:
    """Return the cookies that the spider gave the request itself."""
    cookies = request.cookies
    if isinstance(cookies, dict):
        return {str(name): str(value) for name, value in cookies.items()}
    return {str(one.get("name")): str(one.get("value")) for one in cookies or ()}


def _has_own_jar(request: Request) -> bool:
    return request.meta.get("cookiejar") is not None
