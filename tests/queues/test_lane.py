"""The lane of the ReadyQueue: requests that the response cache may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from netspy_scrapy import meta as metakeys
from tests.queues.world import A, B, World, place, pops


class Has:
    """Stands for the cache: it may have what is in ``paths``."""

    def __init__(self, *paths: str) -> None:
        self.paths = set(paths)

    def may_have(self, request: Request) -> bool:
        return place(request).partition("/")[2] in self.paths


def world(folder: Any = "", *paths: str, **settings: Any) -> World:
    here = World(folder, RESPONSE_CACHE_ENABLE=True, **settings)
    here.begin()
    from netspy_scrapy.context import CrawlContext

    CrawlContext.of(here.crawler).__dict__["cache"] = Has(*paths)
    return here


def test_cached_requests_pass_a_domain_that_waits() -> None:
    """Its delay, its rest and its concurrency are not asked, and do not change."""
    here = world("", "c1", "c2", DOWNLOAD_DELAY=10, CONCURRENT_REQUESTS_PER_DOMAIN=1)
    queue = here.memory()
    here.fill(queue, f"{A}/n1", f"{A}/n2", f"{A}/c1", f"{A}/c2")
    state = here.registry.get(A)
    out = pops(queue)

    assert sorted(out) == [f"{A}/c1", f"{A}/c2", f"{A}/n1"]
    assert state.in_flight == 1
    assert len(queue) == 1


def test_lane_and_sites_take_turns() -> None:
    """A long lane does not keep a site waiting, nor the other way round."""
    here = world("", *(f"c{n}" for n in range(20)))
    queue = here.memory()
    here.fill(queue, *(f"{A}/c{n}" for n in range(20)), *(f"{B}/n{n}" for n in range(20)))
    out = pops(queue, 10)

    assert sum("/c" in one for one in out) == 5


def test_so_many_at_a_time() -> None:
    """What the cache has in hand is bounded; the next goes once one is done."""
    here = world("", *(f"c{n}" for n in range(100)))
    queue = here.memory()
    here.fill(queue, *(f"{A}/c{n}" for n in range(100)))
    first = queue.pop()
    assert first is not None
    pops(queue)

    assert len(queue) == 68
    here.done(first)
    assert len(pops(queue)) == 1


def test_priorities_hold_in_the_lane() -> None:
    """Higher ones first, equal ones in their order."""
    here = world("", "c1", "c2", "c3")
    queue = here.memory()
    here.fill(queue, f"{A}/c1", f"{A}/c2")
    here.fill(queue, f"{B}/c3", priority=5)

    assert pops(queue) == [f"{B}/c3", f"{A}/c1", f"{A}/c2"]


def test_what_the_cache_lost_goes_to_its_domain() -> None:
    """An entry that expired meanwhile leaves a request like any other."""
    here = world("", "c1", "c2", "c3", DOWNLOAD_DELAY=10)
    queue = here.memory()
    here.fill(queue, f"{A}/c1", f"{A}/c2", f"{A}/c3")
    here.politeness._context.cache.paths.clear()  # type: ignore[union-attr]

    assert pops(queue) == [f"{A}/c1"]
    assert len(queue) == 2
    here.sleep()
    assert pops(queue) == [f"{A}/c2"]


def test_what_the_cache_got_since_does_not_wait() -> None:
    """A request that was queued before its page was stored is read, not sent."""
    here = world("", DOWNLOAD_DELAY=10)
    queue = here.memory()
    here.fill(queue, f"{A}/c1", f"{A}/c2", f"{A}/n1")
    here.politeness._context.cache.paths.update({"c1", "c2"})  # type: ignore[union-attr]

    assert sorted(pops(queue)) == [f"{A}/c1", f"{A}/c2", f"{A}/n1"]


def test_a_full_downloader_lets_only_the_lane_go() -> None:
    """While CONCURRENT_REQUESTS are in flight nothing else is handed out."""
    here = world("", "c1")
    queue = here.memory()
    here.fill(queue, f"{A}/n1", f"{A}/c1")
    here.politeness.passing.is_full = lambda: True

    assert queue.has_cached
    assert pops(queue) == [f"{A}/c1"]
    assert not queue.has_cached
    here.politeness.passing.is_full = lambda: False
    assert pops(queue) == [f"{A}/n1"]


@pytest.mark.parametrize("later", [True, False])
def test_the_lane_in_a_job_directory(tmp_path: Path, later: bool) -> None:
    """It is on the disk, and the next run has it, with the cache or without."""
    here = world(tmp_path, "c1", "c2")
    queue = here.disk()
    here.fill(queue, f"{A}/n1", f"{A}/c1", f"{A}/c2", callback=here.crawler.spider.page)  # type: ignore[union-attr]
    assert len(queue) == 3
    state = queue.close()
    again = world(tmp_path, "c1", "c2")
    if not later:
        again.politeness._context.__dict__["cache"] = None
    queue = again.disk(state)

    assert len(queue) == 3
    assert queue.has_cached == later
    assert sorted(pops(queue)) == [f"{A}/c1", f"{A}/c2", f"{A}/n1"]
    assert again.registry.get(A).in_flight == (1 if later else 3)


def test_the_lane_is_drained_at_a_stop() -> None:
    """What was not read is left over like all the rest."""
    here = world("", "c1")
    queue = here.memory()
    here.fill(queue, f"{A}/n1", f"{A}/c1")

    assert sorted(place(one) for one in queue.drain()) == [f"{A}/c1", f"{A}/n1"]
    assert len(queue) == 0


def test_a_request_that_waits_is_not_in_the_lane() -> None:
    """What has a time of its own keeps to it, cached or not."""
    here = world("", "c1")
    queue = here.memory()
    here.fill(queue, f"{A}/c1", meta={metakeys.NOT_BEFORE: 5e9})

    assert not queue.has_cached
