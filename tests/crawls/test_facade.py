"""Netspy spiders: what their author sees, in real crawls."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import netspy_scrapy as mw
from tests.crawling import MEMORY, crawl, dumped, netspy_stats, reason, rows


class Spider(mw.AirSpider):
    """Fetches what ``seeds`` gives, and notes what it sees."""

    seeds: Any = ()
    __custom_setting__ = MEMORY

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[Any] = []

    def start_requests(self) -> Any:
        yield from self.seeds

    def parse(self, request: Any, response: Any) -> Any:
        self.seen.append((request, response))


def fetch(site: Any, request: mw.Request, **settings: Any) -> Any:
    """Fetch one request of a netspy spider and return request and response of its callback."""
    crawler = crawl(Spider, settings, seeds=[request])
    (pair,) = crawler.spider.seen
    return pair


def echo(site: Any, **keywords: Any) -> Any:
    """Return what the site got for a request with some HTTP keywords."""
    path = keywords.pop("path", "/echo")
    return fetch(site, mw.Request(site.url(path), **keywords))[1].json()


# Callbacks ---------------------------------------------------------------------------------------
def test_callbacks_get_request_and_response(site: Any) -> None:
    """A callback gets the request as it was written and netspy's response."""
    url = site.url("/page/7")
    request, response = fetch(site, mw.Request(url, priority=5, batch_id=7))

    assert (request.url, request.priority, request.batch_id, request.retry_times) == (url, 5, 7, 0)
    assert (response.status_code, response.ok, response.url) == (200, True, url)
    assert response.css("title::text").extract_first() == "Page 7"
    assert response.xpath("//title/text()").get() == "Page 7"
    assert response.re_first(r"<title>(Page \d)") == "Page 7"
    assert response.re(r"Page (\d)")[0] == "7"
    assert response.re_first("nothing", "x") == "x"
    assert response.urljoin("/next") == site.url("/next")
    assert isinstance(response.content, bytes)
    assert response.text == response.content.decode()
    assert response.headers["content-type"] == response.headers["Content-Type"]
    assert response.headers.get("X-Missing") is None
    assert response.elapsed > 0
    assert response.history == []
    assert response.request is request
    assert response.status == 200  # what netspy does not have is Scrapy's


def module_callback(request: Any, response: Any, page: int) -> Any:
    """A callback that is no method."""
    yield {"function": page, "url": request.url}


def test_every_form_of_callback(site: Any) -> None:
    """A callback may be a method, a name, a function, a lambda, None; cb_kwargs are passed."""

    class Forms(Spider):
        def start_requests(self) -> Any:
            kwargs = {"cb_kwargs": {"page": 2}}
            yield mw.Request(site.url("/page/1"), callback=self.other, **kwargs)
            yield mw.Request(site.url("/page/2"), callback="other", **kwargs)
            yield mw.Request(site.url("/page/3"), callback=module_callback, **kwargs)
            yield mw.Request(
                site.url("/page/4"), callback=lambda q, r, page: {"lambda": page}, **kwargs
            )
            yield mw.Request(site.url("/page/5"))

        def other(self, request: Any, response: Any, page: int) -> Any:
            yield {"method": page, "url": request.url}

        async def parse(self, request: Any, response: Any) -> Any:
            yield {"parse": response.status_code}

    stored = [row for _, row in rows(crawl(Forms))]

    assert sorted(stored, key=str) == sorted(
        [
            {"method": 2, "url": site.url("/page/1")},
            {"method": 2, "url": site.url("/page/2")},
            {"function": 2, "url": site.url("/page/3")},
            {"lambda": 2},
            {"parse": 200},
        ],
        key=str,
    )


def test_everything_a_callback_may_yield(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Requests, items, dicts and callables work; anything else costs one line and nothing more."""
    called: list[str] = []

    class Row(mw.Item):
        pass

    class Yields(Spider):
        def parse(self, request: Any, response: Any) -> Any:
            item = Row()
            item.n = 1
            yield item
            yield {"n": 2}
            yield lambda: called.append("called")
            yield None
            yield 42
            yield "text"
            yield mw.Request(site.url("/page/2"), callback=self.second)
            yield {"n": 3}

        def second(self, request: Any, response: Any) -> Any:
            return [{"n": 4}, None]

    crawler = crawl(Yields, seeds=[mw.Request(site.url("/page/1"))])

    assert rows(crawler) == [
        ("row", {"n": 1}), ("items", {"n": 2}), ("items", {"n": 3}), ("items", {"n": 4})
    ]  # fmt: skip
    assert called == ["called"]
    assert reason(crawler) == "finished"
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 2
    assert "parse yielded int 42" in lines[0]
    assert netspy_stats(crawler)["netspy/items/refused"] == 2


def test_callback_that_raises_is_retried_then_dumped(site: Any) -> None:
    """A callback's exception fetches the page again; what it yielded before is kept each time."""

    class Raises(Spider):
        def parse(self, request: Any, response: Any) -> Any:
            yield {"attempt": request.retry_times}
            raise ValueError("boom")

        def failed_request(self, request: Any, response: Any) -> Any:
            yield {"failed": request.url, "status": response.status_code}

    url = site.url("/page/1")
    crawler = crawl(Raises, {"SPIDER_MAX_RETRY_TIMES": 2}, seeds=[mw.Request(url)])

    assert [row for _, row in rows(crawler)] == [
        {"attempt": 0}, {"attempt": 1}, {"attempt": 2}, {"failed": url, "status": 200}
    ]  # fmt: skip
    (line,) = dumped()
    assert (line["callback"], line["retry_times"]) == (None, 2)
    assert "ValueError: boom" in line["reason"]
    assert crawler.stats.get_value("spider_exceptions/ValueError") == 1


def test_hooks_in_their_order(site: Any) -> None:
    """Every hook is called at its place: once a crawl, an attempt, a retry, a failure."""
    calls: list[Any] = []

    class Hooks(Spider):
        def start_callback(self) -> None:
            calls.append("start_callback")

        def download_midware(self, request: Any) -> Any:
            calls.append(("midware", request.url[-1], request.retry_times))

        def validate(self, request: Any, response: Any) -> Any:
            calls.append(("validate", request.url[-1]))
            if request.url.endswith("2"):
                raise mw.ValidationError("not the page")
            return True

        def parse(self, request: Any, response: Any) -> Any:
            calls.append(("parse", request.url[-1]))

        def exception_request(self, request: Any, response: Any, exception: Exception) -> Any:
            calls.append(("exception", request.retry_times, response.status_code, str(exception)))

        def failed_request(self, request: Any, response: Any) -> Any:
            calls.append(("failed", request.url[-1], request.retry_times, response.status_code))
            yield {"failed": 1}

        def end_callback(self) -> None:
            calls.append(("end", len(rows(self.crawler))))

    seeds = [mw.Request(site.url("/page/1")), mw.Request(site.url("/page/2"), priority=400)]
    crawl(Hooks, {"SPIDER_MAX_RETRY_TIMES": 1}, seeds=seeds)

    assert (calls[0], calls[-1]) == ("start_callback", ("end", 1))
    of_page_1 = [call for call in calls[1:-1] if call[1] == "1"]
    assert of_page_1 == [("midware", "1", 0), ("validate", "1"), ("parse", "1")]
    assert [call for call in calls[1:-1] if call not in of_page_1] == [
        ("midware", "2", 0), ("validate", "2"), ("exception", 1, 200, "not the page"),
        ("midware", "2", 1), ("validate", "2"), ("failed", "2", 1, 200),
    ]  # fmt: skip


def test_drops_have_no_hook_and_no_dump(site: Any) -> None:
    """validate returning False, and NotRetryError anywhere, give a page up without a failure."""

    class Drops(Spider):
        def validate(self, request: Any, response: Any) -> Any:
            if request.url.endswith("1"):
                return False
            if request.url.endswith("2"):
                raise mw.NotRetryError("blocked")
            return None

        def parse(self, request: Any, response: Any) -> Any:
            yield {"before": 1}
            raise mw.NotRetryError("in the callback")

        def failed_request(self, request: Any, response: Any) -> Any:
            raise AssertionError("a drop is no failure")

    crawler = crawl(Drops, seeds=[mw.Request(site.url(f"/page/{n}")) for n in (1, 2, 3)])

    assert dumped() == []
    assert len(site.log()) == 3
    assert [row for _, row in rows(crawler)] == [{"before": 1}]
    stats = netspy_stats(crawler)
    assert (stats["netspy/drops"], stats.get("netspy/failures")) == (3, None)


def test_final_failures_reach_failed_request(site: Any) -> None:
    """A 404 at once, a dead host after its retries: failed_request, then the dump."""
    calls: list[Any] = []

    class Fails(Spider):
        def failed_request(self, request: Any, response: Any) -> Any:
            calls.append((request.url, response and response.status_code, request.retry_times))
            yield mw.Request(site.url("/page/9"), filter_repeat=False, callback=self.rescued)
            yield {"failed": request.url}

        def rescued(self, request: Any, response: Any) -> Any:
            yield {"rescued": response.status_code}

    seeds = [mw.Request(site.url("/status/404")), mw.Request(site.url("/close"))]
    crawler = crawl(Fails, {"SPIDER_MAX_RETRY_TIMES": 1}, seeds=seeds)

    assert sorted(calls, key=str) == sorted(
        [(site.url("/status/404"), 404, 0), (site.url("/close"), None, 1)], key=str
    )
    assert len(dumped()) == 2
    assert sum("rescued" in row for _, row in rows(crawler)) == 2


def test_unusable_requests_fail_alone(site: Any) -> None:
    """A relative URL, an unknown callback, a header that cannot be sent: one failure each."""
    failed: list[str] = []

    class Unusable(Spider):
        def failed_request(self, request: Any, response: Any) -> Any:
            failed.append(request.url)

    seeds = [
        mw.Request("/relative"),
        mw.Request(site.url("/page/1"), callback="no_such_method"),
        mw.Request(site.url("/page/2"), json={"x": object()}),
        mw.Request(site.url("/page/3"), timeout="soon"),
        mw.Request(site.url("/page/4")),
    ]
    crawler = crawl(Unusable, seeds=seeds)

    assert len(crawler.spider.seen) == 1
    assert failed == ["/relative", *(site.url(f"/page/{n}") for n in (1, 2, 3))]
    assert [line["reason"] for line in dumped()][
        1
    ] == "callback 'no_such_method' is not a method of Unusable"
    assert netspy_stats(crawler)["netspy/failures/RequestError"] == 4


def test_small_priority_goes_first(site: Any) -> None:
    """Requests go in netspy's order: small priority first, FIFO inside a level."""

    class Order(Spider):
        def start_requests(self) -> Any:
            yield mw.Request(site.url("/page/0"), callback=self.spread)

        def spread(self, request: Any, response: Any) -> Any:
            for n, priority in enumerate((300, 400, 100, 300, 100, -1)):
                yield mw.Request(site.url(f"/page/1{n}"), priority=priority)

    crawl(Order, {"CONCURRENT_REQUESTS": 1})

    assert [one.path[-1] for one in site.log()[1:]] == ["5", "2", "4", "0", "3", "1"]


def test_priority_survives_a_retry_and_a_redirect(site: Any) -> None:
    """After a retry and a redirect the callback still reads the priority that was given."""
    to = site.url("/seq/pr?codes=503,200")
    request, response = fetch(site, mw.Request(site.url("/redirect?to=" + to), priority=7))

    assert request.priority == 7
    assert response.url == to
    assert response.history == [site.url("/redirect?to=" + to)]
    assert request.url == site.url("/redirect?to=" + to)


def test_filter_repeat(site: Any) -> None:
    """Equal requests are fetched once, unless filter_repeat is False."""
    url = site.url("/page/1")
    crawl(Spider, seeds=[mw.Request(url), mw.Request(url), mw.Request(url, filter_repeat=False)])

    assert site.hits("/page/1") == 2


def test_a_request_may_be_yielded_again(site: Any) -> None:
    """``request.filter_repeat = False; yield request`` fetches what the request said at first."""

    class Again(Spider):
        def parse(self, request: Any, response: Any) -> Any:
            self.seen.append(request.url)
            if len(self.seen) == 1:
                request.filter_repeat = False
                request.requests_kwargs["params"] = {"n": 2}
                yield request

    crawl(Again, seeds=[mw.Request(site.url("/redirect?to=" + site.url("/echo")))])
    assert [one.path.partition("?")[2] for one in site.log()][2] == "n=2"


# On the wire -------------------------------------------------------------------------------------
def test_http_keywords_on_the_wire(site: Any) -> None:
    """params, data, json, content, cookies, headers, auth are sent as netspy sends them."""
    assert echo(site, params={"a": "x y", "b": [1, 2], "n": None, "t": True}, path="/echo?z=1")[
        "query"
    ] == [["a", "x+y"], ["b", "1"], ["b", "2"], ["n", ""], ["t", "true"]]
    form = echo(site, method="POST", data={"a": "x y", "b": [1, 2]})
    assert form["text"] == "a=x+y&b=1&b=2"
    assert form["headers"]["content-type"] == "application/x-www-form-urlencoded"
    sent = echo(site, method="POST", json={"a": 1, "中": "é"})
    assert sent["text"] == '{"a":1,"中":"é"}'
    assert sent["headers"]["content-type"] == "application/json"
    assert echo(site, method="PUT", content=b"raw")["text"] == "raw"
    assert echo(site, method="POST", data="text")["text"] == "text"
    assert echo(site, method="POST", data=[("a", 1), ("a", 2)])["text"] == "a=1&a=2"
    assert echo(site, cookies={"c": "1"})["cookies"] == {"c": "1"}
    assert echo(site, headers={"X-One": "1"})["headers"]["x-one"] == "1"
    assert echo(site, auth=("u", "p"))["headers"]["authorization"] == "Basic dTpw"
    parts = echo(site, method="POST", files={"f": ("n.txt", b"abc", "text/plain")}, data={"a": 1})
    assert 'name="f"; filename="n.txt"' in parts["text"]
    assert 'name="a"' in parts["text"]
    assert echo(site)["headers"]["accept"] == "*/*"


def test_user_agent_is_a_browsers(site: Any) -> None:
    """RANDOM_USER_AGENT sends a browser's User-Agent, unless the request or the user gives one."""
    assert "Mozilla/5.0" in echo(site)["headers"]["user-agent"]
    assert echo(site, headers={"user-agent": "mine"})["headers"]["user-agent"] == "mine"
    assert "Mozilla" not in echo(site, random_user_agent=False)["headers"]["user-agent"]
    response = fetch(site, mw.Request(site.url("/echo")), USER_AGENT="theirs")[1]
    assert response.json()["headers"]["user-agent"] == "theirs"


def test_cookies_stay_with_their_request(site: Any) -> None:
    """Cookies live through the redirects of a request and are not sent by the next one."""
    login = "/cookie/set?a=b"
    shown: list[Any] = []

    class Cookies(Spider):
        def start_requests(self) -> Any:
            yield mw.Request(
                site.url("/redirect?cookie=r%3D1&to=" + site.url("/cookie/show")),
                callback=self.show,
            )
            yield mw.Request(site.url(login), callback=self.then)

        def then(self, request: Any, response: Any) -> Any:
            assert response.cookies == {"a": "b"}
            yield mw.Request(site.url("/cookie/show?2"), callback=self.show)

        def show(self, request: Any, response: Any) -> Any:
            shown.append(json.loads(response.text))

    crawl(Cookies, {"CONCURRENT_REQUESTS": 1})
    assert [one.get("cookies", one) for one in shown] == [{"r": "1"}, {}]

    shown.clear()
    crawl(Cookies, {"CONCURRENT_REQUESTS": 1, "USE_SESSION": True})
    assert shown[-1].get("cookies", shown[-1]).get("a") == "b"


def test_redirects_can_be_switched_off(site: Any) -> None:
    """allow_redirects=False brings the 302 itself to the callback."""
    request = mw.Request(site.url("/redirect?to=" + site.url("/page/1")), allow_redirects=False)
    _, response = fetch(site, request)

    assert response.status_code == 302
    assert not response.ok


def test_timeout_of_one_request(site: Any) -> None:
    """timeout= is in seconds, and a time-out is a network failure."""
    crawler = crawl(
        Spider,
        {"SPIDER_MAX_RETRY_TIMES": 0},
        seeds=[mw.Request(site.url("/slow?ms=3000"), timeout=0.3)],
    )

    assert netspy_stats(crawler)["netspy/failures"] == 1


def test_download_midware_changes_what_is_sent(site: Any) -> None:
    """What download_midware does to the request is in effect, in each of netspy's ways."""

    class Midware(Spider):
        def download_midware(self, request: Any) -> Any:
            kind = request.kind
            if kind == "assign":
                request.headers = {"Referer": "https://example.com"}
            elif kind == "kwargs":
                request.requests_kwargs.setdefault("headers", {})["X-K"] = "1"
                request.params = {"q": "1"}
            elif kind == "new":
                return mw.Request(site.url("/echo?new=1"), kind="old", callback=self.renamed)
            elif kind == "url":
                request.url = site.url("/echo?changed=1")
            return request

        def parse(self, request: Any, response: Any) -> Any:
            yield {"kind": request.kind, "echo": response.json()}

        def renamed(self, request: Any, response: Any) -> Any:
            yield {"kind": "renamed", "echo": response.json()}

    kinds = ("assign", "kwargs", "new", "url")
    seeds = [mw.Request(site.url("/echo?" + kind), kind=kind) for kind in kinds]
    found = {row["kind"]: row["echo"] for _, row in rows(crawl(Midware, seeds=seeds))}

    assert found["assign"]["headers"]["referer"] == "https://example.com"
    assert found["kwargs"]["headers"]["x-k"] == "1"
    assert found["kwargs"]["query"] == [["q", "1"]]
    assert found["renamed"]["query"] == [["new", "1"]]
    assert found["url"]["query"] == [["changed", "1"]]


def test_download_midware_that_raises_is_retried(site: Any) -> None:
    """An exception of download_midware costs an attempt, not the request's trace."""

    class Midware(Spider):
        def download_midware(self, request: Any) -> Any:
            if request.retry_times < 2:
                raise KeyError("token")

    crawler = crawl(Midware, seeds=[mw.Request(site.url("/page/1"))])

    assert len(crawler.spider.seen) == 1
    assert netspy_stats(crawler)["netspy/retries/HookError"] == 2


def test_exception_request_may_change_the_retry(site: Any) -> None:
    """exception_request sees the status error, and what it changes goes out with the retry."""
    errors: list[Exception] = []

    class Hook(Spider):
        def exception_request(self, request: Any, response: Any, exception: Exception) -> None:
            errors.append(exception)
            request.requests_kwargs["params"] = {
                "codes": "503,503,200",
                "attempt": request.retry_times,
            }

    crawl(Hook, seeds=[mw.Request(site.url("/seq/x?codes=503,503,200"))])

    assert [type(error).__name__ for error in errors] == ["HttpStatusError"] * 2
    assert [one.path[-1] for one in site.log()][1:] == ["1", "2"]


# Settings ----------------------------------------------------------------------------------------
def test_settings_from_file_environment_and_class(
    site: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """setting.py is beaten by NETSPY_<KEY>, that by __custom_setting__; names are checked."""
    (folder / "setting.py").write_text(
        "SPIDER_MAX_RETRY_TIMES = 5\nRETRY_STATUS_CODES = [500]\nITEM_DEFAULT_TABLE = 'file'\n"
        "ITEM_PIPELINES = ['tests.crawling.MemorySink']\nlower = 1\n"
    )
    monkeypatch.setenv("NETSPY_SPIDER_MAX_RETRY_TIMES", "7")
    monkeypatch.setenv("NETSPY_ACCEPT_STATUS_CODES", "[404]")

    class FromFile(Spider):
        __custom_setting__ = {"ITEM_DEFAULT_TABLE": "custom"}

    class Child(FromFile):
        pass

    crawler = crawl(Child, seeds=[mw.Request(site.url("/status/404"))])

    settings = crawler.settings
    assert settings["SPIDER_MAX_RETRY_TIMES"] == 7
    assert settings["RETRY_TIMES"] == 7
    assert settings["RETRY_STATUS_CODES"] == [500]
    assert settings["ITEM_DEFAULT_TABLE"] == "custom"
    assert "lower" not in settings
    assert len(crawler.spider.seen) == 1


def test_custom_settings_do_not_leak(site: Any) -> None:
    """What one spider sets is unknown to the next in the same process."""

    class First(Spider):
        __custom_setting__ = {**MEMORY, "SPIDER_MAX_RETRY_TIMES": 9}

    crawl(First, seeds=[mw.Request(site.url("/page/1"))])
    crawler = crawl(Spider, seeds=[mw.Request(site.url("/page/1"))])

    assert crawler.settings["RETRY_TIMES"] == 3


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("NETSPY_SPIDER_MAX_RETRY_TIMES", "many", "NETSPY_SPIDER_MAX_RETRY_TIMES = 'many'"),
        ("NETSPY_RETRY_STATUS_CODES", "1,2", "NETSPY_RETRY_STATUS_CODES"),
        ("NETSPY_CHECK_STATUS_CODE", "banana", "true or false"),
        ("NETSPY_SETTING", "missing.py", "NETSPY_SETTING = 'missing.py'"),
    ],
)
def test_bad_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    """A variable that cannot be used is an error that names it and what is expected."""
    monkeypatch.setenv(variable, value)

    with pytest.raises(mw.ConfigError, match=message):
        crawl(Spider)


# Running -----------------------------------------------------------------------------------------
def test_start_runs_several_times_in_one_process(site: Any) -> None:
    """start() blocks until done, keeps the instance's state, and can be called again."""
    for n in range(3):
        spider = Spider()
        spider.seeds = [mw.Request(site.url(f"/page/{n}"))]
        assert spider.start() == 1  # it has a sink, and yields nothing
        assert len(spider.seen) == 1
    spider.start()
    assert len(spider.seen) == 2


def test_start_within_a_running_loop_and_a_thread(site: Any) -> None:
    """start() works where a loop runs, and in a thread."""
    spider = Spider()
    spider.seeds = [mw.Request(site.url("/page/1"))]

    async def main() -> None:
        spider.start()

    asyncio.new_event_loop().run_until_complete(main())
    assert len(spider.seen) == 1

    thread = threading.Thread(target=spider.start)
    thread.start()
    thread.join(20)
    assert len(spider.seen) == 2


def test_start_within_a_crawl_is_refused(site: Any) -> None:
    """A second crawl cannot be started inside a callback; the error says so."""
    errors: list[BaseException] = []

    class Nested(Spider):
        def parse(self, request: Any, response: Any) -> Any:
            try:
                Spider().start()
            except Exception as exc:  # noqa: BLE001
                errors.append(exc)

    spider = Nested()
    spider.seeds = [mw.Request(site.url("/page/1"))]
    spider.start()

    assert "it would wait for itself" in str(errors[0])


def test_start_requests_that_raises_comes_out_of_start(site: Any) -> None:
    """What start_requests raises reaches the caller, and what it yielded before is fetched."""

    class Raises(Spider):
        def start_requests(self) -> Any:
            yield mw.Request(site.url("/page/1"))
            raise RuntimeError("no more seeds")

    spider = Raises()
    with pytest.raises(RuntimeError, match="no more seeds"):
        spider.start()
    assert len(spider.seen) == 1


SCRIPT = """
import netspy_scrapy as mw

class NewsItem(mw.Item):
    __unique_key__ = ["url"]

class NewsSpider(mw.AirSpider):
    __custom_setting__ = dict(ITEM_PIPELINES=["netspy.pipelines.sqlite.SqlitePipeline"])
    site = "{site}"

    def start_requests(self):
        yield mw.Request(self.site + "/page/1", callback=self.parse)

    def parse(self, request, response):
        item = NewsItem()
        item.url = response.url
        item.title = response.css("title::text").get()
        yield item
        if request.url.endswith("/1"):
            yield mw.Request(response.urljoin("/page/2"))

NewsSpider().start()
"""


@pytest.mark.parametrize("way", ["python", "runspider", "crawl"])
def test_one_file_runs_in_all_three_ways(site: Any, folder: Path, way: str) -> None:
    """The same file, with its start() at the end, runs as a script, by runspider and by crawl."""
    script = folder / "news.py"
    script.write_text(SCRIPT.replace("{site}", site.url("").rstrip("/")))
    command = [sys.executable, "news.py"]
    if way == "runspider":
        command = [sys.executable, "-m", "scrapy", "runspider", "news.py"]
    elif way == "crawl":
        (folder / "scrapy.cfg").write_text("[settings]\ndefault = project.settings\n")
        (folder / "project").mkdir()
        (folder / "project" / "__init__.py").touch()
        (folder / "project" / "settings.py").write_text("SPIDER_MODULES = ['news']\n")
        command = [sys.executable, "-m", "scrapy", "crawl", "NewsSpider"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert len(site.log()) == 2, done.stderr
    import sqlite3

    with sqlite3.connect(folder / "items.db") as database:
        stored = database.execute("SELECT title FROM news ORDER BY title").fetchall()
    assert stored == [("Page 1",), ("Page 2",)]
    assert "Run summary of NewsSpider (finished)" in done.stderr


def test_robots_of_netspy_spiders(site: Any) -> None:
    """ROBOTS_OBEY is off by default; on, the group ``*`` counts, whatever User-Agent is sent."""
    site.set("/robots.txt", body=b"User-agent: Mozilla\nAllow: /\n\nUser-agent: *\nDisallow: /\n")
    seeds = [mw.Request(site.url("/page/1"))]

    assert len(crawl(Spider, seeds=seeds).spider.seen) == 1
    assert site.hits("/robots.txt") == 0
    seeds = [mw.Request(site.url("/page/1"))]
    assert crawl(Spider, {"ROBOTS_OBEY": True}, seeds=seeds).spider.seen == []


def test_keywords_without_effect_are_named_once(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """verify=False and impersonate do nothing here, and one warning each says so."""
    seeds = [
        mw.Request(site.url(f"/page/{n}"), impersonate="chrome", verify=False) for n in range(3)
    ]
    crawler = crawl(Spider, seeds=seeds)

    lines = [r.getMessage() for r in caplog.records if "has no effect" in r.getMessage()]
    assert sorted(line.partition(" ")[0] for line in lines) == [
        "impersonate='chrome'",
        "verify=False",
    ]
    assert len(crawler.spider.seen) == 3
    with pytest.raises(mw.SpiderError, match="item_handler"):
        Spider(item_handler=print)
