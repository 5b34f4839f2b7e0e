"""Files written for netspy: what netspy 1.3.3 does with them happens here too.

The expectations are what netspy was seen to do with the same spiders against the same site, except
where it loses something (a request, a batch).
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scrapy import signals

import netspy_scrapy as mw
from netspy_scrapy import BasePipeline
from tests import crawling
from tests.crawling import MEMORY, dumped, rows


class Spider(mw.AirSpider):
    """Fetches ``seeds``; its items are kept in memory."""

    seeds: Any = ()
    __custom_setting__ = MEMORY

    def start_requests(self) -> Any:
        yield from self.seeds

    def parse(self, request: Any, response: Any) -> Any:
        yield {"url": request.url, "status": response.status_code, "times": request.retry_times}


def crawl(spider: type[Spider], settings: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """Run *spider* with one retry and no circuit."""
    some = {"SPIDER_MAX_RETRY_TIMES": 1, "CIRCUIT_FAILURE_THRESHOLD": 0}
    return crawling.crawl(spider, {**some, **(settings or {})}, **arguments)


def data_of(crawler: Any) -> list[Any]:
    """Return the fields of all rows, in a fixed order."""
    return sorted((row[1] for row in rows(crawler)), key=str)


def fetched(site: Any) -> Counter[str]:
    """Count the requests by method and path."""
    return Counter(f"{one.method} {one.path}" for one in site.log())


def script(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run *text* as a spider file of its own."""
    (folder / "spider.py").write_text("import sys, time\nimport netspy_scrapy as mw\n" + text)
    command = [sys.executable, "spider.py", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


# Whole spiders -----------------------------------------------------------------------------------
class BookItem(mw.Item):
    __table_name__ = "books"
    __unique_key__ = ["url"]

    def pre_to_db(self) -> None:
        self.title = self.title.strip()


class PriceItem(mw.UpdateItem):
    __table_name__ = "books"
    __update_key__ = "url"


def test_list_pages_and_their_details(site: Any) -> None:
    """A spider that pages through lists fetches each page once, and each kind of item arrives."""
    for page in (1, 2, 3):
        links = "".join(f'<li><a href="/page/{page}{n}">Book {page}{n}</a></li>' for n in range(3))
        again = '<li><a href="/page/10">Book 10 again</a></li>'
        more = f'<a class="next" href="/list/{page + 1}">next</a>' if page < 3 else ""
        site.set(f"/list/{page}", body=f"<html><ul>{links}{again}</ul>{more}</html>")

    class Books(Spider):
        def start_requests(self) -> Any:
            yield mw.Request(site.url("/list/1"), cb_kwargs={"page": 1})

        def parse(self, request: Any, response: Any, page: int) -> Any:
            for link in response.css("li a"):
                yield mw.Request(
                    response.urljoin(link.xpath("./@href").extract_first()),
                    callback=self.detail,
                    cb_kwargs={"name": link.xpath("./text()").get()},
                )
            following = response.xpath("//a[@class='next']/@href").extract_first()
            if following:
                yield mw.Request(response.urljoin(following), cb_kwargs={"page": page + 1})

        def detail(self, request: Any, response: Any, name: str) -> Any:
            item = BookItem()
            item.url = request.url
            item.title = f"  {name} "
            yield item
            update = PriceItem()
            update.url = request.url
            update.price = 9.5
            yield update
            yield {"raw": name}

    stored = rows(crawl(Books))

    numbers = [10 * page + n for page in (1, 2, 3) for n in range(3)]
    lists = {f"GET /list/{page}": 1 for page in (1, 2, 3)}
    assert fetched(site) == {**lists, **{f"GET /page/{n}": 1 for n in numbers}}
    assert sorted(stored, key=str) == sorted(
        [
            row
            for n in numbers
            for row in (
                ("books", {"url": site.url(f"/page/{n}"), "title": f"Book {n}"}),
                ("books", {"url": site.url(f"/page/{n}"), "price": 9.5}, ("url",)),
                ("items", {"raw": f"Book {n}"}),
            )
        ],
        key=str,
    )


def test_attempts_and_dump_lines_of_failing_pages(site: Any) -> None:
    """Each page is tried as often as by netspy, and its dump line has netspy's fields."""

    class Failing(Spider):
        def start_requests(self) -> Any:
            codes = ("a?codes=503,200", "b?codes=404,200", "c?codes=429,200&retry_after=100")
            for path in (*(f"/status/{n}" for n in (404, 403, 500)), *(f"/seq/{n}" for n in codes)):
                yield mw.Request(site.url(path))
            yield mw.Request(site.url("/page/1"), callback="boom", priority=7, batch=[1, {"a": 2}],
                             cb_kwargs={"x": {"y": [1]}})  # fmt: skip
            yield mw.Request(site.url("/page/2"), callback=self.boom, retry_times=1)
            yield mw.Request(site.url("/status/410"), "POST", json={"a": "中"}, headers={"X": "1"})

        def boom(self, request: Any, response: Any, x: Any = None) -> Any:
            yield {"boom": request.retry_times}
            yield mw.Request(site.url("/page/9"))
            raise ValueError("boom")

    crawler = crawl(Failing, {"RETRY_AFTER_MAX": 0.2})

    assert fetched(site) == {
        "GET /status/404": 1, "GET /status/403": 1, "GET /seq/a?codes=503,200": 2,
        "GET /status/500": 2, "GET /seq/b?codes=404,200": 1,
        "GET /seq/c?codes=429,200&retry_after=100": 1, "GET /page/1": 2, "GET /page/2": 1,
        "GET /page/9": 1, "POST /status/410": 1,
    }  # fmt: skip
    assert data_of(crawler) == sorted(
        [
            {"boom": 0}, {"boom": 1}, {"boom": 1},
            {"url": site.url("/page/9"), "status": 200, "times": 0},
            {"url": site.url("/seq/a?codes=503,200"), "status": 200, "times": 1},
        ],
        key=str,
    )  # fmt: skip
    fields = ("method", "callback", "priority", "retry_times", "filter_repeat", "cb_kwargs",
              "requests_kwargs", "custom")  # fmt: skip
    lines = {line["url"]: tuple(line[field] for field in fields) for line in dumped()}
    assert lines == {
        site.url("/status/404"): ("GET", None, 300, 0, True, {}, {}, {}),
        site.url("/status/403"): ("GET", None, 300, 0, True, {}, {}, {}),
        site.url("/status/500"): ("GET", None, 300, 1, False, {}, {}, {}),
        site.url("/seq/b?codes=404,200"): ("GET", None, 300, 0, True, {}, {}, {}),
        site.url("/seq/c?codes=429,200&retry_after=100"): ("GET", None, 300, 0, True, {}, {}, {}),
        site.url("/page/1"): (
            "GET", "boom", 7, 1, False, {"x": {"y": [1]}}, {}, {"batch": [1, {"a": 2}]}
        ),
        site.url("/page/2"): ("GET", "boom", 300, 1, True, {}, {}, {}),
        site.url("/status/410"): (
            "POST", None, 300, 0, True, {}, {"json": {"a": "中"}, "headers": {"X": "1"}}, {}
        ),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "parsed", "attempts"),
    [
        ({"CHECK_STATUS_CODE": False}, [200, 202, 302, 404, 503], 5),
        ({"ACCEPT_STATUS_CODES": [404, 503]}, [200, 202, 302, 404, 503], 5),
        ({"RETRY_STATUS_CODES": [202, 302, 404]}, [200, 202, 302], 6),
        ({"RETRY_STATUS_CODES": [503], "SPIDER_MAX_RETRY_TIMES": 0}, [200, 202, 302], 5),
    ],
)
def test_status_settings(
    site: Any, settings: dict[str, Any], parsed: list[int], attempts: int
) -> None:
    """The status lists let the same answers through, after the same attempts."""
    seeds = [mw.Request(site.url(f"/status/{code}")) for code in (200, 202, 302, 404, 503)]
    crawler = crawl(Spider, settings, seeds=seeds)

    assert sorted(row["status"] for row in data_of(crawler)) == parsed
    assert len(site.log()) == attempts


class Flows(Spider):
    site: Any = None

    def start_requests(self) -> Any:
        yield mw.Request(self.site.url("/page/1"), callback=self.partial)
        yield mw.Request(self.site.url("/page/2"), callback=self.not_retried)
        yield mw.Request(self.site.url("/page/3"), callback=self.no_json)
        yield mw.Request(self.site.url("/page/4"), callback=self.second_time)
        yield mw.Request(self.site.url("/page/5"), callback=self.plain, cb_kwargs={"unknown": 1})

    def plain(self, request: Any, response: Any) -> Any:
        yield {"n": request.url[-2:]}

    def partial(self, request: Any, response: Any) -> Any:
        for n in range(3):
            yield {"n": f"partial {n}"}
            yield mw.Request(self.site.url(f"/page/2{n}"), callback=self.plain)
            if n == 1:
                raise RuntimeError

    def not_retried(self, request: Any, response: Any) -> Any:
        yield {"n": "before"}
        raise mw.NotRetryError("enough")

    def no_json(self, request: Any, response: Any) -> Any:
        yield response.json()

    def second_time(self, request: Any, response: Any) -> Any:
        if request.retry_times == 0:
            raise ValueError("once")
        yield {"n": "second"}

    def failed_request(self, request: Any, response: Any) -> Any:
        yield {"n": f"failed {request.url[-1]} {request.retry_times}"}
        yield mw.Request(self.site.url("/echo"), callback=self.plain, filter_repeat=False)
        raise KeyError("after")


def test_what_a_callback_yielded_before_it_failed_is_kept(site: Any) -> None:
    """Items come once an attempt, child requests once; failed_request may yield, then raise."""

    values = Counter(row["n"] for row in data_of(crawl(Flows, site=site)))

    assert values == {
        "partial 0": 2, "partial 1": 2, "20": 1, "21": 1, "before": 1, "second": 1, "ho": 3,
        "failed 1 1": 1, "failed 3 1": 1, "failed 5 1": 1,
    }  # fmt: skip
    assert fetched(site)["GET /page/2"] == 1
    assert len(dumped()) == 3


def of_module(request: Any, response: Any, page: Any) -> Any:
    yield {"function": page}


class Callee:
    def __call__(self, request: Any, response: Any) -> Any:
        yield {"callee": 1}

    def method(self, request: Any, response: Any) -> Any:
        yield {"method of another": 1}


class Forms(Spider):
    site: Any = None

    def start_requests(self) -> Any:
        callbacks: list[tuple[Any, dict[str, Any]]] = [
            (functools.partial(of_module, page="partial"), {}), (self.static, {}),
            ("static", {}), (self.of_class, {}), (self.keyword_only, {"a": 1}),
            (self.keywords, {"a": 1, "b": 2}), (self.renamed, {}), (self._private, {}),
            (self.defaults, {}), (self.closure("c"), {}), (self.star, {}), (Callee(), {}),
            (Callee().method, {}), (self.delegates, {}), (self.tuple_of_two, {}),
            (self.mapped, {}), (self.nothing, {}),
        ]  # fmt: skip
        for n, (callback, kwargs) in enumerate(callbacks):
            yield mw.Request(self.site.url(f"/page/{n}"), callback=callback, cb_kwargs=kwargs)

    @staticmethod
    def static(request: Any, response: Any) -> Any:
        yield {"static": response.status_code}

    @classmethod
    def of_class(cls, request: Any, response: Any) -> Any:
        yield {"class": cls.__name__}

    def keyword_only(self, request: Any, response: Any, *, a: int) -> Any:
        yield {"keyword": a}

    def keywords(self, request: Any, response: Any, **kwargs: Any) -> Any:
        yield {"keywords": sorted(kwargs)}

    def renamed(self, req: Any, resp: Any) -> Any:
        yield {"renamed": resp.status_code}

    def _private(self, request: Any, response: Any) -> Any:
        yield {"private": 1}

    def defaults(self, request: Any, response: Any, page: int = 7) -> Any:
        yield {"default": page}

    def closure(self, value: str) -> Any:
        def inner(request: Any, response: Any) -> Any:
            yield {"closure": value + type(self).__name__}

        return inner

    def star(self, *args: Any, **kwargs: Any) -> Any:
        yield {"star": len(args)}

    def delegates(self, request: Any, response: Any) -> Any:
        yield from self.defaults(request, response, page=8)

    def tuple_of_two(self, request: Any, response: Any) -> Any:
        return ({"tuple": 1}, {"tuple": 2})

    def mapped(self, request: Any, response: Any) -> Any:
        return iter([{"map": 0}, {"map": 1}])

    def nothing(self, request: Any, response: Any) -> Any:
        return None


def test_callables_as_callbacks(site: Any) -> None:
    """Whatever netspy can call with a request and a response is a callback."""

    assert data_of(crawl(Forms, site=site)) == sorted(
        [
            {"function": "partial"}, {"static": 200}, {"static": 200}, {"class": "Forms"},
            {"keyword": 1}, {"keywords": ["a", "b"]}, {"renamed": 200}, {"private": 1},
            {"default": 7}, {"closure": "cForms"}, {"star": 2}, {"callee": 1},
            {"method of another": 1}, {"default": 8}, {"tuple": 1}, {"tuple": 2}, {"map": 0},
            {"map": 1},
        ],
        key=str,
    )  # fmt: skip


def noted(method: Any) -> Any:
    @functools.wraps(method)
    def wrapper(self: Any, request: Any, response: Any, *args: Any) -> Any:
        yield {"noted": method.__name__}
        yield from method(self, request, response, *args)

    return wrapper


def test_callbacks_from_bases_mixins_and_decorators(site: Any) -> None:
    """A callback may come from a base class, a mixin, a decorator, and call super()."""

    class Details:
        label = "mixin"

        def detail(self, request: Any, response: Any) -> Any:
            yield {"detail": self.label, "of": type(self).__name__}
            yield mw.Request(site.url("/page/3"), callback="third")

        def third(self, request: Any, response: Any) -> Any:
            yield {"third": "mixin"}

    class Base(Spider):
        def start_requests(self) -> Any:
            yield mw.Request(site.url("/page/1"))

        def parse(self, request: Any, response: Any) -> Any:
            yield {"parse": "base"}
            yield mw.Request(site.url("/page/2"), callback=self.detail)

    class Shop(Details, Base):
        label = "shop"

        @noted
        def parse(self, request: Any, response: Any) -> Any:
            yield from super().parse(request, response)

        def third(self, request: Any, response: Any) -> Any:
            yield from super().third(request, response)
            yield {"third": "shop"}

    assert data_of(crawl(Shop)) == sorted(
        [
            {"noted": "parse"}, {"parse": "base"}, {"detail": "shop", "of": "Shop"},
            {"third": "mixin"}, {"third": "shop"},
        ],
        key=str,
    )  # fmt: skip


def test_objects_travel_by_reference(site: Any) -> None:
    """What cb_kwargs and own attributes hold is the same object in the next callback."""
    bag: list[int] = []
    seen: list[Any] = []

    class Travels(Spider):
        def start_requests(self) -> Any:
            yield mw.Request(site.url("/seq/bag?codes=503,200"), bag=bag)

        def parse(self, request: Any, response: Any) -> Any:
            request.bag.append(1)
            item = BookItem(url="u", title="t")
            yield mw.Request(
                site.url("/page/1"), callback=self.detail, parent=request, cb_kwargs={"item": item}
            )
            item.late = 1

        def detail(self, request: Any, response: Any, item: Any) -> Any:
            copied = request.copy()
            seen.extend([item.to_dict(), request.parent.bag is bag, copied.parent is request.parent,
                         copied.cb_kwargs["item"] is item, copied.callback_name])  # fmt: skip

    crawl(Travels)

    assert bag == [1]
    assert seen == [{"url": "u", "title": "t", "late": 1}, True, True, True, "detail"]


# Sinks -------------------------------------------------------------------------------------------
class Number(mw.Item):
    pass


class Refusing(BasePipeline):
    def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        return False


class Raising(BasePipeline):
    def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        raise RuntimeError("disk")


def test_own_pipelines_and_routes(site: Any) -> None:
    """Rows go where the item says, and what a pipeline does not store is dumped for it."""

    class Sinks(Spider):
        def parse(self, request: Any, response: Any) -> Any:
            for n in (1, 2, 2):
                item = Number()
                item.n = n
                yield item
            refused = Number(n=5)
            refused.pipelines = ["tests.crawls.test_parity.Refusing"]
            yield refused
            both = Number(n=6)
            both.pipelines = ["tests.crawling.MemorySink", "tests.crawls.test_parity.Raising"]
            yield both
            renamed = Number(n=7)
            renamed.table_name = "renamed"
            yield renamed
            yield Number(n=8, empty=None, text="", zero=0)
            yield {"d": 1}
            yield {"d": 1}

    crawler = crawl(Sinks, seeds=[mw.Request(site.url("/page/1"))])

    assert sorted(rows(crawler), key=str) == sorted(
        [
            ("number", {"n": 1}), ("number", {"n": 2}), ("number", {"n": 6}),
            ("renamed", {"n": 7}), ("number", {"n": 8, "empty": None, "text": "", "zero": 0}),
            ("items", {"d": 1}), ("items", {"d": 1}),
        ],
        key=str,
    )  # fmt: skip
    lines = [
        (line["table"], line["data"], line["pipelines"]) for line in dumped("failed_items.jsonl")
    ]
    assert sorted(lines, key=str) == [
        ("number", {"n": 5}, ["tests.crawls.test_parity.Refusing"]),
        ("number", {"n": 6}, ["tests.crawls.test_parity.Raising"]),
    ]


# Responses and requests --------------------------------------------------------------------------
def test_responses_read_as_netspys(site: Any) -> None:
    """Selectors, joined headers, cookies and links give what netspy gives."""
    site.set("/base", body='<html><head><base href="http://other/x/"></head></html>')
    site.set("/empty", body="")
    site.set("/data", body='{"a": [1, "中"]}', headers={"Content-Type": "text/html"})
    site.set("/xml", body='<?xml version="1.0"?><r><t>1</t><t>2</t></r>',
             headers={"Content-Type": "application/xml"})  # fmt: skip
    head = "/headers?h=X-A:1&h=X-A:2&h=Set-Cookie:a%3D1&h=Set-Cookie:b%3D2;%20Path%3D/"
    found: dict[str, Any] = {}

    class Reads(Spider):
        def parse(self, request: Any, response: Any) -> Any:
            found[request.name] = response

    names = {"page": "/page/3", "base": "/base", "empty": "/empty", "data": "/data", "xml": "/xml",
             "head": head}  # fmt: skip
    crawl(Reads, seeds=[mw.Request(site.url(path), name=name) for name, path in names.items()])

    page = found["page"]
    assert page.css("a::attr(href)").extract_first() == "/page/4"
    assert page.xpath("//zzz/text()").extract_first(default="d") == "d"
    assert page.css("a")[0].css("::text").extract_first() == "Page 4"
    assert page.css("a::text").re(r"\d+")[:2] == ["4", "5"]
    assert page.re(r"(Pag)e (\d)")[:2] == ["Pag", "3"]
    assert (page.ok, page.status_code, page.history) == (True, 200, [])
    assert repr(page) == f"<Response [200] {site.url('/page/3')}>"
    assert found["base"].urljoin("b.html") == site.url("/b.html")
    assert found["base"].urljoin("") == site.url("/base")
    assert found["empty"].xpath("//a").get() is None
    assert found["empty"].re_first("x", "d") == "d"
    assert found["data"].json() == {"a": [1, "中"]}
    assert found["xml"].xpath("//t/text()").getall() == ["1", "2"]
    assert found["head"].headers["x-a"] == "1, 2"
    assert found["head"].cookies == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("code", "method", "arrives"),
    [(302, "POST", "GET"), (303, "PUT", "GET"), (307, "POST", "POST"), (308, "POST", "POST")],
)
def test_methods_across_redirects(site: Any, code: int, method: str, arrives: str) -> None:
    """A redirect changes the method as netspy's does, and the body goes with it or not."""
    url = site.url(f"/redirect?code={code}&to={site.url('/echo')}")
    crawl(Spider, seeds=[mw.Request(url, method, data={"a": 1})])

    last = site.log()[-1]
    assert (last.method, last.body) == (arrives, b"a=1" if arrives == method else b"")


def test_bodies_that_say_nothing(site: Any) -> None:
    """Empty JSON values are sent, None is not, and data goes before json."""
    bodies: list[dict[str, Any]] = [
        {"json": []}, {"json": {}}, {"json": 0}, {"json": None}, {"data": {}},
        {"data": {"a": 1}, "json": {"b": 2}}, {"content": "text"},
    ]  # fmt: skip
    seeds = [
        mw.Request(site.url("/echo"), "POST", filter_repeat=False, priority=n, **body)
        for n, body in enumerate(bodies)
    ]
    crawl(Spider, {"CONCURRENT_REQUESTS": 1}, seeds=seeds)

    assert [one.body for one in site.log()] == [b"[]", b"{}", b"0", b"", b"", b"a=1", b"text"]


def test_use_session_of_one_request(site: Any) -> None:
    """use_session=True shares cookies with others that say so, and only with these."""
    shown: dict[str, Any] = {}

    class Cookies(Spider):
        def start_requests(self) -> Any:
            url = site.url("/cookie/set?s=1")
            yield mw.Request(url, callback=self.then, use_session=True)

        def then(self, request: Any, response: Any) -> Any:
            assert response.cookies == {"s": "1"}
            path = "/cookie/show?"
            yield mw.Request(site.url(path + "1"), callback=self.show, n="with", use_session=True)
            yield mw.Request(site.url(path + "2"), callback=self.show, n="without")
            yield mw.Request(
                site.url(path + "3"), callback=self.show, n="given", cookies=response.cookies
            )

        def show(self, request: Any, response: Any) -> Any:
            shown[request.n] = response.json()

    crawl(Cookies)

    assert shown == {"with": {"s": "1"}, "without": {}, "given": {"s": "1"}}


# Scripts -----------------------------------------------------------------------------------------
RESULTS = """
RESULTS = []

class One(mw.AirSpider):
    __custom_setting__ = {"ITEM_PIPELINES": ["pl.Lines"], "ITEM_DEFAULT_TABLE": "one"}

    def __init__(self, pages, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pages = pages
        self.seen = []

    def start_requests(self):
        return [mw.Request(f"{sys.argv[1]}/page/{n}") for n in range(self.pages)]

    def parse(self, request, response):
        RESULTS.append(response.css("title::text").extract_first())
        self.seen.append(request.url)
        yield {"links": len(response.css("a"))}

class Two(mw.AirSpider):
    def start_requests(self):
        for title in list(RESULTS):
            yield mw.Request(sys.argv[1] + "/echo", params={"t": title})

    def parse(self, request, response):
        RESULTS.append(response.json()["query"][0][1])
        yield {"file": 1}

if __name__ == "__main__":
    one = One(3, thread_count=2)
    print(one.start(), sorted(RESULTS), len(one.seen))
    Two().start()
    print(sorted(RESULTS))
"""

LINES = """
import json
from netspy_scrapy.pipelines.base import BasePipeline

class Lines(BasePipeline):
    def save_items(self, table, items):
        with open("lines.jsonl", "a") as file:
            file.writelines(json.dumps([table, item]) + "\\n" for item in items)
        return True
"""


def test_two_spiders_their_results_and_a_setting_file(site: Any, folder: Path) -> None:
    """Lists filled by callbacks are there after start(), for the next spider and the script."""
    (folder / "pl.py").write_text(LINES)
    (folder / "setting.py").write_text(
        "ITEM_PIPELINES = ['pl.Lines']\nITEM_DEFAULT_TABLE = 'from_file'\nLOG_LEVEL = 'WARNING'\n"
    )
    done = script(folder, RESULTS, site.url("").rstrip("/"))

    assert done.returncode == 0, done.stderr
    titles = ["Page 0", "Page 1", "Page 2"]
    first, second = done.stdout.splitlines()
    assert first == f"0 {titles} 3"
    # httpx and Scrapy encode a space in params alike, as a plus, which the site leaves as it is.
    assert second == str(sorted([*titles, *(title.replace(" ", "+") for title in titles)]))
    lines = [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]
    assert sorted(lines, key=str) == [["from_file", {"file": 1}]] * 3 + [["one", {"links": 5}]] * 3
    assert len(site.log()) == 6


def test_stop_accounts_for_every_page(site: Any) -> None:
    """After self.stop() each seed is a row or a line of the dump, with its own attributes."""

    class Stops(Spider):
        def start_requests(self) -> Any:
            for n in range(20):
                yield mw.Request(site.url(f"/slow?ms=50&n={n}"), n=n)

        def parse(self, request: Any, response: Any) -> Any:
            yield {"n": request.n}
            if request.n == 4:
                self.stop()

    crawler = crawl(Stops, {"SPIDER_THREAD_COUNT": 1})

    stored = [row["n"] for row in data_of(crawler)]
    kept = [line["custom"]["n"] for line in dumped()]
    assert sorted(stored + kept) == list(range(20))
    assert len(stored) < 10


# Where Scrapy alone would differ ------------------------------------------------------------------
@pytest.mark.parametrize(
    "replaces",
    [False, True],
)
def test_redirects_are_followed_where_download_midware_is_defined(
    site: Any, replaces: bool
) -> None:
    """download_midware runs once an attempt, and a redirect reaches its target."""

    class Midware(Spider):
        def download_midware(self, request: Any) -> Any:
            return mw.Request(request.url, headers={"X-Token": "1"}) if replaces else request

    crawler = crawl(Midware, seeds=[mw.Request(site.url("/redirect?to=" + site.url("/page/6")))])

    assert [one.path for one in site.log()][1:] == ["/page/6"]
    assert len(rows(crawler)) == 1


def test_redirects_to_a_page_that_was_fetched(site: Any) -> None:
    """Each request gets its answer, also if a redirect leads where another one has been."""
    site.set("/self", body="<title>in</title>")
    site.set("/self", status=302, headers={"Location": "/self", "Set-Cookie": "seen=1"}, times=1)
    to = site.url("/page/6")
    seeds = [mw.Request(url) for url in
             (to, site.url(f"/redirect?1&to={to}"), site.url("/self"))]  # fmt: skip
    crawler = crawl(Spider, seeds=seeds)

    assert sorted(row["url"] for row in data_of(crawler)) == sorted(seed.url for seed in seeds)


def test_a_cookie_header_is_sent(site: Any) -> None:
    """headers={"Cookie": ...} goes out as it is, before cookies=."""
    one = mw.Request(site.url("/echo?1"), headers={"Cookie": "a=1; b=2"}, priority=1)
    two = mw.Request(site.url("/echo?2"), headers={"Cookie": "z=2"}, cookies={"a": "1"}, priority=2)
    crawl(Spider, {"CONCURRENT_REQUESTS": 1}, seeds=[one, two])

    assert [arrival.headers.get("cookie") for arrival in site.log()] == ["a=1; b=2", "z=2"]


def test_long_urls_are_fetched(site: Any) -> None:
    """A URL has no longest length."""
    long = "x" * 3000
    crawl(Spider, seeds=[mw.Request(site.url("/echo?" + long)),
                         mw.Request(site.url("/echo"), params={"q": long})])  # fmt: skip

    assert len(site.log()) == 2


def test_a_meta_refresh_is_not_followed(site: Any) -> None:
    """The callback gets the page that was asked for."""
    site.set("/old", body='<meta http-equiv="refresh" content="0; url=/page/5">')
    crawl(Spider, seeds=[mw.Request(site.url("/old"))])

    assert [one.path for one in site.log()] == ["/old"]


@pytest.mark.parametrize(
    "path",
    [
        "/badgzip",
        "/loop?1",
        "/big?mode=gzip&mb=2",
    ],
)
def test_answers_that_cannot_be_used_are_failures(site: Any, path: str) -> None:
    """A body that cannot be opened, an endless redirect, a bomb: failed_request, then the dump."""
    site.set("/badgzip", body=b"no gzip", headers={"Content-Encoding": "gzip"})
    site.set("/loop", status=302, headers={"Location": "/loop?2"})
    failed: list[str] = []

    class Fails(Spider):
        def failed_request(self, request: Any, response: Any) -> None:
            failed.append(request.url)

    crawl(
        Fails,
        {"MAX_RESPONSE_SIZE": 1_000_000},
        seeds=[mw.Request(site.url(path), filter_repeat=False)],
    )

    assert failed == [site.url(path)]
    assert [line["url"] for line in dumped()] == [site.url(path)]


def test_a_url_that_cannot_be_read_fails_alone(site: Any) -> None:
    """A port out of range or half an IPv6 address costs that request only."""

    class Bad(Spider):
        __custom_setting__ = {**MEMORY, "SPIDER_MAX_RETRY_TIMES": 0}

        def start_requests(self) -> Any:
            for url in ("http://127.0.0.1:99999/", "http://[::1", site.url("/page/1")):
                yield mw.Request(url)

    spider = Bad()
    spider.start()

    assert site.hits("/page/1") == 1
    assert len(dumped()) == 2


def test_user_and_password_in_the_url(site: Any) -> None:
    """http://user:pw@host/ is Basic authentication."""
    url = site.url("/echo").replace("http://", "http://user:pw@")
    crawl(Spider, seeds=[mw.Request(url)])

    assert [one.headers.get("authorization") for one in site.log()] == ["Basic dXNlcjpwdw=="]


def test_hooks_and_callback_see_one_request_and_one_response(site: Any) -> None:
    """What validate notes on them is there in the callback, exception_request, failed_request."""
    seen: list[Any] = []

    class Notes(Spider):
        def validate(self, request: Any, response: Any) -> None:
            request.note = response.note = "checked"
            if request.url.endswith("2"):
                raise mw.ValidationError("no")

        def parse(self, request: Any, response: Any) -> Any:
            seen.append(("parse", getattr(request, "note", 0), getattr(response, "note", 0)))

        def exception_request(self, request: Any, response: Any, exception: Exception) -> None:
            seen.append(("exception", getattr(request, "note", 0)))

        def failed_request(self, request: Any, response: Any) -> None:
            seen.append(("failed", getattr(request, "note", 0)))

    crawl(Notes, seeds=[mw.Request(site.url("/page/1")), mw.Request(site.url("/page/2"))])

    assert sorted(seen) == [
        ("exception", "checked"), ("failed", "checked"), ("parse", "checked", "checked")
    ]  # fmt: skip


def test_exceptions_that_exception_request_sees(site: Any) -> None:
    """A network failure is a RequestError; download_midware's own exception is itself."""
    seen: list[Any] = []

    class Sees(Spider):
        def download_midware(self, request: Any) -> None:
            if request.url.endswith("1") and request.retry_times == 0:
                raise KeyError("token")

        def exception_request(self, request: Any, response: Any, exception: Exception) -> None:
            seen.append(exception)

    crawl(Sees, seeds=[mw.Request(site.url("/page/1")), mw.Request("http://127.0.0.1:1/")])

    assert sum(isinstance(one, KeyError) for one in seen) == 1
    assert sum(isinstance(one, mw.RequestError) for one in seen) == 1


class WithDefault(mw.Item):
    title = None

    def pre_to_db(self) -> None:
        self.slug = str(self.title).lower()


def test_keywords_of_an_item_are_assignments(site: Any) -> None:
    """Item(title=..., table_name=..., pipelines=...) is the same as assigning them."""

    class Yields(Spider):
        def parse(self, request: Any, response: Any) -> Any:
            yield WithDefault(title="Real", items=3, _hidden=1)
            yield Number(n=1, table_name="chosen")
            yield Number(n=2, pipelines=["tests.crawls.test_parity.Refusing"])

    item: Any = WithDefault(title="Real", items=3)
    assert (item.title, item.items) == ("Real", 3)
    crawler = crawl(Yields, seeds=[mw.Request(site.url("/page/1"))])

    assert rows(crawler) == [
        ("with_default", {"title": "Real", "items": 3, "slug": "real"}), ("chosen", {"n": 1})
    ]  # fmt: skip
    assert [line["data"] for line in dumped("failed_items.jsonl")] == [{"n": 2}]


def test_items_without_a_value_for_their_unique_key_are_kept(site: Any) -> None:
    """Where the unique field is None or missing, the whole content makes the fingerprint."""

    class Yields(Spider):
        def parse(self, request: Any, response: Any) -> Any:
            for n in (1, 2, 2):
                item = BookItem()
                item.url = None
                item.title = f"no url {n}"
                yield item

    crawler = crawl(Yields, seeds=[mw.Request(site.url("/page/1"))])

    assert [row["title"] for row in data_of(crawler)] == ["no url 1", "no url 2"]


class Duck:
    """A pipeline without a base class, as netspy takes it."""

    def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        return True


def test_a_pipeline_without_our_base_is_refused(site: Any) -> None:
    """Scrapy would load it, call nothing of it, and every row would be gone without a word."""

    class Ducks(Spider):
        __custom_setting__ = {"ITEM_PIPELINES": {Duck: 300}}

    with pytest.raises(mw.ConfigError, match=r"ITEM_PIPELINES.*Duck.*BasePipeline"):
        crawl(Ducks, seeds=[mw.Request(site.url("/page/1"))])


class Telling(BasePipeline):
    def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        self.logger.info("saved {} rows", len(items))  # noqa: PLE1205 - as netspy users write it
        self.logger.success("saved")
        return True


def test_logger_of_a_pipeline(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """self.logger of a pipeline takes {} and has success(), as a spider's."""

    class Tells(Spider):
        __custom_setting__ = {"ITEM_PIPELINES": {Telling: 300}}

    crawl(Tells, seeds=[mw.Request(site.url("/page/1"))])

    assert "saved 1 rows" in [record.getMessage() for record in caplog.records]
    assert dumped("failed_items.jsonl") == []


def test_start_may_be_overridden(site: Any) -> None:
    """A spider may wrap start() in code of its own."""
    calls: list[str] = []

    class Wraps(Spider):
        def start(self) -> None:
            calls.append("before")
            super().start()
            calls.append("after")

    spider = Wraps()
    spider.seeds = [mw.Request(site.url("/page/1"))]
    spider.start()

    assert site.hits("/page/1") == 1
    assert calls == ["before", "after"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_stop_from_another_thread(site: Any) -> None:
    """stop() may be called from any thread."""
    spider = Spider()
    spider.seeds = [mw.Request(site.url(f"/slow?ms=100&n={n}")) for n in range(100)]
    threading.Timer(0.5, spider.stop).start()
    spider.start()

    assert len(site.log()) < 100


def test_stop_before_the_first_request_and_after_the_end(site: Any) -> None:
    """stop() counts from the moment the spider is opened; after the end it does nothing."""

    class Early(Spider):
        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.stop, signals.spider_opened)
            return spider

    spider = Early()
    spider.seeds = [mw.Request(site.url(f"/slow?ms=100&n={n}")) for n in range(50)]
    spider.start()
    spider.stop()

    assert len(site.log()) < 50
    assert spider.crawler.stats.get_value("finish_reason") == "stopped"


def test_two_spiders_started_in_two_threads(site: Any) -> None:
    """start() works in several threads at once."""
    spiders = [Spider(), Spider()]
    for n, spider in enumerate(spiders):
        spider.seeds = [mw.Request(site.url(f"/slow?ms=300&n={n}"))]
    threads = [threading.Thread(target=spider.start) for spider in spiders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert len(site.log()) == 2
    assert not any(thread.is_alive() for thread in threads)


FORKED = """
import os
BASE = sys.argv[1]


class S(mw.AirSpider):
    __custom_setting__ = {"ITEM_PIPELINES": [], "DNSCACHE_ENABLED": False}

    def start_requests(self):
        for n in range(3):
            yield mw.Request(f"{BASE}/slow?ms=100&n={n}")

    def parse(self, request, response):
        os.write(1, b"GOT\\n")


S().start()
child = os.fork()
S().start()
if child:
    assert os.waitpid(child, 0)[1] == 0
    S().start()
"""


def test_start_in_a_forked_child(site: Any, folder: Path) -> None:
    """After a start() a forked child may start() too, beside its parent, and both end."""
    done = script(folder, FORKED, site.url("").rstrip("/").replace("127.0.0.1", "localhost"))

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("GOT") == 4 * 3


def test_start_within_a_crawl_is_refused(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """start() in a callback or in end_callback would wait for itself: it is an error at once."""

    class Nested(Spider):
        def end_callback(self) -> None:
            Spider().start()

    crawl(Nested, seeds=[mw.Request(site.url("/page/1"))])

    assert "Spider.start() is called by the code of a spider that is running" in caplog.text


def test_log_settings_of_netspy(site: Any, folder: Path) -> None:
    """LOG_LEVEL may be one of loguru's, and the folder of LOG_FILE is made."""
    (folder / "setting.py").write_text("LOG_LEVEL = 'SUCCESS'\nLOG_FILE = 'logs/run.log'\n")
    done = script(folder, "class S(mw.AirSpider):\n    pass\nS().start()\n")

    assert done.returncode == 0, done.stderr
    assert (folder / "logs" / "run.log").exists()


# What cannot work is named -----------------------------------------------------------------------
def test_async_hooks_are_refused(site: Any) -> None:
    """An async validate would never be awaited, and every page accepted."""

    class Awaits(Spider):
        async def validate(self, request: Any, response: Any) -> None:
            raise mw.NotRetryError("no")

    with pytest.raises(mw.SpiderError, match=r"Awaits\.validate is async"):
        crawl(Awaits, seeds=[mw.Request(site.url("/page/1"))])


def test_a_dump_that_cannot_be_written_is_named(
    site: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The start says that failures would be lost."""
    (folder / "taken").mkdir()
    crawl(Spider, {"FAILED_REQUEST_PATH": "taken"}, seeds=[mw.Request(site.url("/page/1"))])

    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("FAILED_REQUEST_PATH" in one and "not a regular file" in one for one in said)


class WrongKey(mw.UpdateItem):
    __update_key__: Any = 5


def test_senseless_directions_of_items_are_dumped(site: Any) -> None:
    """A key that is no name, pipelines that are no list: the row is in the dump, once."""

    class Yields(Spider):
        def parse(self, request: Any, response: Any) -> Any:
            yield WrongKey(n=1)
            yield Number(n=2, pipelines="no.such.Pipeline")
            yield Number(n=3, pipelines=3)

    crawl(Yields, seeds=[mw.Request(site.url("/page/1"))])

    assert sorted(line["data"]["n"] for line in dumped("failed_items.jsonl")) == [1, 2, 3]


def test_the_password_of_a_url_is_not_logged(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Scrapy's log lines show the URL without user and password."""

    class Silent(Spider):
        def parse(self, request: Any, response: Any) -> None:
            assert request.url.startswith("http://user:")

    caplog.set_level("DEBUG")
    url = site.url("/echo").replace("http://", "http://user:hush@")
    crawl(Silent, seeds=[mw.Request(url), mw.Request(url)])

    assert [one for one in caplog.messages if "hush" in one] == []


@pytest.mark.parametrize("wrong", [{"proxies": 5}, {"files": 5}, {"params": 5}, {"data": object()}])
def test_values_that_cannot_be_sent_cost_their_request_only(
    site: Any, wrong: dict[str, Any]
) -> None:
    """The request fails, with hook and dump; the next one is fetched."""
    seeds = [mw.Request(site.url("/page/1"), **wrong), mw.Request(site.url("/page/2"))]
    crawler = crawl(Spider, seeds=seeds)

    assert [row["url"] for row in data_of(crawler)] == [site.url("/page/2")]
    assert [line["url"] for line in dumped()] == [site.url("/page/1")]


class Yielding(BasePipeline):
    def save_items(self, table: str, items: list[dict[str, Any]]) -> Any:
        yield True


def test_a_sink_that_yields_has_stored_nothing(site: Any) -> None:
    """save_items written as a generator never ran: its rows are in the dump."""

    class Yields(Spider):
        __custom_setting__ = {"ITEM_PIPELINES": {Yielding: 300}}

    crawl(Yields, seeds=[mw.Request(site.url("/page/1"))])

    (line,) = dumped("failed_items.jsonl")
    assert "must return, not yield" in line["reason"]
