"""What is remembered of one page, and under which key."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from scrapy.http import Headers

from netspy_scrapy.exceptions import DumpError

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.settings import BaseSettings
    from scrapy.utils.request import RequestFingerprinterProtocol

    from netspy_scrapy.settings import IncrementalSettings

#: Bytes of keys and digests.
_SIZE = 16


@dataclass(frozen=True)
class Entry:
    """A page as it was when its rows were safe."""

    key: bytes
    spider: str
    url: str
    etag: bytes | None = None
    """Byte for byte as the site sent it."""
    modified: bytes | None = None
    """Last-Modified, byte for byte; None also where it says too little to ask by."""
    status: int = 200
    """Of the last answer: 200 or 304."""
    fetched: float = 0.0
    """Unix time of the last answer with a body."""
    checked: float = 0.0
    """Unix time of the last answer."""
    run: int = 0
    """The spider's run that saw the page last."""
    size: int = 0
    """Bytes of the body as they were sent."""
    digest: bytes | None = None
    """Of the body; None where nobody needed it."""
    changes: int = 0
    """How often in a row the ETag changed although the body did not."""
    dynamic: bool = False
    """Whether the ETag says nothing, so that it is no longer asked by."""
    children: int | None = None
    """How many requests the callback yielded; None: they are not kept."""
    body: bytes | None = None
    """Digest of the body that is kept; None: none is."""

    @property
    def has_validator(self) -> bool:
        """Whether the site can be asked if the page changed."""
        return self.etag is not None or self.modified is not None


_BYTES = ("etag", "modified", "digest", "body")


def entry_to_json(entry: Entry) -> str:
    """Return all of *entry* but its key as JSON; bytes become Latin-1 text."""
    record: dict[str, Any] = {
        field.name: value
        for field in fields(Entry)
        if field.name != "key" and (value := getattr(entry, field.name)) != field.default
    }
    for name in _BYTES:
        if name in record:
            record[name] = record[name].decode("latin-1")
    return json.dumps(record, separators=(",", ":"))


def entry_from_json(key: bytes, text: str | bytes) -> Entry:
    """Return what :func:`entry_to_json` wrote; raises DumpError if it is something else."""
    try:
        record = json.loads(text)
        for name in _BYTES:
            if name in record:
                record[name] = record[name].encode("latin-1")
        return Entry(key=key, **record)
    except (AttributeError, TypeError, ValueError) as exc:
        raise DumpError(f"this is no entry of a page: {exc}") from exc


KeyHeaders = tuple[tuple[bytes, bytes], ...]
"""Names of request headers that are part of a key, with what stands for a missing one."""


def key_headers(settings: BaseSettings, incremental: IncrementalSettings) -> KeyHeaders:
    """Return the headers of NETSPY_INCREMENTAL_HEADERS, with what the project sends by default.

    So a request has the same key before the default headers are put in, and after.
    """
    defaults = Headers(
        {
            name: value
            for name, value in settings.getdict("DEFAULT_REQUEST_HEADERS").items()
            if value is not None
        }
    )
    return tuple((name, b"\0".join(defaults.getlist(name))) for name in incremental.headers)


def key_of(
    request: Request,
    fingerprinter: RequestFingerprinterProtocol,
    *,
    spider: str,
    headers: KeyHeaders,
) -> bytes:
    """Return the key of a page for one spider.

    Two spiders do different things with a page, and requests with other *headers* may see another
    one: each has an entry of its own.
    """
    hasher = blake2b(fingerprinter.fingerprint(request), digest_size=_SIZE)
    hasher.update(spider.encode())
    for name, default in headers:
        value = b"\0".join(request.headers.getlist(name)) or default
        if value:
            hasher.update(b"\0" + name + b"\0" + value)
    return hasher.digest()


def digest_of(body: bytes) -> bytes:
    """Return the digest by which two bodies are compared."""
    return blake2b(body, digest_size=_SIZE).digest()
