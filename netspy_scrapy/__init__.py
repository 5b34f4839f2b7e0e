"""netspy's crawling rules for Scrapy.

For a Scrapy project: ``ADDONS = {"netspy_scrapy.Addon": 500}``. For a netspy spider:
``import netspy_scrapy as mw``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netspy_scrapy.addon import Addon
    from netspy_scrapy.exceptions import (
        AntiBotError,
        ConfigError,
        DumpError,
        HttpStatusError,
        ItemError,
        NetspyError,
        NotRetryError,
        PipelineError,
        RequestError,
        ResponseError,
        SinkFailedError,
        SinkUnavailableError,
        SpiderError,
        ValidationError,
    )
    from netspy_scrapy.http.request import Request
    from netspy_scrapy.http.response import Response
    from netspy_scrapy.items import Item, UpdateItem
    from netspy_scrapy.pipelines.base import BasePipeline
    from netspy_scrapy.spiders.air import AirSpider
    from netspy_scrapy.spiders.redis import Spider

__version__ = "0.1.0"

_HOMES = {
    "Addon": "addon",
    "AirSpider": "spiders.air",
    "BasePipeline": "pipelines.base",
    "ConfigError": "exceptions",
    "DumpError": "exceptions",
    "AntiBotError": "exceptions",
    "HttpStatusError": "exceptions",
    "Item": "items",
    "ItemError": "exceptions",
    "NetspyError": "exceptions",
    "NotRetryError": "exceptions",
    "PipelineError": "exceptions",
    "Request": "http.request",
    "RequestError": "exceptions",
    "Response": "http.response",
    "ResponseError": "exceptions",
    "SinkFailedError": "exceptions",
    "SinkUnavailableError": "exceptions",
    "Spider": "spiders.redis",
    "SpiderError": "exceptions",
    "UpdateItem": "items",
    "ValidationError": "exceptions",
}

__all__ = [
    "Addon",
    "AirSpider",
    "AntiBotError",
    "BasePipeline",
    "ConfigError",
    "DumpError",
    "HttpStatusError",
    "Item",
    "ItemError",
    "NetspyError",
    "NotRetryError",
    "PipelineError",
    "Request",
    "RequestError",
    "Response",
    "ResponseError",
    "SinkFailedError",
    "SinkUnavailableError",
    "Spider",
    "SpiderError",
    "UpdateItem",
    "ValidationError",
    "get_logger",
]


def get_logger(name: str | None = None) -> Any:
    """Return a logger that takes ``{}`` and ``%s`` messages, as ``self.logger`` of a spider."""
    import logging  # noqa: PLC0415

    from netspy_scrapy.spiders.logger import SpiderLogger  # noqa: PLC0415

    return SpiderLogger(logging.getLogger(name or "netspy_scrapy"), {})


def __getattr__(name: str) -> Any:
    # A single pipeline, or a command, should not import what the whole set needs.
    if name == "log":
        return get_logger()
    if name == "exceptions":
        return import_module("netspy_scrapy.exceptions")
    if name == "setting":
        return import_module("netspy_scrapy.spiders.setup").Setting()
    if name not in _HOMES:
        raise AttributeError(f"module 'netspy_scrapy' has no attribute {name!r}")
    return getattr(import_module(f"netspy_scrapy.{_HOMES[name]}"), name)
