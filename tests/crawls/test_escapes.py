"""What user code raises that is no Exception: it fails alone, and the crawl ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import scrapy

import netspy_scrapy as mw
from netspy_scrapy.dumps.requests import callback_name
from netspy_scrapy.escapes import Escapes, as_exception, in_thread
from netspy_scrapy.exceptions import EscapedError
from netspy_scrapy.pipelines.base import BasePipeline
from tests.crawling import (
    MEMORY,
    PlainSpider,
    crawl,
    dumped,
    idle_crawler,
    netspy_stats,
    reason,
    rows,
)


class OwnError(BaseException):
    """As some libraries have them."""


RAISED = [asyncio.CancelledError, GeneratorExit, OwnError]


class Raises(PlainSpider):
    """A Scrapy spider whose callback raises on one of four pages."""

    raised: type[BaseException] = OwnError
    kind = ""

    async def start(self) -> Any:
        for n in range(4):
            yield scrapy.Request(self.base + f"/page/{n}", callback=getattr(self, self.kind))

    def _raise(self, response: Any) -> None:
        if response.url.endswith("/2"):
            raise self.raised("gone")

    def function(self, response: Any) -> Any:
        self._raise(response)
        return [{"url": response.url}]

    def generator(self, response: Any) -> Any:
        self._raise(response)
        yield {"url": response.url}

    async def coroutine(self, response: Any) -> Any:
        self._raise(response)
        return [{"url": response.url}]

    async def async_generator(self, response: Any) -> Any:
        self._raise(response)
        yield {"url": response.url}


KINDS = ["function", "generator", "coroutine", "async_generator"]


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_callback(site: Any, kind: str, raised: type[BaseException]) -> None:
    """A Scrapy callback of any kind fails for its page, which is dumped once; the crawl ends."""
    Raises.base = site.url("").rstrip("/")
    crawler = crawl(Raises, MEMORY, kind=kind, raised=raised)

    assert sorted(row["url"][-1] for _, row in rows(crawler)) == ["0", "1", "3"]
    (line,) = dumped()
    assert line["reason"].startswith(f"{raised.__name__}: gone (")
    assert netspy_stats(crawler)[f"netspy/failures/{raised.__name__}"] == 1
    assert reason(crawler) == "finished"


class Facade(mw.AirSpider):
    """A netspy spider, one of whose hooks raises for one of four pages."""

    __custom_setting__ = {"SPIDER_MAX_RETRY_TIMES": 1}
    raised: type[BaseException] = OwnError
    kind = ""

    def start_requests(self) -> Any:
        callback = getattr(self, self.kind) if self.kind in KINDS else self.parse
        for n in range(4):
            yield mw.Request(self.base + f"/page/{n}", callback=callback)

    def _raise(self, request: Any, kind: str) -> None:
        if self.kind == kind and request.url.endswith("/2"):
            raise self.raised("gone")

    def parse(self, request: Any, response: Any) -> Any:
        yield {"url": request.url}

    def function(self, request: Any, response: Any) -> Any:
        self._raise(request, "function")
        return [{"url": request.url}]

    async def coroutine(self, request: Any, response: Any) -> Any:
        self._raise(request, "coroutine")
        return [{"url": request.url}]

    def generator(self, request: Any, response: Any) -> Any:
        self._raise(request, "generator")
        yield {"url": request.url}

    def download_midware(self, request: Any) -> Any:
        self._raise(request, "midware")

    def validate(self, request: Any, response: Any) -> Any:
        self._raise(request, "validate")
        if self.kind in ("failed", "retry") and request.url.endswith("/2"):
            raise mw.ValidationError("no")

    def exception_request(self, request: Any, response: Any, exception: Any) -> Any:
        self._raise(request, "retry")

    def failed_request(self, request: Any, response: Any) -> Any:
        self._raise(request, "failed")


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize(
    "kind", ["function", "generator", "coroutine", "midware", "validate", "retry", "failed"]
)
def test_a_netspy_spider(site: Any, kind: str, raised: type[BaseException]) -> None:
    """Callbacks and hooks of netspy spiders fail for their page, after the retries."""
    Facade.base = site.url("").rstrip("/")
    crawler = crawl(Facade, MEMORY, kind=kind, raised=raised)

    assert sorted(row["url"][-1] for _, row in rows(crawler)) == ["0", "1", "3"]
    assert len(dumped()) == 1
    assert reason(crawler) == "finished"


def test_an_errback(site: Any) -> None:
    """An errback that raises what is no Exception ends nothing but itself."""

    class Errback(PlainSpider):
        def failed(self, failure: Any) -> Any:
            self.errors.append(failure.value)
            raise asyncio.CancelledError

    crawler = crawl(Errback, urls=(site.url("/status/404"), site.url("/page/1")))

    assert len(crawler.spider.errors) == 1
    assert len(dumped()) == 1
    assert reason(crawler) == "finished"


@pytest.mark.parametrize("raised", [*RAISED, SystemExit, KeyboardInterrupt, StopIteration])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_sink(site: Any, raised: type[BaseException], is_async: bool) -> None:
    """A batch whose sink raises what is no Exception is dumped, and nothing else is lost."""

    class Sink(BasePipeline):
        def save_items(self, table: str, items: list[Any]) -> Any:
            raise raised

    class AsyncSink(BasePipeline):
        async def save_items(self, table: str, items: list[Any]) -> Any:
            raise raised

    class Items(PlainSpider):
        def parse(self, response: Any) -> Any:
            yield {"url": response.url}

    bad = AsyncSink if is_async else Sink
    pipelines = {"ITEM_PIPELINES": {bad: 100, **MEMORY["ITEM_PIPELINES"]}}
    crawler = crawl(Items, pipelines, urls=tuple(site.url(f"/page/{n}") for n in range(5)))

    assert len(rows(crawler)) == 5
    assert len(dumped("failed_items.jsonl")) == 5
    assert reason(crawler) == "finished"


def test_a_pipeline_of_the_projects_own(site: Any) -> None:
    """process_item that raises what is no Exception costs its item."""

    class Own:
        async def process_item(self, item: Any) -> Any:
            if item["n"] == 1:
                raise asyncio.CancelledError
            return item

    class Items(PlainSpider):
        def parse(self, response: Any) -> Any:
            for n in range(3):
                yield {"n": n}

    pipelines = {"ITEM_PIPELINES": {Own: 100, **MEMORY["ITEM_PIPELINES"]}}
    crawler = crawl(Items, pipelines, urls=(site.url("/page/1"),))

    assert [row["n"] for _, row in rows(crawler)] == [0, 2]


SCRIPT = """
import sys
import threading
import netspy_scrapy as mw
from netspy_scrapy.pipelines.base import BasePipeline


class Rows(BasePipeline):
    def save_items(self, table, items):
        with open("rows.txt", "a") as file:
            file.writelines(item["url"] + "\\n" for item in items)
        return True


class S(mw.AirSpider):
    __custom_setting__ = {"ITEM_PIPELINES": [Rows], "CONCURRENT_REQUESTS": 1,
                          "BUFFER_FLUSH_INTERVAL": 600}

    def start_requests(self):
        for n in range(30):
            yield mw.Request(f"{BASE}/slow?ms=20&n={n}")

    def parse(self, request, response):
        BEGUN.set()
        if "n=5" in request.url and FATE != "thread":
            {raises}
        yield {"url": request.url}


FATE, BASE = sys.argv[1:]
BEGUN = threading.Event()
if FATE == "thread":
    threading.Thread(target=S().start).start()
    BEGUN.wait()
    sys.exit(7)
S().start()
print("ENDED")
"""


def run(folder: Path, site: Any, fate: str, raises: str) -> tuple[int, list[str], str]:
    """Run the script; return its status, all URLs that are kept, and its output."""
    (folder / "s.py").write_text(SCRIPT.replace("{raises}", raises))
    done = subprocess.run(
        [sys.executable, "s.py", fate, site.url("").rstrip("/")],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    stored = folder / "rows.txt"
    kept = stored.read_text().split() if stored.exists() else []
    kept += [line["data"]["url"] for line in dumped(str(folder / "failed_items.jsonl"))]
    kept += [line["url"] for line in dumped(str(folder / "failed_requests.jsonl"))]
    return done.returncode, kept, done.stdout + done.stderr


@pytest.mark.parametrize(("raises", "status"), [("sys.exit(3)", 3), ("sys.exit()", 0)])
def test_sys_exit_in_a_callback(site: Any, folder: Path, raises: str, status: int) -> None:
    """sys.exit() in a callback ends the crawl as a stop does, then the script, with its status."""
    code, kept, said = run(folder, site, "exit", raises)

    assert code == status
    assert "ENDED" not in said
    assert sorted(kept) == sorted(site.url(f"/slow?ms=20&n={n}") for n in range(30))
    assert "The spider's code raised SystemExit: the crawl stops" in said


def test_the_main_thread_ends_before_the_crawl(site: Any, folder: Path) -> None:
    """A crawl in a thread stores its rows though the main thread has called sys.exit()."""
    _, kept, _ = run(folder, site, "thread", "pass")

    assert sorted(kept) == sorted(site.url(f"/slow?ms=20&n={n}") for n in range(30))
    assert (folder / "rows.txt").exists()


def test_a_request_whose_callback_is_about_to_be_called_can_be_dumped() -> None:
    """A process that ends just then dumps the callback's own name, with which it is replayed."""
    crawler = idle_crawler()
    spider = crawler.spider = Raises.from_crawler(crawler)
    named = scrapy.Request("http://a.test/1", callback=spider.function, errback=spider.failed)
    unnamed = scrapy.Request("http://a.test/2")
    for request in (named, unnamed):
        Escapes(crawler)._guard_next_call(request, "callback")
    Escapes(crawler)._guard_next_call(named, "errback")

    assert callback_name(named.callback, spider) == "function"
    assert callback_name(named.errback, spider) == "failed"
    assert callback_name(unnamed.callback, spider) is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not tell them apart")
def test_a_cancellation_passes() -> None:
    """A task that the loop cancels is cancelled; a CancelledError out of the blue is a failure."""

    async def cancelled() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as exc:
            raise as_exception(exc) from exc

    async def main() -> None:
        task = asyncio.create_task(cancelled())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert isinstance(as_exception(asyncio.CancelledError()), EscapedError)

    asyncio.run(main())


@pytest.mark.parametrize("raised", [StopIteration, SystemExit, asyncio.CancelledError])
def test_a_thread(raised: type[BaseException]) -> None:
    """Whatever a function raises in a thread comes back as an Exception."""

    def function() -> None:
        raise raised

    with pytest.raises((EscapedError, RuntimeError)):
        asyncio.run(asyncio.wait_for(in_thread(function), 5))
