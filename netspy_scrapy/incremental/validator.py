"""The validator of one attempt: put into its headers, and taken out before anybody copies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netspy_scrapy import meta as metakeys

if TYPE_CHECKING:
    from scrapy import Request


def set_validator(request: Request, name: bytes, value: bytes) -> None:
    """Let *request* ask whether its page changed."""
    request.headers[name] = value
    request.meta[metakeys.VALIDATOR] = [name, value]


def clear_validator(request: Request) -> None:
    """Take the validator away that :func:`set_validator` gave *request*, if it did."""
    validator = request.meta.pop(metakeys.VALIDATOR, None)
    if validator is not None:
        name, value = validator
        if request.headers.get(name) == value:
            del request.headers[name]
