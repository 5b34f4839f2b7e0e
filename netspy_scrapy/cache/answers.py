"""Scrapy's requests and answers, as the cache keeps them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.http import Headers, HtmlResponse, TextResponse
from scrapy.responsetypes import responsetypes

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.cache.ambient import given_cookies
from netspy_scrapy.cache.entries import Asked, Entry, Head, encode_head, vary_of
from netspy_scrapy.domains import domain_of
from netspy_scrapy.http.agents import USER_AGENTS
from netspy_scrapy.logs import shown_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Request
    from scrapy.http import Response

_RANDOM_AGENTS = frozenset(agent.encode() for agent in USER_AGENTS)


class Found(NamedTuple):
    """An entry, read and unpacked."""

    head: Head
    body: bytes
    stored: float


class Draft(NamedTuple):
    """An answer that is to become an entry."""

    asked: Asked
    head: Head
    body: bytes
    stored: float
    """Unix time."""
    domain: str
    url: str

    def entry(self) -> Entry:
        """Return the entry."""
        headers = {name.lower(): values for name, values in self.head.headers.items()}
        vary = vary_of(headers) or ()
        return Entry(
            scope=self.asked.scope,
            key=self.asked.key,
            variant=self.asked.variant(vary),
            vary=",".join(vary),
            cookies=self.asked.cookies,
            stored=self.stored,
            domain=self.domain,
            url=self.url,
            status=self.head.status,
            head=encode_head(self.head),
            body=self.body,
        )


def draft_of(asked: Asked, request: Request, response: Response, now: float) -> Draft:
    """Return what is to be kept of *response*.

    Other middlewares change headers after this, and it is written later: all of it is copied.
    """
    head = Head(
        url=response.url,
        status=response.status,
        headers=_copied(response.headers),
        flags=list(response.flags),
        protocol=response.protocol,
        encoding=_scrapy.given_encoding(response),
        request_headers=_copied(request.headers),
    )
    return Draft(asked, head, response.body, now, domain_of(request.url), shown_url(request.url))


def _copied(headers: Headers) -> Mapping[str, list[bytes]]:
    return {name.decode("latin-1"): list(values) for name, values in headers.items()}


def sent_headers(request: Request) -> dict[str, bytes]:
    """Return the headers of *request* by lower-case name."""
    headers = {
        name.decode("latin-1").lower(): b", ".join(values)
        for name, values in request.headers.items()
    }
    if headers.get("user-agent") in _RANDOM_AGENTS:  # any of them would have done
        headers["user-agent"] = b"RANDOM_USER_AGENT"
    return headers


def manner_of(request: Request) -> str:
    """Return how *request* is to be answered besides its headers, as text."""
    meta = request.meta
    manner = meta.get(metakeys.RENDER), bool(meta.get("playwright")), given_cookies(request)
    return json.dumps(manner, sort_keys=True, default=repr) if any(manner) else ""


def response_of(found: Found, request: Request) -> Response:
    """Return the answer as the downloader gave it, with the flag ``cached``."""
    head = found.head
    headers = Headers(head.headers)
    cls = responsetypes.from_args(headers=headers, url=head.url, body=found.body)
    keywords: dict[str, Any] = {}
    if head.encoding is not None:
        cls = cls if issubclass(cls, TextResponse) else HtmlResponse
        keywords["encoding"] = head.encoding
    return cls(
        head.url, status=head.status, headers=headers, body=found.body, request=request,
        flags=[*head.flags, "cached"], protocol=head.protocol, **keywords,
    )  # fmt: skip
