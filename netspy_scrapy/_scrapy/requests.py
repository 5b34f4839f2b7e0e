"""What can be done to a request without running its constructor again."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from scrapy import Request

#: Stands for a slot that was never set.
_UNSET = object()

RequestT = TypeVar("RequestT", bound=Request)


def set_url(request: Request, url: str) -> None:
    """Change the URL of a request in place (``download_midware``); Scrapy knows only copies."""
    request._set_url(url)  # noqa: SLF001


def set_body(request: Request, body: bytes) -> None:
    """Change the body of a request in place."""
    request._set_body(body)  # noqa: SLF001


def set_meta(request: Request, meta: dict[str, Any]) -> None:
    """Give *request*, a shallow copy, a meta of its own."""
    request._meta = meta  # noqa: SLF001


def shallow_copy(request: RequestT) -> RequestT:
    """Return a copy that shares meta, headers and everything else with *request*.

    ``Request.copy()`` runs the constructor, which costs ten times as much.
    """
    cls: Any = type(request)
    other: RequestT = cls.__new__(cls)
    for slot in _slots(cls):
        value = getattr(request, slot, _UNSET)
        if value is not _UNSET:
            setattr(other, slot, value)
    if hasattr(request, "__dict__"):  # a plain request has none from Scrapy 2.19 on
        other.__dict__.update(request.__dict__)
    return other


def become(request: RequestT, other: RequestT) -> None:
    """Give *request* the whole state of *other*: the engine knows it by its identity."""
    cls: Any = type(request)
    for slot in _slots(cls):
        value = getattr(other, slot, _UNSET)
        if value is not _UNSET:
            setattr(request, slot, value)
    request.__dict__.clear()
    request.__dict__.update(other.__dict__)


@functools.cache
def _slots(cls: Any) -> tuple[str, ...]:
    found = [slot for base in cls.__mro__ for slot in base.__dict__.get("__slots__", ())]
    return tuple(slot for slot in found if slot != "__weakref__")
