"""The validator of one attempt: put into its headers, and taken out before anybody copies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netspy_scrapy import meta as metakeys

if TYPE_CHECKING:
    from scrapy import Request

#: An HTTP cache would keep the 304, and hand it to whoever asks without a condition.
_DONT_CACHE = "dont_cache"


def set_validator(request: Request, name: bytes, value: bytes) -> None:
    """Let *request* ask whether its page changed."""
    request.headers[name] = value
    meta = request.meta
    meta[metakeys.VALIDATOR] = [name, value, meta.get(_DONT_CACHE)]
    meta[_DONT_CACHE] = True


def hide_validator(request: Request) -> None:
    """Take the header away that :func:`set_validator` gave *request*, if it did."""
    validator = request.meta.get(metakeys.VALIDATOR)
    if validator is not None:
        name, value, _ = validator
        if request.headers.get(name) == value:
            del request.headers[name]


def clear_validator(request: Request) -> None:
    """Undo all that :func:`set_validator` did to *request*, or to what it is a copy of."""
    hide_validator(request)
    validator = request.meta.pop(metakeys.VALIDATOR, None)
    if validator is not None:
        if validator[2] is None:
            request.meta.pop(_DONT_CACHE, None)
        else:
            request.meta[_DONT_CACHE] = validator[2]
