"""Rests, circuits, rates and robots.txt, in real crawls over several loopback hosts."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
import scrapy

import netspy_scrapy as mw
from netspy_scrapy.context import CrawlContext
from tests.crawling import MEMORY, PlainSpider, crawl, dumped, netspy_stats, times

A, B, C = "127.0.0.1", "127.0.0.2", "127.0.0.3"


# Rests -------------------------------------------------------------------------------------------
@pytest.mark.timed
def test_retry_after_rests_the_whole_domain_once(site: Any, caplog: Any) -> None:
    """Eight 429s with Retry-After: 2 rest the domain for 2 s, not 16, and nothing hits it."""
    site.set("/limited", body=b"page")
    site.set("/limited", status=429, headers={"Retry-After": "2"}, times=8, delay=0.2)
    urls = tuple(site.url(f"/limited?n={n}") for n in range(20))
    crawler = crawl(PlainSpider, urls=urls)

    arrived = times(site, "/limited")
    assert len(crawler.spider.pages) == 20
    assert len(arrived) == 28
    refused = arrived[:8]
    rest = arrived[8:]
    assert 1.8 <= rest[0] - refused[0] <= 2.8
    assert arrived[-1] - refused[-1] < 4
    # After the rest they start one after the other.
    assert rest[7] - rest[0] >= 0.25
    warnings = [r.getMessage() for r in caplog.records if " rests for " in r.getMessage()]
    assert len(warnings) == 1
    assert f"{A}:{site.port} rests for 2 s: HTTP status 429, Retry-After: 2" in warnings[0]
    assert netspy_stats(crawler)["netspy/rests"] == 1


@pytest.mark.timed
def test_a_resting_domain_costs_another_nothing(site: Any) -> None:
    """While one domain rests with many requests queued, another is served as if alone."""
    site.set("/limited", body=b"page")
    site.set("/limited", status=429, headers={"Retry-After": "3"}, times=1)
    resting = [site.url(f"/limited?n={n}") for n in range(200)]
    free = [site.url(f"/slow?ms=50&n={n}", host=B) for n in range(100)]

    class Both(PlainSpider):
        async def start(self) -> Any:
            for pair in zip(resting, free, strict=False):
                for url in pair:
                    yield scrapy.Request(url, errback=self.failed)
            for url in resting[100:]:
                yield scrapy.Request(url, errback=self.failed)

    crawl(Both, {"CONCURRENT_REQUESTS": 8, "SPIDER_MAX_RETRY_TIMES": 5})

    arrived = times(site, "/slow", B)
    assert len(arrived) == 100
    assert arrived[-1] - arrived[0] < 1.6  # 100 x 50 ms / 8 = 0.63 s at best
    assert len(times(site, "/limited", A)) == 201


@pytest.mark.timed
def test_a_rest_ends_in_time_with_few_requests(site: Any) -> None:
    """The engine wakes when a rest ends, within a tenth of a second."""
    url = site.url("/seq/w?codes=503,200&retry_after=1")
    crawl(PlainSpider, urls=(url,))

    first, second = times(site, "/seq/w")
    assert 1.0 <= second - first < 1.15


def test_a_site_that_refuses_for_ever_ends_the_crawl(site: Any) -> None:
    """A site that answers 429 for ever: every request ends within its budget and is dumped."""
    site.set("/limited", status=429, headers={"Retry-After": "1"})
    urls = tuple(site.url(f"/limited?n={n}") for n in range(5))
    crawler = crawl(PlainSpider, {"SPIDER_MAX_RETRY_TIMES": 1}, urls=urls)

    assert len(crawler.spider.errors) == 5
    assert len(dumped()) == 5
    assert len(times(site, "/limited")) == 10


@pytest.mark.timed
def test_backoff_rests_the_domain(site: Any) -> None:
    """RETRY_BACKOFF quiets the domain, not only the request that failed."""
    failing = site.url("/seq/z?codes=503,200")
    others = tuple(site.url(f"/page/{n}") for n in range(10))
    crawl(PlainSpider, {"RETRY_BACKOFF": 2, "CONCURRENT_REQUESTS": 1}, urls=(failing, *others))

    first = times(site, "/seq/z")[0]
    assert min(times(site, "/page/")) - first >= 0.9


# The circuit -------------------------------------------------------------------------------------
class Netspy(mw.AirSpider):
    """Fetches what it is given."""

    seeds: Any = ()
    __custom_setting__ = MEMORY

    def start_requests(self) -> Any:
        for url in self.seeds:
            yield mw.Request(url)

    def parse(self, request: Any, response: Any) -> Any:
        yield {"url": response.url}


@pytest.mark.timed
def test_a_domain_that_fails_in_a_row_rests(site: Any, caplog: Any) -> None:
    """CIRCUIT_FAILURE_THRESHOLD final failures in a row rest the domain CIRCUIT_COOLDOWN."""
    settings = {
        "CIRCUIT_FAILURE_THRESHOLD": 3, "CIRCUIT_COOLDOWN": 1.0, "SPIDER_MAX_RETRY_TIMES": 0,
        "CONCURRENT_REQUESTS": 1,
    }  # fmt: skip
    seeds = [site.url(f"/status/500?n={n}") for n in range(7)]
    crawler = crawl(Netspy, settings, seeds=seeds)

    arrived = times(site, "/status/500")
    gaps = [round(later - earlier, 1) for earlier, later in pairwise(arrived)]
    assert [gap >= 1.0 for gap in gaps] == [False, False, True, False, False, True]
    assert netspy_stats(crawler)["netspy/circuits"] == 2
    assert any("failed 3 times in a row" in r.getMessage() for r in caplog.records)
    summary = next(r.getMessage() for r in caplog.records if "Run summary" in r.getMessage())
    assert "  rests    2  (circuits opened 2)\n" in summary
    assert f"    {A}:{site.port}: 2 rests, 2 s, circuit opened 2 times\n" in summary


@pytest.mark.parametrize("yields", [False, True])
def test_an_errback_is_no_handled_page(site: Any, *, yields: bool) -> None:
    """Failures that an errback takes care of count for the circuit all the same."""

    class Cares(PlainSpider):
        def failed(self, failure: Any) -> Any:
            self.errors.append(failure.value)
            return [{"failed": failure.request.url}] if yields else None

    settings = {"CIRCUIT_FAILURE_THRESHOLD": 3, "CIRCUIT_COOLDOWN": 0.2, "RETRY_TIMES": 0}
    urls = tuple(site.url(f"/status/500?n={n}") for n in range(4))
    crawler = crawl(Cares, {**settings, "CONCURRENT_REQUESTS": 1}, urls=urls)

    assert len(crawler.spider.errors) == 4
    assert netspy_stats(crawler)["netspy/circuits"] == 1


@pytest.mark.parametrize("path", ["/status/404", "/page/{n}"])
def test_what_is_no_sign_of_illness_does_not_count(site: Any, path: str) -> None:
    """404s, and pages whose callback raises, never open the circuit."""

    class Raises(Netspy):
        def parse(self, request: Any, response: Any) -> Any:
            raise ValueError("not the site's fault")

    settings = {"CIRCUIT_FAILURE_THRESHOLD": 2, "SPIDER_MAX_RETRY_TIMES": 0}
    seeds = [site.url(path.replace("{n}", str(n)) + f"?n={n}") for n in range(6)]
    crawler = crawl(Raises, settings, seeds=seeds)

    assert netspy_stats(crawler)["netspy/failures"] == 6
    assert "netspy/circuits" not in netspy_stats(crawler)


def test_a_page_that_is_handled_resets_the_count(site: Any) -> None:
    """Failures that alternate with pages are not in a row."""
    settings = {
        "CIRCUIT_FAILURE_THRESHOLD": 2, "SPIDER_MAX_RETRY_TIMES": 0, "CONCURRENT_REQUESTS": 1,
        "DOWNLOAD_DELAY": 0.05,
    }  # fmt: skip
    seeds = [site.url(f"/{'status/500' if n % 2 else 'page/1'}?n={n}") for n in range(8)]
    crawler = crawl(Netspy, settings, seeds=seeds)

    assert netspy_stats(crawler)["netspy/failures"] == 4
    assert "netspy/circuits" not in netspy_stats(crawler)


@pytest.mark.timed
def test_half_open_lets_one_request_through(site: Any) -> None:
    """NETSPY_CIRCUIT_HALF_OPEN: after the rest one request goes; its success opens the way."""
    site.set("/ill", body=b"page")
    site.set("/ill", status=500, times=3)
    settings = {
        "CIRCUIT_FAILURE_THRESHOLD": 2, "CIRCUIT_COOLDOWN": 0.5, "SPIDER_MAX_RETRY_TIMES": 0,
        "NETSPY_CIRCUIT_HALF_OPEN": True, "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        "DOWNLOAD_DELAY": 0.2, "RANDOMIZE_DOWNLOAD_DELAY": False,
    }  # fmt: skip
    crawler = crawl(Netspy, settings, seeds=[site.url(f"/ill?n={n}") for n in range(8)])

    arrived = times(site, "/ill")
    # Two fail and open it, one probe fails and opens it again, the next succeeds.
    gaps = [later - earlier for earlier, later in pairwise(arrived)]
    assert [gap >= 0.4 for gap in gaps] == [False, True, True, False, False, False, False]
    assert netspy_stats(crawler)["netspy/circuits"] == 2


# Rate --------------------------------------------------------------------------------------------
@pytest.mark.timed
@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [
        ({"DOWNLOAD_DELAY_JITTER": 0, "RANDOMIZE_DOWNLOAD_DELAY": False}, 0.28, 0.33),
        ({}, 0.13, 0.47),
    ],
)
def test_delay_between_requests(
    site: Any, settings: dict[str, Any], low: float, high: float
) -> None:
    """DOWNLOAD_DELAY = 0.3 is kept at the site, with or without jitter."""
    import warnings

    if "DOWNLOAD_DELAY_JITTER" not in vars(scrapy.settings.default_settings):
        settings = {k: v for k, v in settings.items() if k != "DOWNLOAD_DELAY_JITTER"}
    else:
        settings = {k: v for k, v in settings.items() if k != "RANDOMIZE_DOWNLOAD_DELAY"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        urls = tuple(site.url(f"/page/{n}") for n in range(9))
    crawl(PlainSpider, {"DOWNLOAD_DELAY": 0.3, **settings}, urls=urls)

    arrived = times(site, "/page/")
    gaps = [later - earlier for earlier, later in pairwise(arrived[1:])]
    assert min(gaps) >= low
    assert max(gaps) <= high + 0.1


@pytest.mark.timed
def test_delays_of_domains_pass_side_by_side(site: Any) -> None:
    """Three domains with a delay take as long as one, and a domain without is not held up."""
    urls = tuple(site.url(f"/page/{n}", host=host) for n in range(4) for host in (A, B))
    free = tuple(site.url(f"/page/{n}", host=C) for n in range(30))
    policies = {f"127.0.0.[12]:{site.port}": {"delay": 0.4, "jitter": 0}}
    begun = time.monotonic()
    crawl(
        PlainSpider,
        {"NETSPY_DOMAIN_POLICIES": policies, "CONCURRENT_REQUESTS": 2},
        urls=urls + free,
    )

    assert time.monotonic() - begun < 2.8
    assert max(times(site, "/page/", C)) - min(times(site, "/page/", C)) < 0.9
    gaps = times(site, "/page/", A)
    assert all(b - a >= 0.37 for a, b in pairwise(gaps))


@pytest.mark.timed
def test_concurrency_of_one_domain(site: Any) -> None:
    """No more requests than CONCURRENT_REQUESTS_PER_DOMAIN are in flight, others take the rest."""
    urls = tuple(site.url(f"/slow?ms=200&n={n}", host=host) for n in range(6) for host in (A, B))
    crawl(PlainSpider, {"CONCURRENT_REQUESTS_PER_DOMAIN": 2, "CONCURRENT_REQUESTS": 16}, urls=urls)

    for host in (A, B):
        arrived = times(site, "/slow", host)
        assert all(arrived[n + 2] - arrived[n] >= 0.18 for n in range(4))


def test_policies_of_single_domains(site: Any) -> None:
    """retry_times and accept of NETSPY_DOMAIN_POLICIES hold for their domain only."""
    policies = {f"{B}:*": {"retry_times": 0, "accept": [404]}}
    urls = tuple(
        site.url(path, host=host) for host in (A, B) for path in ("/status/503", "/status/404")
    )
    crawler = crawl(PlainSpider, {"NETSPY_DOMAIN_POLICIES": policies, "RETRY_TIMES": 1}, urls=urls)

    assert len(times(site, "/status/503", A)) == 2
    assert len(times(site, "/status/503", B)) == 1
    assert crawler.spider.pages == [(site.url("/status/404", host=B), 404)]


@pytest.mark.timed
def test_download_slots_of_the_user(site: Any) -> None:
    """DOWNLOAD_SLOTS is found by host name; a download_slot of the user is its own domain."""

    class Slots(PlainSpider):
        async def start(self) -> Any:
            for n in range(3):
                yield scrapy.Request(site.url(f"/page/{n}"))
                yield scrapy.Request(site.url(f"/page/1{n}"), meta={"download_slot": "mine"})

    slots = {A: {"delay": 0.4, "jitter": 0, "randomize_delay": False}}
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        crawler = crawl(Slots, {"DOWNLOAD_SLOTS": slots})

    slow, mine = times(site, "/page/"), None
    by_path = {one.path: one.t for one in site.log()}
    mine = [by_path[f"/page/1{n}"] for n in range(3)]
    slow = [by_path[f"/page/{n}"] for n in range(3)]
    assert max(mine) - min(mine) < 0.3
    assert slow[2] - slow[0] >= 0.75
    assert "mine" in [state.name for state in CrawlContext.of(crawler).politeness.registry]


@pytest.mark.timed
def test_a_redirect_counts_for_its_own_domain(site: Any) -> None:
    """A redirect from a to b is paced by b's delay, and a's slot is free at once."""
    targets = [site.url(f"/page/{n}", host=B) for n in range(3)]
    urls = tuple(site.url("/redirect?to=" + target, host=A) for target in targets)
    policies = {f"{B}:*": {"delay": 0.4, "jitter": 0}}
    crawler = crawl(PlainSpider, {"NETSPY_DOMAIN_POLICIES": policies}, urls=urls)

    assert len(crawler.spider.pages) == 3
    arrived = times(site, "/page/", B)
    assert all(b - a >= 0.37 for a, b in pairwise(arrived))


@pytest.mark.timed
def test_autothrottle_still_steers_the_delay(site: Any) -> None:
    """AutoThrottle's delay is kept to by the queue."""
    urls = tuple(site.url(f"/slow?ms=200&n={n}") for n in range(5))
    settings = {
        "AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": 0.5,
        "AUTOTHROTTLE_TARGET_CONCURRENCY": 1.0,
    }  # fmt: skip
    crawl(PlainSpider, settings, urls=urls)

    arrived = times(site, "/slow")
    assert arrived[1] - arrived[0] >= 0.2
    assert arrived[-1] - arrived[0] >= 0.6


def test_jobs_of_scrapys_own_queue_go_on(site: Any, folder: Any) -> None:
    """A job directory that Scrapy's queue wrote is read by ours."""
    settings = {"JOBDIR": str(folder / "job"), "CONCURRENT_REQUESTS": 1}

    class Job(PlainSpider):
        first = True

        async def start(self) -> Any:
            for n in range(60 if self.first else 0):
                yield scrapy.Request(site.url(f"/slow?ms=20&n={n}"))

        def parse(self, response: Any) -> Any:
            super().parse(response)
            if self.first:
                raise scrapy.exceptions.CloseSpider("enough")

    stock = {
        "ADDONS": {},
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
    }
    first = crawl(Job, {**settings, **stock})
    second = crawl(Job, settings, first=False)

    assert 1 <= len(first.spider.pages) < 60
    assert len(second.spider.pages) + len(first.spider.pages) == 60


# robots.txt --------------------------------------------------------------------------------------
OBEY = {"ROBOTSTXT_OBEY": True}


def test_robots_is_fetched_once_and_obeyed(site: Any) -> None:
    """Fifty first requests cost one robots.txt; what it forbids is a drop, not a failure."""
    site.set("/robots.txt", body=b"User-agent: *\nDisallow: /page/1\n")
    urls = tuple(site.url(f"/page/{n}") for n in range(50))
    crawler = crawl(PlainSpider, OBEY, urls=urls)

    assert site.hits("/robots.txt") == 1
    assert site.log()[0].path == "/robots.txt"
    forbidden = [n for n in range(50) if str(n).startswith("1")]
    assert len(crawler.spider.pages) == 50 - len(forbidden)
    assert netspy_stats(crawler) == {
        "netspy/drops": len(forbidden),
        "netspy/drops/robots": len(forbidden),
        "netspy/robots/fetched": 1,
    }
    assert dumped() == []


@pytest.mark.parametrize(
    ("robots", "allowed", "warned"),
    [
        ({"status": 404, "body": b"User-agent: *\nDisallow: /\n"}, True, False),
        ({"status": 403}, True, False),
        ({"status": 503, "body": b"User-agent: *\nDisallow: /\n"}, True, True),
        ({"body": b"\xef\xbb\xbfUser-agent: *\r\nDisallow: /page/\r\n"}, False, False),
        ({"body": "User-agent: *\nDisallow: /page/\n".encode("utf-16")}, False, False),
        ({"body": b"# caf\xe9\nUser-agent: *\nDisallow: /page/\n"}, False, False),
        ({"body": b"User-agent: *\nDisallow: /page/\n", "headers": {"Content-Type": "text/html"}},
         False, False),
        ({"body": b"x" * 600_000 + b"\nUser-agent: *\nDisallow: /page/\n"}, False, False),
        ({"raw": b""}, True, True),
        ({"body": b""}, True, False),
        ({"body": b"\x00\xff\xfe garbage"}, True, False),
    ],
)  # fmt: skip
def test_answers_to_robots_txt(
    site: Any, caplog: Any, robots: dict[str, Any], allowed: bool, warned: bool
) -> None:
    """2xx is read in whatever encoding, 4xx allows all, errors allow all with one warning."""
    site.set("/robots.txt", **robots)
    crawler = crawl(PlainSpider, OBEY, urls=tuple(site.url(f"/page/{n}") for n in range(3)))

    assert len(crawler.spider.pages) == (3 if allowed else 0)
    lines = [r for r in caplog.records if "robots.txt of" in r.getMessage()]
    assert len(lines) == int(warned)
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_disallow_on_error(site: Any) -> None:
    """NETSPY_ROBOTS_ON_ERROR = "disallow" is what RFC 9309 asks for."""
    site.set("/robots.txt", status=500)
    settings = {**OBEY, "NETSPY_ROBOTS_ON_ERROR": "disallow"}
    crawler = crawl(PlainSpider, settings, urls=(site.url("/page/1"),))

    assert crawler.spider.pages == []
    assert netspy_stats(crawler)["netspy/drops/robots"] == 1


def test_redirects_of_robots_txt_are_followed(site: Any) -> None:
    """robots.txt may be elsewhere, on another host too."""
    site.set("/robots.txt", status=302, headers={"Location": site.url("/rules", host=B)}, host=A)
    site.set("/rules", body=b"User-agent: *\nDisallow: /page/1\n", host=B)
    crawler = crawl(PlainSpider, OBEY, urls=tuple(site.url(f"/page/{n}") for n in range(3)))

    assert len(crawler.spider.pages) == 2


@pytest.mark.timed
def test_crawl_delay_is_a_floor(site: Any) -> None:
    """A Crawl-delay longer than DOWNLOAD_DELAY is kept to, and jitter never makes it shorter."""
    site.set("/robots.txt", body=b"User-agent: *\nCrawl-delay: 0.5\n")
    urls = tuple(site.url(f"/page/{n}") for n in range(5))
    crawl(PlainSpider, {**OBEY, "DOWNLOAD_DELAY": 0.1}, urls=urls)

    arrived = times(site, "/page/")
    assert all(b - a >= 0.48 for a, b in pairwise(arrived))


@pytest.mark.timed
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1,5", "10s", ""])
def test_senseless_crawl_delays_do_not_count(site: Any, value: str) -> None:
    """A Crawl-delay that is no plain number is not there."""
    site.set("/robots.txt", body=f"User-agent: *\nCrawl-delay: {value}\nDisallow: /x\n".encode())
    begun = time.monotonic()
    crawler = crawl(PlainSpider, OBEY, urls=tuple(site.url(f"/page/{n}") for n in range(5)))

    assert len(crawler.spider.pages) == 5
    assert time.monotonic() - begun < 2


@pytest.mark.timed
def test_robots_waits_hold_up_nobody(site: Any) -> None:
    """While robots.txt of one domain is slow to come, another is served."""
    site.set("/robots.txt", body=b"", delay=1.5, host=A)
    urls = tuple(site.url(f"/page/{n}", host=A) for n in range(20))
    urls += tuple(site.url(f"/page/{n}", host=B) for n in range(20))
    crawl(PlainSpider, {**OBEY, "CONCURRENT_REQUESTS": 2}, urls=urls)

    begun = site.log()[0].t
    assert max(times(site, "/page/", B)) - begun < 1.2
    assert min(times(site, "/page/", A)) - begun >= 1.4


def test_downloads_past_the_queue_ask_robots_too(site: Any) -> None:
    """engine.download_async obeys robots.txt, which is fetched once for many that wait."""
    site.set("/robots.txt", body=b"User-agent: *\nDisallow: /page/2\n", host=B)

    class Media(PlainSpider):
        async def parse(self, response: Any) -> Any:
            import asyncio

            async def one(n: int) -> Any:
                request = scrapy.Request(site.url(f"/page/{n}", host=B))
                return await self.crawler.engine.download_async(request)

            self.pages = await asyncio.gather(*map(one, (1, 2, 3)), return_exceptions=True)

    crawler = crawl(Media, OBEY, urls=(site.url("/page/1"),))

    assert len(times(site, "/robots.txt", B)) == 1
    kinds = [type(one).__name__ for one in crawler.spider.pages]
    assert kinds[1] == "RobotsDeniedError"
    assert "Response" in kinds[0]


def test_errbacks_get_what_robots_forbids(site: Any) -> None:
    """A forbidden page reaches the errback as an IgnoreRequest, as with Scrapy's own middleware."""
    site.set("/robots.txt", body=b"User-agent: *\nDisallow: /\n")
    crawler = crawl(PlainSpider, OBEY, urls=(site.url("/page/1"),))

    (error,) = crawler.spider.errors
    assert isinstance(error, scrapy.exceptions.IgnoreRequest)


@pytest.mark.timed
def test_a_request_that_download_midware_moves_is_paced_where_it_goes(site: Any) -> None:
    """Where download_midware points a request at another domain, that domain's delay counts."""

    class Moves(Netspy):
        def download_midware(self, request: Any) -> None:
            request.url = request.url.replace(A, B)

    policies = {f"{B}:*": {"delay": 0.4, "jitter": 0}}
    seeds = [site.url(f"/page/{n}", host=A) for n in range(4)]
    crawl(Moves, {"NETSPY_DOMAIN_POLICIES": policies}, seeds=seeds)

    arrived = times(site, "/page/", B)
    assert len(arrived) == len(site.log()) == 4
    assert all(b - a >= 0.37 for a, b in pairwise(arrived))


def test_the_projects_user_agent_counts_for_robots(site: Any) -> None:
    """Without ROBOTSTXT_USER_AGENT the group of the project's USER_AGENT is obeyed."""
    site.set("/robots.txt", body=b"User-agent: mybot\nDisallow: /\n")
    crawler = crawl(PlainSpider, {**OBEY, "USER_AGENT": "mybot/1.0"}, urls=(site.url("/page/1"),))

    assert crawler.spider.pages == []


@pytest.mark.timed
def test_download_delay_of_the_spider(site: Any) -> None:
    """The spider attribute download_delay is kept to, on every Scrapy."""

    class Slow(PlainSpider):
        download_delay = 0.4

    crawl(Slow, urls=tuple(site.url(f"/page/{n}") for n in range(3)))

    arrived = times(site, "/page/")
    assert arrived[-1] - arrived[0] >= 0.4 * 0.5 * 2 - 0.02
