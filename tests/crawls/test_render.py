"""Pages that a real browser fetches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import scrapy

import netspy_scrapy as mw
from netspy_scrapy.render import RenderFingerprinter
from tests.crawling import MEMORY, PlainSpider, crawl, dumped, netspy_stats, rows
from tests.servers.browser import browser_settings

SCRIPT = b"""<html><head><title>js</title></head><body><p id=text>before</p><script>
setTimeout(() => {
  if (document.body.id) return;
  document.getElementById('text').textContent = 'after';
  const late = document.createElement('b');
  late.id = late.textContent = 'late';
  document.body.append(late);
}, 200);
</script></body></html>"""

#: Puts a text in place of all that the page does to its own.
MINE = "document.body.innerHTML = '<p id=text>mine</p>'; document.body.id = 'x'; window.stop()"


@pytest.fixture
def browser() -> dict[str, Any]:
    return browser_settings()


class Texts(PlainSpider):
    """Fetches ``wanted``: pairs of URL and how to render it."""

    wanted: Any = ()

    async def start(self) -> Any:
        for url, render in self.wanted:
            meta = {} if render is None else {"netspy_render": render}
            yield scrapy.Request(url, meta=meta, errback=self.failed)

    def parse(self, response: Any) -> Any:
        super().parse(response)
        yield {"url": response.url, "text": response.css("#text::text").get(),
               "status": response.status, "flags": response.flags}  # fmt: skip


def texts(crawler: Any) -> list[str | None]:
    return [row["text"] for _, row in rows(crawler)]


@pytest.mark.parametrize(
    ("render", "text"),
    [
        (None, "before"),
        ({"wait_for": "#late"}, "after"),
        ({"time": 0.6}, "after"),
        ({"script": MINE}, "mine"),
    ],
)
def test_how_a_page_is_rendered(site: Any, browser: dict[str, Any], render: Any, text: str) -> None:
    """Without a browser, as it is there, after an element, after a time, after a script."""
    site.set("/js", body=SCRIPT)
    crawler = crawl(Texts, {**MEMORY, **browser}, wanted=[(site.url("/js"), render)])

    assert texts(crawler) == [text]
    used = crawler.stats.get_value("playwright/browser_count")
    assert used == (None if render is None else 1)


def test_a_netspy_spider_renders(site: Any, browser: dict[str, Any]) -> None:
    """render=True, wait_for, render_time and render_script of a netspy request."""
    site.set("/js", body=SCRIPT)

    class Spider(mw.AirSpider):
        __custom_setting__ = {**MEMORY, **browser}

        def start_requests(self) -> Any:
            url = site.url("/js")
            yield mw.Request(url, kind="plain")
            yield mw.Request(url, render=True, wait_for="#late", kind="late")
            yield mw.Request(url + "?2", render=True, render_time=0.6, kind="time")
            script = MINE
            yield mw.Request(url + "?3", render=True, render_script=script, kind="script")

        def parse(self, request: Any, response: Any) -> Any:
            yield {"kind": request.kind, "text": response.css("#text::text").get()}

    crawler = crawl(Spider)
    found = {row["kind"]: row["text"] for _, row in rows(crawler)}

    assert found == {"plain": "before", "late": "after", "time": "after", "script": "mine"}


def test_status_headers_and_url_are_those_of_the_page(site: Any, browser: dict[str, Any]) -> None:
    """A 404 is a failure, a 503 is fetched again, a redirect ends where it leads."""
    site.set("/moved", status=302, headers={"Location": site.url("/page/7")})
    site.set("/flaky", body=b"<p id=text>there</p>", headers={"Content-Type": "text/html"})
    html = {"Content-Type": "text/html"}
    site.set("/flaky", status=503, body=b"<p>busy</p>", headers=html, times=1)
    wanted = [(site.url(path), True) for path in ("/status/404", "/flaky", "/moved")]
    crawler = crawl(Texts, {**MEMORY, **browser, "RETRY_TIMES": 1}, wanted=wanted)

    assert sorted(crawler.spider.pages) == [
        (site.url("/flaky"), 200), (site.url("/page/7"), 200)
    ]  # fmt: skip
    assert [line["status"] for line in dumped()] == [404]
    assert netspy_stats(crawler)["netspy/retries/503"] == 1
    # What the browser needs is in no dump.
    assert "playwright" not in Path("failed_requests.jsonl").read_text()


def test_what_does_not_come_is_retried_and_fails(site: Any, browser: dict[str, Any]) -> None:
    """A page that hangs, an element that never comes, a refused connection: failures, retried."""
    wanted = [
        (site.url("/hang"), True),
        (site.url("/page/1"), {"wait_for": "#never"}),
        ("http://127.0.0.1:9/", True),
    ]
    settings = {**browser, "RETRY_TIMES": 1, "WEBDRIVER": {"timeout": 2}}
    crawler = crawl(Texts, settings, wanted=wanted)

    assert [type(one).__name__ for one in crawler.spider.errors] == ["RenderError"] * 3
    assert netspy_stats(crawler)["netspy/retries/RenderError"] == 3
    assert crawler.stats.get_value("playwright/page_count") == 6
    reasons = " ".join(line["reason"] for line in dumped())
    assert "was not rendered within 2 s" in reasons
    assert "ERR_CONNECTION_REFUSED" in reasons or "ERR_UNSAFE_PORT" in reasons


def test_no_page_or_context_stays_open(site: Any, browser: dict[str, Any]) -> None:
    """However pages end, at the end of the crawl the browser had closed them all."""
    open_ones: list[int] = []

    class Looks(Texts):
        def parse(self, response: Any) -> Any:
            yield from super().parse(response)
            rendering = next(
                one for one in self.crawler.extensions.middlewares
                if type(one).__name__ == "Rendering"
            )  # fmt: skip
            wrappers = rendering._handler.context_wrappers.values()
            open_ones.append(sum(len(one.context.pages) for one in wrappers))

    settings = {**browser, "CONCURRENT_REQUESTS": 1, "RETRY_TIMES": 0}
    wanted = [(site.url(f"/page/{n}"), True if n % 3 else {"wait_for": "#no"}) for n in range(9)]
    crawl(Looks, {**settings, "WEBDRIVER": {"timeout": 1.5}}, wanted=wanted)

    assert open_ones == [0] * 6


def test_cookies_reach_the_browser_and_stay_apart(site: Any, browser: dict[str, Any]) -> None:
    """A request's cookies are sent; requests of a netspy spider without a session share none."""
    site.set(
        "/set", body=b"<p>set</p>", headers={"Set-Cookie": "seen=1", "Content-Type": "text/html"}
    )

    class Spider(mw.AirSpider):
        __custom_setting__ = {**MEMORY, **browser, "SPIDER_THREAD_COUNT": 1}

        def start_requests(self) -> Any:
            yield mw.Request(site.url("/page/1"), render=True, cookies={"own": "7"})
            yield mw.Request(site.url("/set"), render=True)
            yield mw.Request(site.url("/page/2"), render=True)

        def parse(self, request: Any, response: Any) -> None:
            """Nothing."""

    crawl(Spider)
    cookies = {one.path: one.headers.get("cookie", "") for one in site.log()}

    assert cookies["/page/1"] == "own=7"
    assert cookies["/page/2"] == ""


def test_sessions_share_cookies(site: Any, browser: dict[str, Any]) -> None:
    """Requests with the same cookiejar share what the site sets, rendered or not."""
    site.set(
        "/set", body=b"<p>set</p>", headers={"Set-Cookie": "seen=1", "Content-Type": "text/html"}
    )

    class Jar(PlainSpider):
        async def start(self) -> Any:
            meta = {"netspy_render": True, "cookiejar": "a"}
            yield scrapy.Request(site.url("/set"), self.after, meta=meta)

        def after(self, response: Any) -> Any:
            for n, render in enumerate((True, None)):
                meta = {"cookiejar": "a", **({"netspy_render": True} if render else {})}
                yield scrapy.Request(site.url(f"/page/{n}"), meta=meta)

    crawl(Jar, browser)
    cookies = {one.path: one.headers.get("cookie", "") for one in site.log()}

    assert cookies["/page/0"] == cookies["/page/1"] == "seen=1"


def test_a_browser_that_dies_is_started_again(site: Any, browser: dict[str, Any]) -> None:
    """After the browser's process is killed its page is fetched again by a new one."""

    class Kills(Texts):
        def parse(self, response: Any) -> Any:
            yield from super().parse(response)
            if response.url.endswith("/page/1"):
                found = subprocess.run(
                    ["pgrep", "-P", str(os.getpid()), "-f", "node"],
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                for driver in found.stdout.split():
                    found = subprocess.run(
                        ["pgrep", "-P", driver], capture_output=True, text=True, check=False
                    )
                    for pid in found.stdout.split():
                        os.kill(int(pid), signal.SIGKILL)
                yield scrapy.Request(site.url("/page/2"), meta={"netspy_render": True})

    settings = {**MEMORY, **browser, "RETRY_TIMES": 3}
    crawler = crawl(Kills, settings, wanted=[(site.url("/page/1"), True)])

    assert [url for url, _ in crawler.spider.pages] == [site.url("/page/1"), site.url("/page/2")]
    assert crawler.stats.get_value("playwright/browser_count") == 2


def test_size_after_rendering(site: Any, browser: dict[str, Any]) -> None:
    """A rendered page over MAX_RESPONSE_SIZE is a failure that names the setting."""
    site.set("/big", body=b"<p>" + b"x" * 200_000 + b"</p>", headers={"Content-Type": "text/html"})
    settings = {**browser, "MAX_RESPONSE_SIZE": 100_000, "RETRY_TIMES": 0}
    crawler = crawl(Texts, settings, wanted=[(site.url("/big"), True)])

    assert crawler.spider.pages == []
    assert "larger than MAX_RESPONSE_SIZE = 100000 bytes" in dumped()[0]["reason"]


def test_webdriver(site: Any, browser: dict[str, Any], caplog: Any) -> None:
    """netspy's WEBDRIVER: what has an effect has it, the rest is named once."""
    site.set(
        "/agent", headers={"Content-Type": "text/html"},
        body=b"<img src=/image.png><p id=text></p><script>document.getElementById('text')"
        b".textContent = [innerWidth, navigator.language].join()</script>",
    )  # fmt: skip
    webdriver = {
        "viewport": [700, 500], "locale": "de-DE", "load_images": False, "stealth": True,
        "wait_until": "networkidle", "pool_size": 1,
    }  # fmt: skip
    settings = {**MEMORY, **browser, "WEBDRIVER": webdriver}
    crawler = crawl(Texts, settings, wanted=[(site.url("/agent"), True)])

    assert texts(crawler) == ["700,de-DE"]
    assert site.hits("/image.png") == 0
    notes = [one.getMessage() for one in caplog.records if "do nothing here" in one.getMessage()]
    assert any("WEBDRIVER: pool_size, stealth do nothing here" in note for note in notes)


def test_start_renders_as_a_script(site: Any, browser: dict[str, Any], folder: Path) -> None:
    """MySpider().start() renders too, twice in one process."""
    site.set("/js", body=SCRIPT)
    (folder / "script.py").write_text(
        "import netspy_scrapy as mw\n"
        "class S(mw.AirSpider):\n"
        f"    __custom_setting__ = {{'ITEM_PIPELINES': {{}}, **{browser!r}}}\n"
        "    def start_requests(self):\n"
        f"        yield mw.Request('{site.url('/js')}', render=True, wait_for='#late')\n"
        "    def parse(self, request, response):\n"
        "        print('TEXT', response.css('#text::text').get(), flush=True)\n"
        "S().start()\nS().start()\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, timeout=100, check=False
    )

    assert done.stdout.splitlines() == ["TEXT after"] * 2, done.stderr[-2000:]
    assert done.returncode == 0


def test_fingerprints_of_rendered_pages_differ(site: Any, browser: dict[str, Any]) -> None:
    """A page and its rendered form are two pages to the request filter."""
    fingerprinter = RenderFingerprinter()
    plain = scrapy.Request("http://a.example/")
    rendered = scrapy.Request("http://a.example/", meta={"netspy_render": True})

    assert fingerprinter.fingerprint(plain) != fingerprinter.fingerprint(rendered)
    crawler = crawl(
        Texts, browser, wanted=[(site.url("/page/1"), None), (site.url("/page/1"), True)]
    )
    assert len(crawler.spider.pages) == 2
