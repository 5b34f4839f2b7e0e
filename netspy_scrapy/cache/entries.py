"""What the cache keeps of an answer, and for which requests it stands."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from netspy_scrapy.exceptions import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Request headers that make another page of the same URL, whether ``Vary`` names them or not.
#: (Many sites name none; User-Agent and Referer change with each run and count only if named.)
COUNTED = ("accept", "accept-language", "authorization", "x-api-key", "x-auth-token")


@dataclass(frozen=True)
class Asked:
    """A request, as far as it decides on which entry stands for it."""

    scope: str
    """Spider and settings; see :func:`scope_of`."""
    key: int
    """Of the request as it was queued: 64 bits of its fingerprint, signed."""
    page: bytes
    """Fingerprint of what is sent, where ``download_midware`` changed the request; else empty."""
    manner: str
    """How a browser is to fetch the page, and cookies that the spider gave; empty: neither."""
    headers: Mapping[str, bytes]
    """As they are sent, by lower-case name."""
    ignored: frozenset[str] = frozenset()
    """Names of cookies that say nothing: the site hands them out to everybody."""

    def variant(self, vary: Iterable[str]) -> bytes:
        """Return the digest of all but the cookies that an answer with this ``Vary`` stands for."""
        digest = hashlib.blake2b(digest_size=16)
        names = sorted({*COUNTED, *vary} - {"cookie"})
        parts = [self.page, self.manner.encode()]
        for name in names:
            parts += [name.encode("latin-1", "replace"), self.headers.get(name, b"")]
        for part in parts:
            digest.update(struct.pack(">Q", len(part)) + part)
        return digest.digest()

    @property
    def cookies(self) -> bytes:
        """The Cookie header."""
        return self.headers.get("cookie", b"")

    def has_cookies_of(self, stored: bytes) -> bool:
        """Tell whether the cookies are those that an entry was asked with."""
        if stored == self.cookies:
            return True
        return _pairs(stored, self.ignored) == _pairs(self.cookies, self.ignored)


def scope_of(spider: str, settings: Mapping[str, Any]) -> str:
    """Return the name under which a spider's entries are kept.

    Spiders do not read each other's entries, and none reads those of other default headers.
    """
    told = json.dumps(settings, sort_keys=True, default=str).encode()
    return f"{spider}/{hashlib.blake2b(told, digest_size=6).hexdigest()}"


def _pairs(cookies: bytes, ignored: frozenset[str]) -> set[bytes]:
    pairs = (one.strip() for one in cookies.split(b";"))
    return {one for one in pairs if one and one.partition(b"=")[0].decode("latin-1") not in ignored}


def vary_of(headers: Mapping[str, Iterable[bytes]]) -> tuple[str, ...] | None:
    """Return the names in an answer's ``Vary``, in lower case; None: no other request gets it."""
    names = {
        name.strip().lower()
        for value in headers.get("vary", ())
        for name in value.decode("latin-1").split(",")
    } - {""}
    return None if "*" in names else tuple(sorted(names))


@dataclass(frozen=True)
class Entry:
    """One stored answer."""

    scope: str
    key: int
    variant: bytes
    vary: str
    """Names with a comma between."""
    cookies: bytes
    stored: float
    """Unix time."""
    domain: str
    url: str
    """Of the request, without credentials."""
    status: int
    head: bytes
    """See :func:`encode_head`."""
    body: bytes
    """As it was received, and so perhaps compressed."""

    @property
    def size(self) -> int:
        """Bytes that count as the entry's."""
        return len(self.head) + len(self.body)

    @property
    def digest(self) -> bytes:
        """The digest of all the rest, by which a broken entry is found out."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (
            self.scope.encode("utf-8", "surrogatepass"), struct.pack(">q", self.key), self.variant,
            self.vary.encode("utf-8", "surrogatepass"), self.cookies,
            struct.pack(">d", self.stored), self.head, self.body,
        ):  # fmt: skip
            digest.update(struct.pack(">Q", len(part)))
            digest.update(part)
        return digest.digest()


@dataclass(frozen=True)
class Head:
    """What an entry keeps of an answer and its request besides the body."""

    url: str
    status: int
    headers: Mapping[str, list[bytes]]
    flags: list[str]
    protocol: str | None
    encoding: str | None
    """As it was given with the answer; None: it is found out from headers and body."""
    request_headers: Mapping[str, list[bytes]]


def encode_head(head: Head) -> bytes:
    """Return *head* as JSON. It is never pickle: what a disk holds must not run code."""
    record = {
        "url": head.url,
        "status": head.status,
        "headers": _to_text(head.headers),
        "flags": head.flags,
        "protocol": head.protocol,
        "encoding": head.encoding,
        "request_headers": _to_text(head.request_headers),
    }
    return json.dumps(record, separators=(",", ":")).encode()


def decode_head(data: bytes) -> Head:
    """Return what :func:`encode_head` wrote; raises :exc:`CacheError` for anything else."""
    try:
        record = json.loads(data)
        return Head(
            url=str(record["url"]),
            status=int(record["status"]),
            headers=_to_bytes(record["headers"]),
            flags=[str(flag) for flag in record["flags"]],
            protocol=record["protocol"],
            encoding=record["encoding"],
            request_headers=_to_bytes(record["request_headers"]),
        )
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as exc:
        raise CacheError(f"the head of an entry cannot be read: {exc}") from exc


def _to_text(headers: Mapping[str, list[bytes]]) -> dict[str, list[str]]:
    return {name: [one.decode("latin-1") for one in values] for name, values in headers.items()}


def _to_bytes(headers: Mapping[str, list[str]]) -> dict[str, list[bytes]]:
    return {name: [one.encode("latin-1") for one in values] for name, values in headers.items()}
