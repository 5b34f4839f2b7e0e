"""The local web site that the tests crawl, as a process of its own.

``python tests/site.py --host 127.0.0.1 --host 127.0.0.2`` binds one free port on every host given,
prints ``READY <port>`` and serves HTTP/1.1 (keep-alive, pipelining) until its standard input
closes, it is sent SIGTERM or SIGINT, or an hour has passed, so a test run that dies leaves no
server behind. Tests use `Site`, which starts and stops that process, installs answers and reads the
access log. Needs the standard library only; uvloop is used if it can be imported.

What each path answers (values in a query are percent-decoded to raw bytes; ``+`` stays a plus):

``/page/<n>``
    1 KB of HTML, title ``Page n``, links to the five pages after it.
``/status/<code>``
    That status code. A 1xx one is followed by a close: it ends an exchange for no client, so one
    that reads it as interim sees a lost connection and not a wait without end.
``/echo``
    The request as JSON: method, path, query (pairs), headers, cookies, text, base64.
``/redirect?to=URL&code=302&cookie=a%3Db``
    ``Location`` and ``Set-Cookie`` (repeatable), byte for byte.
``/slow?ms=500``
    A page after that many milliseconds.
``/seq/<name>?codes=503,503,200&retry_after=2``
    The codes in turn, the last for ever. ``retry_after`` goes on the answers outside 2xx; given
    several times: one for each answer in turn, the last for ever.
``/headers?h=Name:value``
    These response headers (repeatable), bytes exactly as given.
``/close``, ``/reset``, ``/hang``
    No answer: a close, a reset of the connection (RST), or silence until the client leaves.
``/truncate?declared=2000&sent=1000``
    A body shorter than its ``Content-Length``, then a close.
``/chunked?kb=64``
    HTML of that size in chunks.
``/big?mode=len&mb=200``
    A large HTML body: ``len`` (with ``Content-Length``), ``chunked``, or ``gzip`` (a small body
    that opens to that size).
``/drip?kb=64&pieces=10&ms=100&end=done``
    HTML of that size with a ``Content-Length`` (``chunked=1``: in chunks), in so many pieces that
    many milliseconds apart. ``end=hang``: the last piece never comes, and the connection stays.
``/encoding/<name>?where=header``
    The text of `ENCODING_TEXTS` in that encoding, named in ``header``, ``meta`` or ``none``.
``/cookie/set?a=b``, ``/cookie/show``
    Sets these cookies; shows the cookies of the request as JSON.

Anything else is a 404, and so is ``/robots.txt`` until `Site.set` installs one. A parameter that
cannot be read is a 400.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import functools
import http
import http.client
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, final
from urllib.parse import unquote, unquote_to_bytes

if TYPE_CHECKING:
    from types import TracebackType

Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str | bytes, str | bytes | None]]
"""Response headers: str is sent as Latin-1, bytes as they are. None takes a default header
(Content-Type, Content-Length) away. A sequence of pairs can repeat a name."""

ENCODING_TEXTS = {
    "utf-8": "Crème brûlée, 红楼梦, Ελλάδα",
    "gbk": "红楼梦是中国古典小说",
    "latin-1": "Crème brûlée à la façon de Zoë",
}
"""What `/encoding/<name>` has in its title and its first paragraph."""

_CONTROL = "/_ctl/"
_LIFETIME = 3600.0
_MB = 1024 * 1024
_HTML = (b"Content-Type", b"text/html; charset=utf-8")
_FILL = b"<p>lorem ipsum dolor sit amet, consectetur adipiscing elit 0123456789</p>\n" * 1000
_STARTED_WITHIN = 30.0
_STOPPED_WITHIN = 5.0


@dataclass(frozen=True)
class Arrival:
    """One request as it reached the site."""

    t: float
    """When its head had been read: `time.monotonic()` of the site's process. On Linux, macOS and
    Windows that clock is one for the whole machine, so it compares with the test's own."""
    host: str
    """The name it asked for (Host, or the authority of an absolute request target, as a proxy gets
    it), lower case, without the port."""
    method: str
    path: str
    """Path and query as they stood in the request line."""
    headers: dict[str, str]
    """Names in lower case, values as Latin-1; repeated ones joined by ", " (Cookie: by "; ")."""
    body: bytes
    status: int
    """What was answered; 0 while there is no answer, and for good where none is given."""
    connection: int
    """The same for all requests of one TCP connection."""


@final
class Site:
    """The site as a context manager: the process starts on entry and is gone on exit.

    Not safe for use from several threads at once. Hosts other than 127.0.0.1 must be addresses of
    this machine; on Linux the whole of 127.0.0.0/8 is.
    """

    def __init__(self, *hosts: str) -> None:
        """Take the addresses to bind; none means 127.0.0.1 alone."""
        self.hosts = hosts or ("127.0.0.1",)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: http.client.HTTPConnection | None = None

    def __enter__(self) -> Site:
        """Start the process and wait until it serves."""
        # Isolated mode keeps tests/ off the path of the process: a test helper there may have the
        # name of a standard module, as this file has.
        command = [sys.executable, "-I", str(Path(__file__).resolve())]
        for host in self.hosts:
            command += ["--host", host]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        watchdog = threading.Timer(_STARTED_WITHIN, self._process.kill)
        watchdog.start()
        first = self._process.stdout.readline().split()
        watchdog.cancel()
        if len(first) != 2 or first[0] != b"READY":
            self._stop()
            raise RuntimeError(
                f"the test site did not start on {', '.join(self.hosts)}: see its own error above"
            )
        self.port = int(first[1])
        self._control = http.client.HTTPConnection(self.hosts[0], self.port, timeout=30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the process, whatever it is doing."""
        self._stop()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        """Return the URL of a path; the host may be any that the test's own resolver leads here."""
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}{path}"

    def set(
        self,
        path: str,
        status: int = 200,
        body: bytes | str = b"",
        headers: Headers = (),
        *,
        delay: float = 0.0,
        times: int | None = None,
        host: str | None = None,
        conditional: bool = False,
        raw: bytes | None = None,
    ) -> None:
        """Install an answer for one exact path, from the next request on.

        The path is compared with the request target as it was sent, first with the query, then
        without. The newest answer for a path wins; one that was given for a number of `times` gives
        way to the one before it (in the end: to what the site does by itself) when it is used up.
        `delay` is in seconds. `host` limits the answer to requests for that name. A text body is
        sent as UTF-8.

        With `conditional`, a request whose If-None-Match is byte for byte the answer's ETag gets a
        304, and so does one without If-None-Match whose If-Modified-Since is the answer's
        Last-Modified.

        `raw` is sent in place of everything else (`status` is what the log shows), and the
        connection is closed: empty, it is a close without an answer. A Content-Length or
        Transfer-Encoding among `headers` is sent as it is, true or not, and the connection is
        closed after the body.
        """
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        content = body.encode() if isinstance(body, str) else body
        self._ask(
            "set",
            {
                "host": host,
                "path": path,
                "status": status,
                "body": _to_text(content),
                "headers": [
                    (_latin(name), None if value is None else _latin(value))
                    for name, value in pairs
                ],
                "delay": delay,
                "times": times,
                "conditional": conditional,
                "raw": None if raw is None else _to_text(raw),
            },
        )

    def log(self) -> list[Arrival]:
        """Return every request since the last `reset`, in order of arrival."""
        return [
            Arrival(**{**entry, "body": base64.b64decode(entry["body"])})
            for entry in self._ask("log", None)
        ]

    def hits(self, path: str) -> int:
        """Count the requests for a path; its query counts only if the path given has one."""
        return int(self._ask("hits", path))

    def reset(self) -> None:
        """Forget the log, the answers that were set and the places in all sequences."""
        self._ask("reset", None)

    def _ask(self, what: str, content: object) -> Any:
        if self._control is None:
            raise RuntimeError("the test site is not running: use it as a context manager")
        self._control.request("POST", _CONTROL + what, body=json.dumps(content))
        response = self._control.getresponse()
        text = response.read()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(text.decode())
        return json.loads(text)

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_STOPPED_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


# --- the process ----------------------------------------------------------------------------------


@dataclass
class _Request:
    t: float
    host: str
    method: str
    target: str
    headers: dict[str, str]
    closing: bool
    """The client wants the connection closed after the answer."""
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> list[tuple[str, bytes]]:
        pairs = []
        for part in self.target.partition("?")[2].split("&"):
            if part:
                name, _, value = part.partition("=")
                pairs.append((unquote(name), unquote_to_bytes(value.encode("latin-1"))))
        return pairs

    @property
    def cookies(self) -> dict[str, str]:
        parts = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return {name: value for name, _, value in parts if name}

    def values(self, name: str) -> list[bytes]:
        return [value for key, value in self.query if key == name]

    def value(self, name: str, default: str) -> str:
        values = self.values(name)
        return values[-1].decode("latin-1") if values else default

    def number(self, name: str, default: int) -> int:
        return int(self.value(name, str(default)))


@dataclass(frozen=True)
class _Answer:
    status: int = 200
    headers: tuple[tuple[bytes, bytes | None], ...] = (_HTML,)
    body: bytes = b""
    pieces: Callable[[], Iterator[bytes]] | None = None
    """A body that is written as fast as the client reads it; the headers tell its framing."""
    raw: bytes | None = None
    """Sent in place of head and body."""
    delay: float = 0.0
    gap: float = 0.0
    """Seconds between two pieces."""
    ending: Literal["keep", "close", "reset", "hang"] = "keep"


@dataclass
class _Canned:
    answer: _Answer
    conditional: bool
    left: int | None


@dataclass
class _State:
    """All that the connections share."""

    log: list[dict[str, Any]] = field(default_factory=list)
    canned: dict[tuple[str | None, str], list[_Canned]] = field(default_factory=dict)
    sequences: Counter[str] = field(default_factory=Counter)
    connections: int = 0

    def answer(self, request: _Request) -> _Answer:
        for key in (
            (request.host, request.target),
            (request.host, request.path),
            (None, request.target),
            (None, request.path),
        ):
            for canned in reversed(self.canned.get(key, [])):
                if canned.left is None or canned.left > 0:
                    if canned.left is not None:
                        canned.left -= 1
                    return (
                        _conditional(request, canned.answer)
                        if canned.conditional
                        else canned.answer
                    )
        first, _, rest = request.path[1:].partition("/")
        route = _ROUTES.get(first)
        if route is None:
            return _html("Not Found", status=404)
        try:
            return route(self, request, unquote(rest))
        except ValueError as exc:
            return _html(f"Bad Request: {exc}", status=400)

    def control(self, request: _Request) -> _Answer:
        what = request.path[len(_CONTROL) :]
        if what == "log":
            return _json([{**entry, "body": _to_text(entry["body"])} for entry in self.log])
        if what == "hits":  # counted here, for those who ask again and again
            path = json.loads(request.body)
            whole = "?" in path
            seen = (entry["path"] for entry in self.log)
            return _json(sum((one if whole else one.partition("?")[0]) == path for one in seen))
        if what == "reset":
            # New containers and not emptied ones: an answer that is still on its way belongs to the
            # old log.
            self.log = []
            self.canned = {}
            self.sequences = Counter()
            return _json(None)
        if what == "set":
            wish = json.loads(request.body)
            raw = None if wish["raw"] is None else base64.b64decode(wish["raw"])
            answer = _Answer(
                status=wish["status"],
                headers=_over(
                    (_HTML,),
                    [
                        (name.encode("latin-1"), None if value is None else value.encode("latin-1"))
                        for name, value in wish["headers"]
                    ],
                ),
                body=base64.b64decode(wish["body"]),
                raw=raw,
                delay=wish["delay"],
                ending="keep" if raw is None else "close",
            )
            canned = _Canned(answer, wish["conditional"], wish["times"])
            self.canned.setdefault((wish["host"], wish["path"]), []).append(canned)
            return _json(None)
        return _html(f"no such control: {what}", status=404)


class _Connection(asyncio.Protocol):
    """One client: its requests are answered one after the other, in the order of their arrival."""

    def __init__(self, state: _State, loop: asyncio.AbstractEventLoop) -> None:
        self._state = state
        self._loop = loop
        self._buffer = bytearray()
        self._pending: _Request | None = None
        self._missing = 0
        self._answering = False
        self._paused = False
        self._gone = False
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: Iterator[bytes] | None = None
        self._gap = 0.0
        self._hangs = False
        self._closes = False
        state.connections += 1
        self._number = state.connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast and not an isinstance: uvloop's transports share no base class with those of
        # asyncio.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._gone = True
        self._pieces = None
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._pieces is not None and not self._gap:
            self._write_pieces()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._answering:
            self._read()

    def _read(self) -> None:
        try:
            request = self._whole_request()
        except (ValueError, IndexError) as exc:
            self._answering = True
            self._send(_html(f"Bad Request: {exc}", status=400), closing=True, bodiless=False)
            return
        if request is None:
            return
        self._answering = True
        if request.path.startswith(_CONTROL):
            self._send(self._state.control(request), closing=request.closing, bodiless=False)
            return
        entry = {
            "t": request.t,
            "host": request.host,
            "method": request.method,
            "path": request.target,
            "headers": request.headers,
            "body": request.body,
            "status": 0,
            "connection": self._number,
        }
        self._state.log.append(entry)
        answer = self._state.answer(request)
        if answer.delay > 0:
            self._timer = self._loop.call_later(answer.delay, self._answer, request, answer, entry)
        else:
            self._answer(request, answer, entry)

    def _whole_request(self) -> _Request | None:
        if self._pending is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return None
            head = bytes(self._buffer[:end]).decode("latin-1")
            del self._buffer[: end + 4]
            self._pending = _parse(head, time.monotonic())
            if "transfer-encoding" in self._pending.headers:
                raise ValueError("request bodies need a Content-Length here")
            self._missing = int(self._pending.headers.get("content-length", "0"))
            if self._pending.headers.get("expect", "").lower() == "100-continue":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(self._buffer) < self._missing:
            return None
        request, self._pending = self._pending, None
        request.body = bytes(self._buffer[: self._missing])
        del self._buffer[: self._missing]
        return request

    def _answer(self, request: _Request, answer: _Answer, entry: dict[str, Any]) -> None:
        self._timer = None
        if answer.raw is None or answer.raw:
            entry["status"] = answer.status
        self._send(answer, closing=request.closing, bodiless=request.method == "HEAD")

    def _send(self, answer: _Answer, *, closing: bool, bodiless: bool) -> None:
        if answer.ending == "hang" and answer.pieces is None:
            return
        if answer.ending == "reset":
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger
            )
            self._transport.abort()
            return
        if answer.raw is not None:
            self._transport.write(answer.raw)
            self._transport.close()
            return
        head, honest = _head(answer, closing=closing)
        self._closes = closing or not honest
        bodiless = bodiless or _has_no_body(answer.status)
        self._transport.write(head if bodiless else head + answer.body)
        if answer.pieces is not None and not bodiless:
            self._pieces = answer.pieces()
            self._gap = answer.gap
            self._hangs = answer.ending == "hang"
            self._write_pieces()
        else:
            self._done()

    def _write_pieces(self) -> None:
        if self._pieces is None:
            return
        for piece in self._pieces:
            self._transport.write(piece)
            if self._gone or self._transport.is_closing():
                return
            if self._gap:
                self._timer = self._loop.call_later(self._gap, self._write_pieces)
                return
            if self._paused:
                return
        self._pieces = None
        if not self._hangs:
            self._done()

    def _done(self) -> None:
        self._answering = False
        if self._closes:
            self._transport.close()
        elif self._buffer and not self._gone:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        if not (self._answering or self._gone):
            self._read()


def _parse(head: str, now: float) -> _Request:
    line, *rest = head.split("\r\n")
    method, target, version = line.split(" ")
    headers: dict[str, str] = {}
    for each in rest:
        name, colon, value = each.partition(":")
        if not colon:
            raise ValueError(f"a header without a colon: {each!r}")
        name, value = name.lower(), value.strip(" \t")
        if name in headers:
            value = headers[name] + ("; " if name == "cookie" else ", ") + value
        headers[name] = value
    authority = headers.get("host", "")
    if target.startswith(("http://", "https://")):
        authority, slash, tail = target.partition("://")[2].partition("/")
        target = slash + tail or "/"
    name, _, port = authority.rpartition(":")
    host = name if name and port.isdigit() else authority
    persistent = headers.get("connection", "").lower()
    return _Request(
        t=now,
        host=host.strip("[]").lower(),
        method=method,
        target=target.partition("#")[0],
        headers=headers,
        closing=persistent == "close" or (version == "HTTP/1.0" and persistent != "keep-alive"),
    )


def _head(answer: _Answer, *, closing: bool) -> tuple[bytes, bool]:
    """Return the head, and whether the client can tell from it where the body ends."""
    try:
        reason = http.HTTPStatus(answer.status).phrase
    except ValueError:
        reason = "Unassigned"
    lines = [b"HTTP/1.1 %d %s" % (answer.status, reason.encode())]
    lines += [name + b": " + value for name, value in answer.headers if value is not None]
    named = {name.lower() for name, _ in answer.headers}
    framed = bool(named & {b"content-length", b"transfer-encoding"})
    honest = (answer.pieces is not None or not framed) and answer.status >= http.HTTPStatus.OK
    if not framed and not _has_no_body(answer.status):
        lines.append(b"Content-Length: %d" % len(answer.body))
    if (closing or not honest) and b"connection" not in named:
        lines.append(b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n", honest


def _has_no_body(status: int) -> bool:
    return status < http.HTTPStatus.OK or status in (
        http.HTTPStatus.NO_CONTENT,
        http.HTTPStatus.NOT_MODIFIED,
    )


def _over(
    defaults: Sequence[tuple[bytes, bytes | None]], own: Sequence[tuple[bytes, bytes | None]]
) -> tuple[tuple[bytes, bytes | None], ...]:
    named = {name.lower() for name, _ in own}
    return (*((name, value) for name, value in defaults if name.lower() not in named), *own)


def _conditional(request: _Request, answer: _Answer) -> _Answer:
    have = {name.lower(): value for name, value in answer.headers if value is not None}
    for asked, validator in (("if-none-match", b"etag"), ("if-modified-since", b"last-modified")):
        if asked in request.headers:
            if request.headers[asked].encode("latin-1") != have.get(validator):
                return answer
            kept = tuple(
                pair for pair in answer.headers if not pair[0].lower().startswith(b"content-")
            )
            return replace(answer, status=304, headers=kept, body=b"")
    return answer


def _to_text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _latin(text: str | bytes) -> str:
    if isinstance(text, bytes):
        return text.decode("latin-1")
    text.encode("latin-1")
    return text


# --- the paths ------------------------------------------------------------------------------------


def _html(title: str, *, status: int = 200, content: str = "") -> _Answer:
    head = f"<!doctype html><html><head><title>{title}</title></head>"
    return _Answer(status, body=f"{head}<body><h1>{title}</h1>{content}</body></html>".encode())


def _json(content: object) -> _Answer:
    return _Answer(
        headers=((b"Content-Type", b"application/json"),), body=json.dumps(content).encode()
    )


def _page(state: _State, request: _Request, rest: str) -> _Answer:
    del state, request
    n = int(rest)
    links = "".join(f'<li><a href="/page/{n + i}">Page {n + i}</a></li>\n' for i in range(1, 6))
    answer = _html(f"Page {n}", content=f"<ul>\n{links}</ul>")
    return replace(answer, body=answer.body + b"\n" + _FILL[: 1023 - len(answer.body)])


def _status(state: _State, request: _Request, rest: str) -> _Answer:
    del state, request
    code = int(rest)
    if not 100 <= code <= 999:
        raise ValueError("a status code has three digits")
    return _html(f"Status {code}", status=code)


def _echo(state: _State, request: _Request, rest: str) -> _Answer:
    del state, rest
    return _json(
        {
            "method": request.method,
            "path": request.path,
            "query": [(name, value.decode("utf-8", "replace")) for name, value in request.query],
            "headers": request.headers,
            "cookies": request.cookies,
            "text": request.body.decode("utf-8", "replace"),
            "base64": _to_text(request.body),
        }
    )


def _redirect(state: _State, request: _Request, rest: str) -> _Answer:
    del state, rest
    answer = _html("Moved", status=request.number("code", 302))
    places = [(b"Location", value) for value in request.values("to")]
    cookies = [(b"Set-Cookie", value) for value in request.values("cookie")]
    return replace(answer, headers=(*answer.headers, *places, *cookies))


def _slow(state: _State, request: _Request, rest: str) -> _Answer:
    del state, rest
    return replace(_html("Slow"), delay=request.number("ms", 500) / 1000)


def _seq(state: _State, request: _Request, rest: str) -> _Answer:
    turn = state.sequences[rest]
    codes = [int(code) for code in request.value("codes", "200").split(",")]
    waits = request.values("retry_after")
    state.sequences[rest] += 1
    code = codes[min(turn, len(codes) - 1)]
    answer = _html(f"Answer {turn + 1} of {rest}", status=code)
    if waits and not 200 <= code < 300:
        wait = waits[min(turn, len(waits) - 1)]
        answer = replace(answer, headers=(*answer.headers, (b"Retry-After", wait)))
    return answer


def _headers(state: _State, request: _Request, rest: str) -> _Answer:
    del state, rest
    answer = _html("Headers")
    own: list[tuple[bytes, bytes | None]] = []
    for pair in request.values("h"):
        name, _, value = pair.partition(b":")
        own.append((name, value))
    return replace(answer, headers=_over(answer.headers, own))


def _close(state: _State, request: _Request, rest: str) -> _Answer:
    del state, request, rest
    return _Answer(raw=b"", ending="close")


def _reset(state: _State, request: _Request, rest: str) -> _Answer:
    del state, request, rest
    return _Answer(raw=b"", ending="reset")


def _hang(state: _State, request: _Request, rest: str) -> _Answer:
    del state, request, rest
    return _Answer(raw=b"", ending="hang")


def _truncate(state: _State, request: _Request, rest: str) -> _Answer:
    del state, rest
    declared = request.number("declared", 2000)
    return _Answer(
        headers=(_HTML, (b"Content-Length", b"%d" % declared)),
        body=_filler(request.number("sent", 1000)),
    )


def _chunked(state: _State, request: _Request, rest: str) -> _Answer:
    del state, rest
    return _streamed(request.number("kb", 64) * 1024, in_chunks=True)


def _big(state: _State, request: _Request, rest: str) -> _Answer:
    del state, rest
    size = request.number("mb", 200) * _MB
    mode = request.value("mode", "len")
    if mode == "gzip":
        return _Answer(headers=(_HTML, (b"Content-Encoding", b"gzip")), body=_bomb(size))
    if mode not in ("len", "chunked"):
        raise ValueError(f"mode is len, chunked or gzip, not {mode}")
    return _streamed(size, in_chunks=mode == "chunked")


def _drip(state: _State, request: _Request, rest: str) -> _Answer:
    del state, rest
    size = request.number("kb", 64) * 1024
    count = request.number("pieces", 10)
    end = request.value("end", "done")
    if end not in ("done", "hang") or not 0 < count <= size:
        raise ValueError("end is done or hang; pieces are of one byte at least")
    in_chunks = request.value("chunked", "0") == "1"

    def pieces() -> Iterator[bytes]:
        body = _filler(size)
        edges = [size * number // count for number in range(count + 1)]
        for number in range(count - (end == "hang")):
            piece = body[edges[number] : edges[number + 1]]
            yield b"%x\r\n%s\r\n" % (len(piece), piece) if in_chunks else piece
        if in_chunks and end == "done":
            yield b"0\r\n\r\n"

    framing = (b"Transfer-Encoding", b"chunked") if in_chunks else (b"Content-Length", b"%d" % size)
    return _Answer(
        headers=(_HTML, framing),
        pieces=pieces,
        gap=request.number("ms", 100) / 1000,
        ending="hang" if end == "hang" else "keep",
    )


def _encoding(state: _State, request: _Request, rest: str) -> _Answer:
    del state
    where = request.value("where", "header")
    if rest not in ENCODING_TEXTS or where not in ("header", "meta", "none"):
        raise ValueError(
            f"encodings are {', '.join(ENCODING_TEXTS)}; where is header, meta or none"
        )
    text = ENCODING_TEXTS[rest]
    charset = "iso-8859-1" if rest == "latin-1" else rest
    meta = f'<meta charset="{charset}">' if where == "meta" else ""
    head = f"<!doctype html><html><head>{meta}<title>{text}</title></head>"
    body = f"{head}<body><p>{text}</p></body></html>"
    kind = f"text/html; charset={charset}" if where == "header" else "text/html"
    return _Answer(headers=((b"Content-Type", kind.encode()),), body=body.encode(rest))


def _cookie(state: _State, request: _Request, rest: str) -> _Answer:
    del state
    if rest == "show":
        return _json(request.cookies)
    if rest != "set":
        raise ValueError("a cookie path ends in set or show")
    answer = _html("Cookies set")
    cookies = [
        (b"Set-Cookie", name.encode() + b"=" + value + b"; Path=/") for name, value in request.query
    ]
    return replace(answer, headers=(*answer.headers, *cookies))


def _filler(size: int) -> bytes:
    return (_FILL * (size // len(_FILL) + 1))[:size]


def _streamed(size: int, *, in_chunks: bool) -> _Answer:
    def pieces() -> Iterator[bytes]:
        left = size
        while left > 0:
            piece = _FILL[:left]
            left -= len(piece)
            yield b"%x\r\n%s\r\n" % (len(piece), piece) if in_chunks else piece
        if in_chunks:
            yield b"0\r\n\r\n"

    framing = (b"Transfer-Encoding", b"chunked") if in_chunks else (b"Content-Length", b"%d" % size)
    return _Answer(headers=(_HTML, framing), pieces=pieces)


@functools.lru_cache(maxsize=4)
def _bomb(size: int) -> bytes:
    # 31: a gzip wrapper. One member and not a row of small ones, as some clients open the first
    # member only.
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(bytes(min(_MB, size - start))) for start in range(0, size, _MB)]
    return b"".join([*parts, packer.flush()])


_ROUTES: dict[str, Callable[[_State, _Request, str], _Answer]] = {
    "page": _page,
    "status": _status,
    "echo": _echo,
    "redirect": _redirect,
    "slow": _slow,
    "seq": _seq,
    "headers": _headers,
    "close": _close,
    "reset": _reset,
    "hang": _hang,
    "truncate": _truncate,
    "chunked": _chunked,
    "big": _big,
    "drip": _drip,
    "encoding": _encoding,
    "cookie": _cookie,
}


# --- running --------------------------------------------------------------------------------------


def _bind(hosts: Sequence[str]) -> list[socket.socket]:
    """Return a socket for each host, all bound to the port that the system chose for the first."""
    for attempt in range(20):
        bound: list[socket.socket] = []
        port = 0
        try:
            for host in hosts:
                sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
                bound.append(sock)
                if os.name == "posix":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((host, port))
                port = sock.getsockname()[1]
        except OSError:
            for sock in bound:
                sock.close()
            # The port that is free on the first host may be taken on another one; an address that
            # is not of this machine never becomes free.
            if attempt == 19 or len(bound) == 1:
                raise
        else:
            return bound
    raise AssertionError


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _serve(hosts: Sequence[str]) -> None:
    loop = _new_loop()
    state = _State()
    sockets = _bind(hosts)
    port = sockets[0].getsockname()[1]
    for sock in sockets:
        loop.run_until_complete(
            loop.create_server(lambda: _Connection(state, loop), sock=sock, backlog=1024)
        )
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, loop.stop)

    def wait_for_end_of_input() -> None:
        # os.read and not sys.stdin: a thread that waits inside a buffered reader aborts the
        # interpreter's exit.
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)

    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    loop.call_later(_LIFETIME, loop.stop)
    sys.stdout.write(f"READY {port}\n")
    sys.stdout.flush()
    loop.run_forever()
    loop.close()


def _main() -> None:
    parser = argparse.ArgumentParser(description="The web site that the tests crawl.")
    parser.add_argument(
        "--host", action="append", help="an address to bind, repeatable; default 127.0.0.1"
    )
    _serve(parser.parse_args().host or ["127.0.0.1"])


if __name__ == "__main__":
    _main()
