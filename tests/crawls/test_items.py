"""Items on their way into the sinks, in real crawls: nothing lost, one bad row costs one row."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import scrapy
from scrapy.exceptions import DropItem

import netspy_scrapy as mw
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.dumps.items import ItemDump
from tests.crawling import (
    MEMORY,
    MemorySink,
    PlainSpider,
    crawl,
    dumped,
    netspy_stats,
    reason,
    rows,
)

ITEMS = "failed_items.jsonl"


class NewsItem(mw.Item):
    """An item with a unique key."""

    __unique_key__: ClassVar[list[str]] = ["url"]


class PriceItem(mw.UpdateItem):
    """An update by sku."""

    __update_key__: ClassVar[list[str]] = ["sku"]


def news(url: str, **fields: Any) -> NewsItem:
    """Make an item."""
    item = NewsItem()
    item.url = url
    for name, value in fields.items():
        setattr(item, name, value)
    return item


class Yields(mw.AirSpider):
    """Yields what it is given from one callback."""

    items: Any = ()

    def start_requests(self) -> Any:
        yield mw.Request(self.page)

    def parse(self, request: Any, response: Any) -> Any:
        yield from self.items() if callable(self.items) else self.items


class PlainYields(PlainSpider):
    """The same as a plain Scrapy spider."""

    items: Any = ()

    def parse(self, response: Any) -> Any:
        yield from self.items


class SecondSink(MemorySink):
    """Another sink; refuses rows whose ``bad`` is set."""

    def save_items(self, table: str, items: list[dict[str, Any]]) -> Any:
        kept = self.crawler.__dict__.setdefault("_second", [])
        refused = {n: f"bad {item['bad']}" for n, item in enumerate(items) if item.get("bad")}
        kept.extend(item for n, item in enumerate(items) if n not in refused)
        return refused


def run(site: Any, items: Any, settings: dict[str, Any] | None = None, spider: Any = Yields) -> Any:
    """Crawl one page whose callback yields *items*."""
    return crawl(spider, {**MEMORY, **(settings or {})}, items=items, page=site.url("/page/1"),
                 urls=(site.url("/page/1"),))  # fmt: skip


def test_tables_of_every_kind_of_item(site: Any) -> None:
    """Netspy items, dicts, scrapy.Item, dataclasses: each finds its table, with all fields."""

    class Product(scrapy.Item):
        name = scrapy.Field()

    @dataclasses.dataclass
    class BookItem:
        title: str

    named = news("a")
    named.table_name = "special"
    crawler = run(site, [news("b", n=1), named, {"x": 1}, Product(name="p"), BookItem("t")])

    assert rows(crawler) == [
        ("news", {"url": "b", "n": 1}),
        ("special", {"url": "a"}),
        ("items", {"x": 1}),
        ("product", {"name": "p"}),
        ("book", {"title": "t"}),
    ]


def test_item_filter_of_a_netspy_spider(site: Any) -> None:
    """Equal items are stored once; dicts and changed updates always."""
    changed, same = PriceItem(), PriceItem()
    for item, price in ((changed, 2), (same, 1)):
        item.sku, item.price = "s", price
    first = PriceItem()
    first.sku, first.price = "s", 1
    crawler = run(site, [news("a", n=1), news("a", n=2), {"d": 1}, {"d": 1}, first, changed, same])

    assert [row[1] for row in rows(crawler)] == [
        {"url": "a", "n": 1},
        {"d": 1},
        {"d": 1},
        {"sku": "s", "price": 1},
        {"sku": "s", "price": 2},
    ]
    assert rows(crawler)[-1] == ("price", {"sku": "s", "price": 2}, ("sku",))
    assert netspy_stats(crawler)["netspy/items/duplicate"] == 2


def test_plain_spiders_are_not_filtered_unasked(site: Any) -> None:
    """In a plain project equal items are all stored, unless ITEM_FILTER_ENABLE is set."""
    items = [news("a"), news("a")]

    assert len(rows(run(site, items, spider=PlainYields))) == 2
    assert len(rows(run(site, items, {"ITEM_FILTER_ENABLE": True}, spider=PlainYields))) == 1


def test_fingerprint_is_recorded_only_once_stored(site: Any) -> None:
    """An item that a sink dumped may come again; one that is stored everywhere may not."""

    def items() -> Any:
        yield news("a", bad=1)
        yield news("b")
        time.sleep(0.5)
        yield news("a", bad=0)
        yield news("b")

    settings = {"ITEM_PIPELINES": {SecondSink: 300}, "BUFFER_FLUSH_INTERVAL": 0.0}

    class Slow(Yields):
        async def parse(self, request: Any, response: Any) -> Any:
            yield news("a", bad=1)
            yield news("b")
            await asyncio.sleep(0.5)
            yield news("a", bad=0)
            yield news("b")

    crawler = run(site, items, settings, Slow)

    assert crawler.__dict__["_second"] == [{"url": "b"}, {"url": "a", "bad": 0}]
    assert [line["reason"] for line in dumped(ITEMS)] == ["bad 1"]


def test_one_bad_row_costs_one_row(site: Any) -> None:
    """Of 1,000 rows one is refused: 999 are stored and one is dumped with the sink's reason."""
    items = [{"n": n, "bad": int(n == 500)} for n in range(1000)]
    crawler = run(site, items, {"ITEM_PIPELINES": {SecondSink: 300}})

    assert len(crawler.__dict__["_second"]) == 999
    (line,) = dumped(ITEMS)
    assert line["data"] == {"n": 500, "bad": 1}
    assert line["reason"] == "bad 1"
    assert line["pipelines"] == ["tests.crawls.test_items.SecondSink"]
    stats = netspy_stats(crawler)
    del stats["netspy/rows/SecondSink/batches"]
    assert stats == {
        "netspy/items": 1000,
        "netspy/rows/SecondSink/stored": 999,
        "netspy/rows/SecondSink/refused": 1,
        "netspy/rows/SecondSink/dumped": 1,
    }


def test_each_sink_dumps_for_itself(site: Any) -> None:
    """Where the second of two sinks fails, the line names the second only."""
    crawler = run(site, [{"bad": 1}], {"ITEM_PIPELINES": {MemorySink: 300, SecondSink: 310}})

    assert rows(crawler) == [("items", {"bad": 1})]
    assert [line["pipelines"] for line in dumped(ITEMS)] == [["tests.crawls.test_items.SecondSink"]]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (False, "save_items returned False"),
        (None, "save_items returned None, not True"),
        (ValueError("no connection"), "ValueError: no connection"),
    ],
)
def test_a_failing_sink_of_the_users_own_dumps(site: Any, answer: Any, why: str) -> None:
    """False, None and an exception of save_items dump the batch with the reason."""

    class Own(mw.BasePipeline):
        def save_items(self, table: str, items: list[dict[str, Any]]) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    crawler = run(site, [news("a"), {"n": 1}], {"ITEM_PIPELINES": {Own: 300}})

    assert [line["reason"] for line in dumped(ITEMS)] == [why, why]
    assert dumped(ITEMS)[0]["table"] == "news"
    assert reason(crawler) == "finished"


def test_async_sinks_open_and_close(site: Any) -> None:
    """A sink may be async throughout; opened before its first batch, closed after its last."""
    calls: list[Any] = []

    class Own(mw.BasePipeline):
        async def open(self) -> None:
            calls.append("open")

        async def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
            await asyncio.sleep(0)
            calls.append(len(items))
            return True

        async def close(self) -> None:
            calls.append("close")

    run(
        site,
        [{"n": n} for n in range(25)],
        {"ITEM_PIPELINES": {Own: 1}, "ITEM_MAX_CACHED_COUNT": 10},
    )

    assert (calls[0], calls[-1], sum(calls[1:-1])) == ("open", "close", 25)
    assert max(calls[1:-1]) <= 10


def test_updates_follow_the_inserts_they_came_after(site: Any) -> None:
    """Rows of one table reach the sink in the order in which they were yielded."""

    class Update(mw.UpdateItem):
        __table_name__ = "news"
        __update_key__ = ("url",)

    update = Update()
    update.url = "a"
    crawler = run(site, [news("a"), {"other": 1}, update, news("b")], {"ITEM_FILTER_ENABLE": False})

    of_news = [row for row in rows(crawler) if row[0] == "news"]
    assert of_news == [
        ("news", {"url": "a"}), ("news", {"url": "a"}, ("url",)), ("news", {"url": "b"})
    ]  # fmt: skip


def test_rows_are_snapshots(site: Any) -> None:
    """What happens to an item while its row waits for its batch does not reach the row."""

    class Changes(Yields):
        async def parse(self, request: Any, response: Any) -> Any:
            item = {"n": 1, "tags": ["a"]}
            yield item
            await asyncio.sleep(0.1)
            item["tags"].append("b")
            item["n"] = 2
            yield item

    crawler = run(site, (), {"BUFFER_FLUSH_INTERVAL": 60}, Changes)

    assert [row for _, row in rows(crawler)] == [
        {"n": 1, "tags": ["a"]}, {"n": 2, "tags": ["a", "b"]}
    ]  # fmt: skip


class Foreign:
    """A pipeline of the project's own."""

    def process_item(self, item: Any) -> Any:
        self.seen = [*getattr(self, "seen", []), item]
        if item.get("drop"):
            raise DropItem("not wanted")
        if "n" in item:
            item["n"] *= 10
        return item


@pytest.mark.parametrize(("order", "first", "second"), [(100, 10, 10), (305, 1, 10), (400, 1, 1)])
def test_pipelines_of_the_projects_own(site: Any, order: int, first: int, second: int) -> None:
    """Each sink stores what the pipelines before it made of the item."""
    pipelines = {Foreign: order, MemorySink: 300, SecondSink: 310}
    crawler = run(site, [{"n": 1}], {"ITEM_PIPELINES": pipelines}, PlainYields)

    assert rows(crawler) == [("items", {"n": first})]
    assert crawler.__dict__["_second"] == [{"n": second}]
    assert crawler.get_item_pipeline(Foreign).seen == [{"n": 10}]


def test_an_item_may_name_its_sinks(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """item.pipelines: only these sinks get it; one that is not configured is opened for it."""
    here, elsewhere, unknown = news("a"), news("b"), news("c")
    here.pipelines = ["tests.crawling.MemorySink"]
    elsewhere.pipelines = ["tests.crawls.test_items.SecondSink"]
    unknown.pipelines = ["no.such.Pipeline", "tests.crawling.MemorySink"]
    crawler = run(site, [here, elsewhere, unknown, news("d")])

    assert [row["url"] for _, row in rows(crawler)] == ["a", "c", "d"]
    assert crawler.__dict__["_second"] == [{"url": "b"}]
    (line,) = dumped(ITEMS)
    assert (line["data"], line["pipelines"]) == ({"url": "c"}, ["no.such.Pipeline"])
    assert "cannot be used" in line["reason"]


def test_an_item_may_name_a_sink_where_none_is_configured(site: Any) -> None:
    """item.pipelines works although ITEM_PIPELINES holds no sink at all."""
    item = news("b")
    item.pipelines = [SecondSink]
    crawler = run(site, [item], {"ITEM_PIPELINES": {Foreign: 300}})

    assert crawler.__dict__["_second"] == [{"url": "b"}]


def test_items_that_cannot_become_rows(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A pre_to_db that raises and an update without a key cost one line each, and no more."""

    class Broken(mw.Item):
        def pre_to_db(self) -> None:
            self.title = self.title.strip()

    class Keyless(mw.UpdateItem):
        pass

    broken, keyless, valueless = Broken(), Keyless(), PriceItem()
    broken.title, keyless.a, valueless.price = None, 1, 2
    crawler = run(site, [broken, keyless, valueless, news("a")])

    assert rows(crawler) == [("news", {"url": "a"})]
    lines = dumped(ITEMS)
    assert [line["data"] for line in lines] == [{"title": None}, {"a": 1}, {"price": 2}]
    assert "AttributeError" in lines[0]["reason"]
    assert "neither __update_key__ nor __unique_key__" in lines[1]["reason"]
    assert lines[2]["update_keys"] == ["sku"]
    assert netspy_stats(crawler)["netspy/items/refused"] == 3


def test_what_is_no_item_is_refused_alone(site: Any) -> None:
    """A plain spider that yields 42 loses nothing else, and its own pipelines do not see it."""
    crawler = run(
        site, [{"n": 1}, 42, {"n": 2}], {"ITEM_PIPELINES": {MemorySink: 1, Foreign: 2}}, PlainYields
    )

    assert len(rows(crawler)) == 2
    assert len(crawler.get_item_pipeline(Foreign).seen) == 2
    assert netspy_stats(crawler)["netspy/items/refused"] == 1
    assert crawler.stats.get_value("item_dropped_count") == 1


def test_updates_that_a_sink_cannot_do_are_dumped(site: Any) -> None:
    """A sink without updates dumps an UpdateItem once, with the reason."""

    class InsertsOnly(MemorySink):
        supports_update = False

    item = PriceItem()
    item.sku = "s"
    run(site, [item], {"ITEM_PIPELINES": {InsertsOnly: 1}})

    (line,) = dumped(ITEMS)
    assert (line["reason"], line["update_keys"]) == ("InsertsOnly stores new rows only", ["sku"])


class Never(mw.BasePipeline):
    """A sink that stores nothing."""

    def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        return False


def test_neither_stored_nor_dumped_stops_the_crawl(
    site: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where rows can be neither stored nor dumped the crawl stops, and names what is lost."""

    class Endless(Yields):
        def parse(self, request: Any, response: Any) -> Any:
            yield {"url": request.url}
            n = int(response.url.rpartition("/")[2])
            yield mw.Request(response.urljoin(f"/page/{n + 1}"))

    (folder / "file").touch()
    settings = {"ITEM_PIPELINES": {Never: 1}, "FAILED_ITEM_PATH": "file/failed_items.jsonl"}
    crawler = run(site, (), settings, Endless)

    assert reason(crawler) == "sink_failed"
    assert netspy_stats(crawler)["netspy/rows/Never/lost"] == netspy_stats(crawler)["netspy/items"]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert any("cannot be dumped" in line and "failed_items.jsonl" in line for line in errors)
    assert any("LOST" in line and "url=" in line for line in errors)
    assert crawler.stats.get_value("netspy/exit_status") == 1


def test_start_raises_when_rows_are_lost(site: Any, folder: Path) -> None:
    """MySpider().start() ends in an error when rows are lost, so the script's status is 1."""
    (folder / "file").touch()

    class Loses(Yields):
        __custom_setting__ = {"ITEM_PIPELINES": [Never], "FAILED_ITEM_PATH": "file/x.jsonl"}

    spider = Loses()
    spider.page, spider.items = site.url("/page/1"), [{"n": 1}]
    with pytest.raises(mw.SinkFailedError):
        spider.start()


def test_a_sink_that_recovers_at_the_close_loses_nothing(site: Any, folder: Path) -> None:
    """Rows that could not go anywhere are tried once more at the end."""

    class Recovers(MemorySink):
        calls = 0

        def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
            self.calls += 1
            return self.calls > 1 and super().save_items(table, items)

    (folder / "file").touch()
    settings = {"ITEM_PIPELINES": {Recovers: 1}, "FAILED_ITEM_PATH": "file/x.jsonl"}
    crawler = run(site, [{"n": 1}], settings)

    assert rows(crawler) == [("items", {"n": 1})]
    batcher = crawler.get_item_pipeline(Recovers).batcher
    assert batcher.mark == batcher.accepted == 1


def test_a_slow_sink_bounds_memory(site: Any) -> None:
    """A sink that cannot keep up makes the callback wait; it never holds more than two batches."""
    held: list[int] = []

    class Slow(mw.BasePipeline):
        def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
            time.sleep(0.02)
            batcher = self.batcher
            held.append(batcher._rows + batcher._rows_in_flight)
            return True

    settings = {"ITEM_PIPELINES": {Slow: 1}, "ITEM_MAX_CACHED_COUNT": 50}
    crawler = run(site, ({"n": n} for n in range(2000)), settings)

    assert netspy_stats(crawler)["netspy/rows/Slow/stored"] == 2000
    # A few more may be under way, one per task that Scrapy runs for the response.
    assert max(held) <= 100 + 4


def test_bytes_bound_memory_too(site: Any) -> None:
    """NETSPY_BUFFER_MAX_BYTES holds back large rows long before the count does."""
    held: list[int] = []

    class Slow(mw.BasePipeline):
        def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
            time.sleep(0.01)
            held.append(self.batcher._bytes + self.batcher._bytes_in_flight)
            return True

    settings = {"ITEM_PIPELINES": {Slow: 1}, "NETSPY_BUFFER_MAX_BYTES": 100_000}
    run(site, ({"body": "x" * 10_000} for _ in range(200)), settings)

    assert max(held) <= 100_000 + 5 * 10_000


def test_items_of_start_are_paced(site: Any) -> None:
    """Items that start() yields without end are held back by a slow sink, and all stored."""
    held: list[int] = []

    class Slow(mw.BasePipeline):
        def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
            time.sleep(0.02)
            held.append(self.batcher._rows + self.batcher._rows_in_flight)
            return True

    class Starts(PlainSpider):
        async def start(self) -> Any:
            for n in range(1000):
                yield {"n": n}

    crawler = crawl(Starts, {"ITEM_PIPELINES": {Slow: 1}, "ITEM_MAX_CACHED_COUNT": 50})

    assert netspy_stats(crawler)["netspy/rows/Slow/stored"] == 1000
    assert max(held) <= 100 + 5


def test_the_last_batch_is_stored_while_closing(site: Any) -> None:
    """Rows of a batch that is written when the spider closes, and those behind it, are stored."""

    class Slow(MemorySink):
        def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
            time.sleep(0.3)
            return super().save_items(table, items)

    settings = {
        "ITEM_PIPELINES": {Slow: 1},
        "CLOSESPIDER_ITEMCOUNT": 5,
        "BUFFER_FLUSH_INTERVAL": 60,
    }
    crawler = run(site, [{"n": n} for n in range(20)], settings)

    assert [row["n"] for _, row in rows(crawler)] == list(range(20))


def test_water_mark_rises_after_the_write(site: Any) -> None:
    """A sink's mark reaches the number of accepted rows once all are stored or dumped."""
    crawler = run(
        site, [{"n": n, "bad": n % 2} for n in range(10)], {"ITEM_PIPELINES": {SecondSink: 1}}
    )

    batcher = crawler.get_item_pipeline(SecondSink).batcher
    assert batcher.accepted == batcher.mark == 10


class Obscure:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("detached")


def test_a_value_that_cannot_be_shown_costs_its_row_alone(site: Any) -> None:
    """The log names rows by their values; one whose repr() raises does not cost the batch."""

    class Refuses(MemorySink):
        def save_items(self, table: str, items: list[dict[str, Any]]) -> Any:
            super().save_items(table, [one for one in items if one["n"] != 1])
            return {n: "no" for n, one in enumerate(items) if one["n"] == 1}

    crawler = run(
        site,
        [{"value": Obscure(), "n": 1}, {"value": 2, "n": 2}, news("a", n=3)],
        {"ITEM_PIPELINES": {Refuses: 1}},
    )

    assert sorted(row["n"] for _, row in rows(crawler)) == [2, 3]
    assert [line["data"]["n"] for line in dumped(ITEMS)] == [1]


def test_a_fault_of_ours_loses_no_rows(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a fault left unwritten count as stuck: they are tried again, and not forgotten."""
    append, calls = ItemDump.append, itertools.count()

    def failing(self: Any, records: Any) -> list[str]:
        if next(calls) == 0:
            raise RuntimeError("a fault")
        return append(self, records)

    monkeypatch.setattr(ItemDump, "append", failing)
    crawler = run(site, [news("a", bad=1), {"n": 2}], {"ITEM_PIPELINES": {SecondSink: 1}})
    batcher = crawler.get_item_pipeline(SecondSink).batcher

    assert crawler.__dict__["_second"] == [{"n": 2}]
    assert [line["data"] for line in dumped(ITEMS)] == [{"url": "a", "bad": 1}]
    assert batcher.mark == batcher.accepted == 2


def test_what_no_sink_stores_is_not_remembered(site: Any) -> None:
    """An item that names no sink keeps no equal one from being stored, nor memory for ever."""
    nowhere = news("a")
    nowhere.pipelines = []
    crawler = run(site, [nowhere, news("a")], MEMORY)
    alone = run(site, [news("a")], {"ITEM_PIPELINES": {Foreign: 1}})

    assert [row for _, row in rows(crawler)] == [{"url": "a"}]
    for one in (crawler, alone):
        item_filter = CrawlContext.of(one).item_filter
        assert item_filter is not None
        assert item_filter.pending == 0


# Pipelines of the project's own ------------------------------------------------------------------
class Picky:
    """Raises at the items that are marked."""

    def process_item(self, item: Any) -> Any:
        if item.get("sour"):
            raise ValueError("it is sour")
        return item


class AsyncPicky(Picky):
    """The same, after an await."""

    async def process_item(self, item: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().process_item(item)


@pytest.mark.parametrize("picky", [Picky, AsyncPicky])
@pytest.mark.parametrize(
    ("place", "owed"), [(100, ["first", "second"]), (350, ["second"]), (900, [])]
)
def test_an_item_at_which_another_pipeline_raises_is_dumped(
    site: Any, picky: type, place: int, owed: list[str]
) -> None:
    """It is dumped for the sinks that it had not come to yet, and the other items are stored."""
    pipelines = {MemorySink: 300, SecondSink: 400, picky: place}
    items = [{"n": n, "sour": True} if n == 1 else {"n": n} for n in range(4)]
    crawler = crawl(
        PlainYields, {"ITEM_PIPELINES": pipelines}, items=items, urls=(site.url("/page/1"),)
    )
    names = {"first": "tests.crawling.MemorySink", "second": "tests.crawls.test_items.SecondSink"}
    lines = dumped(ITEMS)

    assert sorted(path for line in lines for path in line["pipelines"]) == sorted(
        names[one] for one in owed
    )
    assert all(line["data"] == {"n": 1, "sour": True} for line in lines)
    assert all("ValueError: it is sour" in line["reason"] for line in lines)
    stored = sorted(row["n"] for _, row in rows(crawler))
    assert stored == ([0, 2, 3] if "first" in owed else [0, 1, 2, 3])


def test_an_item_that_one_sink_owes_after_an_error_may_come_again(site: Any) -> None:
    """What one sink stored and another did not, for a pipeline raised, is not remembered."""

    class Again(Yields):
        async def parse(self, request: Any, response: Any) -> Any:
            yield news("a", sour=1)
            await asyncio.sleep(0.5)
            yield news("a")

    pipelines = {MemorySink: 300, Picky: 350, SecondSink: 400}
    settings = {"ITEM_PIPELINES": pipelines, "BUFFER_FLUSH_INTERVAL": 0.05}
    crawler = crawl(Again, settings, page=site.url("/page/1"))

    assert [row for _, row in rows(crawler)] == [{"url": "a", "sour": 1}, {"url": "a"}]
    assert crawler.__dict__["_second"] == [{"url": "a"}]
    assert [line["data"] for line in dumped(ITEMS)] == [{"url": "a", "sour": 1}]


def test_a_duplicate_at_which_a_pipeline_raises_is_no_row(site: Any) -> None:
    """An item that was stored before is not dumped because a later pipeline dislikes it."""

    class Dislikes(Yields):
        def items(self) -> Any:  # type: ignore[override]
            yield news("a")
            yield news("b")
            yield news("a", title="again")

    class Late:
        def process_item(self, item: Any) -> Any:
            if item.get("title"):
                raise ValueError("a title")
            return item

    settings = {"ITEM_PIPELINES": {MemorySink: 300, Late: 900}}
    crawl(Dislikes, settings, page=site.url("/page/1"))

    assert dumped(ITEMS) == []
