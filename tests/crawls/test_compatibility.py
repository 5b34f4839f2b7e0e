"""Small things that netspy's users write, and the mistakes that cost no more than their request."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import netspy_scrapy as mw
from netspy_scrapy.exceptions import ConfigError
from tests.crawling import MEMORY, PlainSpider, crawl, dumped, netspy_stats, rows


class Spider(mw.AirSpider):
    """Fetches ``seeds``; its items are kept in memory."""

    seeds: Any = ()
    __custom_setting__ = MEMORY

    def start_requests(self) -> Any:
        yield from self.seeds

    def parse(self, request: Any, response: Any) -> Any:
        yield {"url": request.url}


BAD = [
    ({"priority": None}, "priority None is not a number"),
    ({"cookies": [("a",)]}, "cookies are a dict, or a list of pairs of name and value"),
    ({"cookies": 5}, "cookies of the type int cannot be sent"),
    ({"meta": "x"}, "meta 'x' is not a dict"),
    ({"cb_kwargs": 3}, "cb_kwargs 3 is not a dict"),
    ({"flags": 1}, "'int' object is not iterable"),
    ({"method": None}, "method None is not a text"),
    ({"replace": 1}, "the keyword 'replace' is a method of requests"),
    ({"headers": 5}, "headers cannot be sent"),
]


@pytest.mark.parametrize(("keywords", "reason"), BAD)
def test_a_bad_request_costs_one_request(site: Any, keywords: Any, reason: str) -> None:
    """A keyword that cannot be used fails its request, in start_requests and in callbacks."""

    class Bad(Spider):
        def start_requests(self) -> Any:
            yield mw.Request(site.url("/page/1"), **keywords)
            yield mw.Request(site.url("/page/2"))

        def parse(self, request: Any, response: Any) -> Any:
            if request.url.endswith("/2"):
                yield mw.Request(site.url("/page/3"), **keywords)
                yield mw.Request(site.url("/page/4"))
            yield {"url": request.url}

    crawler = crawl(Bad)

    assert sorted(row["url"][-1] for _, row in rows(crawler)) == ["2", "4"]
    assert sorted(line["url"][-1] for line in dumped()) == ["1", "3"]
    assert all(reason in line["reason"] for line in dumped())
    assert netspy_stats(crawler)["netspy/failures/RequestError"] == 2


def test_cookies_as_scrapy_writes_them(site: Any) -> None:
    """Cookies may be dicts with name and value, as in Scrapy."""
    crawl(Spider, seeds=[mw.Request(site.url("/echo"), cookies=[{"name": "a", "value": "b"}])])

    assert site.log()[0].headers["cookie"] == "a=b"


def test_item_defaults_of_a_class() -> None:
    """However a field is set, the attribute reads it; else it is the default of the class."""

    class Book(mw.Item):
        title = None
        items = ()

    book = Book()
    assert book.title is None
    assert dict(book) == {}
    book["title"] = "one"
    assert book.title == "one"
    book.title = "two"
    book.update(title="three")
    assert book.title == book["title"] == "three"
    del book.title
    assert book.title is None
    assert Book.title is None


def test_item_fingerprint() -> None:
    """item.fingerprint is equal for items of equal unique keys, and may be a field as well."""

    class Book(mw.Item):
        __unique_key__ = ["url"]

    first, second, third = Book(url="a", n=1), Book(url="a", n=2), Book(url="b")
    assert first.fingerprint == second.fingerprint != third.fingerprint
    first.fingerprint = "mine"
    assert first.fingerprint == first["fingerprint"] == "mine"


def test_request_from_dict(site: Any) -> None:
    """Request.from_dict() takes what netspy's to_dict() gave, and what ours gives."""
    theirs = {
        "url": site.url("/page/1"), "method": "GET", "callback": "parse", "priority": 9,
        "filter_repeat": False, "cb_kwargs": {}, "requests_kwargs": {"json": {"a": 1}},
        "custom": {"batch": 7},
    }  # fmt: skip
    request = mw.Request.from_dict(theirs)

    assert (request.priority, request.batch, request.filter_repeat) == (9, 7, False)
    again = mw.Request.from_dict(request.seal().to_dict())
    assert (again.batch, again.scrapy_priority, again.body) == (7, 291, b'{"a":1}')
    with pytest.raises(mw.RequestError, match="async def"):
        request.download()


def test_names_of_the_package(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """mw.setting, mw.log and mw.exceptions are there."""
    (folder / "setting.py").write_text("MY_KEY = 5\nCSV_OUTPUT_DIR = 'out'\n")

    assert (mw.setting.MY_KEY, mw.setting.CSV_OUTPUT_DIR) == (5, "out")
    assert mw.setting.SPIDER_MAX_RETRY_TIMES == 3
    with pytest.raises(AttributeError, match="NOTHING"):
        _ = mw.setting.NOTHING
    assert mw.exceptions.ValidationError is mw.ValidationError
    mw.log.info("{} pages", 3)
    assert "3 pages" in caplog.text


def test_bound_loggers(caplog: pytest.LogCaptureFixture) -> None:
    """logger.bind() adds values to the record, logger.opt(exception=True) the traceback."""
    logger = mw.get_logger("bound")
    logger.bind(shop="a").info("bound {}", 1)
    try:
        raise KeyError("k")
    except KeyError:
        logger.opt(exception=True).error("failed")

    bound, failed = [record for record in caplog.records if record.name == "bound"]
    assert (bound.shop, bound.getMessage()) == ("a", "bound 1")  # type: ignore[attr-defined]
    assert failed.exc_info is not None
    assert failed.exc_info[0] is KeyError


def test_a_callback_added_later(site: Any) -> None:
    """A method that the class got after its creation is called with request and response."""

    class Late(Spider):
        pass

    def late(self: Any, request: Any, response: Any) -> Any:
        yield {"late": request.url}

    Late.late = late  # type: ignore[attr-defined]
    Late.start_requests = lambda self: [  # type: ignore[method-assign]
        mw.Request(site.url("/page/1"), callback=self.late)
    ]
    crawler = crawl(Late)

    assert [row for _, row in rows(crawler)] == [{"late": site.url("/page/1")}]


def test_settings_of_the_spiders_own(site: Any) -> None:
    """A property called settings is an error that says why."""

    class Own(Spider):
        @property
        def settings(self) -> Any:
            return {"mine": 1}

    with pytest.raises(mw.SpiderError, match=r"Own\.settings is a property"):
        crawl(Own)


def test_event_loop_of_the_spiders_own(site: Any, folder: Path) -> None:
    """ASYNCIO_EVENT_LOOP counts in __custom_setting__ too."""
    import subprocess

    (folder / "loops.py").write_text(
        "import asyncio\nclass Loop(asyncio.SelectorEventLoop): pass\n"
    )
    (folder / "s.py").write_text(
        "import asyncio\nimport netspy_scrapy as mw\n"
        "class S(mw.AirSpider):\n"
        "    __custom_setting__ = {'ASYNCIO_EVENT_LOOP': 'loops.Loop', 'ITEM_PIPELINES': []}\n"
        "    def start_requests(self):\n"
        "        print(type(asyncio.get_running_loop()).__name__)\n"
        "        return []\n"
        "S().start()\n"
    )
    done = subprocess.run(
        [sys.executable, "s.py"], cwd=folder, capture_output=True, text=True, timeout=60,
        check=False, env={"PYTHONPATH": f"{folder}:{Path(mw.__file__).parent.parent}"},
    )  # fmt: skip

    assert done.stdout == "Loop\n", done.stderr


def test_pages_outside_the_domains_are_in_the_summary(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What allowed_domains keeps out is counted in the run summary."""

    class Inside(PlainSpider):
        allowed_domains = ["127.0.0.1"]

    crawl(Inside, urls=(site.url("/page/1"), site.url("/page/2", host="127.0.0.2")))

    assert "filtered 1  (outside allowed_domains 1)" in caplog.text


def test_a_wrong_path_of_a_pipeline() -> None:
    """A path in ITEM_PIPELINES that cannot be imported is an error that names both."""
    with pytest.raises(
        ConfigError, match=r"ITEM_PIPELINES = 'netspy_scrapy\.pipelines\.sqlit"
    ) as e:
        crawl(
            PlainSpider, {"ITEM_PIPELINES": {"netspy_scrapy.pipelines.sqlit.SqlitePipeline": 300}}
        )

    assert "did you mean netspy_scrapy.pipelines.sqlite.SqlitePipeline?" in str(e.value)


def test_a_failure_that_cannot_be_kept_says_so(
    site: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where FAILED_REQUEST_PATH cannot be written, the failure's line does not say "kept in"."""
    (folder / "taken").mkdir()
    crawl(PlainSpider, {"FAILED_REQUEST_PATH": "taken"}, urls=(site.url("/status/404"),))

    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Failed: ")]
    assert "kept in" not in line
    assert "not kept: " in line


def test_rendering_of_a_dumped_request(site: Any) -> None:
    """The line of a request that a browser was to fetch keeps how."""
    request = mw.Request(site.url("/status/404"), render=True, wait_for="#a", render_time=2.5)
    crawl(Spider, seeds=[request])

    (line,) = dumped()
    assert (line["render"], line["wait_for"], line["render_time"]) == (True, "#a", 2.5)
