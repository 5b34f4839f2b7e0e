"""The add-on: what it puts where, what it leaves alone, what it says."""

from __future__ import annotations

from typing import Any

import pytest
import scrapy
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.pipelines.images import ImagesPipeline
from scrapy.settings import Settings
from scrapy.spidermiddlewares.httperror import HttpErrorMiddleware

import netspy_scrapy as mw
from netspy_scrapy.addon import Addon
from netspy_scrapy.dedup.request_filter import RequestFilter
from netspy_scrapy.downloadermiddlewares.status import StatusPolicyMiddleware
from netspy_scrapy.scheduling.scheduler import Scheduler
from netspy_scrapy.spidermiddlewares.outcome import OutcomeMiddleware


class Plain(scrapy.Spider):
    """A plain spider."""

    name = "plain"


class Netspy(mw.AirSpider):
    """A netspy spider."""


class Subclassed(RetryMiddleware):
    """A project's own retry middleware."""


class Waiting:
    """A pipeline that awaits."""

    async def process_item(self, item: Any) -> Any:
        return item


def applied(
    spider: type[scrapy.Spider] = Plain, caplog: Any = None, **settings: Any
) -> tuple[Settings, list[str]]:
    """Return the settings after the add-on, and what it warned of."""
    crawler = Crawler(spider, Settings(settings))
    if caplog is not None:
        caplog.clear()
    Addon(crawler).update_settings(crawler.settings)
    lines = [] if caplog is None else [record.getMessage() for record in caplog.records]
    return crawler.settings, lines


def chain(settings: Settings, name: str) -> dict[str, int]:
    """Return a component list by class name."""
    enabled = {**settings.getdict(f"{name}_BASE"), **settings.getdict(name)}
    return {
        (one if isinstance(one, str) else one.__name__).rpartition(".")[2]: order
        for one, order in enabled.items()
        if order is not None
    }


def test_scrapys_retry_and_httperror_are_replaced(caplog: Any) -> None:
    """The status policy takes the places of RetryMiddleware and HttpErrorMiddleware, quietly."""
    settings, lines = applied(caplog=caplog)

    downloader = chain(settings, "DOWNLOADER_MIDDLEWARES")
    assert downloader["StatusPolicyMiddleware"] == 550
    assert "RetryMiddleware" not in downloader
    assert "FacadeMiddleware" not in downloader
    spider = chain(settings, "SPIDER_MIDDLEWARES")
    assert spider["OutcomeMiddleware"] == 50
    assert "HttpErrorMiddleware" not in spider
    assert settings["SCHEDULER"] is Scheduler
    assert settings["CONCURRENT_ITEMS"] == 4
    assert lines == []


def test_the_users_order_is_kept() -> None:
    """A project that moved RetryMiddleware gets the status policy at that place."""
    settings, _ = applied(
        DOWNLOADER_MIDDLEWARES={RetryMiddleware: 123},
        SPIDER_MIDDLEWARES={"scrapy.spidermiddlewares.httperror.HttpErrorMiddleware": 7},
    )

    assert chain(settings, "DOWNLOADER_MIDDLEWARES")["StatusPolicyMiddleware"] == 123
    assert chain(settings, "SPIDER_MIDDLEWARES")["OutcomeMiddleware"] == 7


def test_what_the_user_switched_off_stays_off(caplog: Any) -> None:
    """A project with a retry middleware of its own keeps it, and is told what does not work."""
    settings, lines = applied(
        caplog=caplog,
        DOWNLOADER_MIDDLEWARES={RetryMiddleware: None, Subclassed: 540},
        SPIDER_MIDDLEWARES={HttpErrorMiddleware: None},
    )

    downloader = chain(settings, "DOWNLOADER_MIDDLEWARES")
    assert "StatusPolicyMiddleware" not in downloader
    assert downloader["Subclassed"] == 540
    assert "OutcomeMiddleware" not in chain(settings, "SPIDER_MIDDLEWARES")
    assert [line.partition(" is ")[0] for line in lines] == [
        "RetryMiddleware", "HttpErrorMiddleware"
    ]  # fmt: skip


def test_the_users_components_stay(caplog: Any) -> None:
    """A project's own scheduler and request filter stay; each gets one warning where it matters."""
    settings, lines = applied(
        caplog=caplog,
        SCHEDULER="scrapy.core.scheduler.Scheduler",
        DUPEFILTER_CLASS="scrapy.dupefilters.BaseDupeFilter",
        DEDUP_FILTER="lite",
    )

    assert settings["SCHEDULER"] == "scrapy.core.scheduler.Scheduler"
    assert settings["DUPEFILTER_CLASS"] == "scrapy.dupefilters.BaseDupeFilter"
    assert len(lines) == 2
    assert lines[0].startswith("SCHEDULER is scrapy.core.scheduler.Scheduler")
    assert "DEDUP_FILTER does nothing" in lines[1]


def test_the_request_filter_follows_dedup_filter() -> None:
    """Plain projects keep Scrapy's filter unless they set DEDUP_FILTER; netspy spiders get ours."""
    assert "RFPDupeFilter" in str(applied()[0]["DUPEFILTER_CLASS"])
    assert applied(DEDUP_FILTER="lite")[0]["DUPEFILTER_CLASS"] is RequestFilter
    assert applied(Netspy)[0]["DUPEFILTER_CLASS"] is RequestFilter


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({}, 4),
        ({"CONCURRENT_ITEMS": 50}, 50),
        ({"ITEM_PIPELINES": {ImagesPipeline: 1}}, 100),
        ({"ITEM_PIPELINES": {Waiting: 1}}, 100),
        ({"ITEM_PIPELINES": {Waiting: None}}, 4),
    ],
)
def test_concurrent_items(settings: dict[str, Any], value: int) -> None:
    """CONCURRENT_ITEMS is lowered unless the user set it or a pipeline awaits per item."""
    assert applied(**settings)[0].getint("CONCURRENT_ITEMS") == value


def test_defaults_of_both_kinds_of_spiders() -> None:
    """Plain projects keep Scrapy's values; netspy spiders get netspy's."""
    plain, _ = applied()
    netspy, _ = applied(Netspy)

    assert (plain["RETRY_TIMES"], netspy["RETRY_TIMES"]) == (2, 3)
    assert (plain["DOWNLOAD_TIMEOUT"], netspy["DOWNLOAD_TIMEOUT"]) == (180, 22.0)
    assert netspy["CONCURRENT_REQUESTS"] == 16
    assert netspy["MAX_RESPONSE_SIZE"] == 33554432
    assert plain["DOWNLOAD_MAXSIZE"] == netspy["DOWNLOAD_MAXSIZE"] == 1073741824
    assert (plain["LOG_LEVEL"], netspy["LOG_LEVEL"]) == ("DEBUG", "INFO")


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        ({"SPIDER_MAX_RETRY_TIMES": 7}, "RETRY_TIMES", 7),
        ({"RETRY_TIMES": 7}, "RETRY_TIMES", 7),
        ({"SPIDER_MAX_RETRY_TIMES": 7, "RETRY_TIMES": 1}, "RETRY_TIMES", 7),
        ({"REQUEST_TIMEOUT": 3}, "DOWNLOAD_TIMEOUT", 3),
        ({"SPIDER_THREAD_COUNT": 2}, "CONCURRENT_REQUESTS", 2),
        ({"ROBOTS_OBEY": True}, "ROBOTSTXT_OBEY", True),
        ({"CLOSESPIDER_TIMEOUT": 60}, "CLOSESPIDER_TIMEOUT", 60),
        ({"SPIDER_MAX_RUNTIME": 60, "CLOSESPIDER_TIMEOUT": 30}, "CLOSESPIDER_TIMEOUT", 0),
    ],
)
@pytest.mark.parametrize("spider", [Plain, Netspy])
def test_pairs(spider: Any, settings: dict[str, Any], name: str, value: Any) -> None:
    """Of a pair ours counts where the user set it, else Scrapy's, for both kinds of spiders."""
    assert applied(spider, **settings)[0][name] == value


def test_contradictions_and_slips_are_named_once(caplog: Any) -> None:
    """Settings that contradict each other, slips of the pen, and what does nothing: a line each."""
    _, lines = applied(
        caplog=caplog,
        SPIDER_MAX_RETRY_TIMES=3,
        RETRY_TIMES=5,
        REQUEST_TIMEOUT=10,
        DOWNLOAD_TIMEOUT=10,
        CIRCUIT_TRESHOLD=5,
        PROXY_ENABLE=True,
        RETRY_STATUS_CODES=[202, 503],
        CONCURRENT_REQUESTS_PER_IP=4,
        MY_OWN="setting",
    )

    assert lines == [
        (
            "CIRCUIT_TRESHOLD is no setting of netspy_scrapy or Scrapy: "
            "did you mean CIRCUIT_FAILURE_THRESHOLD?"
        ),
        "PROXY_ENABLE is a setting of netspy that does nothing here",
        (
            "SPIDER_MAX_RETRY_TIMES = 3 and RETRY_TIMES = 5 contradict each other: "
            "SPIDER_MAX_RETRY_TIMES counts"
        ),
        (
            "CONCURRENT_REQUESTS_PER_IP does nothing here: limits are kept by domain "
            "(CONCURRENT_REQUESTS_PER_DOMAIN); for domains of one server give their requests the "
            'same meta["download_slot"]'
        ),
        "RETRY_STATUS_CODES lists 202: 2xx and 3xx are never retried",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPIDER_MAX_RETRY_TIMES", "many"),
        ("SPIDER_MAX_RETRY_TIMES", -1),
        ("RETRY_TIMES", 1.5),
        ("SPIDER_RETRY_INTERVAL", -1),
        ("RETRY_BACKOFF", "nan"),
        ("RETRY_AFTER_MAX", float("inf")),
        ("RETRY_STATUS_CODES", [99]),
        ("RETRY_STATUS_CODES", {"503": 1}),
        ("ACCEPT_STATUS_CODES", ["x"]),
        ("CHECK_STATUS_CODE", "maybe"),
        ("DEDUP_FILTER", "bloom"),
        ("DEDUP_ERROR_RATE", 0),
        ("DEDUP_INITIAL_CAPACITY", 0),
        ("ITEM_MAX_CACHED_COUNT", 0),
        ("BUFFER_FLUSH_INTERVAL", None),
        ("NETSPY_BUFFER_MAX_BYTES", -1),
        ("ITEM_DEFAULT_TABLE", ""),
        ("FAILED_ITEM_PATH", 5),
        ("FAILED_REQUEST_PATH", ""),
        ("SPIDER_THREAD_COUNT", 0),
        ("REQUEST_TIMEOUT", "long"),
        ("NETSPY_START_MAX_QUEUED", -1),
        ("TWISTED_REACTOR", "twisted.internet.epollreactor.EPollReactor"),
    ],
)
def test_wrong_values_are_errors(name: str, value: Any) -> None:
    """A value that cannot be used is an error naming setting, value and what is allowed."""
    with pytest.raises(mw.ConfigError) as caught:
        applied(**{name: value})

    assert str(caught.value).startswith(f"{name} = {value!r} cannot be used: expected ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RETRY_STATUS_CODES", "429,503"),
        ("RETRY_STATUS_CODES", "[429, 503]"),
        ("SPIDER_MAX_RETRY_TIMES", "3"),
        ("RETRY_BACKOFF", "0.5"),
        ("CHECK_STATUS_CODE", "False"),
    ],
)
def test_values_from_the_command_line(name: str, text: str) -> None:
    """The text that ``-s NAME=VALUE`` gives is understood."""
    applied(**{name: text})


def test_netspy_pipelines_become_ours() -> None:
    """netspy.pipelines.* in ITEM_PIPELINES names our sink of the same name, in dict and list."""

    class Listed(mw.AirSpider):
        __custom_setting__ = {
            "ITEM_PIPELINES": [
                "netspy.pipelines.console.ConsolePipeline", "netspy.pipelines.csv.CsvPipeline"
            ]
        }  # fmt: skip

    listed, _ = applied(Listed)
    plain, _ = applied(ITEM_PIPELINES={"netspy.pipelines.csv.CsvPipeline": 5})

    assert list(listed.getdict("ITEM_PIPELINES")) == [
        "netspy_scrapy.pipelines.console.ConsolePipeline", "netspy_scrapy.pipelines.csv.CsvPipeline"
    ]  # fmt: skip
    assert plain.getdict("ITEM_PIPELINES") == {"netspy_scrapy.pipelines.csv.CsvPipeline": 5}


def test_single_middlewares_work_without_the_add_on() -> None:
    """Each component can be put into a project alone."""
    for cls in (StatusPolicyMiddleware, OutcomeMiddleware):
        crawler = Crawler(Plain, Settings({"TWISTED_REACTOR_ENABLED": True}))
        crawler.stats = crawler.settings["STATS_CLASS"]  # type: ignore[assignment]
        assert cls.from_crawler(crawler)
