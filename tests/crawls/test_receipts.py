"""Every way in which a request can end, and when its outcome is safe."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy import signals
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import CloseSpider, DropItem, IgnoreRequest

import netspy_scrapy as mw
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.receipts import Verdict
from tests.crawling import MEMORY, MemorySink, PlainSpider, crawl, netspy_stats, rows

D, X, F = Verdict.DONE, Verdict.DROPPED, Verdict.FAILED


class Remembers:
    """Asks for the outcome of every page at its answer, and notes what was stored by then."""

    def __init__(self, crawler: Any) -> None:
        self.crawler = crawler
        self.receipts = CrawlContext.of(crawler).receipts
        crawler.told = []

    @classmethod
    def from_crawler(cls, crawler: Any) -> Remembers:
        return cls(crawler)

    def process_request(self, request: Any) -> None:
        path = request.url.partition("/")[2].partition("/")[2].partition("/")[2]

        def tell(verdict: Verdict) -> None:
            self.crawler.told.append(("/" + path, verdict, len(rows(self.crawler))))

        self.receipts.on_safe(request, tell)


def told(crawler: Any) -> dict[str, Verdict]:
    """Return the verdicts by path; every page is told at most once."""
    paths = [path for path, _, _ in crawler.told]
    assert len(paths) == len(set(paths)), paths
    return {path: verdict for path, verdict, _ in crawler.told}


REMEMBERS = {"DOWNLOADER_MIDDLEWARES": {Remembers: 50}}


def run(spider: Any, settings: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """Crawl with receipts; at the end none is left over."""
    settings = {**REMEMBERS, **MEMORY, "RETRY_TIMES": 1, **(settings or {})}
    return crawl(spider, settings, **arguments)


class Rows(PlainSpider):
    """Yields a row a page."""

    def parse(self, response: Any) -> Any:
        super().parse(response)
        yield {"url": response.url}


# Downloads ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/page/1", {"/page/1": D}),
        ("/redirect/2", {"/page/redirected": D}),
        ("/seq/a?codes=503,200", {"/seq/a?codes=503,200": D}),
        ("/seq/a?codes=503,503", {"/seq/a?codes=503,503": F}),
        ("/status/404", {"/status/404": F}),
        ("/close", {"/close": F}),
    ],
)
def test_downloads(site: Any, path: str, expected: dict[str, Verdict]) -> None:
    """A page is done, or failed; of retries and redirects only the last attempt counts."""
    crawler = run(Rows, urls=(site.url(path),))
    verdicts = told(crawler)

    assert list(verdicts.values()) == list(expected.values())
    if "redirect" not in path:
        assert verdicts == expected
    assert len(CrawlContext.of(crawler).receipts) == 0


def test_redirect_that_the_filter_knows(site: Any) -> None:
    """A redirect to a page that was seen ends as dropped: its page is another's affair."""
    site.set("/moved", status=302, headers={"Location": site.url("/page/1")})

    class Moved(Rows):
        async def start(self) -> Any:
            yield scrapy.Request(site.url("/page/1"))
            yield scrapy.Request(site.url("/moved"))

    crawler = run(Moved, {"CONCURRENT_REQUESTS": 1})

    assert told(crawler) == {"/page/1": D, "/moved": X}
    assert len(CrawlContext.of(crawler).receipts) == 0


class Refuses:
    """Middlewares that refuse pages in one way or another."""

    def process_request(self, request: Any) -> None:
        if "refused" in request.url:
            raise IgnoreRequest("not wanted")
        if "broken" in request.url:
            raise ValueError("a fault of the middleware")

    def process_response(self, request: Any, response: Any) -> Any:
        if "answer" in request.url:
            raise IgnoreRequest("the answer is not wanted")
        if "other" in request.url and "again" not in request.url:
            return request.replace(url=request.url + "&again=1")
        return response


def test_what_middlewares_do(site: Any) -> None:
    """A refused page is dropped, a fault is a failure, another request replaces the first."""
    settings = {"DOWNLOADER_MIDDLEWARES": {Remembers: 50, Refuses: 60}}
    urls = tuple(site.url(f"/page/1?{name}") for name in ("refused", "broken", "answer", "other"))
    crawler = run(Rows, settings, urls=urls)

    assert told(crawler) == {
        "/page/1?refused": X, "/page/1?broken": F, "/page/1?answer": X, "/page/1?other&again=1": D
    }  # fmt: skip


def test_robots_are_a_drop_and_no_page(site: Any) -> None:
    """What robots.txt forbids is dropped; robots.txt itself has no receipt."""
    site.set("/robots.txt", body=b"User-agent: *\nDisallow: /page/2\n")
    urls = (site.url("/page/1"), site.url("/page/2"))
    crawler = run(Rows, {"ROBOTS_OBEY": True}, urls=urls)

    assert told(crawler) == {"/page/1": D, "/page/2": X}


# Callbacks ---------------------------------------------------------------------------------------
def broken(self: Any, response: Any) -> Any:
    yield {"url": response.url}
    raise ValueError("a fault of the callback")


def closes(self: Any, response: Any) -> Any:
    yield {"url": response.url}
    raise CloseSpider("enough")


def refuses(self: Any, response: Any) -> Any:
    raise mw.NotRetryError("not wanted")


def again(self: Any, response: Any) -> Any:
    if response.meta.get("retry_times"):
        yield {"url": response.url}
    else:
        yield get_retry_request(response.request, spider=self, reason="empty")


def validates(self: Any, response: Any) -> Any:
    if not response.meta.get("retry_times"):
        raise mw.ValidationError("empty")
    yield {"url": response.url}


def nothing(self: Any, response: Any) -> None:
    """Yield nothing."""


@pytest.mark.parametrize(
    ("parse", "verdict"),
    [(broken, F), (refuses, X), (again, D), (validates, D), (nothing, D), (closes, None)],
)
def test_callbacks(site: Any, parse: Any, verdict: Verdict | None) -> None:
    """A callback that raises is a failure, one that asks for its page again is not the end."""
    spider = type("Spider", (PlainSpider,), {"parse": parse})
    crawler = run(spider, urls=(site.url("/page/1"),))

    assert told(crawler) == ({} if verdict is None else {"/page/1": verdict})


class Errback(Rows):
    """Yields rows and pages from its errback."""

    def failed(self, failure: Any) -> Any:
        yield {"url": failure.request.url}
        yield scrapy.Request(failure.request.url.replace("/status/404", "/page/9"))


def test_errback_output(site: Any) -> None:
    """What an errback yields is stored, and its page failed all the same."""
    crawler = run(Errback, urls=(site.url("/status/404"),))

    assert told(crawler) == {"/status/404": F, "/page/9": D}
    assert len(rows(crawler)) == 2


class Input:
    """A spider middleware that refuses answers, whose errback then hides that."""

    def process_spider_input(self, response: Any) -> None:
        raise ValueError("refused")


def test_an_answer_that_a_spider_middleware_refuses(site: Any) -> None:
    """An errback that hides why no callback ran does not make the page done."""

    class Hides(PlainSpider):
        def failed(self, failure: Any) -> None:
            self.errors.append(failure.value)

    crawler = run(Hides, {"SPIDER_MIDDLEWARES": {Input: 60}}, urls=(site.url("/page/1"),))

    assert told(crawler) == {"/page/1": F}
    assert len(crawler.spider.errors) == 1


class Facade(mw.AirSpider):
    """A netspy spider that fails in the ways of its own."""

    seeds: Any = ()
    __custom_setting__ = {**MEMORY, "SPIDER_MAX_RETRY_TIMES": 1}

    def start_requests(self) -> Any:
        for url in self.seeds:
            yield mw.Request(url)

    def validate(self, request: Any, response: Any) -> Any:
        if "invalid" in request.url:
            raise mw.ValidationError("invalid")
        return "unwanted" not in request.url

    def parse(self, request: Any, response: Any) -> Any:
        if "raises" in request.url and not request.retry_times:
            raise ValueError("a fault of the callback")
        yield {"url": response.url}

    def failed_request(self, request: Any, response: Any) -> Any:
        yield mw.Request(request.url.partition("?")[0] + "?instead")


def test_netspy_spiders(site: Any) -> None:
    """validate, retried callbacks and failed_request of a netspy spider."""
    names = ("fine", "invalid", "unwanted", "raises")
    crawler = crawl(Facade, REMEMBERS, seeds=[site.url(f"/page/1?{name}") for name in names])

    assert told(crawler) == {
        "/page/1?fine": D, "/page/1?invalid": F, "/page/1?unwanted": X, "/page/1?raises": D,
        "/page/1?instead": D,
    }  # fmt: skip
    assert len(CrawlContext.of(crawler).receipts) == 0


# Items -------------------------------------------------------------------------------------------
class Drops:
    def process_item(self, item: Any) -> Any:
        raise DropItem("not wanted")


class Raises:
    def process_item(self, item: Any) -> Any:
        raise ValueError("a fault of the pipeline")


class Replaces:
    def process_item(self, item: Any) -> Any:
        return {"other": item["url"]}


@pytest.mark.parametrize("place", [100, 900])
@pytest.mark.parametrize(("pipeline", "verdict"), [(Drops, D), (Raises, F), (Replaces, D)])
def test_pipelines_of_the_project(site: Any, pipeline: type, verdict: Verdict, place: int) -> None:
    """A dropped or replaced item is fine, before and after our sink; one that raises is not."""
    settings = {"ITEM_PIPELINES": {MemorySink: 300, pipeline: place}}
    crawler = run(Rows, settings, urls=(site.url("/page/1"),))

    assert told(crawler) == {"/page/1": verdict}


class Slow(BasePipeline):
    """A sink whose batches take a while, or are refused."""

    def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        time.sleep(0.3)
        self.crawler.__dict__.setdefault("_slow", []).extend(items)
        return True


class Fails(BasePipeline):
    def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        return False


def test_a_sink_that_lags_is_waited_for(site: Any) -> None:
    """A page is safe once every sink has stored its rows, not before."""
    stored: list[int] = []

    class Looks(Remembers):
        def process_request(self, request: Any) -> None:
            self.receipts.on_safe(request, lambda verdict: stored.append(
                len(self.crawler.__dict__.get("_slow", []))))  # fmt: skip

    settings = {
        "ITEM_PIPELINES": {MemorySink: 300, Slow: 400}, "ITEM_MAX_CACHED_COUNT": 2,
        "DOWNLOADER_MIDDLEWARES": {Looks: 50}, "CONCURRENT_REQUESTS": 1,
    }  # fmt: skip
    run(Rows, settings, urls=tuple(site.url(f"/page/{n}") for n in range(6)))

    assert len(stored) == 6
    assert all(count > n for n, count in enumerate(stored))


def test_rows_that_are_dumped_are_safe(site: Any) -> None:
    """A sink that refuses its rows has dumped them: nothing is lost, and the page is done."""
    crawler = run(Rows, {"ITEM_PIPELINES": {Fails: 300}}, urls=(site.url("/page/1"),))

    assert told(crawler) == {"/page/1": D}
    assert len(Path("failed_items.jsonl").read_text().splitlines()) == 1


def test_rows_that_cannot_be_kept_are_never_safe(site: Any, folder: Path) -> None:
    """Where a row can be neither stored nor dumped, its page is not remembered, nor later ones."""
    (folder / "dump").mkdir()
    settings = {"ITEM_PIPELINES": {Fails: 300}, "FAILED_ITEM_PATH": str(folder / "dump")}
    crawler = run(Rows, settings, urls=(site.url("/page/1"), site.url("/page/2")))

    assert told(crawler) == {}


@pytest.mark.parametrize(
    "target", ["rows.jsonl", "ftp://127.0.0.1:9/rows.jsonl", "/proc/x/y.jsonl"]
)
def test_feeds(site: Any, folder: Path, target: str) -> None:
    """With a feed pages are safe at the very end, when the file is closed; if it fails, never."""
    works = "/" not in target
    ended: list[int] = []
    settings = {"FEEDS": {target: {"format": "jsonlines"}}, "ITEM_PIPELINES": {}}

    class Looks(Rows):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            crawler.signals.connect(
                lambda: ended.append(len(crawler.told)), signals.feed_exporter_closed, weak=False
            )
            return super().from_crawler(crawler, *args, **kwargs)

    crawler = run(Looks, settings, urls=(site.url("/page/1"), site.url("/page/2")))

    assert list(told(crawler).values()) == ([D, D] if works else [])
    assert crawler.stats.get_value("item_scraped_count") == 2


def test_items_of_start_hold_up_nobody(site: Any) -> None:
    """Items that start() yields belong to no page."""

    class Start(Rows):
        async def start(self) -> Any:
            yield {"url": "start"}
            yield scrapy.Request(site.url("/page/1"))

    crawler = run(Start)

    assert told(crawler) == {"/page/1": D}
    assert len(rows(crawler)) == 2


# Families ----------------------------------------------------------------------------------------
class Tree(PlainSpider):
    """A list page, its detail pages, and theirs."""

    def parse(self, response: Any) -> Any:
        for n in range(3):
            yield response.follow(f"/page/1{n}", self.child)

    def child(self, response: Any) -> Any:
        yield {"url": response.url}
        yield response.follow(response.url + "?leaf", self.leaf, meta=response.meta)

    def leaf(self, response: Any) -> Any:
        yield {"url": response.url}


def test_parents_wait_for_their_children(site: Any) -> None:
    """A page is safe after all that it led to, however deep."""
    crawler = run(Tree, {"ITEM_MAX_CACHED_COUNT": 1}, urls=(site.url("/page/1"),))
    order = [path for path, _, _ in crawler.told]

    assert len(order) == 7
    assert order[-1] == "/page/1"
    for n in range(3):
        assert order.index(f"/page/1{n}") > order.index(f"/page/1{n}?leaf")
    assert [count for path, _, count in crawler.told if path == "/page/1"] == [6]


def test_a_long_chain(site: Any) -> None:
    """Scores of pages that each yield the next are safe in the reverse order."""

    class Chain(PlainSpider):
        def parse(self, response: Any) -> Any:
            n = int(response.url.partition("?n=")[2])
            if n < 80:
                yield response.follow(f"/page/1?n={n + 1}", meta=response.meta)

    crawler = run(Chain, urls=(site.url("/page/1?n=0"),))

    assert [path for path, _, _ in crawler.told[::-1]] == [f"/page/1?n={n}" for n in range(81)]
    assert len(CrawlContext.of(crawler).receipts) == 0


def test_children_that_the_filter_knows(site: Any) -> None:
    """A child that is a duplicate is waited for where it was first yielded."""

    class Twice(Tree):
        async def start(self) -> Any:
            for n in range(2):
                yield scrapy.Request(site.url(f"/page/{n + 1}"))

    crawler = run(Twice)

    assert set(told(crawler).values()) == {D}
    assert len(told(crawler)) == 8


class Keeps:
    """Asks for the outcome of the requests that start() yields, whatever attempts they take."""

    def __init__(self, crawler: Any) -> None:
        self.crawler = crawler
        self.receipts = CrawlContext.of(crawler).receipts
        crawler.told = []

    @classmethod
    def from_crawler(cls, crawler: Any) -> Keeps:
        return cls(crawler)

    async def process_start(self, start: Any) -> Any:
        async for one in start:
            path = "/" + one.url.partition("/")[2].partition("/")[2].partition("/")[2]
            self.receipts.lasting(
                one, lambda verdict, path=path: self.crawler.told.append((path, verdict, 0))
            )
            yield one


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("/page/1", D), ("/seq/a?codes=503,200", D), ("/seq/a?codes=503,503", F),
        ("/redirect/2", D), ("/status/404", F),
    ],
)  # fmt: skip
def test_who_keeps_a_page_hears_of_its_end(site: Any, path: str, verdict: Verdict) -> None:
    """One who asked before the first attempt is told once, after retries and redirects."""
    settings = {**MEMORY, "RETRY_TIMES": 1, "SPIDER_MIDDLEWARES": {Keeps: 10}}
    crawler = crawl(Rows, settings, urls=(site.url(path),))

    assert told(crawler) == {path: verdict}
    assert len(CrawlContext.of(crawler).receipts) == 0


def test_who_keeps_a_page_that_the_filter_knows_hears_so(site: Any) -> None:
    """A request that is not even queued is dropped, and told."""

    class Twice(Rows):
        async def start(self) -> Any:
            yield scrapy.Request(site.url("/page/1"))
            yield scrapy.Request(site.url("/page/1#again"))

    settings = {**MEMORY, "SPIDER_MIDDLEWARES": {Keeps: 10}}
    crawler = crawl(Twice, settings)

    assert told(crawler) == {"/page/1": D, "/page/1#again": X}


# Stops -------------------------------------------------------------------------------------------
class Hangs(PlainSpider):
    """A list page whose children never come."""

    def parse(self, response: Any) -> Any:
        yield {"url": response.url}
        yield scrapy.Request(response.urljoin("/page/2"), self.leaf)
        yield scrapy.Request(response.urljoin("/hang"), self.leaf)

    def leaf(self, response: Any) -> Any:
        yield {"url": response.url}


STOP = {"SPIDER_MAX_RUNTIME": 1, "NETSPY_STOP_TIMEOUT": 0.3}


def test_a_stop(site: Any) -> None:
    """What is not done at a stop is never told, nor is the page that led to it."""
    crawler = run(Hangs, STOP, urls=(site.url("/page/1"),))

    assert told(crawler) == {"/page/2": D}


def test_a_stop_with_a_job_directory(site: Any, folder: Path) -> None:
    """With a job directory the queue is kept, so the parent is safe; the resumed page is told."""
    settings = {**STOP, "JOBDIR": str(folder / "job")}
    first = run(Hangs, settings, urls=(site.url("/page/1"),))
    site.set("/hang", body=b"page")
    second = run(Hangs, settings, urls=())

    assert told(first) == {"/page/2": D, "/page/1": D}
    assert told(second) == {"/hang": D}


def test_nothing_is_kept_without_a_feature(site: Any) -> None:
    """A crawl of which nobody asks has no receipts, and its requests no mark of one."""
    crawler = crawl(Rows, MEMORY, urls=(site.url("/page/1"),))

    assert CrawlContext.of(crawler).receipts_in_use is None
    assert threading.active_count() < 100


# Queues that outlive the process -----------------------------------------------------------------
class Durable(Remembers):
    """A feature whose queue is durable: what was yielded is safe as soon as it is queued."""

    def __init__(self, crawler: Any) -> None:
        super().__init__(crawler)
        self.receipts.queue_is_durable = True
        self.waiting: list[Any] = []
        adopted = self.receipts.adopted

        def pushes(receipt: Any, request: Any, *, queued: bool) -> None:
            adopted(receipt, request, queued=queued)
            if queued and receipt is not None and receipt.replacement is None:
                self.waiting.append(receipt)

        self.receipts.adopted = pushes  # type: ignore[method-assign]
        crawler.signals.connect(self.opened, signals.spider_opened)

    def opened(self) -> None:
        import asyncio

        async def confirm() -> None:
            while True:
                await asyncio.sleep(0.05)
                waiting, self.waiting = self.waiting, []
                for receipt in waiting:
                    self.receipts.pushed(receipt)

        self.task = asyncio.ensure_future(confirm())


def test_parents_wait_for_the_push_alone(site: Any) -> None:
    """With a durable queue a page is safe once what it yielded is pushed, not fetched."""
    settings = {"DOWNLOADER_MIDDLEWARES": {Durable: 50}, "DOWNLOAD_DELAY": 0.1,
                "RANDOMIZE_DOWNLOAD_DELAY": False}  # fmt: skip
    crawler = run(Tree, settings, urls=(site.url("/page/1"),))
    order = [path for path, _, _ in crawler.told]

    assert order[0] == "/page/1"
    assert len(order) == 7


class Lasting(Remembers):
    """Asks once, at the first attempt."""

    def process_request(self, request: Any) -> None:
        if not request.meta.get("retry_times") and not request.meta.get("redirect_times"):
            path = request.url.rpartition("/")[2]

            def tell(verdict: Verdict) -> None:
                self.crawler.told.append((path, verdict, len(rows(self.crawler))))

            self.receipts.lasting(request, tell)


@pytest.mark.parametrize(
    ("path", "verdict"),
    [("/seq/a?codes=503,200", D), ("/seq/b?codes=503,503", F), ("/redirect/2", D)],
)
def test_lasting_callbacks(site: Any, path: str, verdict: Verdict) -> None:
    """Who asked about the page is told once, after its last attempt."""
    settings = {"DOWNLOADER_MIDDLEWARES": {Lasting: 50}}
    crawler = run(Rows, settings, urls=(site.url(path),))

    assert [verdict for _, verdict, _ in crawler.told] == [verdict]
    assert len(CrawlContext.of(crawler).receipts) == 0


class Faulty(PlainSpider):
    """Its pages fail for good, and its dump with them."""

    def parse(self, response: Any) -> Any:
        raise AssertionError


def test_a_fault_of_the_dump_itself_is_counted(
    site: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the dump of requests raises: the lines are counted as lost, and named so."""

    def fail(*_: Any) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr("netspy_scrapy.dumps.files.DumpFile.append", fail)
    crawler = crawl(Faulty, urls=(site.url("/status/404"),))

    assert netspy_stats(crawler)["netspy/requests/lost"] == 1
    assert "LOST: 1 requests could not be written: RuntimeError: no such thing" in caplog.text
