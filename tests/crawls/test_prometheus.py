"""Metrics of running crawls, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.settings import Settings

from netspy_scrapy import _scrapy
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.extensions import prometheus
from netspy_scrapy.metrics import COUNTER, LIMIT, CrawlMetrics
from tests.crawling import ADDON, MEMORY, PlainSpider, crawl, idle_crawler, reason

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def port() -> int:
    """Return a port that is free."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def read(port: int) -> str:
    """Ask for the metrics, as Prometheus does."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def parsed(text: str) -> Samples:
    """Return each sample by its name and labels; a metric that is there twice is an error."""
    families = list(text_string_to_metric_families(text))
    names = [one.name for one in families]
    assert len(set(names)) == len(names)
    samples = [one for family in families for one in family.samples]
    found = {(one.name, tuple(sorted(one.labels.items()))): one.value for one in samples}
    assert len(found) == len(samples)
    return found


class Asks(PlainSpider):
    """Asks for the metrics in its last callback."""

    port = 0
    answers: list[str] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answers = []

    async def parse(self, response: Any) -> Any:
        yield {"url": response.url}
        if "slow" in response.url:
            await asyncio.sleep(0.3)  # the others are stored
            self.answers.append(await asyncio.to_thread(read, self.port))


@pytest.mark.timed
def test_metrics_while_a_crawl_runs(site: Any, port: int, caplog: Any) -> None:
    """Pages, failures by cause, rows by sink, rests by domain; with the crawl they are gone."""
    site.set("/busy", body=b"page")
    site.set("/busy", status=503, headers={"Retry-After": "30"}, times=1)
    urls = (
        site.url("/page/1"), site.url("/page/2"), site.url("/status/404"),
        site.url("/busy", host="127.0.0.2"), site.url("/slow?ms=500"),
    )  # fmt: skip
    settings = {**MEMORY, "NETSPY_PROMETHEUS_PORT": port, "SPIDER_MAX_RUNTIME": 3}
    crawler = crawl(Asks, settings, urls=urls, port=port)

    (text,) = crawler.spider.answers
    found = parsed(text)
    resting = f"127.0.0.2:{site.port}"
    seconds = found.pop(("netspy_domain_rest_seconds_total", labels(domain=resting)))
    left = found.pop(("netspy_domain_rest_left_seconds", labels(domain=resting)))
    assert 0.2 < seconds < 5
    assert seconds + left == pytest.approx(30, abs=0.5)
    expected = {
        ("netspy_pages_total", labels()): 4,
        ("netspy_responses_total", labels(status="200")): 3,
        ("netspy_responses_total", labels(status="404")): 1,
        ("netspy_failures_total", labels(cause="404")): 1,
        ("netspy_retries_total", labels(cause="503")): 1,
        ("netspy_requests_dumped_total", labels()): 1,
        ("netspy_rows_stored_total", labels(sink="MemorySink")): 3,
        ("netspy_rows_held", labels(sink="MemorySink")): 0,
        ("netspy_queued_requests", labels()): 1,
        ("netspy_requests_in_flight", labels()): 0,
        ("netspy_resting_domains", labels()): 1,
        ("netspy_known_domains", labels()): 2,
        ("netspy_domain_rests_total", labels(domain=resting)): 1,
        ("netspy_domain_circuits_total", labels(domain=resting)): 0,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert abs(found["netspy_start_time_seconds", labels()] - time.time()) < 60
    assert f"Metrics for Prometheus: http://127.0.0.1:{port}/metrics" in caplog.text
    with pytest.raises(URLError):
        read(port)


def labels(spider: str = "plain", **more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"spider": spider, **more}.items()))


def test_a_port_in_use(site: Any, port: int, caplog: Any) -> None:
    """It is named in a warning, and the crawl goes on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        settings = {"NETSPY_PROMETHEUS_PORT": port}
        crawler = crawl(PlainSpider, settings, urls=(site.url("/page/1"),))

    assert reason(crawler) == "finished"
    assert len(crawler.spider.pages) == 1
    (warning,) = [one.getMessage() for one in caplog.records if "no metrics" in one.getMessage()]
    assert warning == (
        f"NETSPY_PROMETHEUS_PORT: no metrics are served, since 127.0.0.1:{port} cannot be had: "
        "Address already in use"
    )


@pytest.mark.timed
def test_several_crawls_of_a_process(site: Any, port: int) -> None:
    """They share the port, also two of one spider, and the last one closes it."""

    class Other(Asks):
        name = "other"

    settings = Settings({**ADDON, "TELNETCONSOLE_ENABLED": False, "NETSPY_PROMETHEUS_PORT": port})
    loop = _scrapy.reactor_loop(settings)
    runner = AsyncCrawlerRunner(settings)
    spiders = [Asks, Asks, Other]
    crawlers = [runner.create_crawler(one) for one in spiders]

    async def run() -> None:
        await asyncio.gather(
            *(
                runner.crawl(one, urls=(site.url(f"/slow?ms={500 + 700 * n}"),), port=port)
                for n, one in enumerate(crawlers)
            )
        )

    asyncio.set_event_loop(loop)
    loop.run_until_complete(run())
    first, _, last = (parsed(one.spider.answers[0]) for one in crawlers)

    def spiders_in(found: Samples) -> set[str]:
        return {dict(pairs)["spider"] for name, pairs in found if name == "netspy_pages_total"}

    assert spiders_in(first) == {"plain", "plain#2", "other"}
    assert spiders_in(last) == {"other"}
    with pytest.raises(URLError):
        read(port)
    again = crawl(
        Asks, {"NETSPY_PROMETHEUS_PORT": port}, urls=(site.url("/slow?ms=10"),), port=port
    )
    assert spiders_in(parsed(again.spider.answers[0])) == {"plain"}


@pytest.mark.timed
def test_a_blocked_loop_has_no_metrics(
    site: Any, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks meanwhile gets an answer without samples, and not none at all."""
    monkeypatch.setattr(prometheus, "_PATIENCE", 0.2)

    class Blocks(Asks):
        async def parse(self, response: Any) -> Any:
            asking = asyncio.ensure_future(asyncio.to_thread(read, self.port))
            await asyncio.sleep(0)
            time.sleep(1)  # noqa: ASYNC251 - what is tested
            self.answers.append(await asking)

    crawler = crawl(
        Blocks, {"NETSPY_PROMETHEUS_PORT": port}, urls=(site.url("/page/1"),), port=port
    )

    assert parsed(crawler.spider.answers[0]) == {}


def test_labels_are_bounded() -> None:
    """Of many domains LIMIT are told apart, always the same, and no counter ever falls."""
    context = CrawlContext.of(idle_crawler())
    registry = context.politeness.registry
    metrics = CrawlMetrics(context)

    def collected() -> dict[str, dict[str, float]]:
        return {one.name: one.values for one in metrics.collect()}

    def rest(number: int, times: int) -> None:
        for _ in range(times):
            state = registry.get(f"d{number}")
            registry.rest(state, max(0.0, state.rest_until - registry.clock()) + 10, "why")

    for number in range(200):
        rest(number, 1 + number % 3)
    first = collected()
    for number in range(400):
        rest(number, 1)
    second = collected()

    for found in (first, second):
        for name in ("domain_rests", "domain_rest_left_seconds"):
            assert len(found[name]) == LIMIT + 1
    assert sum(first["domain_rests"].values()) == sum(1 + number % 3 for number in range(200))
    assert first["domain_rests"].keys() == second["domain_rests"].keys()
    assert {first["domain_rests"][name] for name in first["domain_rests"] if name != "other"} == {3}
    assert all(second["domain_rests"][name] >= n for name, n in first["domain_rests"].items())
    assert first["domain_rest_left_seconds"]["other"] <= 30


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port without prometheus_client ends the start, and says what to install."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ConfigError, match=r"pip install 'netspy-scrapy\[prometheus\]'"):
        idle_crawler({"NETSPY_PROMETHEUS_PORT": 9100})


def test_the_documented_metrics() -> None:
    """docs/watching.md has each metric with its label, and no other."""
    page = Path(__file__).resolve().parents[2] / "docs" / "watching.md"
    documented = re.findall(
        r"^\| `(netspy_\w+)` \| (?:`(\w+)`)? ?\|", page.read_text(), re.MULTILINE
    )
    metrics = CrawlMetrics(CrawlContext.of(idle_crawler()))
    names = [
        (f"netspy_{one.name}" + ("_total" if one.kind == COUNTER else ""), one.label)
        for one in metrics.collect()
    ]

    assert sorted(documented) == sorted(names)
