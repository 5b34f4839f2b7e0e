"""The bookshop as a web server: HTTP/1.1 with kept connections and conditional requests."""

from __future__ import annotations

import asyncio
import hashlib
import http
import re
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import format_datetime, parsedate_to_datetime
from typing import TYPE_CHECKING, cast, final
from urllib.parse import unquote

from bookshop import pages
from bookshop.catalogue import (
    BROKEN_IDS,
    BUSY_IDS,
    FIRST_EDITION,
    LIMITED_IDS,
    MISSING_IDS,
    Book,
    books,
    categories,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_HTML = "text/html; charset=utf-8"
_RELATED_STEPS = (1, 7, 40, 113)
_STARTED_WITHIN = 10.0
_STOPPED_WITHIN = 5.0


@final
class Bookshop:
    """The site, served from a thread with an event loop of its own that other loops never meet.

    A context manager; `start` and `close` do the same by hand. Each object is one server, with its
    own counters and its own memory of what it has turned away once, and can be started once.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, edition: int = 1) -> None:
        """Prepare the site: port 0 takes a free one; ValueError for an edition below 1."""
        self.host = host
        self.port = port
        self.books = books(edition)
        """All books as this server shows them, those whose page cannot be had included."""
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        self._thread = threading.Thread(target=self._run, name="bookshop", daemon=True)
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._contents: _Contents
        self._stopping = asyncio.Event()
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def __enter__(self) -> Bookshop:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    @property
    def url(self) -> str:
        """The URL of the first page, with a slash at its end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    @property
    def requests(self) -> Counter[str]:
        """How often each path was asked for so far, as sent and without its query: a copy."""
        with self._lock:
            return Counter(self._requests)

    @property
    def statuses(self) -> Counter[int]:
        """How often each status code was answered so far: a copy."""
        with self._lock:
            return Counter(self._statuses)

    def start(self) -> None:
        """Serve from now on; OSError if the address or the port cannot be had."""
        self._thread.start()
        if not self._started.wait(_STARTED_WITHIN):
            raise TimeoutError("the bookshop did not start")
        if self._error is not None:
            self._thread.join()
            raise self._error

    def close(self) -> None:
        """Close all connections and end the thread; a second time does nothing."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_STOPPED_WITHIN)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as exc:
            if self._started.is_set():
                raise
            self._error = exc
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._talk, self.host, self.port, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        self._contents = _Contents(self.books, self.url)
        self._started.set()
        await self._stopping.wait()
        server.close()
        # Ended from below and not cancelled: some Python versions log a cancelled conversation.
        for writer in self._open.values():
            writer.transport.abort()
        if self._open:
            await asyncio.wait(self._open, timeout=1)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, request after request, until either side has had enough."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._open[task] = writer
        try:
            closing = False
            while not closing:
                head = await reader.readuntil(b"\r\n\r\n")
                request = _Request.parse(head.decode("latin-1"))
                answer = self._answer(request)
                closing = request is None or request.closing
                bodiless = request is not None and request.method == "HEAD"
                writer.write(answer.to_bytes(closing=closing, bodiless=bodiless))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            # The client has left, or sends what no client of a bookshop sends: no one to tell.
            pass
        finally:
            del self._open[task]
            writer.close()

    def _answer(self, request: _Request | None) -> _Answer:
        answer = _message(400) if request is None else self._contents.answer(request)
        with self._lock:
            self._statuses[answer.status] += 1
            if request is not None:
                self._requests[request.path] += 1
        return answer


@contextmanager
def serve(host: str = "127.0.0.1", port: int = 0, *, edition: int = 1) -> Iterator[Bookshop]:
    """Serve a bookshop for the length of a with block."""
    with Bookshop(host, port, edition=edition) as shop:
        yield shop


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    """Without the query, percent-encoded as it was sent."""
    headers: dict[str, str]
    closing: bool

    @classmethod
    def parse(cls, head: str) -> _Request | None:
        """Return the request, or None if it is not one."""
        line, *rest = head.removesuffix("\r\n\r\n").split("\r\n")
        match = re.fullmatch(r"([A-Z]+) (?:http://[^/ ]+)?(/[^ ?#]*)\S* HTTP/1\.([01])", line)
        if match is None:
            return None
        method, path, version = match.groups()
        headers: dict[str, str] = {}
        for each in rest:
            name, _, value = each.partition(":")
            headers[name.strip().lower()] = value.strip()
        # A body is never read, so what follows on its connection could not be told from it.
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        wish = headers.get("connection", "").lower()
        closing = wish == "close" or (version == "0" and wish != "keep-alive") or has_body
        return cls(method, path, headers, closing)


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def to_bytes(self, *, closing: bool, bodiless: bool) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {http.HTTPStatus(self.status).phrase}",
            f"Date: {format_datetime(datetime.now(timezone.utc), usegmt=True)}",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        if self.status != http.HTTPStatus.NOT_MODIFIED:
            lines.append(f"Content-Length: {len(self.body)}")
        if closing:
            lines.append("Connection: close")
        head = "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"
        return head if bodiless else head + self.body


@dataclass(frozen=True)
class _Resource:
    """What a path leads to, with the validators of RFC 9110, 8.8."""

    kind: str
    body: bytes
    modified: datetime
    etag: str

    @classmethod
    def of(cls, kind: str, content: str | bytes, modified: datetime = FIRST_EDITION) -> _Resource:
        body = content.encode() if isinstance(content, str) else content
        return cls(kind, body, modified, f'"{hashlib.sha256(body).hexdigest()[:20]}"')

    def answer(self, request: _Request) -> _Answer:
        validators = (
            ("ETag", self.etag),
            ("Last-Modified", format_datetime(self.modified, usegmt=True)),
            # Keep it, but ask each time whether it is still so.
            ("Cache-Control", "no-cache"),
        )
        if self._is_held(request.headers):
            return _Answer(304, validators)
        return _Answer(200, (("Content-Type", self.kind), *validators), self.body)

    def _is_held(self, headers: dict[str, str]) -> bool:
        """Tell whether the client has it: the order and comparisons of RFC 9110, 13.1 and 13.2."""
        tags = headers.get("if-none-match")
        if tags is not None:
            return tags == "*" or self.etag in re.findall(r'"[^"]*"', tags)
        since = _date(headers.get("if-modified-since", ""))
        return since is not None and self.modified <= since


class _Contents:
    """Every page of one server, made at its start, and the trouble that stands in its way."""

    def __init__(self, all_books: tuple[Book, ...], url: str) -> None:
        self._turned_away: set[str] = set()
        self._troubled: dict[str, int] = {}
        self._resources: dict[str, _Resource] = {}
        self._add_lists(all_books)
        for place, book in enumerate(all_books):
            self._add_book(
                book, [all_books[(place + step) % len(all_books)] for step in _RELATED_STEPS]
            )
        self._add_files(all_books, url)

    def answer(self, request: _Request) -> _Answer:
        if request.method not in ("GET", "HEAD"):
            return _message(405, ("Allow", "GET, HEAD"))
        path = unquote(request.path)
        trouble = self._troubled.get(path)
        if trouble == http.HTTPStatus.INTERNAL_SERVER_ERROR:
            return _message(trouble)
        if trouble is not None and path not in self._turned_away:
            self._turned_away.add(path)
            return _message(trouble, ("Retry-After", "1"))
        if path == "/catalogue/page-1.html":
            return _message(301, ("Location", "/"))
        resource = self._resources.get(path)
        return _message(404) if resource is None else resource.answer(request)

    def _add_lists(self, all_books: tuple[Book, ...]) -> None:
        for page in range(1, pages.page_count(all_books) + 1):
            self._add(pages.catalogue_path(page), _HTML, pages.catalogue_page(all_books, page))
        for name in categories():
            shelf = [book for book in all_books if book.category == name]
            for page in range(1, pages.page_count(shelf) + 1):
                self._add(
                    pages.category_path(name, page), _HTML, pages.category_page(name, shelf, page)
                )

    def _add_book(self, book: Book, related: list[Book]) -> None:
        basket = pages.message_page("Your basket", f"{book.title} would be in it, in a real shop.")
        self._add(f"/basket/{book.id}.html", _HTML, basket)
        self._add(book.image_path, "image/png", pages.cover(book))
        if book.id not in MISSING_IDS:
            self._add(book.path, _HTML, pages.book_page(book, related), book.modified)
        for ids, status in ((BUSY_IDS, 503), (LIMITED_IDS, 429), (BROKEN_IDS, 500)):
            if book.id in ids:
                self._troubled[unquote(book.path)] = status

    def _add_files(self, all_books: tuple[Book, ...], url: str) -> None:
        worth = [(pages.catalogue_path(1), FIRST_EDITION)]
        worth += [(pages.category_path(name), FIRST_EDITION) for name in categories()]
        worth += [(book.path, book.modified) for book in all_books]
        newest = max(date for _, date in worth)
        self._add("/robots.txt", "text/plain; charset=utf-8", pages.robots_txt(url))
        self._add("/sitemap.xml", "application/xml", pages.sitemap(url, worth), newest)

    def _add(
        self, path: str, kind: str, content: str | bytes, modified: datetime = FIRST_EDITION
    ) -> None:
        self._resources[unquote(path)] = _Resource.of(kind, content, modified)


def _message(status: int, *headers: tuple[str, str]) -> _Answer:
    meaning = http.HTTPStatus(status)
    body = pages.message_page(meaning.phrase, meaning.description or "Nothing to see here.")
    return _Answer(status, (("Content-Type", _HTML), *headers), body.encode())


def _date(text: str) -> datetime | None:
    """Return an HTTP date; None for anything else, as RFC 9110, 13.1.3 wants it ignored."""
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)
