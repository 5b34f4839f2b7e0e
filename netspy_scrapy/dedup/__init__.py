"""What a crawl has seen: requests (in Scrapy's scheduler) and items (before the sinks)."""

from __future__ import annotations

from netspy_scrapy.dedup.bloom import BloomFilter, ExactFilter, KeyFilter, key_filter
from netspy_scrapy.dedup.item_filter import ItemFilter
from netspy_scrapy.dedup.request_filter import RequestFilter

__all__ = [
    "BloomFilter",
    "ExactFilter",
    "ItemFilter",
    "KeyFilter",
    "RequestFilter",
    "key_filter",
]
