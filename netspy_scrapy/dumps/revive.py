"""Requests out of the lines of a dump, ready to be yielded anew."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import scrapy

from netspy_scrapy import meta as metakeys
from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.http.request import Request as FacadeRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider

#: What the attempts of an earlier run left in meta.
_OF_EARLIER_ATTEMPTS = (
    "retry_times", "redirect_times", "redirect_ttl", "redirect_urls", "redirect_reasons",
    "download_latency", metakeys.RETRY_OWNER, metakeys.GIVEN_UP, metakeys.NOT_BEFORE,
    metakeys.DELAY, metakeys.RECEIPT, metakeys.PARENT,
)  # fmt: skip


def revive(record: dict[str, Any], spider: Spider) -> scrapy.Request:
    """Return the request of a line, ours or netspy's: fresh retries, past the request filter.

    Nothing is imported for it: a callback is a method of *spider*, or a function of a module that
    is imported. Raises :exc:`~netspy_scrapy.exceptions.DumpError`, which says what cannot be
    found.
    """
    state = record.get("request")
    try:
        if isinstance(state, dict):
            return _from_state(state, spider)
        return _from_netspy(record, spider)
    except DumpError:
        raise
    except Exception as exc:
        raise DumpError(f"no request can be made of it: {type(exc).__name__}: {exc}") from exc


def _from_state(state: dict[str, Any], spider: Spider) -> scrapy.Request:
    cls = _request_class(state.get("_class"))
    kwargs = {name: value for name, value in state.items() if name in cls.attributes}
    for name in ("callback", "errback", "download_midware"):
        if isinstance(kwargs.get(name), str):
            kwargs[name] = _function(kwargs[name], name, spider)
    kwargs["meta"] = _fresh_meta(kwargs.get("meta") or {})
    kwargs["dont_filter"] = True
    return cls(**kwargs)


def _fresh_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return *meta* without what earlier attempts left there."""
    fresh = {name: value for name, value in meta.items() if name not in _OF_EARLIER_ATTEMPTS}
    domain = fresh.pop(metakeys.DOMAIN, None)
    own_slot = fresh.pop(metakeys.OWN_SLOT, None)
    if own_slot is None and fresh.get("download_slot") == domain:
        fresh.pop("download_slot", None)
    return fresh


def _request_class(name: Any) -> type[scrapy.Request]:
    if name is None:
        return scrapy.Request
    module, _, qualname = str(name).rpartition(".")
    cls = getattr(sys.modules.get(module), qualname, None)
    if isinstance(cls, type) and issubclass(cls, scrapy.Request):
        return cls
    raise DumpError(f"its class {name} is no request class of an imported module")


def _function(name: str, what: str, spider: Spider) -> Callable[..., Any]:
    """Return the function that a line names: a method of the spider, or ``module:function``."""
    module, colon, qualname = name.rpartition(":")
    owner: Any = sys.modules.get(module) if colon else spider
    found = owner
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if callable(found):
        function: Callable[..., Any] = found
        return function
    if "<" in name:
        raise DumpError(
            f"its {what} {name} is a lambda or a function inside another, which cannot be found "
            "again: give requests a method of the spider"
        )
    if colon:
        raise DumpError(f"its {what} {name} is not there in an imported module")
    raise DumpError(f"its {what} {name!r} is no method of the spider {spider.name!r}")


def _from_netspy(record: dict[str, Any], spider: Spider) -> scrapy.Request:
    url = record.get("url")
    if not isinstance(url, str):
        raise DumpError("it has no 'url'")
    name = record.get("callback")
    callback = _function(str(name), "callback", spider) if name else None
    kwargs = dict(record.get("requests_kwargs") or {})
    method = record.get("method") or "GET"
    cb_kwargs = record.get("cb_kwargs") or {}
    if hasattr(spider, "netspy_output"):
        return FacadeRequest(
            url, method, callback=callback, priority=record.get("priority", 300),
            cb_kwargs=cb_kwargs, filter_repeat=False, **kwargs, **(record.get("custom") or {}),
        )  # fmt: skip
    unknown = sorted(kwargs.keys() - {"headers", "cookies", "content"})
    if unknown:
        raise DumpError(f"only a netspy spider can send its {', '.join(unknown)}")
    return scrapy.Request(
        url, method=method, callback=callback, headers=kwargs.get("headers"),
        cookies=kwargs.get("cookies"), body=kwargs.get("content"), cb_kwargs=cb_kwargs,
        dont_filter=True,
    )  # fmt: skip
