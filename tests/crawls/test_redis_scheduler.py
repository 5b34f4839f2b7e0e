"""One node in this process: what it takes from scrapy-redis, what it refuses, what it filters."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import scrapy
from scrapy import signals
from scrapy.exceptions import CloseSpider
from scrapy_redis.spiders import RedisSpider

import netspy_scrapy as mw
from netspy_scrapy import _scrapy
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.redis.queue import Handed
from tests.crawling import MEMORY, PlainSpider, crawl, dumped, netspy_stats, reason, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.redis import Redis

SCHEDULER = "netspy_scrapy.redis.scheduler.RedisScheduler"
FILTER = "netspy_scrapy.redis.request_filter.RedisRequestFilter"


@pytest.fixture
def client(redis_server: Redis) -> Iterator[Any]:
    """A client of the test's own, of an empty server."""
    made = redis.Redis.from_url(redis_server.url)
    made.flushall()
    yield made
    made.flushall()
    made.close()


def run(spider: type[scrapy.Spider], client: Any, settings: Any = None, **arguments: Any) -> Any:
    """Crawl as one node."""
    port = client.connection_pool.connection_kwargs["port"]
    url = f"redis://127.0.0.1:{port}/0"
    base = {**MEMORY, "SCHEDULER": SCHEDULER, "REDIS_URL": url, "RETRY_TIMES": 1}
    return crawl(spider, {**base, **(settings or {})}, **arguments)


def lasting(client: Any) -> list[bytes]:
    """Return the keys that a finished run leaves for longer than half a minute."""
    return sorted(key for key in client.scan_iter() if not 0 <= client.ttl(key) <= 30)


class Family(PlainSpider):
    """A page, two others that it yields twice, and one that failed."""

    name = "family"

    def parse(self, response: Any) -> Any:
        for path in ("/page/2", "/page/3", "/page/2"):
            yield response.follow(path, self.leaf, meta=response.meta, errback=self.failed)
        yield response.follow("/status/404", self.leaf, errback=self.failed)

    def leaf(self, response: Any) -> Any:
        yield {"url": response.url, "depth": response.meta["depth"]}


def test_a_crawl(site: Any, client: Any) -> None:
    """Pages are fetched once, what failed is dumped, and Redis is empty afterwards."""
    crawler = run(Family, client, urls=(site.url("/page/1"),))

    assert reason(crawler) == "finished"
    assert sorted(row[1]["url"] for row in rows(crawler)) == [
        site.url("/page/2"), site.url("/page/3")
    ]  # fmt: skip
    assert netspy_stats(crawler) == {
        "netspy/failures": 1,
        "netspy/failures/404": 1,
        "netspy/items": 2,
        "netspy/queue/done": 4,
        "netspy/requests/dumped": 1,
        "netspy/rows/MemorySink/batches": 1,
        "netspy/rows/MemorySink/stored": 2,
    }
    assert crawler.stats.get_value("dupefilter/filtered") == 1
    assert lasting(client) == [b"netspy:{family}:queue:epoch"]
    assert len(dumped()) == 1


@pytest.mark.parametrize("kind", ["redis", "redis-set"])
def test_what_failed_may_be_tried_again(site: Any, client: Any, kind: str) -> None:
    """A filter that outlives the run knows the pages that were done, and not the failed one."""
    settings = {"SCHEDULER_PERSIST": True, "DEDUP_FILTER": kind}
    first = run(Family, client, settings, urls=(site.url("/page/1"),))
    second = run(Family, client, settings, urls=(site.url("/page/1"), site.url("/status/404")))

    assert len(rows(first)) == 2
    assert rows(second) == []
    assert site.hits("/page/1") == 1
    assert site.hits("/status/404") == 2
    assert first.stats.get_value("dupefilter/filtered") == 1
    assert second.stats.get_value("dupefilter/filtered") == 1


class BrokenLinks(PlainSpider):
    """A chain of pages, each of which has the same link that leads nowhere."""

    name = "broken"

    def parse(self, response: Any) -> Any:
        yield response.follow("/status/404", self.parse, errback=self.failed, priority=1)
        number = int(response.url[-1])
        if number < 3:  # each comes after Redis has heard of what failed
            yield response.follow(f"/slow?ms=500&n={number + 1}")


@pytest.mark.parametrize("kind", ["redis", "redis-set"])
def test_a_broken_link_of_many_pages(site: Any, client: Any, kind: str) -> None:
    """Within a run a page that failed is not fetched again for each page that links to it."""
    run(BrokenLinks, client, {"DEDUP_FILTER": kind}, urls=(site.url("/slow?n=1"),))

    assert site.hits("/slow") == 3
    assert site.hits("/status/404") == 1
    assert len(dumped()) == 1


@pytest.mark.parametrize("again", [False, True])
def test_redirects_and_retries(site: Any, client: Any, *, again: bool) -> None:
    """They keep the lease of their page; a redirect to a page that is known ends there."""
    site.set("/moved", status=302, headers={"Location": "/page/1"})
    urls = [site.url("/seq/a?codes=503,200"), site.url("/moved")]
    if again:
        urls.append(site.url("/page/1"))

    class Moves(PlainSpider):
        name = "moves"

        async def start(self) -> Any:
            for url in reversed(urls):
                yield scrapy.Request(url)
                await asyncio.sleep(0.2)  # the page itself is there before the redirect to it

    crawler = run(Moves, client)
    stats = netspy_stats(crawler)

    assert site.hits("/page/1") == 1
    assert stats["netspy/queue/done"] == len(urls)
    assert stats["netspy/retries"] == 1
    assert lasting(client) == [b"netspy:{moves}:queue:epoch"]


def test_delayed_requests(site: Any, client: Any) -> None:
    """A request with a delay of its own waits in Redis, and the crawl waits for it."""

    class Later(PlainSpider):
        name = "later"

        async def start(self) -> Any:
            yield scrapy.Request(site.url("/page/1"), meta={"netspy_delay": 0.7})
            yield scrapy.Request(site.url("/page/2"))

    run(Later, client)
    times = {one.path: one.t for one in site.log()}

    assert times["/page/1"] - times["/page/2"] >= 0.6


def test_priorities_hold_inside_a_domain(site: Any, client: Any) -> None:
    """What is more important goes first; of equals, what was yielded first."""
    order: list[str] = []

    class Ordered(PlainSpider):
        name = "ordered"
        custom_settings = {"CONCURRENT_REQUESTS": 1, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}

        def parse(self, response: Any) -> Any:
            for n in range(6):
                yield response.follow(f"/page/1?n={n}", self.leaf, priority=n % 2)

        def leaf(self, response: Any) -> Any:
            order.append(response.url[-1])

    run(Ordered, client, urls=(site.url("/page/2"),))

    assert order == ["1", "3", "5", "0", "2", "4"]


def test_a_callback_that_is_no_method(site: Any, client: Any) -> None:
    """Only methods of the spider can be named in Redis: the request is refused, and it says why."""

    class Lambda(PlainSpider):
        name = "lambda"

        async def start(self) -> Any:
            yield scrapy.Request(site.url("/page/1"), callback=lambda response: None)

    crawler = run(Lambda, client)

    assert crawler.stats.get_value("netspy/failures/unqueueable") == 1
    (line,) = dumped()
    assert "is not an instance method" in line["reason"]


# scrapy-redis ------------------------------------------------------------------------------------
class Seeded(RedisSpider):
    """scrapy-redis' own spider, closed after a number of pages."""

    name = "seeded"
    count = 3

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.seen = []
        crawler.signals.connect(spider.began, signals.spider_opened)
        return spider

    def began(self) -> None:
        asyncio.get_running_loop().call_later(1.0, self.put)

    def put(self) -> None:
        self.put_at = time.monotonic()
        for seed in self.seeds:
            self.push(seed)

    def parse(self, response: Any) -> Any:
        self.seen.append((response.url, response.meta.get("who"), time.monotonic() - self.put_at))
        yield {"url": response.url}
        if len(self.seen) == self.count:
            raise CloseSpider("enough")


@pytest.mark.timed
@pytest.mark.parametrize("kind", ["list", "set", "zset"])
def test_start_urls_of_redis_spiders(site: Any, client: Any, kind: str) -> None:
    """lpush, sadd or zadd: seeds of both of scrapy-redis' forms are fetched within 0.5 s."""
    push = {
        "list": lambda seed: client.lpush("seeded:start_urls", seed),
        "set": lambda seed: client.sadd("seeded:start_urls", seed),
        "zset": lambda seed: client.zadd("seeded:start_urls", {seed: 1}),
    }[kind]
    seeds = [
        site.url("/page/1"),
        json.dumps({"url": site.url("/page/2"), "meta": {"who": "json"}}),
        site.url("/page/3"),
    ]
    settings = {
        "REDIS_START_URLS_AS_SET": kind == "set", "REDIS_START_URLS_AS_ZSET": kind == "zset",
        "DUPEFILTER_CLASS": FILTER,
    }  # fmt: skip
    crawler = run(Seeded, client, settings, seeds=seeds, push=push)
    seen = crawler.spider.seen

    assert sorted(url for url, _, _ in seen) == [site.url(f"/page/{n}") for n in (1, 2, 3)]
    assert {who for _, who, _ in seen} == {None, "json"}
    assert max(seconds for _, _, seconds in seen) < 0.5
    assert client.exists("seeded:start_urls") == 0


def test_a_seed_that_is_none(site: Any, client: Any, caplog: Any) -> None:
    """It is kept among the dead ones, and the others are fetched."""
    crawler = run(
        Seeded, client, seeds=[b"\xff\xfe", site.url("/page/1")], count=1,
        push=lambda seed: client.rpush("seeded:start_urls", seed),
    )  # fmt: skip

    assert [url for url, _, _ in crawler.spider.seen] == [site.url("/page/1")]
    assert "A task cannot be read" in caplog.text
    assert list(client.hvals("netspy:{seeded}:queue:dead")) == [b"S\xff\xfe"]


def test_it_ends_by_its_own_rule(site: Any, client: Any) -> None:
    """MAX_IDLE_TIME_BEFORE_CLOSE of scrapy-redis ends a spider that is given nothing."""
    crawler = run(
        Seeded, client, {"MAX_IDLE_TIME_BEFORE_CLOSE": 2}, seeds=[site.url("/page/1")],
        push=lambda seed: client.lpush("seeded:start_urls", seed),
    )  # fmt: skip

    assert reason(crawler) == "finished"
    assert len(crawler.spider.seen) == 1


def test_key_templates(site: Any, client: Any) -> None:
    """SCHEDULER_QUEUE_KEY and SCHEDULER_DUPEFILTER_KEY name the keys."""
    settings = {
        "SCHEDULER_QUEUE_KEY": "mine:%(spider)s:q", "SCHEDULER_DUPEFILTER_KEY": "mine:%(spider)s:d",
        "SCHEDULER_PERSIST": True,
    }  # fmt: skip
    run(Family, client, settings, urls=(site.url("/page/1"),))

    assert lasting(client) == [b"mine:family:d", b"{mine:family:q}:epoch"]


def test_a_filter_of_another_kind(site: Any, client: Any) -> None:
    """The crawl does not start where the filter's key holds something else."""
    client.set("mine:family:d", "text")
    settings = {"SCHEDULER_DUPEFILTER_KEY": "mine:%(spider)s:d"}
    with pytest.raises(ConfigError, match=r"SCHEDULER_DUPEFILTER_KEY.*a string"):
        run(Family, client, settings)


def test_a_queue_of_scrapy_redis_is_refused(site: Any, client: Any) -> None:
    """Pickled requests are not read: the error says where they are, and what to do."""
    client.zadd("family:requests", {pickle.dumps({"url": site.url("/page/1")}): 0})
    with pytest.raises(ConfigError) as error:
        run(Family, client)

    assert "SCHEDULER_QUEUE_KEY" in str(error.value)
    assert "redis-cli DEL family:requests" in str(error.value)
    assert client.zcard("family:requests") == 1


def test_a_pickle_in_our_queue_is_not_read(site: Any, client: Any) -> None:
    """Who can write to Redis runs no code here."""
    base = "netspy:{family}:queue"
    client.hset(f"{base}:tasks", "x", b"\x80\x04" + pickle.dumps(print))
    client.hset(f"{base}:info", "x", "0:0:00000000000001:a")
    client.zadd(f"{base}:ready:a", {"00000000000001x": 0})
    client.zadd(f"{base}:domains", {"a": 0})
    crawler = run(Family, client, urls=(site.url("/page/1"),))

    assert crawler.stats.get_value("netspy/queue/dead") == 1
    assert client.hkeys(f"{base}:dead") == [b"x"]
    assert len(rows(crawler)) == 2


def test_another_filter_is_refused(site: Any, client: Any) -> None:
    """scrapy-redis' filter beside our scheduler is an error that names the setting."""
    with pytest.raises(ConfigError, match="DUPEFILTER_CLASS"):
        run(Family, client, {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"})


def test_without_the_add_on(site: Any, client: Any) -> None:
    """The scheduler works alone, in a project that only changes SCHEDULER."""
    crawler = run(Family, client, {"ADDONS": {}}, urls=(site.url("/page/1"),))

    assert len(rows(crawler)) == 2
    assert lasting(client) == [b"netspy:{family}:queue:epoch"]


def test_the_add_on_names_scrapy_redis(site: Any, client: Any, caplog: Any) -> None:
    """One warning says that its scheduler loses work, and what to set."""
    port = client.connection_pool.connection_kwargs["port"]
    settings = {
        **MEMORY, "SCHEDULER": "scrapy_redis.scheduler.Scheduler", "REDIS_PORT": port,
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    }  # fmt: skip
    crawl(Family, settings, urls=(site.url("/page/1"),))
    warnings = [one.message for one in caplog.records if SCHEDULER in one.message]

    assert len(warnings) == 1
    assert "loses the requests" in warnings[0]


# Settings and servers ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "value"),
    [("SPIDER_TASK_LEASE", "soon"), ("SPIDER_TASK_LEASE", 0.5), ("COLLECTOR_TASK_COUNT", 0),
     ("NETSPY_MAX_DELIVERIES", 0), ("SCHEDULER_QUEUE_KEY", "%(who)s")],
)  # fmt: skip
def test_wrong_values(site: Any, client: Any, name: str, value: Any) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigError, match=name):
        run(Family, client, {name: value})


def test_a_wrong_password(site: Any, own_redis: Any, caplog: Any) -> None:
    """The crawl does not start, the error names REDIS_URL, and nothing shows the password."""
    server = own_redis("--requirepass", "right")
    settings = {
        **MEMORY, "SCHEDULER": SCHEDULER,
        "REDIS_URL": f"redis://:wr0ng-secret@127.0.0.1:{server.port}/0",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="REDIS_URL") as error:
        crawl(Family, settings, urls=(site.url("/page/1"),))

    assert "wr0ng-secret" not in str(error.value) + caplog.text
    assert site.log() == []


def test_redis_is_away_at_the_start(site: Any, own_redis: Any, caplog: Any) -> None:
    """The node waits for it, and then does its work."""
    server = own_redis()
    server.kill()

    class Waits(Family):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.thread = asyncio.get_event_loop().run_in_executor(None, self.bring_back)

        def bring_back(self) -> None:
            time.sleep(1)
            server.start()

    settings = {**MEMORY, "SCHEDULER": SCHEDULER, "REDIS_URL": server.url}
    crawler = crawl(Waits, settings, urls=(site.url("/page/1"),))

    assert len(rows(crawler)) == 2
    assert "the node waits for it" in caplog.text


def test_a_queue_that_is_refused_later(site: Any, own_redis: Any, caplog: Any) -> None:
    """Redis was away at the start, and what is there then is no queue: the crawl fails."""
    server = own_redis("--appendonly", "yes")
    with redis.Redis.from_url(server.url) as client:
        client.zadd("family:requests", {"pickled": 0})
    server.kill()

    class Waits(Family):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            asyncio.get_event_loop().call_later(0.5, server.start)

    settings = {**MEMORY, "SCHEDULER": SCHEDULER, "REDIS_URL": server.url}
    crawler = crawl(Waits, settings, urls=(site.url("/page/1"),))

    assert reason(crawler) == "redis_refused"
    assert crawler.stats.get_value("netspy/exit_status") == 1
    assert "redis-cli DEL family:requests" in caplog.text
    assert [line["url"] for line in dumped()] == [site.url("/page/1")]
    assert site.log() == []


def test_without_leases(site: Any, client: Any) -> None:
    """SPIDER_TASK_LEASE = 0: a task is gone once it is taken, as in scrapy-redis."""
    crawler = run(Family, client, {"SPIDER_TASK_LEASE": 0}, urls=(site.url("/page/1"),))

    assert len(rows(crawler)) == 2
    assert "netspy/queue/done" not in netspy_stats(crawler)
    assert lasting(client) == [b"netspy:{family}:queue:epoch"]


# netspy spiders ----------------------------------------------------------------------------------
class Shared(mw.Spider):
    """A netspy spider of several processes, alone."""

    seeds: Any = ()
    __custom_setting__ = {**MEMORY}

    def start_requests(self) -> Any:
        for url in self.seeds:
            yield mw.Request(url)

    def parse(self, request: Any, response: Any) -> Any:
        yield {"url": request.url}


def test_all_first_requests_are_known(site: Any, client: Any, caplog: Any) -> None:
    """DEDUP_SCOPE = "spider" keeps what was fetched for ever; an empty run says why it is one."""
    settings = {"DEDUP_SCOPE": "spider", "NETSPY_SINK_WAIT": 1}
    first = run(Shared, client, settings, seeds=[site.url("/page/1")])
    client.delete("netspy:{Shared}:queue:start")
    second = run(Shared, client, settings, seeds=[site.url("/page/1")])

    assert len(rows(first)) == 1
    assert rows(second) == []
    assert "All 1 first requests were fetched before" in caplog.text


def test_a_name_of_its_own(site: Any, client: Any) -> None:
    """redis_key is the name under which processes share the work."""
    seen: list[bytes] = []

    class Looks(Shared):
        def parse(self, request: Any, response: Any) -> Any:
            seen.extend(client.keys("netspy:{other}:queue:tasks"))
            yield from super().parse(request, response)

    run(Looks, client, seeds=[site.url("/page/1")], redis_key="other")

    assert seen == [b"netspy:{other}:queue:tasks"]


def test_keep_alive(site: Any, client: Any) -> None:
    """SPIDER_KEEP_ALIVE: the node stays when all is done; once it was stopped a run may follow."""

    class Stays(Shared):
        def start_callback(self) -> None:
            asyncio.get_running_loop().call_later(1.5, self.stop)

    for _ in range(2):
        began = time.monotonic()
        crawler = run(Stays, client, {"SPIDER_KEEP_ALIVE": True}, seeds=[site.url("/page/1")])

        assert len(rows(crawler)) == 1
        assert reason(crawler) == "stopped"
        assert time.monotonic() - began >= 1.4


def test_one_run_after_the_other(site: Any, client: Any) -> None:
    """start() twice in one process: the second is a run of its own, at once."""
    port = client.connection_pool.connection_kwargs["port"]

    class Twice(Shared):
        __custom_setting__ = {**MEMORY, "REDIS_URL": f"redis://127.0.0.1:{port}/0"}

    for _ in range(2):
        Twice(seeds=[site.url("/page/1")]).start()

    assert site.hits("/page/1") == 2


def test_another_scheduler(site: Any, client: Any) -> None:
    """A Spider in a project with a scheduler of its own says that it shares nothing."""
    crawler = run(Shared, client, {"SCHEDULER": "scrapy.core.scheduler.Scheduler"}, seeds=["x"])

    assert "does not share its work" in str(crawler.spider.netspy_start_error)


def test_the_dump_is_left_alone(site: Any, client: Any) -> None:
    """A stop leaves what was not done in Redis, not in the dump."""

    class Stops(Family):
        def parse(self, response: Any) -> Any:
            yield from super().parse(response)
            raise CloseSpider("enough")

    crawler = run(Stops, client, urls=(site.url("/page/1"),))

    assert reason(crawler) == "enough"
    assert client.hlen("netspy:{family}:queue:tasks") >= 1
    assert client.zcard("netspy:{family}:queue:leases") == 0
    assert not Path("failed_requests.jsonl").exists()


def test_an_answer_that_is_old_by_now(site: Any, client: Any) -> None:
    """That the queue was empty before a request was pushed does not end the crawl after it."""

    class Stale(Family):
        async def start(self) -> Any:
            yield scrapy.Request(site.url("/page/1"))
            scheduler = _scrapy.scheduler_of(self.crawler)
            scheduler.handed(Handed(scheduler.queue.epoch, total=0))
            scheduler._exchange._ask_from = time.monotonic() + 0.5

    crawler = run(Stale, client)

    assert len(rows(crawler)) == 2
