"""Requests in Redis: what is kept, and what is refused."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
import scrapy
from scrapy.http import FormRequest

import netspy_scrapy as mw
from netspy_scrapy import meta
from netspy_scrapy.dumps.classes import ClassResolver
from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.redis.payload import decode, encode


class Spider(scrapy.Spider):
    name = "s"
    text = "no method"

    def parse(self, response: Any) -> Any: ...

    def failed(self, failure: Any) -> Any: ...


class Facade(mw.AirSpider):
    def parse(self, request: Any, response: Any) -> Any: ...


def back(request: Any, spider: Any) -> Any:
    return decode(encode(request, spider), spider, ClassResolver())


def test_a_plain_request() -> None:
    """All that a request has comes back; the default values take no room."""
    spider = Spider()
    request = scrapy.Request(
        "http://a.test/?q=ü", method="POST", body=b"\x00\xff", headers={"X": ["1", "2"]},
        cookies={"c": "d"}, meta={"when": datetime(2025, 1, 2, tzinfo=timezone.utc), 3: (4,)},
        cb_kwargs={"page": 2}, priority=-7, dont_filter=True, callback=spider.parse,
        errback=spider.failed, flags=["f"], encoding="latin-1",
    )  # fmt: skip
    other = back(request, spider)

    assert other.to_dict(spider=spider) == request.to_dict(spider=spider)
    assert other.callback == spider.parse
    assert encode(scrapy.Request("http://a.test/"), spider) == b'{"url": "http://a.test/"}'


# Scrapy calls FormRequest deprecated in some versions: that is a matter of who chose it.
@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
def test_other_kinds_of_requests() -> None:
    """A subclass stays what it is."""
    spider = Spider()
    form = FormRequest("http://a.test/", formdata={"a": "b"}, callback=spider.parse)
    other = back(form, spider)

    assert type(other) is FormRequest
    assert (other.method, other.body) == ("POST", b"a=b")
    assert other.headers == form.headers


def test_a_netspy_request() -> None:
    """Its own attributes, its priority and its callback come back too."""
    spider = Facade()
    request = mw.Request("http://a.test/", callback="parse", priority=5, params={"p": 1}, batch=7)
    request.seal(spider)
    other = back(request, spider)

    assert other.is_sealed
    assert (other.scrapy_priority, other.batch, other.url) == (295, 7, "http://a.test/?p=1")
    assert other.unsealed().priority == 5
    assert other.callback == spider.parse


def test_what_is_this_nodes_own_is_left_out() -> None:
    """Tokens of this process never reach another."""
    request = scrapy.Request("http://a.test/", meta={"mine": 1})
    request.meta.update({meta.TASK: "t", meta.RECEIPT: 5, meta.PARENT: 6, meta.NOT_BEFORE: 7.0})

    assert back(request, Spider()).meta == {"mine": 1}
    assert request.meta[meta.TASK] == "t"


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\x80\x04K\x01.", "pickled"),
        (b"\xff\xfe", "not text"),
        (b"[1]", "not a JSON object"),
        (b'{"url": 5}', "no request can be made"),
        (b'{"url": "nowhere"}', "no request can be made"),
        (b'{"url": "http://a.test/", "_class": "os.system"}', "not a class of requests"),
        (b'{"url": "http://a.test/", "_class": "antigravity.Request"}', "not a class of requests"),
        (b'{"url": "http://a.test/", "callback": "gone"}', "not a method of Spider"),
        (b'{"url": "http://a.test/", "callback": "text"}', "not a method of Spider"),
        (b'{"url": "http://a.test/", "callback": "__class__"}', "not a method of Spider"),
    ],
)
def test_what_is_refused(payload: bytes, why: str) -> None:
    """Who writes to Redis gets no code run, and a broken payload says what is wrong with it."""
    with pytest.raises(DumpError, match=why):
        decode(payload, Spider(), ClassResolver())


def test_callbacks_that_are_no_methods() -> None:
    """A lambda cannot be named."""
    with pytest.raises(ValueError, match="not an instance method"):
        encode(scrapy.Request("http://a.test/", callback=lambda response: None), Spider())
