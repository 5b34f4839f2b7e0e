"""Netspy's request: two orders of priority, sealing, copies."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import scrapy
from scrapy.utils.request import request_from_dict

import netspy_scrapy as mw


class Spider(mw.AirSpider):
    """A spider with a callback."""

    def parse_detail(self, request: Any, response: Any) -> Any:
        """Be a callback."""

    def change(self, request: Any) -> Any:
        """Be a download_midware."""


def test_priority_shows_netspys_order_until_sealed() -> None:
    """Small first in the spider's hands, large first in Scrapy's; never converted twice."""
    request = mw.Request("http://a.example/", priority=100)
    assert (request.priority, request.scrapy_priority) == (100, 200)

    request.priority = 50
    request.seal()
    assert (request.priority, request.scrapy_priority) == (250, 250)

    for copy in (request.copy(), request.replace(url="http://b.example/")):
        assert copy.priority == 250
        assert copy.unsealed().priority == 50
    raised = request.replace(priority=request.priority + 2)
    assert raised.unsealed().priority == 48
    assert mw.Request("http://a.example/").replace(priority=7).priority == 7


def test_own_attributes_survive_everything() -> None:
    """Unknown keywords and attributes set later survive copy, replace, dict and pickle."""
    spider = Spider()
    request = mw.Request("http://a.example/", callback="parse_detail", batch_id=7, tags=["a"])
    request.late = 1
    request.seal(spider)

    restored = request_from_dict(
        pickle.loads(pickle.dumps(request.to_dict(spider=spider))), spider=spider
    )
    for copy in (request.copy(), request.replace(method="POST"), restored):
        assert (copy.batch_id, copy.tags, copy.late) == (7, ["a"], 1)
        assert copy.custom == {"batch_id": 7, "tags": ["a"], "late": 1}
    assert restored.callback == spider.parse_detail


def test_http_keywords_survive_a_job_directory() -> None:
    """Body, headers, cookies and what was given are there after a round trip."""
    spider = Spider()
    request = mw.Request(
        "http://a.example/?x=1", method="POST", params={"y": 2}, json={"a": 1},
        headers={"X-A": "1"}, cookies={"c": "2"}, timeout=3, allow_redirects=False,
        download_midware=spider.change,
    )  # fmt: skip
    request.seal(spider)
    restored = request_from_dict(request.to_dict(spider=spider), spider=spider)

    assert restored.url == "http://a.example/?y=2"
    assert restored.unsealed().url == "http://a.example/?x=1"
    assert restored.body == b'{"a":1}'
    assert restored.headers[b"X-A"] == b"1"
    assert restored.cookies == {"c": "2"}
    assert restored.meta == {"download_timeout": 3.0, "dont_redirect": True}
    assert restored.requests_kwargs["json"] == {"a": 1}
    assert restored.download_midware == "change"


def test_sealing_twice_changes_nothing() -> None:
    """seal() is idempotent, and unseal() with seal() loses nothing."""
    request = mw.Request("http://a.example/", params={"a": 1}, data={"b": 2}, method="POST")
    first = request.seal().to_dict()
    request.seal()
    request.unseal()
    request.seal()

    assert request.to_dict() == first


def test_becomes_a_plain_request() -> None:
    """replace(cls=scrapy.Request) gives a plain request of the same content."""
    request = mw.Request("http://a.example/", priority=100, headers={"X-A": "1"}, own=1).seal()
    plain = request.replace(cls=scrapy.Request)

    assert type(plain) is scrapy.Request
    assert (plain.url, plain.priority, plain.headers[b"X-A"]) == ("http://a.example/", 200, b"1")


def test_scrapys_keywords_work_too() -> None:
    """meta, body, dont_filter, errback, flags are Scrapy's."""
    request = mw.Request(
        "http://a.example/", meta={"k": 1}, body="x", dont_filter=True, flags=["f"]
    ).seal()

    assert (request.meta, request.body, request.flags) == ({"k": 1}, b"x", ["f"])
    assert request.filter_repeat is False


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"callback": "missing"}, "callback 'missing' is not a method of Spider"),
        ({"json": {"x": {1, 2}}}, "json cannot be sent"),
        ({"data": [1]}, "1 is not a pair"),
        ({"data": 5.5}, "neither a dict nor a list of pairs"),
        ({"content": 5}, "content has to be text or bytes, not int"),
        ({"auth": "user"}, "auth has to be a pair"),
        ({"timeout": "soon"}, "timeout 'soon' is not a number"),
        ({"headers": 5}, "headers cannot be sent"),
    ],
)
def test_what_cannot_be_sent_is_named(keywords: dict[str, Any], message: str) -> None:
    """A keyword that cannot be used is a RequestError that says which and why."""
    with pytest.raises(mw.RequestError, match=message):
        mw.Request("http://a.example/", **keywords).seal(Spider())


@pytest.mark.parametrize("url", ["/relative", "example.com", "", 5])
def test_bad_urls_are_told_when_sent(url: Any) -> None:
    """A URL without scheme does not raise where it is written, only when it is to be sent."""
    request = mw.Request(url)

    assert request.url == url
    with pytest.raises(mw.RequestError, match="not a URL with a scheme"):
        request.seal()


@pytest.mark.parametrize(
    ("proxy", "expected"),
    [
        ({"proxy": "http://p:1"}, "http://p:1"),
        ({"proxies": "http://p:1"}, "http://p:1"),
        ({"proxies": {"http": "http://p:1", "https": "http://s:1"}}, "http://p:1"),
        ({"proxies": {"all://": "http://p:1"}}, "http://p:1"),
        ({"proxies": {"https": "http://s:1"}}, None),
    ],
)
def test_proxies(proxy: dict[str, Any], expected: str | None) -> None:
    """proxy and proxies are taken in the forms of httpx and requests."""
    assert mw.Request("http://a.example/", **proxy).seal().meta.get("proxy") == expected


def test_user_and_password_of_a_url_stay_with_it() -> None:
    """A request that is given another URL does not take them there; what was set by hand stays."""
    request = mw.Request("http://user:pw@one.test/").seal()
    assert request.headers["Authorization"] == b"Basic dXNlcjpwdw=="

    again = request.unsealed()
    again.url = "http://two.test/"
    assert b"Authorization" not in again.seal().headers

    own = mw.Request("http://user:pw@one.test/", headers={"Authorization": "Bearer x"}).seal()
    other = own.unsealed()
    other.url = "http://two.test/"
    assert other.seal().headers["Authorization"] == b"Bearer x"


def test_copies_of_an_item_keep_all_fields() -> None:
    """A field that begins with an underscore, given in a mapping, is one in copies too."""
    item = mw.Item({"_id": 1, "items": 2})
    for other in (deepcopy(item), pickle.loads(pickle.dumps(item))):
        assert other == {"_id": 1, "items": 2}
        assert other.items == 2
