"""Status policy, retries and their waits, in real crawls of plain Scrapy spiders."""

from __future__ import annotations

import time
from typing import Any

import pytest
import scrapy
from scrapy.http.request import NO_CALLBACK
from scrapy.spidermiddlewares.httperror import HttpError

import netspy_scrapy
from tests.crawling import PlainSpider, crawl, dumped, netspy_stats

pytestmark = pytest.mark.usefixtures("downloader")


def test_refused_status_reaches_errback_and_dump(site: Any) -> None:
    """A 404 is a failure at once: the errback gets an HttpStatusError, the dump a line."""
    crawler = crawl(PlainSpider, urls=(site.url("/status/404"),))

    (error,) = crawler.spider.errors
    assert isinstance(error, netspy_scrapy.HttpStatusError)
    assert isinstance(error, HttpError)
    assert error.response.status == 404
    assert crawler.spider.pages == []
    assert netspy_stats(crawler) == {
        "netspy/failures": 1,
        "netspy/failures/404": 1,
        "netspy/requests/dumped": 1,
    }
    (line,) = dumped()
    assert (line["url"], line["status"], line["attempts"]) == (site.url("/status/404"), 404, 1)
    assert (line["callback"], line["spider"]) == (None, "plain")


def test_retryable_status_is_fetched_again(site: Any) -> None:
    """Two 503s and a 200 give one page and two retries."""
    url = site.url("/seq/a?codes=503,503,200")
    crawler = crawl(PlainSpider, urls=(url,))

    assert crawler.spider.pages == [(url, 200)]
    assert netspy_stats(crawler) == {"netspy/retries": 2, "netspy/retries/503": 2}
    assert dumped() == []


def test_retries_end_and_the_request_is_dumped(site: Any) -> None:
    """A site that answers 503 for ever costs 1 + SPIDER_MAX_RETRY_TIMES requests, then a line."""
    url = site.url("/status/503")
    crawler = crawl(PlainSpider, {"SPIDER_MAX_RETRY_TIMES": 2}, urls=(url,))

    assert site.hits("/status/503") == 3
    (error,) = crawler.spider.errors
    assert "given up after 3 attempts" in str(error)
    (line,) = dumped()
    assert (line["status"], line["attempts"], line["retry_times"]) == (503, 3, 2)
    assert crawler.stats.get_value("netspy/failures/503") == 1


def test_scrapys_own_retry_settings_count_where_ours_are_not_set(site: Any) -> None:
    """RETRY_TIMES and RETRY_HTTP_CODES of a project go on working, a listed 2xx included."""
    url = site.url("/seq/b?codes=202,202,202,200")
    crawler = crawl(PlainSpider, {"RETRY_TIMES": 1, "RETRY_HTTP_CODES": [202]}, urls=(url,))

    assert site.hits("/seq/b") == 2
    assert crawler.spider.pages == [(url, 202)]


@pytest.mark.parametrize("status", [302, 304, 204])
def test_success_and_redirect_statuses_reach_the_callback(site: Any, status: int) -> None:
    """2xx and 3xx that arrive are pages."""
    url = site.url(f"/status/{status}")
    crawler = crawl(PlainSpider, urls=(url,), meta={"dont_redirect": True})

    assert crawler.spider.pages == [(url, status)]


def test_accepted_status_beats_retry(site: Any) -> None:
    """ACCEPT_STATUS_CODES = [503, 404]: both reach the callback at the first attempt."""
    urls = (site.url("/status/503"), site.url("/status/404"))
    crawler = crawl(PlainSpider, {"ACCEPT_STATUS_CODES": [503, 404]}, urls=urls)

    assert sorted(crawler.spider.pages) == sorted([(urls[0], 503), (urls[1], 404)])
    assert len(site.log()) == 2
    assert netspy_stats(crawler) == {}


def test_httperror_allowed_codes_keep_scrapys_meaning(site: Any) -> None:
    """HTTPERROR_ALLOWED_CODES lets a 503 through once its retries are over, as in Scrapy."""
    url = site.url("/status/503")
    crawler = crawl(PlainSpider, {"HTTPERROR_ALLOWED_CODES": [503], "RETRY_TIMES": 1}, urls=(url,))

    assert crawler.spider.pages == [(url, 503)]
    assert site.hits("/status/503") == 2


def test_unchecked_statuses_all_reach_the_callback(site: Any) -> None:
    """CHECK_STATUS_CODE = False: a 503 with Retry-After is parsed at once."""
    url = site.url("/seq/c?codes=503&retry_after=30")
    crawler = crawl(PlainSpider, {"CHECK_STATUS_CODE": False}, urls=(url,))

    assert crawler.spider.pages == [(url, 503)]
    assert site.hits("/seq/c") == 1


@pytest.mark.parametrize(
    ("meta", "pages", "hits"),
    [
        ({"dont_retry": True}, 0, 1),
        ({"max_retry_times": 1}, 0, 2),
        ({"handle_httpstatus_list": [503]}, 1, 3),
        ({"handle_httpstatus_all": True}, 1, 3),
    ],
)
def test_scrapys_meta_keys_are_obeyed(
    site: Any, meta: dict[str, Any], pages: int, hits: int
) -> None:
    """dont_retry, max_retry_times and handle_httpstatus_* mean what they mean in Scrapy."""
    crawler = crawl(PlainSpider, urls=(site.url("/status/503"),), meta=meta)

    assert site.hits("/status/503") == hits
    assert len(crawler.spider.pages) == pages


def test_network_failures_are_retried_and_dumped(site: Any) -> None:
    """A connection that is closed without an answer is tried again, then it is a failure."""
    crawler = crawl(PlainSpider, {"SPIDER_MAX_RETRY_TIMES": 1}, urls=(site.url("/close"),))

    assert site.hits("/close") == 2
    assert len(crawler.spider.errors) == 1
    (line,) = dumped()
    assert line["status"] is None
    assert crawler.stats.get_value("netspy/failures") == 1
    assert crawler.stats.get_value("netspy/retries") == 1


@pytest.mark.timed
def test_retry_after_waits_without_a_download_slot(site: Any) -> None:
    """While a page waits for its Retry-After, the only download slot serves other pages."""
    busy = site.url("/seq/d?codes=429,200&retry_after=1")
    others = tuple(site.url(f"/page/{n}", host="127.0.0.2") for n in range(20))
    crawler = crawl(PlainSpider, {"CONCURRENT_REQUESTS": 1}, urls=(busy, *others))

    arrivals = [(one.t, one.path) for one in site.log()]
    first, second = [t for t, path in arrivals if path.startswith("/seq/d")]
    assert 1.0 <= second - first < 1.6
    assert [t for t, path in arrivals if path.startswith("/page/")][-1] - first < 0.9
    assert len(crawler.spider.pages) == 21
    assert crawler.stats.get_value("netspy/requests/delayed") == 1


@pytest.mark.timed
def test_too_long_retry_after_fails_at_once(site: Any) -> None:
    """A Retry-After over RETRY_AFTER_MAX is not waited for: the request fails, and is dumped."""
    url = site.url("/seq/e?codes=429,200&retry_after=120")
    begun = time.monotonic()
    crawler = crawl(PlainSpider, urls=(url,))

    assert time.monotonic() - begun < 5
    assert site.hits("/seq/e") == 1
    assert "Retry-After: 120 is longer than RETRY_AFTER_MAX = 60 s" in str(crawler.spider.errors[0])
    assert len(dumped()) == 1


@pytest.mark.timed
@pytest.mark.parametrize("value", ["0", "-5", "nan", "inf", "120s", "1_000", "%D9%A1", "9" * 1000])
def test_senseless_retry_after_is_ignored(site: Any, value: str) -> None:
    """A Retry-After that is no valid wish neither crashes the crawl nor makes it wait."""
    url = site.url(f"/seq/f?codes=503,200&retry_after={value}")
    begun = time.monotonic()
    crawler = crawl(PlainSpider, urls=(url,))

    assert crawler.spider.pages == [(url, 200)]
    assert time.monotonic() - begun < 5


@pytest.mark.timed
def test_backoff_waits_grow(site: Any) -> None:
    """RETRY_BACKOFF = 0.4 waits 0.2 to 0.4 s, then 0.4 to 0.8 s."""
    url = site.url("/seq/g?codes=500,500,200")
    crawl(PlainSpider, {"RETRY_BACKOFF": 0.4}, urls=(url,))

    times = [one.t for one in site.log()]
    assert 0.2 <= times[1] - times[0] < 0.7
    assert 0.4 <= times[2] - times[1] < 1.1


def test_copied_meta_does_not_spend_the_budget(site: Any) -> None:
    """A request that a callback makes with meta=response.meta has all its retries."""

    class Spider(PlainSpider):
        def parse(self, response: Any) -> Any:
            super().parse(response)
            if "/seq/h" in response.url:
                yield scrapy.Request(
                    site.url("/status/503"), meta=response.meta, errback=self.failed
                )

    crawler = crawl(Spider, {"RETRY_TIMES": 2}, urls=(site.url("/seq/h?codes=503,503,200"),))

    assert site.hits("/status/503") == 3
    assert len(crawler.spider.errors) == 1


def test_get_retry_request_keeps_counting(site: Any) -> None:
    """Scrapy's get_retry_request of the same page spends the page's budget."""

    class Spider(PlainSpider):
        def parse(self, response: Any) -> Any:
            super().parse(response)
            return scrapy.downloadermiddlewares.retry.get_retry_request(
                response.request, spider=self, reason="empty"
            )

    crawl(Spider, {"RETRY_TIMES": 2}, urls=(site.url("/seq/i?codes=503,200"),))

    assert site.hits("/seq/i") == 3


def test_media_requests_are_retried_but_never_failures(site: Any) -> None:
    """NO_CALLBACK requests that a component awaits are neither counted nor dumped."""

    class Spider(PlainSpider):
        async def parse(self, response: Any) -> Any:
            request = scrapy.Request(site.url("/status/503"), callback=NO_CALLBACK)
            media = await self.crawler.engine.download_async(request)
            self.pages.append((media.url, media.status))

    crawler = crawl(Spider, {"RETRY_TIMES": 1}, urls=(site.url("/page/1"),))

    assert crawler.spider.pages == [(site.url("/status/503"), 503)]
    assert site.hits("/status/503") == 2
    assert dumped() == []
    assert netspy_stats(crawler) == {"netspy/retries": 1, "netspy/retries/503": 1}


def test_awaited_downloads_are_the_callers_affair(site: Any) -> None:
    """A download that a callback awaits and that fails is not dumped as a page of the spider."""

    class Spider(PlainSpider):
        async def parse(self, response: Any) -> Any:
            try:
                await self.crawler.engine.download_async(scrapy.Request(site.url("/close")))
            except Exception as exc:  # noqa: BLE001
                self.errors.append(exc)

    crawler = crawl(Spider, {"RETRY_TIMES": 0}, urls=(site.url("/page/1"),))

    assert len(crawler.spider.errors) == 1
    assert dumped() == []


def test_awaited_download_waits_for_its_retry_after(site: Any) -> None:
    """engine.download_async bypasses the scheduler, and still waits as the site asks."""
    url = site.url("/seq/j?codes=429,200&retry_after=1")

    class Spider(PlainSpider):
        async def parse(self, response: Any) -> Any:
            answer = await self.crawler.engine.download_async(scrapy.Request(url))
            self.pages.append((answer.url, answer.status))

    crawler = crawl(Spider, urls=(site.url("/page/1"),))

    assert crawler.spider.pages == [(url, 200)]
    first, second = [one.t for one in site.log() if one.path.startswith("/seq/")]
    assert second - first >= 1


@pytest.mark.parametrize("wanted", [True, False, None])
def test_challenge_pages(site: Any, wanted: bool | None) -> None:
    """ANTIBOT_DETECT: a challenge page is fetched again, then a failure; else it is a page."""
    site.set("/page", body=b"<html>the page</html>")
    site.set("/page", body=b"<html></html>", headers={"CF-Mitigated": "challenge"}, times=1)
    site.set("/wall", body=b"<html></html>", headers={"CF-Mitigated": "challenge"})
    settings = (
        {"RETRY_TIMES": 1} if wanted is None else {"RETRY_TIMES": 1, "ANTIBOT_DETECT": wanted}
    )
    crawler = crawl(PlainSpider, settings, urls=(site.url("/page"), site.url("/wall")))

    if not wanted:
        assert len(crawler.spider.pages) == 2
        return
    assert crawler.spider.pages == [(site.url("/page"), 200)]
    assert [type(error) for error in crawler.spider.errors] == [netspy_scrapy.AntiBotError]
    assert "a challenge page of Cloudflare" in dumped()[0]["reason"]
    assert site.hits("/wall") == 2
    assert netspy_stats(crawler)["netspy/failures/AntiBotError"] == 1


def test_callback_error_of_a_plain_spider_is_logged_once_and_dumped(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A plain spider's callback that raises is not retried, and its page can be replayed."""

    class Spider(PlainSpider):
        def parse(self, response: Any) -> Any:
            raise ValueError("no title")

    crawler = crawl(Spider, urls=(site.url("/page/1"),))

    assert site.hits("/page/1") == 1
    (line,) = dumped()
    assert "ValueError: no title" in line["reason"]
    assert crawler.stats.get_value("spider_exceptions/ValueError") == 1
    assert crawler.stats.get_value("netspy/failures/ValueError") == 1
    assert sum("Spider error processing" in record.message for record in caplog.records) == 1


def test_callback_errors_are_retried_when_asked(site: Any) -> None:
    """NETSPY_RETRY_CALLBACK_ERRORS = True fetches the page again before it is a failure."""

    class Spider(PlainSpider):
        def parse(self, response: Any) -> Any:
            self.pages.append((response.url, response.status))
            if len(self.pages) < 3:
                raise ValueError("not yet")

    crawler = crawl(Spider, {"NETSPY_RETRY_CALLBACK_ERRORS": True}, urls=(site.url("/page/1"),))

    assert len(crawler.spider.pages) == 3
    assert dumped() == []
    assert crawler.stats.get_value("netspy/retries/ValueError") == 2


def test_plain_spiders_may_raise_netspys_exceptions(site: Any) -> None:
    """ValidationError fetches again, NotRetryError drops, in a plain spider's callback too."""

    class Spider(PlainSpider):
        def parse(self, response: Any) -> Any:
            super().parse(response)
            if "/page/1" in response.url:
                raise netspy_scrapy.NotRetryError("not wanted")
            raise netspy_scrapy.ValidationError("empty")

    urls = (site.url("/page/1"), site.url("/page/2"))
    crawler = crawl(Spider, {"RETRY_TIMES": 1}, urls=urls)

    assert site.hits("/page/1") == 1
    assert site.hits("/page/2") == 2
    assert netspy_stats(crawler) == {
        "netspy/drops": 1,
        "netspy/drops/NotRetryError": 1,
        "netspy/failures": 1,
        "netspy/failures/ValidationError": 1,
        "netspy/requests/dumped": 1,
        "netspy/retries": 1,
        "netspy/retries/ValidationError": 1,
    }


def test_credentials_of_urls_are_not_logged(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A user and password in a URL reach neither our log lines nor the domain's name."""
    url = site.url("/seq/secret?codes=503,404&retry_after=1").replace("://", "://user:hunter2@")
    crawl(PlainSpider, urls=(url,))

    ours = [r.getMessage() for r in caplog.records if r.name.startswith("netspy_scrapy")]
    assert any("Failed" in line for line in ours)
    assert not [line for line in ours if "hunter2" in line]
