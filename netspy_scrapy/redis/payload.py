"""Requests as the queue in Redis keeps them: JSON, never pickle.

Who can write to Redis must not run code in the crawler. So a payload names a request class, which
must be imported already, and methods of the spider; values are those of
:mod:`netspy_scrapy.dumps.codec`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from scrapy import Request

from netspy_scrapy import meta as metakeys
from netspy_scrapy.dumps.codec import decode_line, encode_line
from netspy_scrapy.exceptions import DumpError

if TYPE_CHECKING:
    from scrapy import Spider

    from netspy_scrapy.dumps.classes import ClassResolver

#: What a payload begins with that is data of a start URL, not a request.
SEED = b"S"

#: Meta that says something of this node only.
_LOCAL = (metakeys.TASK, metakeys.RECEIPT, metakeys.PARENT, metakeys.NOT_BEFORE)

_CLASS = "_class"
#: Values that a plain request has anyhow.
_DEFAULTS: dict[str, Any] = {"method": "GET", "encoding": "utf-8", "priority": 0}


def encode(request: Request, spider: Spider) -> bytes:
    """Return *request* as a payload.

    Raises ValueError for a callback that is no method of the spider, and
    :exc:`~netspy_scrapy.exceptions.DumpError` for a value that cannot be kept.
    """
    state = request.to_dict(spider=spider)
    meta = state.get("meta")
    if meta:
        state["meta"] = {key: value for key, value in meta.items() if key not in _LOCAL}
    if type(request) is Request:
        state = {
            key: value for key, value in state.items() if value and _DEFAULTS.get(key) != value
        }
    else:
        state = {key: value for key, value in state.items() if value is not None}
    return encode_line(state).encode()


def decode(payload: bytes, spider: Spider, classes: ClassResolver) -> Request:
    """Return the request of a payload.

    Raises :exc:`~netspy_scrapy.exceptions.DumpError` for what is none: another class, a callback
    that the spider does not have, or text that somebody else wrote.
    """
    if payload[:1] == b"\x80":
        raise DumpError("it is pickled, as scrapy-redis does it, and pickles are not read")
    try:
        state = decode_line(payload.decode(), classes)
    except UnicodeDecodeError as exc:
        raise DumpError(f"it is not text: {exc}") from exc
    cls = _request_class(state.pop(_CLASS, None))
    kwargs = {key: value for key, value in state.items() if key in cls.attributes}
    for name in ("callback", "errback", "download_midware"):
        if isinstance(kwargs.get(name), str):
            kwargs[name] = _method(spider, name, kwargs[name])
    try:
        return cls(**kwargs)
    except (TypeError, ValueError) as exc:
        raise DumpError(f"no request can be made of it: {exc}") from exc


def _method(spider: Spider, what: str, name: str) -> Any:
    method = getattr(spider, name, None)
    if name.startswith("_") and not hasattr(type(spider), name):
        method = None
    if not callable(method) or getattr(method, "__self__", None) is not spider:
        raise DumpError(f"its {what} {name!r} is not a method of {type(spider).__name__}")
    return method


def _request_class(name: Any) -> type[Request]:
    if name is None:
        return Request
    module, _, cls_name = str(name).rpartition(".")
    found = vars(sys.modules[module]).get(cls_name) if module in sys.modules else None
    if not (isinstance(found, type) and issubclass(found, Request)):
        raise DumpError(f"{name} is not a class of requests that is imported here")
    return found
