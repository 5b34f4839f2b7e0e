"""What is left out of each page's way is what nobody would have noticed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import scrapy
from scrapy import signals
from scrapy.exceptions import StopDownload
from scrapy.http import HtmlResponse

from netspy_scrapy._scrapy.quick import HeardLogFormatter
from tests.crawling import PlainSpider, crawl


def test_signals_are_heard_from_the_moment_of_connecting(site: Any) -> None:
    """Who connects in the midst of a crawl hears what comes after, and may stop a download."""
    heard: list[str] = []

    class Connects(PlainSpider):
        def parse(self, response: Any) -> Any:
            super().parse(response)
            if len(self.pages) == 1:
                connect = self.crawler.signals.connect
                connect(self.reached, signals.request_reached_downloader)
                connect(self.headers, signals.headers_received)
                yield scrapy.Request(site.url("/page/2"))

        def reached(self, request: Any) -> None:
            heard.append(request.url)

        def headers(self) -> None:
            raise StopDownload(fail=False)

    spider = crawl(Connects, urls=(site.url("/page/1"),)).spider

    assert heard == [site.url("/page/2")]
    assert len(spider.pages) == 2


class Awaits:
    """Middleware whose hooks are coroutines."""

    async def process_request(self, request: Any) -> None:
        request.meta["asked"] = True

    async def process_response(self, request: Any, response: Any) -> Any:
        return response.replace(body=b"awaited")


class Answers:
    """Middleware that answers in place of the site."""

    def process_request(self, request: Any) -> Any:
        return HtmlResponse(request.url, body=b"answered") if "answer" in request.url else None


class Repeats:
    """Middleware that sends each request once more."""

    def process_response(self, request: Any, response: Any) -> Any:
        if "again" in request.meta:
            return response
        return request.replace(meta={"again": True}, dont_filter=True)


class Wrong:
    """Middleware with a hook that gives what it must not."""

    def process_response(self, request: Any, response: Any) -> Any:
        return "no response" if "wrong" in request.url else response

    async def process_request(self, request: Any) -> Any:
        return 5 if "five" in request.url else None


class WantsSpider:
    """Middleware of the older form."""

    seen: list[str] = []

    def process_request(self, request: Any, spider: Any) -> None:
        self.seen.append(spider.name)


def test_middlewares_may_answer_await_and_repeat(site: Any) -> None:
    """Each form of hook has its effect; what it must not give is an error that names it."""
    bodies: list[bytes] = []

    class Looks(PlainSpider):
        def parse(self, response: Any) -> None:
            bodies.append(response.body)

    urls = [site.url(path) for path in ("/page/1?answer", "/page/1?wrong", "/page/1?five")]
    order = {Awaits: 10, Wrong: 700, Answers: 800, WantsSpider: 810}
    spider = crawl(Looks, {"DOWNLOADER_MIDDLEWARES": order}, urls=tuple(urls)).spider

    assert bodies == [b"awaited"]
    assert sorted(str(one) for one in spider.errors) == [
        "Middleware Wrong.process_request must return None, Response or Request, got int",
        "Middleware Wrong.process_response must return Response or Request, got <class 'str'>",
    ]
    assert set(WantsSpider.seen) == {"plain"}

    crawl(PlainSpider, {"DOWNLOADER_MIDDLEWARES": {Repeats: 10}}, urls=(site.url("/page/3"),))
    assert site.hits("/page/3") == 2


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_lines_of_pages(site: Any, caplog: pytest.LogCaptureFixture, level: int) -> None:
    """Pages and items have their lines where a handler takes them."""
    caplog.set_level(logging.DEBUG)
    caplog.handler.setLevel(level)

    class Yields(PlainSpider):
        def parse(self, response: Any) -> Any:
            return {"a": 1}

    crawler = crawl(Yields, urls=(site.url("/page/1"),))

    lines = [one for one in caplog.messages if one.startswith(("Crawled (200)", "Scraped from"))]
    assert len(lines) == (2 if level == logging.DEBUG else 0)
    assert type(crawler.logformatter) is HeardLogFormatter


def test_a_log_formatter_of_the_users_own_stays(site: Any) -> None:
    """LOG_FORMATTER of the project is used as it is."""
    crawler = crawl(
        PlainSpider, {"LOG_FORMATTER": scrapy.logformatter.LogFormatter},
        urls=(site.url("/page/1"),),
    )  # fmt: skip

    assert type(crawler.logformatter) is scrapy.logformatter.LogFormatter
