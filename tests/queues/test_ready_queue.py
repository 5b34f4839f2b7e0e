from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.squeues import (
    FifoMemoryQueue,
    LifoMemoryQueue,
    PickleFifoDiskQueue,
    PickleLifoDiskQueue,
)
from scrapy.utils.reactor import is_reactor_installed

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.scheduling.queue import ReadyQueue

A, B, C = "a.example", "b.example", "c.example"
QUEUES = {"fifo": (FifoMemoryQueue, PickleFifoDiskQueue), "lifo": (LifoMemoryQueue, PickleLifoDiskQueue)}


class Plain(Spider):
    name = "plain"

    def page(self, response: Any) -> None:
        """Handle a page."""


class World:
    """What a queue sees of a crawl, with a clock to set: *due* is when the engine is woken."""

    def __init__(self, folder: Path | str = "", *, order: str = "fifo", **settings: Any) -> None:
        crawler = Crawler(
            Plain,
            {
                "TWISTED_REACTOR": None,
                "TWISTED_REACTOR_ENABLED": is_reactor_installed(),
                "TELNETCONSOLE_ENABLED": False,
                "CONCURRENT_REQUESTS_PER_DOMAIN": 0,
                "DOWNLOAD_DELAY_JITTER": 0,
                **settings,
            },
        )
        crawler._apply_settings()
        crawler.spider = crawler._create_spider()
        self.crawler = crawler
        self.folder = str(folder)
        self.memory_class, self.disk_class = QUEUES[order]
        self.now = 1000.0
        self.begin()

    def begin(self) -> None:
        """Begin a crawl, with nothing known of any domain."""
        self.crawler.__dict__.pop("_netspy_context", None)
        self.due: float | None = None
        self.politeness = CrawlContext.of(self.crawler).politeness
        self.politeness.parked = self._parked
        self.registry = self.politeness.registry
        self.registry.clock = lambda: self.now
        self.registry.uniform = random.Random(0).uniform
        if self.politeness.robots is not None:
            self.politeness.robots._clock = self.registry.clock

    def _parked(self, ready: float) -> None:
        assert ready > self.now
        self.due = ready if self.due is None else min(self.due, ready)

    def memory(self) -> ReadyQueue:
        return ReadyQueue.from_crawler(self.crawler, self.memory_class, "")

    def disk(self, state: Any = None) -> ReadyQueue:
        return ReadyQueue.from_crawler(self.crawler, self.disk_class, self.folder, state)

    def request(self, url: str, **keywords: Any) -> Request:
        """Return a request as the scheduler pushes it."""
        request = Request(f"http://{url}", **keywords)
        self.politeness.assign(request)
        return request

    def fill(self, queue: ReadyQueue, *urls: str, **keywords: Any) -> None:
        for url in urls:
            queue.push(self.request(url, **keywords))

    def done(self, request: Request, result: Any = None) -> None:
        """Let the downloader be through with *request*."""
        self.politeness._done(request, Response(request.url) if result is None else result)

    def sleep(self) -> None:
        """Let the engine sleep until it is woken."""
        assert self.due is not None
        self.now, self.due = self.due, None

    def may_go(self, domain: str) -> bool:
        state = self.registry.get(domain)
        return (
            state.ready_at <= self.now and not state.is_full and domain not in self.politeness.held
        )


def place(request: Request | None) -> str:
    """Return host and path of a request."""
    return "" if request is None else request.url.removeprefix("http://")


def pops(queue: ReadyQueue, count: int = 1000) -> list[str]:
    """Return what comes out of *queue* until nothing may go."""
    found = []
    while len(found) < count and (request := queue.pop()) is not None:
        found.append(place(request))
    return found


# Turns and order ---------------------------------------------------------------------------------
def test_domains_take_turns():
    """Each domain that may go gets its turn, however many requests another has."""
    here = World()
    queue = here.memory()
    here.fill(queue, *(f"{A}/{n}" for n in range(4)), f"{B}/1", f"{C}/1", f"{C}/2")

    assert len(queue) == 7
    assert pops(queue) == [
        f"{A}/0", f"{B}/1", f"{C}/1", f"{A}/1", f"{C}/2", f"{A}/2", f"{A}/3",
    ]  # fmt: skip
    assert len(queue) == 0


def test_a_newcomer_waits_one_round():
    """A domain that comes along later is not behind all that others have queued."""
    here = World()
    queue = here.memory()
    here.fill(queue, *(f"{domain}/{n}" for domain in (A, B) for n in range(100)))
    pops(queue, 7)
    here.fill(queue, f"{C}/1")

    assert f"{C}/1" in pops(queue, 3)


@pytest.mark.parametrize(("order", "second"), [("fifo", "12"), ("lifo", "21")])
def test_priorities_hold_inside_a_domain(order, second):
    """The highest priority of a domain goes first, and no priority beats another domain's turn."""
    here = World(order=order)
    queue = here.memory()
    here.fill(queue, f"{A}/low", priority=-1)
    here.fill(queue, f"{A}/1", f"{A}/2", f"{B}/1")
    here.fill(queue, f"{A}/high", priority=300)

    assert pops(queue) == [f"{A}/high", f"{B}/1", *(f"{A}/{n}" for n in second), f"{A}/low"]


def test_start_requests_have_their_own_queue():
    """The queue for start requests (SCHEDULER_START_MEMORY_QUEUE) is passed on."""
    here = World(order="lifo")
    queue = ReadyQueue.from_crawler(
        here.crawler, LifoMemoryQueue, "", None, start_queue_cls=FifoMemoryQueue
    )
    here.fill(queue, f"{A}/s1", f"{A}/s2", meta={"is_start_request": True})
    here.fill(queue, f"{A}/1", f"{A}/2")

    assert pops(queue) == [f"{A}/2", f"{A}/1", f"{A}/s1", f"{A}/s2"]


def test_peek_promises_nothing():
    """What is next depends on when it is asked, so peek says nothing and takes nothing."""
    here = World()
    queue = here.memory()
    here.fill(queue, f"{A}/1")

    assert queue.peek() is None
    assert len(queue) == 1


# What may go -------------------------------------------------------------------------------------
def test_a_resting_domain_waits_alone():
    """A domain that rests gives nothing, others go on, and the engine is woken at its end."""
    here = World()
    queue = here.memory()
    here.fill(queue, f"{A}/1", f"{A}/2", f"{B}/1")
    here.registry.rest(here.registry.get(A), 30, "cause")
    while_resting = pops(queue)
    here.now += 29.9
    nearly = pops(queue)
    here.sleep()

    assert (while_resting, nearly, here.now) == ([f"{B}/1"], [], 1030.0)
    assert len(queue) == 2
    assert pops(queue) == [f"{A}/1"]
    # The other is spread out.
    assert here.due == 1030.05


def test_a_rest_that_grows_counts():
    """A rest that grows while the domain is parked holds it back until the later end."""
    here = World()
    queue = here.memory()
    here.fill(queue, f"{A}/1")
    here.registry.rest(here.registry.get(A), 10, "cause")
    pops(queue)
    here.registry.rest(here.registry.get(A), 50, "cause")
    here.sleep()
    early = (here.now, pops(queue))
    here.sleep()

    assert early == (1010, [])
    assert (here.now, pops(queue)) == (1050, [f"{A}/1"])


def test_the_earliest_of_many_wakes_the_engine():
    """Of a hundred domains that rest, the one that is ready first says when to ask again."""
    here = World()
    queue = here.memory()
    for n in range(100):
        here.fill(queue, f"{n}.example/")
        here.registry.rest(here.registry.get(f"{n}.example"), 50 + (n * 37) % 100, "cause")
    woken = []
    while len(queue):
        assert queue.pop() is None
        here.sleep()
        woken.append((here.now - 1000, pops(queue)))

    assert woken == [(50 + (n * 37) % 100, [f"{n}.example/"]) for n in sorted(
        range(100), key=lambda n: (n * 37) % 100)]  # fmt: skip


def test_a_delay_parks_the_domain():
    """A domain with a delay gives one request at a time, at the very moment it may go."""
    here = World(DOWNLOAD_DELAY=2)
    queue = here.memory()
    here.fill(queue, *(f"{domain}/{n}" for n in range(3) for domain in (A, B)))
    came = []
    while len(queue):
        came.append((here.now - 1000, pops(queue)))
        if len(queue):
            here.sleep()

    assert came == [(2 * n, [f"{A}/{n}", f"{B}/{n}"]) for n in range(3)]


def test_a_full_domain_goes_on_when_one_is_done():
    """A full domain needs no timer: the end of one of its requests brings the next."""
    here = World(CONCURRENT_REQUESTS_PER_DOMAIN=2)
    queue = here.memory()
    here.fill(queue, *(f"{A}/{n}" for n in range(5)), f"{B}/0")
    first = queue.pop()

    assert pops(queue) == [f"{B}/0", f"{A}/1"]
    assert here.due is None
    here.done(first)
    assert pops(queue) == [f"{A}/2"]


def test_two_queues_share_the_limits():
    """Concurrency, delay and rests hold for the memory and the disk queue together."""
    policies = {A: {"concurrency": 2}, B: {"delay": 5}, C: {}}
    here = World("job", NETSPY_DOMAIN_POLICIES=policies)
    memory, disk = here.memory(), here.disk()
    for queue, name in ((memory, "m"), (disk, "d")):
        here.fill(queue, *(f"{domain}/{name}{n}" for domain in (A, B, C) for n in range(2)))
    here.registry.rest(here.registry.get(C), 60, "cause")
    first = memory.pop()

    assert place(first) == f"{A}/m0"
    assert pops(disk) == [f"{A}/d0", f"{B}/d0"]
    assert pops(memory) == []
    assert here.due == 1005
    here.done(first)
    assert pops(disk) == [f"{A}/d1"]
    here.now += 5
    assert pops(memory) == [f"{B}/m0"]
    assert pops(disk) == []


def test_a_wish_of_the_site_at_the_last_moment():
    """A Crawl-delay that is learned while requests are queued counts from the next one on."""
    here = World()
    queue = here.memory()
    here.fill(queue, *(f"{A}/{n}" for n in range(3)))
    queue.pop()
    here.registry.set_crawl_delay(here.registry.get(A), 10)

    assert pops(queue) == [f"{A}/1"]
    assert here.due == 1010


def test_the_engine_is_woken_at_the_earliest_wish():
    """Politeness keeps one timer, for the earliest of all times it was told."""
    here = World()
    woken = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        here.registry.clock = loop.time
        del here.politeness.parked
        begin = loop.time()
        for seconds in (0.3, 0.05, 0.1):
            here.politeness.parked(begin + seconds)
        handle = here.politeness._timer
        await asyncio.sleep(0.15)

        assert handle.when() == pytest.approx(begin + 0.05, abs=0.001)
        assert here.politeness._timer is None
        here.politeness.parked(loop.time() + 9)
        handle = here.politeness._timer
        here.politeness._spider_closed()
        assert handle.cancelled()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_scrapy, "wake", lambda crawler: woken.append(crawler))
        asyncio.run(run())

    assert woken == [here.crawler]


# robots.txt --------------------------------------------------------------------------------------
OBEY = {"ROBOTSTXT_OBEY": True}


def robots_of(here: World, queue: ReadyQueue, domain: str) -> Request:
    """Take out the robots.txt request that must come next."""
    request = queue.pop()
    assert place(request) == f"{domain}/robots.txt"
    assert request.meta[metakeys.ROBOTS] == f"http://{domain}"
    return request


def answer(here: World, request: Request, body: bytes = b"", *, status: int = 200) -> None:
    response = Response(request.url, body=body, status=status)
    here.politeness.learn_robots(request.meta[metakeys.ROBOTS], response)
    here.done(request)


def test_robots_txt_goes_first():
    """The first request of an origin is held back with all others of its domain, in order."""
    here = World(**OBEY)
    queue = here.memory()
    here.fill(queue, f"{A}/1", f"{A}/2", f"{B}/1")
    robots = robots_of(here, queue, A)

    assert len(queue) == 3
    assert pops(queue) == [f"{B}/robots.txt"]
    assert len(queue) == 3
    answer(here, robots, b"User-agent: *\nCrawl-delay: 7\n")
    assert pops(queue) == [f"{A}/1"]
    here.sleep()
    assert (here.now, pops(queue)) == (1007, [f"{A}/2"])


def test_robots_txt_is_asked_for_once_by_two_queues():
    """Requests of one domain in memory and on disk wait for the same robots.txt."""
    here = World("job", **OBEY)
    memory, disk = here.memory(), here.disk()
    here.fill(memory, f"{A}/m")
    here.fill(disk, f"{A}/d")
    robots = robots_of(here, disk, A)
    waiting = (pops(memory), pops(disk), len(memory), len(disk))
    answer(here, robots, status=503)

    assert waiting == ([], [], 1, 1)
    assert pops(disk) == [f"{A}/d"]
    assert pops(memory) == [f"{A}/m"]


@pytest.mark.parametrize("result", [Response("http://a.example/x"), ValueError("refused")])
def test_a_robots_txt_that_others_refuse_holds_up_nobody(result):
    """Whatever a middleware made of the request for robots.txt, its domain goes on afterwards."""
    here = World(**OBEY)
    queue = here.memory()
    here.fill(queue, f"{A}/1", f"{A}/2")
    here.done(robots_of(here, queue, A), result)

    assert pops(queue) == [f"{A}/1", f"{A}/2"]


def test_a_redirect_of_robots_txt_goes_before_all_others():
    """A redirected robots.txt is ahead of every queue, and keeps to its new domain's rest."""
    here = World(**OBEY)
    queue = here.memory()
    here.fill(queue, *(f"{domain}/{n}" for n in range(2) for domain in (A, C)))
    robots = robots_of(here, queue, A)
    elsewhere = here.request(f"{B}/rules", meta=robots.meta)
    here.done(robots, elsewhere)
    here.registry.rest(here.registry.get(B), 20, "cause")
    queue.push(elsewhere)
    resting = (pops(queue), len(queue), here.due)
    here.now += 20
    redirected = queue.pop()

    assert resting == ([f"{C}/robots.txt"], 5, 1020)
    assert redirected is elsewhere
    assert len(queue) == 4
    assert here.registry.get(B).in_flight == 1
    answer(here, redirected, b"User-agent: *\nCrawl-delay: 3\n")
    assert pops(queue) == [f"{A}/0"]
    assert here.registry.get(A).crawl_delay == 3


def test_rules_that_expire_while_a_page_waits():
    """A page whose robots.txt expired before its turn goes, rather than ask for it for ever."""
    settings = {**OBEY, "ROBOTS_CACHE_TTL": 1, "DOWNLOAD_DELAY": 5}
    here = World(**settings)
    queue = here.memory()
    here.fill(queue, f"{A}/1", f"{A}/2")
    came = []
    for _ in range(4):
        request = queue.pop()
        came.append(place(request))
        if metakeys.ROBOTS in request.meta:
            answer(here, request)
        here.now += 5

    assert came == [f"{A}/robots.txt", f"{A}/1", f"{A}/robots.txt", f"{A}/2"]
    assert len(queue) == 0


# Job directories ---------------------------------------------------------------------------------
def reopened(here: World, queue: ReadyQueue) -> ReadyQueue:
    """Close *queue*, and begin another crawl with the job that it left."""
    state = json.loads(json.dumps(queue.close()))
    assert len(queue) == 0
    here.begin()
    return here.disk(state)


@pytest.mark.parametrize(("order", "tens"), [("fifo", "123"), ("lifo", "321")])
def test_a_job_goes_on(order, tens):
    """What a job directory holds comes out in the next run, in its order, priorities kept."""
    here = World("job", order=order)
    queue = here.disk()
    here.fill(queue, f"{A}/1", f"{A}/2", f"{A}/3")
    here.fill(queue, f"{A}/high", priority=5)
    here.fill(queue, f"{B}:8080/x", "host_with-chars.example/é", "[::1]:80/x")
    here.registry.rest(here.registry.get(A), 1000, "cause")
    queue = reopened(here, queue)

    assert len(queue) == 7
    assert sorted(pops(queue, 4)) == sorted(
        [f"{A}/high", f"{B}:8080/x", "host_with-chars.example/%C3%A9", "[::1]:80/x"]
    )
    assert pops(queue) == [f"{A}/{n}" for n in tens]
    assert reopened(here, queue).pop() is None
    assert list(Path("job").iterdir()) == []


def test_a_page_that_waits_for_robots_txt_stays_in_the_job():
    """A stop while robots.txt is under way keeps the page that waits, and not robots.txt."""
    here = World("job", order="lifo", **OBEY)
    queue = here.disk()
    here.fill(queue, f"{A}/1", f"{A}/2")
    elsewhere = here.request(f"{B}/rules", meta=robots_of(here, queue, A).meta)
    queue.push(elsewhere)
    queue = reopened(here, queue)
    robots = robots_of(here, queue, A)
    answer(here, robots)

    assert pops(queue) == [f"{A}/2", f"{A}/1"]


def test_a_job_of_another_queue_is_refused():
    """A job whose state is no dict by domain names JOBDIR in its error."""
    here = World("job", JOBDIR="job")
    other = ScrapyPriorityQueue.from_crawler(here.crawler, PickleLifoDiskQueue, "job")
    other.push(here.request(f"{A}/1"))

    with pytest.raises(ConfigError, match="JOBDIR = 'job' cannot be used"):
        here.disk(other.close())


@pytest.mark.parametrize("settings", [{}, OBEY])
def test_a_job_of_scrapys_own_queue_goes_on(settings):
    """Requests that Scrapy wrote by host name, without our meta, come out and obey robots.txt."""
    here = World("job", **settings)
    theirs = ScrapyPriorityQueue.from_crawler(
        here.crawler, PickleFifoDiskQueue, f"job/{_scrapy.queue_folder(A)}"
    )
    for n in range(3):
        theirs.push(Request(f"http://{A}:8080/{n}", meta={"download_slot": A}))
    queue = here.disk({A: theirs.close()})
    came = []
    while (request := queue.pop()) is not None:
        came.append(place(request))
        if metakeys.ROBOTS in request.meta:
            answer(here, request)

    assert came == [f"{A}:8080/robots.txt"] * bool(settings) + [f"{A}:8080/{n}" for n in range(3)]


def test_what_a_disk_queue_cannot_take():
    """A request that cannot be written raises, and leaves queue, length and folder as they were."""
    here = World("job")
    queue = here.disk()
    here.fill(queue, f"{A}/1")
    for url in (f"{A}/2", f"{B}/1"):
        with pytest.raises(ValueError, match="is not an instance method|local object"):
            here.fill(queue, url, callback=lambda _response: None)

    assert len(queue) == 1
    assert (B in queue, len(list(Path("job").iterdir()))) == (False, 1)
    assert pops(queue) == [f"{A}/1"]


@pytest.mark.parametrize("order", ["fifo", "lifo"])
@pytest.mark.parametrize("gone", [{0}, {1}, {0, 1}, {3}, {2, 3, 4}, {0, 1, 2, 3, 4}])
def test_requests_that_cannot_be_read_stop_no_other(order, gone, caplog):
    """A request whose callback is gone is reported and lost; the others of its domain come out."""
    here = World("job", order=order)
    queue = here.disk()
    for n in range(5):
        callback = here.crawler.spider.page if n in gone else None
        here.fill(queue, f"{A}/{n}", callback=callback, priority=n // 2)
    here.fill(queue, f"{B}/1")
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Plain, "page")
        queue = reopened(here, queue)
        came = pops(queue)

    assert sorted(came) == [f"{A}/{n}" for n in range(5) if n not in gone] + [f"{B}/1"]
    assert len(queue) == 0
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == len(gone)
    assert all(f"A request of {A} cannot be read from the job directory" in one for one in lines)


@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_a_broken_file_ends_in_a_report(order, caplog):
    """A queue file that breaks off costs its domain, and no other; the length stays exact."""
    here = World("job", order=order)
    queue = here.disk()
    here.fill(queue, *(f"{A}/{n}" for n in range(3)))
    here.fill(queue, f"{B}/1")
    state = queue.close()
    (broken,) = Path("job").glob(f"{A}-*/0{'/q*' if order == 'fifo' else ''}")
    broken.write_bytes(broken.read_bytes()[:4])
    here.begin()
    queue = here.disk(state)

    assert pops(queue) == [f"{B}/1"]
    assert len(queue) == 0
    assert A not in queue


def test_a_request_before_its_time_is_not_counted():
    """A delayed request that comes out of a job directory early takes no place and no delay."""
    here = World("job", CONCURRENT_REQUESTS_PER_DOMAIN=1, DOWNLOAD_DELAY=5)
    queue = here.disk()
    for n in range(5):
        here.fill(queue, f"{A}/{n}", meta={metakeys.NOT_BEFORE: time.time() + 100 * (n < 3)})
    here.fill(queue, f"{A}/5")
    early = pops(queue)
    in_flight = here.registry.get(A).in_flight

    assert early == [f"{A}/0", f"{A}/1", f"{A}/2", f"{A}/3"]
    assert in_flight == 1
    assert len(queue) == 2


# The end -----------------------------------------------------------------------------------------
def test_everything_can_be_taken_out():
    """At the end all requests come out, resting, full or waiting, but not robots.txt itself."""
    policies = {A: {"robots": True}, B: {"concurrency": 2}}
    here = World(NETSPY_DOMAIN_POLICIES=policies)
    queue = here.memory()
    here.fill(queue, *(f"{domain}/{n}" for domain in (A, B, C) for n in range(2)), priority=1)
    here.fill(queue, f"{A}/2")
    here.registry.rest(here.registry.get(C), 60, "cause")
    robots = robots_of(here, queue, A)
    queue.push(here.request(f"{B}/rules", meta=robots.meta))
    first = [place(queue.pop()) for _ in range(2)]
    robots = here.request(f"{C}/rules", meta=robots.meta)
    queue.push(robots)
    queued = len(queue)
    left = sorted(place(one) for one in queue.drain())

    assert first == [f"{B}/rules", f"{B}/0"]
    assert queued == 7
    assert left == [f"{A}/0", f"{A}/1", f"{A}/2", f"{B}/1", f"{C}/0", f"{C}/1"]
    assert len(queue) == 0
    assert queue.pop() is None


# Cost --------------------------------------------------------------------------------------------
def calls_of(function: Any) -> tuple[int, Any]:
    """Return how many functions, of Python and of C, *function* calls, and what it returns."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return count, result


@pytest.mark.parametrize("resting", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("delay", [0, 5])
def test_the_cost_of_a_pop_does_not_depend_on_the_number_of_domains(resting, delay):
    """A pop costs as much among 5,000 domains as among 100, however many of them rest."""
    counts = []
    for domains in (100, 5000):
        here = World(DOWNLOAD_DELAY=delay)
        queue = here.memory()
        for n in range(domains):
            here.fill(queue, f"{n}.example/1", f"{n}.example/2")
            if n < domains * resting:
                here.registry.get(f"{n}.example").rest_until = here.now + 60
        # The first goes past those that rest, once.
        first = pops(queue, 1)
        calls, came = calls_of(lambda queue=queue: pops(queue, 9))
        counts.append(calls)

        assert len(set(first + came)) == 10

    assert counts[1] < 1.3 * counts[0]


# Any order of events -----------------------------------------------------------------------------
POLICIES: dict[str, dict[str, Any]] = {
    A: {},
    B: {"concurrency": 1},
    C: {"delay": 2.0, "jitter": 0.5, "concurrency": 2},
    "ill.example:8080": {"circuit_threshold": 2, "circuit_cooldown": 10.0, "concurrency": 3},
    "robots.example": {"robots": True, "concurrency": 2},
    "slow.example": {"robots": True, "delay": 6.0},
}
#: Less than a delay, so that rules expire while pages wait.
TTL = 5.0
NONE = 0.0

domains = st.sampled_from(list(POLICIES))
names = st.sampled_from(["memory", "disk"])
seconds = st.sampled_from([0.5, 1.0, 3.0, 10.0])


class Domain:
    """What is known of a domain from what happened to it, without asking the registry."""

    def __init__(self, name: str) -> None:
        policy = POLICIES[name]
        self.delay = policy.get("delay", NONE) * (1 - policy.get("jitter", NONE))
        self.limit = policy.get("concurrency", 0)
        self.threshold = policy.get("circuit_threshold", 0)
        self.cooldown = policy.get("circuit_cooldown", NONE)
        self.rest_until = self.open_until = self.next_start = self.crawl_delay = NONE
        self.failures = 0
        self.in_flight = 0
        self.probing = False
        self.held = False

    def start(self, now: float) -> None:
        limit = 1 if self.probing else self.limit
        assert now >= self.rest_until, "handed out while the domain rests"
        assert now >= self.next_start - 1e-6, "handed out before the delay has passed"
        assert not limit or self.in_flight < limit, "handed out to a full domain"
        self.in_flight += 1
        self.next_start = now + max(self.delay, self.crawl_delay)

    def fail(self, now: float) -> None:
        if now < self.open_until:
            return
        self.failures += 1
        if self.threshold and (self.failures >= self.threshold or self.probing):
            self.failures = 0
            self.probing = True
            self.open_until = now + self.cooldown
            self.rest_until = max(self.rest_until, self.open_until)

    def succeed(self, now: float) -> None:
        if now >= self.open_until:
            self.failures = 0
            self.probing = False


class Crawl(RuleBasedStateMachine):
    """Two queues of one crawl, and what must be true of them whatever happens."""

    order = "fifo"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(_scrapy, "wake", self.woken)
        self.here = World(
            Path(self.folder.name, "job"), order=self.order, NETSPY_DOMAIN_POLICIES=POLICIES,
            NETSPY_CIRCUIT_HALF_OPEN=True, ROBOTS_CACHE_TTL=TTL,
        )  # fmt: skip
        self.pushed = 0
        self.came: Counter[str] = Counter()
        self.waiting: dict[tuple[str, str], dict[int, list[str]]] = {}
        self.first: dict[tuple[str, str], str] = {}
        """What waits for its robots.txt, and so is next."""
        self.begin(None)

    def begin(self, state: Any) -> None:
        self.here.begin()
        self.queues = {"memory": self.here.memory(), "disk": self.here.disk(state)}
        self.domains = {name: Domain(name) for name in POLICIES}
        self.flying: list[tuple[Request, str]] = []
        self.urgent: list[Request] = []
        self.passed: Counter[tuple[str, str]] = Counter()
        self.awake = True

    def woken(self, crawler: Any) -> None:
        self.awake = True

    def teardown(self) -> None:
        try:
            self.everything_comes_out()
        finally:
            self.patch.undo()
            self.folder.cleanup()

    # What the queues hold ------------------------------------------------------------------------
    def queued(self, name: str, domain: str) -> bool:
        return (name, domain) in self.first or any(self.waiting.get((name, domain), {}).values())

    def left(self, name: str) -> list[str]:
        return [
            *(one for (where, _), one in self.first.items() if where == name),
            *(
                one
                for (where, _), levels in self.waiting.items()
                if where == name
                for level in levels.values()
                for one in level
            ),
        ]

    def take(self, name: str, domain: str) -> str:
        """Take out what must be next of a domain."""
        if (name, domain) in self.first:
            return self.first.pop((name, domain))
        levels = self.waiting[name, domain]
        priority = max(level for level, ones in levels.items() if ones)
        return levels[priority].pop(0 if self.order == "fifo" else -1)

    # What happens --------------------------------------------------------------------------------
    @rule(domain=domains, name=names, priority=st.integers(-1, 1), count=st.integers(1, 4))
    def push(self, domain: str, name: str, priority: int, count: int) -> None:
        for _ in range(count):
            self.pushed += 1
            url = f"{domain}/{priority}/{self.pushed}"
            self.here.fill(self.queues[name], url, priority=priority)
            self.waiting.setdefault((name, domain), {}).setdefault(priority, []).append(url)
        self.awake = True

    @rule(name=names)
    def pop(self, name: str) -> None:
        self.comes_out(name)

    def comes_out(self, name: str) -> bool:
        here = self.here
        ready = [one for one in POLICIES if self.queued(name, one) and here.may_go(one)]
        urgent = [one for one in self.urgent if here.may_go(one.meta[metakeys.DOMAIN])]
        request = self.queues[name].pop()
        if request is None:
            assert not ready, f"nothing came although {ready} may go"
            assert not urgent or name == "disk"
            return False
        domain = request.meta[metakeys.DOMAIN]
        self.domains[domain].start(here.now)
        self.flying.append((request, name))
        if request in self.urgent:
            self.urgent.remove(request)
            return True
        assert domain in ready
        assert not self.domains[domain].held
        if metakeys.ROBOTS in request.meta:
            assert (name, domain) not in self.first
            self.domains[domain].held = True
            self.first[name, domain] = self.take(name, domain)
        else:
            expected = self.take(name, domain)
            assert place(request) == expected
            self.came[expected] += 1
        self.no_domain_starves(name, domain, ready)
        return True

    def no_domain_starves(self, name: str, went: str, ready: list[str]) -> None:
        for domain in POLICIES:
            if domain in ready and domain != went:
                self.passed[name, domain] += 1
                assert self.passed[name, domain] < len(POLICIES), f"{domain} starves"
            else:
                self.passed[name, domain] = 0

    @rule()
    def turn_of_the_engine(self) -> None:
        """Take out whatever may go, from memory first, as the scheduler does."""
        while self.comes_out("memory") or self.comes_out("disk"):
            pass
        self.awake = False

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), how=st.sampled_from(["rules", "delay", "error", "refused", "redirect"]))
    def finish(self, data: Any, how: str) -> None:
        self.end(data.draw(st.integers(0, len(self.flying) - 1)), how)

    def end(self, number: int, how: str = "rules") -> None:
        here = self.here
        request, name = self.flying.pop(number)
        domain = request.meta[metakeys.DOMAIN]
        self.domains[domain].in_flight -= 1
        origin = request.meta.get(metakeys.ROBOTS)
        if origin is None:
            here.done(request)
            return
        if how == "redirect":
            moved = here.request(f"{B}/rules", meta=request.meta)
            here.done(request, moved)
            self.queues["memory"].push(moved)
            self.urgent.append(moved)
            self.awake = True
            return
        waits = self.domains[request.meta[metakeys.HOLDS]]
        waits.held = False
        if how == "refused":
            here.done(request, ValueError("refused"))
        else:
            body = b"User-agent: *\nCrawl-delay: 3\n" if how == "delay" else b""
            answer(here, request, body, status=503 if how == "error" else 200)
        waits.crawl_delay = 3.0 if how == "delay" else NONE

    @rule(domain=domains, seconds=seconds)
    def rest(self, domain: str, seconds: float) -> None:
        self.here.registry.rest(self.here.registry.get(domain), seconds, "cause")
        one = self.domains[domain]
        one.rest_until = max(one.rest_until, self.here.now + seconds)

    @rule(domain=domains, healthy=st.booleans())
    def outcome(self, domain: str, healthy: bool) -> None:
        state = self.here.registry.get(domain)
        if healthy:
            self.here.registry.succeeded(state)
            self.domains[domain].succeed(self.here.now)
        else:
            self.here.registry.failed(state)
            self.domains[domain].fail(self.here.now)

    @rule(seconds=seconds)
    def time_passes(self, seconds: float) -> None:
        self.here.now += seconds
        if self.here.due is not None and self.here.due <= self.here.now:
            self.here.due = None
            self.awake = True

    @rule()
    def stop_and_go_on(self) -> None:
        """End the crawl once nothing is in flight; the job directory goes on in another."""
        while self.flying:
            self.end(0)
        drained = sorted(place(one) for one in self.queues["memory"].drain())
        assert drained == sorted(self.left("memory"))
        self.came.update(drained)
        for (name, domain), url in self.first.items():
            if name == "disk":  # it is put back behind those of its priority
                priority = int(url.split("/")[1])
                self.waiting[name, domain].setdefault(priority, []).append(url)
        self.first.clear()
        self.waiting = {key: levels for key, levels in self.waiting.items() if key[0] == "disk"}
        state = json.loads(json.dumps(self.queues["disk"].close()))
        assert set(state) == {domain for (_, domain), levels in self.waiting.items() if any(levels.values())}
        self.begin(state)

    def everything_comes_out(self) -> None:
        """Run until all is done: nothing is lost, nothing comes twice, and it ends."""
        for _ in range(20 * (self.pushed + 10)):
            if not (self.flying or self.urgent or self.left("memory") or self.left("disk")):
                break
            self.turn_of_the_engine()
            self.nothing_is_slept_past()
            if self.flying:
                while self.flying:
                    self.end(0)
            elif self.here.due is not None:
                self.here.sleep()
        assert all(count == 1 for count in self.came.values())
        assert len(self.came) == self.pushed

    # What is always true -------------------------------------------------------------------------
    @invariant()
    def the_length_is_exact(self) -> None:
        urgent = len(self.urgent)
        assert len(self.queues["memory"]) == len(self.left("memory")) + urgent
        assert len(self.queues["disk"]) == len(self.left("disk"))
        for name, queue in self.queues.items():
            assert all((domain in queue) == self.queued(name, domain) for domain in POLICIES)

    @invariant()
    def nothing_is_slept_past(self) -> None:
        """While the engine sleeps nothing may go, and it is woken before anything may."""
        if self.awake:
            return
        here = self.here
        waiting = {domain for name in self.queues for domain in POLICIES if self.queued(name, domain)}
        waiting -= here.politeness.held
        for domain in waiting | {one.meta[metakeys.DOMAIN] for one in self.urgent}:
            state = here.registry.get(domain)
            if not state.is_full:
                assert state.ready_at > here.now, f"{domain} may go, and nobody asks"
                assert here.due is not None, f"nobody is woken for {domain}"
                assert here.due <= state.ready_at, f"woken too late for {domain}"


class LifoCrawl(Crawl):
    order = "lifo"


@pytest.mark.parametrize("crawl", [Crawl, LifoCrawl])
def test_any_order_of_events(crawl):
    """Nothing is lost, handed out twice or early, starved, out of order, or slept past."""
    run_state_machine_as_test(
        crawl,
        settings=hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None),
    )
