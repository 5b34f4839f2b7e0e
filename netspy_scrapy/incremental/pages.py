"""What is kept of a page besides its entry: the requests it yielded, or its body.

JSON lines and plain bytes, compressed; never pickle, for who can write to the store must not run
code in the crawler.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

from scrapy.http import Headers
from scrapy.responsetypes import responsetypes
from scrapy.utils.request import request_from_dict

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.dumps.codec import decode_line, encode_line
from netspy_scrapy.dumps.requests import callback_name
from netspy_scrapy.exceptions import DumpError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request, Spider
    from scrapy.http import Response

#: What a request gets on its way, and another one must not inherit.
_PASSING = frozenset({metakeys.RECEIPT, metakeys.PARENT, metakeys.VALIDATOR, "download_latency"})
#: Bodies are large, and the event loop compresses them.
_LEVEL = 1


def request_to_line(request: Request, spider: Spider) -> str:
    """Return a request as one line of JSON.

    Raises DumpError if it cannot be kept: a callback that is no method of the spider, or a value
    that JSON with our tags cannot say.
    """
    bare = _scrapy.shallow_copy(request)
    bare.callback = bare.errback = None  # to_dict() refuses what is no method
    state = bare.to_dict()
    state["meta"] = {name: value for name, value in request.meta.items() if name not in _PASSING}
    state["callback"] = _method_name(request.callback, spider)
    state["errback"] = _method_name(request.errback, spider)
    return encode_line(state)


def pack_requests(lines: Iterable[str]) -> bytes:
    """Return the lines of requests as they are kept."""
    return zlib.compress("\n".join(lines).encode(), _LEVEL)


def unpack_requests(data: bytes, spider: Spider) -> list[Request]:
    """Return the requests that :func:`pack_requests` kept.

    Raises DumpError if they are damaged, or name a callback that does not exist any more.
    """
    try:
        return [request_from_dict(state, spider=spider) for state in request_lines(data)]
    except DumpError:
        raise
    except Exception as exc:  # whatever stands in a store that somebody else may write
        raise DumpError(f"the requests that were kept cannot be read: {exc}") from exc


def request_lines(data: bytes) -> list[dict[str, Any]]:
    """Return what :func:`pack_requests` kept as dicts of ``Request.to_dict``.

    Raises DumpError if it is damaged.
    """
    try:
        lines = zlib.decompress(data).decode().split("\n")
    except (UnicodeDecodeError, zlib.error) as exc:
        raise DumpError(f"the requests that were kept cannot be read: {exc}") from exc
    return [decode_line(line) for line in lines if line]


def pack_response(response: Response) -> bytes:
    """Return headers and body of a response as they are kept."""
    headers = [
        [name.decode("latin-1"), [value.decode("latin-1") for value in values]]
        for name, values in response.headers.items()
    ]
    head = json.dumps(headers).encode()
    return zlib.compress(b"%d\n%s%s" % (len(head), head, response.body), _LEVEL)


def unpack_response(data: bytes, url: str, **kwargs: Any) -> Response:
    """Return the response that :func:`pack_response` kept; raises DumpError if it is damaged."""
    try:
        size, _, rest = zlib.decompress(data).partition(b"\n")
        head, body = rest[: int(size)], rest[int(size) :]
        headers = Headers(
            {
                name.encode("latin-1"): [value.encode("latin-1") for value in values]
                for name, values in json.loads(head)
            }
        )
        cls = responsetypes.from_args(headers=headers, url=url, body=body)
        return cls(url, headers=headers, body=body, **kwargs)
    except Exception as exc:
        raise DumpError(f"the body that was kept cannot be read: {exc}") from exc


def _method_name(callback: Any, spider: Spider) -> str | None:
    name = callback_name(callback, spider)
    if name is not None and not callable(getattr(spider, name, None)):
        raise DumpError(f"the callback {name} is no method of {type(spider).__name__}")
    return name
