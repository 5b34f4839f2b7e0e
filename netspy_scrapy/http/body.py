"""From the HTTP keywords of netspy (those of httpx) to URL, body and headers."""

from __future__ import annotations

import json
import secrets
from base64 import b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from netspy_scrapy.exceptions import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


def url_with_params(url: str, params: Any) -> str:
    """Return *url* with *params* (dict, pairs, text) as its query.

    As in httpx they replace the query that the URL has; None keeps it, an empty dict removes it.
    """
    if params is None:
        return url
    parts = urlsplit(url)
    if isinstance(params, bytes):
        params = params.decode()
    query = params.lstrip("?").replace(" ", "+") if isinstance(params, str) else _urlencoded(params)
    return urlunsplit(parts._replace(query=query))


def encode_body(
    *, data: Any = None, json_: Any = None, content: Any = None, files: Any = None
) -> tuple[bytes, str | None]:
    """Return the body and its Content-Type (None: netspy sends none)."""
    if files:
        return _multipart(_pairs(data) if data else (), files)
    if content is not None:
        return _bytes("content", content), None
    if data is not None:
        if isinstance(data, (str, bytes, bytearray)):
            return _bytes("data", data), None
        return _urlencoded(data).encode(), FORM if data else None
    if json_ is not None:
        try:
            text = json.dumps(json_, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            return text.encode(), JSON
        except (TypeError, ValueError) as exc:
            raise RequestError(f"json cannot be sent: {exc}") from exc
    return b"", None


def basic_auth(auth: Any) -> str:
    """Return the Authorization header of a (user, password) pair."""
    try:
        user, password = auth
    except (TypeError, ValueError):
        raise RequestError("auth has to be a pair (user, password)") from None
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def proxy_for(url: str, proxies: Any) -> str | None:
    """Return the proxy of *url*: *proxies* is one, or a dict by scheme (requests, httpx)."""
    if not proxies:
        return None
    if isinstance(proxies, str):
        return proxies
    scheme = urlsplit(url).scheme
    for key in (scheme, f"{scheme}://", "all", "all://"):
        if proxies.get(key):
            return str(proxies[key])
    return None


def _pairs(data: Any) -> Iterable[tuple[str, Any]]:
    items: Iterable[Any] = data.items() if hasattr(data, "items") else data
    if not hasattr(items, "__iter__"):
        raise RequestError(f"{data!r} is neither a dict nor a list of pairs")
    for entry in items:
        try:
            name, value = entry
        except (TypeError, ValueError):
            raise RequestError(f"{entry!r} is not a pair of a name and a value") from None
        if isinstance(value, (list, tuple)):
            for one in value:
                yield str(name), one
        else:
            yield str(name), value


def _urlencoded(data: Any) -> str:
    return urlencode([(name, _primitive(value)) for name, value in _pairs(data)])


def _primitive(value: Any) -> str | bytes:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, bytes) else str(value)


def _bytes(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise RequestError(f"{name} has to be text or bytes, not {type(value).__name__}")


def _multipart(fields: Iterable[tuple[str, Any]], files: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a multipart/form-data body (RFC 7578), the fields first."""
    boundary = secrets.token_hex(16)
    parts: list[bytes] = []
    for name, value in fields:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"\r\n\r\n'
        raw = _primitive(value)
        parts += [head.encode(), raw if isinstance(raw, bytes) else raw.encode(), b"\r\n"]
    for name, value in files.items():
        filename, content, kind = "upload", value, "application/octet-stream"
        if isinstance(value, tuple):
            filename, content, kind = (*value, kind)[:3]
        if hasattr(content, "read"):
            content = content.read()
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"; '
            f'filename="{_quoted(str(filename))}"\r\nContent-Type: {kind}\r\n\r\n'
        )
        parts += [head.encode(), _bytes("files", content), b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
