from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.squeues import (
    FifoMemoryQueue,
    LifoMemoryQueue,
    PickleFifoDiskQueue,
    PickleLifoDiskQueue,
)
from twisted.python.failure import Failure

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.scheduling.queue import ReadyQueue
from tests.queues.world import A, B, C, Plain, World, answer, in_a_loop, place, pops


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
        patch.setattr(_scrapy, "wake", woken.append)
        in_a_loop(run())

    assert woken == [here.crawler]


# robots.txt --------------------------------------------------------------------------------------
OBEY = {"ROBOTSTXT_OBEY": True}


def robots_of(here: World, queue: ReadyQueue, domain: str) -> Request:
    """Take out the robots.txt request that must come next."""
    request = queue.pop()
    assert place(request) == f"{domain}/robots.txt"
    assert request.meta[metakeys.ROBOTS] == f"http://{domain}"
    return request


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


@pytest.mark.parametrize("result", [Response("http://a.example/x"), Failure(ValueError("refused"))])
def test_a_robots_txt_that_others_refuse_holds_up_nobody(result):
    """Whatever a middleware made of the request for robots.txt, its domain goes on afterwards."""
    here = World(**OBEY)
    queue = here.memory()
    here.fill(queue, f"{A}/1", f"{A}/2")
    here.done(robots_of(here, queue, A), result)

    assert pops(queue) == [f"{A}/1", f"{A}/2"]


def test_a_redirect_of_robots_txt_that_is_refused():
    """A redirect that never reaches the queue is as good as a robots.txt that cannot be read."""
    here = World(**OBEY)
    queue = here.memory()
    here.fill(queue, f"{A}/1", f"{A}/2")
    here.moved(robots_of(here, queue, A), f"{B}/rules", None)

    assert pops(queue) == [f"{A}/1", f"{A}/2"]
    assert here.crawler.stats.get_value("netspy/robots/errors") == 1


def test_a_redirect_of_robots_txt_goes_before_all_others():
    """A redirected robots.txt is ahead of every queue, and keeps to its new domain's rest."""
    here = World(**OBEY)
    queue = here.memory()
    here.fill(queue, *(f"{domain}/{n}" for n in range(2) for domain in (A, C)))
    robots = robots_of(here, queue, A)
    elsewhere = here.moved(robots, f"{B}/rules", queue)
    here.registry.rest(here.registry.get(B), 20, "cause")
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
        with pytest.raises(ValueError, match=r"is not an instance method|local object"):
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
    queue.push(here.request("free.example/rules", meta=robots.meta))
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


def test_the_cost_of_a_redirected_robots_txt_does_not_depend_on_the_number_of_domains():
    """A redirect of robots.txt costs as much when 1,000 others wait redirected as when 20 do."""
    counts = []
    for domains in (20, 1000):
        here = World(**OBEY)
        queue = here.memory()
        for n in range(domains):
            here.fill(queue, f"{n}.example/1")
        robots = [queue.pop() for _ in range(domains)]
        last = robots.pop()
        for n, one in enumerate(robots):
            here.moved(one, f"www.{n}.example/rules", queue)
        calls, _ = calls_of(
            lambda here=here, last=last, queue=queue: here.moved(last, f"{A}/rules", queue)
        )
        counts.append(calls)

    assert counts[1] < 1.3 * counts[0]
