"""Scrapy's download handler for aiohttp, where it differs from the one for HTTP/1.1.

Scrapy has it from 2.19 on, in a private module. Nothing imports this module but the setting
NETSPY_DOWNLOADER, so aiohttp need not be there.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.client_middlewares import ClientHandlerType  # noqa: TC002 - tells an aiohttp < 3.12
from scrapy import signals
from scrapy.core.downloader.handlers import _aiohttp as scrapys
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    UnsupportedURLSchemeError,
)
from scrapy.http import Headers
from scrapy.utils._download_handlers import check_stop_download, make_response
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.reactor import is_reactor_installed
from scrapy.utils.ssl import _make_ssl_context
from scrapy.utils.url import add_http_if_no_scheme
from twisted.internet.interfaces import IResolutionReceiver
from yarl import URL
from zope.interface import implementer  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp.abc import ResolveResult
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)

#: Seconds that a connection is kept for the next request, as Twisted keeps it: a domain with a
#: long delay is not greeted anew for each page.
_KEPT = 240.0
#: Bytes of a line of the head; 8190 is aiohttp's own bound, which some cookies and policies pass.
_HEAD_LINE = 64 * 1024
#: What a request may be sent by once more without harm; Twisted's list.
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
#: Statuses whose answers have no body, whatever their headers say.
_BODILESS = frozenset({204, 304})
#: What concerns the connection; Twisted keeps it from the answer.
_OF_CONNECTION = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"trailers",
        b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_LONGEST_REASON = 200
_PROXY_AUTH = b"Proxy-Authorization"
_USED = "netspy_used"


class AiohttpDownloadHandler(scrapys.AiohttpDownloadHandler):
    """Fetches pages by aiohttp, and treats them as Scrapy's handler for HTTP/1.1 does.

    Otherwise than Scrapy's: URLs and headers arrive as they are, byte for byte, in both directions;
    names are looked up by the reactor (DNS_RESOLVER, DNS_TIMEOUT, DNSCACHE_ENABLED), whose threads
    nobody else waits for; only the scheduler bounds the number of connections; a request is sent a
    second time by itself only over a connection that had been used before; an answer without a body
    is not refused for its Content-Length. What aiohttp cannot send (a header that is not UTF-8, a
    ``bindaddress`` of one request) goes by ``http11``, and so does all for a site whose answer
    aiohttp cannot read: the other one skips bad lines of a head, as browsers do.
    """

    # Scrapy says so at each start; here it was chosen, or proved by the tests.
    experimental = False
    # CrawlerProcess makes all others before its loop runs, which the session needs.
    lazy = True

    def __init__(self, crawler: Crawler) -> None:
        # Past Scrapy's own constructor, whose session could not be told all of this.
        super(scrapys.AiohttpDownloadHandler, self).__init__(crawler)
        has_reactor = is_reactor_installed()
        self.http11 = HTTP11DownloadHandler.from_crawler(crawler) if has_reactor else None
        self._unreadable: set[str] = set()
        """Sites whose answers aiohttp cannot read."""
        self._ssl_context = _make_ssl_context(crawler.settings)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=_KEPT,
                local_addr=self._bind_address,
                resolver=_ReactorResolver() if has_reactor else None,
                use_dns_cache=not has_reactor,  # the reactor's has one
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            request_class=_Request,
            response_class=scrapys._ClientResponse,  # noqa: SLF001
            middlewares=(_send,),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            max_line_size=_HEAD_LINE,
            max_field_size=_HEAD_LINE,
        )

    async def download_request(self, request: Request) -> Response:
        """Download a page."""
        http11 = self.http11
        if http11 is None:
            return await super().download_request(request)
        site = urlparse_cached(request).netloc
        if site in self._unreadable or "bindaddress" in request.meta:
            return await http11.download_request(request)
        try:
            return await super().download_request(request)
        except _NotSendableError:
            pass
        except _NotReadableError as exc:
            self._unreadable.add(site)
            logger.info("%s: aiohttp cannot read it, http11 fetches from there: %s", site, exc,
                        extra={"spider": self.crawler.spider})  # fmt: skip
            if request.method not in _REPEATABLE or request.body:
                raise DownloadFailedError(str(exc)) from exc
        return await http11.download_request(request)

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        if self.http11 is not None:
            await self.http11.close()

    @asynccontextmanager
    async def _make_request(
        self, request: Request, timeout: float
    ) -> AsyncIterator[scrapys._ClientResponse]:
        proxy = request.meta.get("proxy")
        headers = _sendable(request.headers)
        url = URL(urldefrag(request.url)[0], encoded=True)
        proxy_headers = None
        if proxy:
            proxy = add_http_if_no_scheme(proxy)
            credentials = request.headers.get(_PROXY_AUTH)
            if url.scheme == "https" and credentials:
                # The tunnel's affair, and not the site's.
                name = _PROXY_AUTH.decode()
                proxy_headers = {name: credentials.decode("latin-1")}
                headers = [pair for pair in headers if pair[0] != name]
        try:
            async with await self._session.request(
                request.method,
                url,
                data=request.body or None,
                headers=headers,
                timeout=_within(timeout),
                ssl=self._ssl_context,
                allow_redirects=False,
                proxy=proxy or None,
                proxy_headers=proxy_headers,
            ) as response:
                yield response  # type: ignore[misc]
        except (TimeoutError, asyncio.TimeoutError) as exc:  # one from Python 3.11 on
            raise DownloadTimeoutError(
                f"Getting {request.url} took longer than {timeout} seconds."
            ) from exc
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as exc:
            raise UnsupportedURLSchemeError(str(exc)) from exc
        except aiohttp.ClientConnectorDNSError as exc:
            raise CannotResolveHostError(str(exc)) from exc
        except aiohttp.ClientSSLError as exc:
            raise DownloadFailedError(str(exc)) from exc
        except aiohttp.ClientConnectorError as exc:
            raise DownloadConnectionRefusedError(str(exc)) from exc
        except aiohttp.ClientError as exc:
            if type(exc) is aiohttp.ClientResponseError and self.http11 is not None:
                raise _NotReadableError(_described(exc)) from exc
            raise DownloadFailedError(_described(exc)) from exc

    async def _read_response(self, response: scrapys._ClientResponse, request: Request) -> Response:
        is_bodiless = request.method == "HEAD" or response.status in _BODILESS
        length = 0 if is_bodiless else response.content_length or 0
        limit = request.meta.get("download_maxsize", self._default_maxsize)
        if not is_bodiless and not 0 < limit < length:
            return await super()._read_response(response, request)
        # Who listens hears of it before Scrapy's own limit ends the download.
        headers = self._extract_headers(response)
        stop = check_stop_download(
            signals.headers_received, self.crawler, request, headers=headers, body_length=length
        )
        if stop is None and not is_bodiless:
            return await super()._read_response(response, request)
        arguments = self._build_base_response_args(response, request, headers)
        return make_response(**arguments, stop_download=stop)

    @staticmethod
    def _extract_headers(response: scrapys._ClientResponse) -> Headers:
        return Headers(
            [pair for pair in response.raw_headers if pair[0].lower() not in _OF_CONNECTION]
        )

    @staticmethod
    def _build_base_response_args(
        response: scrapys._ClientResponse, request: Request, headers: Headers
    ) -> Any:
        version, peer, tls = response.version, response._peername, response._ssl_object  # noqa: SLF001
        return {
            "status": response.status,
            "url": urldefrag(request.url)[0],
            "headers": headers,
            "certificate": tls.getpeercert(binary_form=True) if tls is not None else None,
            "ip_address": _address(peer[0]) if peer else None,
            "protocol": f"HTTP/{version.major}.{version.minor}" if version else None,
        }


class _NotSendableError(ValueError):
    """A request has a header that aiohttp cannot send as it is."""


class _NotReadableError(Exception):
    """An answer is no HTTP that aiohttp understands."""


class _Request(aiohttp.ClientRequest):
    """Knows whether its connection had been used before."""

    # Who sends no "Content-Length: 0" where there is no body: as Twisted, all but POST and PUT.
    GET_METHODS = aiohttp.ClientRequest.GET_METHODS | {"DELETE", "PATCH"}

    reused = False

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        """Send the request."""
        protocol = conn.protocol
        self.reused = getattr(protocol, _USED, False)
        setattr(protocol, _USED, True)
        return await super().send(conn)


async def _send(request: Any, handler: ClientHandlerType) -> aiohttp.ClientResponse:
    """Send *request*, and once more if its site had closed the connection in the meantime.

    aiohttp itself would do so over a new connection too: a site that closes connections in place of
    an answer would be asked twice for each attempt.
    """
    while True:
        try:
            return await handler(request)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
            if not request.reused or request.method not in _REPEATABLE or request.body:
                raise DownloadFailedError(_described(exc)) from exc


class _ReactorResolver(AbstractResolver):
    """Looks up names as Scrapy's settings tell the reactor to."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of *host*."""
        del family  # both kinds are asked for
        from twisted.internet import reactor as installed  # noqa: PLC0415

        reactor: Any = installed
        found: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        reactor.nameResolver.resolveHostName(_Addresses(found), host, port)
        addresses = await found
        if not addresses:
            raise OSError(f"DNS lookup failed: no results for hostname lookup: {host}")
        return [
            {
                "hostname": host,
                "host": one.host,
                "port": port,
                "family": socket.AF_INET6 if ":" in one.host else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for one in addresses
        ]

    async def close(self) -> None:
        """Do nothing: the reactor is not ours."""


@implementer(IResolutionReceiver)
class _Addresses:
    """Collects what the reactor finds."""

    def __init__(self, found: asyncio.Future[list[Any]]) -> None:
        self._found = found
        self._addresses: list[Any] = []

    def resolutionBegan(self, resolution: Any) -> None:  # noqa: N802 - Twisted's name
        """Note nothing: a look-up has an end of its own."""

    def addressResolved(self, address: Any) -> None:  # noqa: N802
        """Take an address."""
        self._addresses.append(address)

    def resolutionComplete(self) -> None:  # noqa: N802
        """Hand over what was found."""
        if not self._found.done():
            self._found.set_result(self._addresses)


def _sendable(headers: Headers) -> list[tuple[str, str]]:
    """Return *headers* as aiohttp takes them: as text, of which it makes UTF-8.

    Raises :exc:`_NotSendableError` where other bytes would come of it.
    """
    pairs = []
    for name, values in dict.items(headers):
        if name == b"Content-Length":
            continue  # that of the body counts
        for value in values:
            try:
                text = value.decode()
            except UnicodeDecodeError as exc:
                raise _NotSendableError(f"{name!r} is not UTF-8") from exc
            if not text.isprintable():
                raise _NotSendableError(f"{name!r} has control characters")
            pairs.append((name.decode("latin-1"), text))
    return pairs


def _described(exc: Exception) -> str:
    # What cannot be read is part of the text, megabytes of it if need be.
    return f"{type(exc).__name__}: {str(exc)[:_LONGEST_REASON]}"


@lru_cache(maxsize=64)
def _within(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds)


@lru_cache(maxsize=1024)
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(host)
