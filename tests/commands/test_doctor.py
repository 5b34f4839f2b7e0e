"""``scrapy netspy-doctor``: what it says of a project, and that it changes nothing."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from scrapy.cmdline import execute
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.settings import Settings
from scrapy.spiders import SitemapSpider

import netspy_scrapy as mw
from netspy_scrapy.commands.diagnosis import diagnose
from netspy_scrapy.commands.page import WIDTH, Secrets
from netspy_scrapy.commands.sites import (
    Answer,
    Start,
    mean_gap,
    origins_of,
    pages_per_hour,
    site_reports,
)
from netspy_scrapy.domains import Pace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.site import Site

ADDON = 'ADDONS = {"netspy_scrapy.Addon": 500}\n'
ROBOTS = "User-agent: *\nDisallow: /private\nCrawl-delay: 2\n"
TEXT = {"Content-Type": "text/plain"}

PLAIN = """
import scrapy

class {name}(scrapy.Spider):
    name = "{name}"
    start_urls = {urls}
    custom_settings = {settings}

    def parse(self, response):
        pass
"""
NETSPY = """
import netspy_scrapy as mw

class News(mw.AirSpider):
    __custom_setting__ = {
        "RETRY_BACKOFF": 0.5,
        "ITEM_PIPELINES": ["netspy.pipelines.csv.CsvPipeline"],
    }

    def start_requests(self):
        raise SystemExit("a doctor does not run this")

    def parse(self, request, response):
        pass

News().start()
"""


class Report:
    """What one run of the command printed."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status = done.returncode
        self.out = done.stdout
        self.err = done.stderr
        #: Without line breaks, which depend on the length of paths.
        self.flat = " ".join(done.stdout.split())

    def row(self, label: str) -> list[str]:
        """Return the other cells of the only row that begins with *label*."""
        (row,) = self.rows(label)
        return row

    def rows(self, label: str) -> list[list[str]]:
        return [list(row[1:]) for row in self._cells() if row[0] == label]

    def _cells(self) -> Iterator[list[str]]:
        for line in self.out.splitlines():
            yield re.split(r" {2,}", line.strip())


def doctor(*arguments: str, **environment: str) -> Report:
    """Run the command in the working folder."""
    done = subprocess.run(
        [sys.executable, "-m", "scrapy", "netspy-doctor", *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert max(map(len, done.stdout.splitlines()), default=0) <= WIDTH
    return Report(done)


def project(settings: str = "", **spiders: str) -> None:
    """Write a Scrapy project into the working folder."""
    Path("scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    Path("shop/spiders").mkdir(parents=True)
    Path("shop/__init__.py").touch()
    Path("shop/spiders/__init__.py").touch()
    Path("shop/settings.py").write_text(
        f'BOT_NAME = "shop"\nSPIDER_MODULES = ["shop.spiders"]\n{settings}'
    )
    for name, text in spiders.items():
        Path(f"shop/spiders/{name}.py").write_text(text)


def plain(name: str = "books", *urls: str, **settings: Any) -> str:
    return PLAIN.format(name=name, urls=list(urls), settings=settings)


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# Settings --------------------------------------------------------------------------------------
def test_a_project_without_the_addon(site: Site) -> None:
    """It shows the one line to add, what that would replace, and that retries stay as they are."""
    project(books=plain("books", site.url("/page/1")))
    report = doctor()

    assert report.status == 0
    assert "The add-on is not in ADDONS." in report.out
    assert '\n    ADDONS = {"netspy_scrapy.Addon": 500}\n' in report.out
    assert report.row("StatusPolicyMiddleware")[0] == "DOWNLOADER_MIDDLEWARES 550"
    assert "In place of Scrapy's RetryMiddleware. Retries" in report.flat
    assert report.row("retries of a page") == ["2", "RETRY_TIMES", "Scrapy default"]
    assert report.row("setting") == ["CONCURRENT_ITEMS", "4, was 100."]
    assert report.row("RFPDupeFilter") == ["DUPEFILTER_CLASS", "Stays as it was (Scrapy default)."]
    assert report.row("allowed") == [site.url("/page/1")]
    assert report.out.endswith("\n1 spider: nothing to warn of\n")


def test_who_set_each_value() -> None:
    """Each value stands beside the setting it comes from, and beside who set that."""
    project(
        ADDON + 'RETRY_TIMES = 7\nITEM_FILTER_ENABLE = True\nSQLITE_PATH = "out/books.db"\n'
        'ITEM_PIPELINES = {"netspy_scrapy.pipelines.sqlite.SqlitePipeline": 1}\n',
        books=plain(RETRY_STATUS_CODES=[503], NETSPY_START_MAX_QUEUED=5, RANDOM_USER_AGENT=False),
    )  # fmt: skip
    report = doctor("--no-network", "-s", "RETRY_BACKOFF=1.5")

    assert report.status == 0
    assert "The add-on is on (ADDONS: project)." in report.out
    assert report.row("fetched again") == ["503", "RETRY_STATUS_CODES", "spider"]
    assert report.row("retries of a page") == ["7", "RETRY_TIMES", "project"]
    assert report.row("wait before a retry")[1:] == ["RETRY_BACKOFF", "command line"]
    assert report.row("longest Retry-After")[1:] == ["RETRY_AFTER_MAX", "netspy default"]
    assert report.row("in flight, in all") == ["16", "CONCURRENT_REQUESTS", "Scrapy default"]
    assert report.row("item filter") == ["on", "ITEM_FILTER_ENABLE", "project"]
    assert report.row("also set") == ["False", "RANDOM_USER_AGENT", "spider"]
    assert report.row("SqlitePipeline") == [
        "out/books.db (new, writable)",
        "SQLITE_PATH",
        "project",
    ]


def test_a_netspy_spider(site: Site) -> None:
    """Its file, its variables and its own settings are told apart, and nothing of it runs."""
    Path("news.py").write_text(NETSPY)
    Path("setting.py").write_text("SPIDER_MAX_RETRY_TIMES = 9\nREQUEST_TIMEOUT = 8\n")
    report = doctor("news.py", NETSPY_SPIDER_THREAD_COUNT="5", NETSPY_REQUEST_TIMEOUT="9")

    assert report.status == 0
    assert "No Scrapy project" in report.out
    assert report.row("retries of a page") == ["9", "SPIDER_MAX_RETRY_TIMES", "setting.py"]
    assert report.row("longest download") == ["9 s", "REQUEST_TIMEOUT", "environment"]
    assert report.row("in flight, in all") == ["5", "SPIDER_THREAD_COUNT", "environment"]
    assert report.row("wait before a retry")[1:] == ["RETRY_BACKOFF", "spider"]
    assert report.row("largest body") == ["32 MiB", "MAX_RESPONSE_SIZE", "netspy default"]
    assert report.row("CsvPipeline") == [". (exists, writable)", "CSV_OUTPUT_DIR", "netspy default"]
    assert ["DOWNLOAD_TIMEOUT", "9.0, was 180."] in report.rows("setting")
    assert "The start URLs are made by start_requests(): give --url URL." in report.out
    assert site.log() == []


def test_spiders_with_the_same_settings_are_told_together() -> None:
    """Two spiders that differ in nothing have one table; those that are not named have none."""
    project(ADDON, a=plain("a"), b=plain("b"), c=plain("c", RETRY_TIMES=1), d=plain("d"))
    report = doctor("--no-network", "b", "a", "c")

    assert [row[0] for row in report.rows("retries of a page")] == ["2", "1"]
    assert "\nb, a\n====\n" in report.out
    assert "Sites of b\n" in report.out
    assert report.out.endswith("\n3 spiders: nothing to warn of\n")


def test_a_wrong_value() -> None:
    """A value that cannot be used is named as a crawl would; other spiders do not suffer."""
    project(ADDON, a=plain("a", RETRY_BACKOFF="soon"), b=plain("b"))
    report = doctor("--no-network")

    assert report.status == 1
    assert (
        "! RETRY_BACKOFF = 'soon' cannot be used: expected a number of seconds, 0 or more"
        in report.out
    )
    assert report.row("wait before a retry") == ["none", "SPIDER_RETRY_INTERVAL", "netspy default"]
    assert report.out.endswith("\n2 spiders: 1 warning\n")


def test_contradictions() -> None:
    """What the add-on would warn of is said first, and nowhere else."""
    Path("taken").touch()
    project(
        ADDON + "SPIDER_MAX_RETRY_TIMES = 1\nRETRY_TIMES = 2\nCIRCUIT_TRESHOLD = 3\n"
        'METRICS_ENABLE = True\nSCHEDULER = "scrapy.core.scheduler.Scheduler"\n'
        'FAILED_ITEM_PATH = "taken/items.jsonl"\n',
        books=plain("books", "www.example.com"),
    )
    report = doctor("--no-network")

    assert report.status == 1
    assert report.err == ""
    assert report.flat.count("contradict each other: SPIDER_MAX_RETRY_TIMES counts") == 1
    for warning in (
        "! METRICS_ENABLE is a setting of netspy that does nothing here",
        "! SCHEDULER is scrapy.core.scheduler.Scheduler: requests that have to wait",
        "! FAILED_ITEM_PATH = 'taken/items.jsonl' cannot be written: taken is no folder",
        "! start_urls: 'www.example.com' cannot be used: Missing scheme in request url",
    ):
        assert warning in report.flat
    assert report.row("Scheduler") == ["SCHEDULER", "Stays as it was (project)."]
    assert report.out.index("Warnings") < report.out.index("Policy")


def test_secrets_are_masked(site: Site) -> None:
    """Passwords, tokens and keys of settings and URLs are not printed, however they get there."""
    project(
        ADDON + 'DB_PASSWORD = "hunter22"\nLINES_TOKEN = "abcdefgh"\nLINES_DIR = "out"\n'
        'RETRY_BACKOFF = "hunter22"\nFEEDS = {"ftp://me:pw@host/x.csv": {"format": "csv"}}\n'
        'ITEM_PIPELINES = {"shop.lines.LinesPipeline": 1}\n',
        bad=plain("bad"),
        good=plain("good", "http://me:pw@127.0.0.1:9/?api_key=abc&x=1", RETRY_BACKOFF=1),
    )
    Path("shop/lines.py").write_text(
        "from netspy_scrapy.pipelines.base import BasePipeline\n"
        "class LinesPipeline(BasePipeline):\n    pass\n"
    )
    report = doctor("--no-network", "--url", site.url("/?session_token=abc"))

    assert "hunter22" not in report.out + report.err
    assert "RETRY_BACKOFF = '***' cannot be used" in report.out
    assert "LINES_DIR = 'out', LINES_TOKEN = ***" in report.flat
    assert report.row("feed")[0] == "ftp://***@host/x.csv"
    assert "pw" not in report.out
    assert "abcdefgh" not in report.out


# Sites -----------------------------------------------------------------------------------------
@pytest.mark.timed
def test_robots_txt(site: Site) -> None:
    """Each start URL is allowed or forbidden, and the Crawl-delay makes the pages per hour."""
    site.set("/robots.txt", 200, ROBOTS, TEXT)
    private, page = site.url("/private/1"), site.url("/page/1")
    project(
        ADDON + "ROBOTSTXT_OBEY = True\nDOWNLOAD_DELAY = 1\nRANDOMIZE_DOWNLOAD_DELAY = False\n",
        books=plain("books", private, page),
    )
    report = doctor()

    assert report.status == 0
    assert re.fullmatch(r"200 in 0\.\d+ s, 48 bytes", report.rows("robots.txt")[1][0])
    assert report.row("forbidden") == [private]
    assert report.row("allowed") == [page]
    assert report.row("delay") == ["2 s (Crawl-delay of robots.txt)"]
    assert report.row("at once") == ["8 (CONCURRENT_REQUESTS_PER_DOMAIN)"]
    assert report.row("pages per hour") == ["about 1,800 (by the delay)"]

    # The crawl does as the doctor said.
    site.reset()
    site.set("/robots.txt", 200, ROBOTS, TEXT)
    subprocess.run([sys.executable, "-m", "scrapy", "crawl", "books"], check=True, timeout=60,
                   capture_output=True)  # fmt: skip
    robots, first = site.log()

    assert [robots.path, first.path] == ["/robots.txt", "/page/1"]
    assert first.t - robots.t > 1.9


def test_each_site_has_its_own_pace(site: Site) -> None:
    """Policies and slots of a domain decide there, and a redirect of robots.txt is followed."""
    site.set("/robots.txt", 302, headers={"Location": site.url("/rules", "127.0.0.2")},
             host="127.0.0.1")  # fmt: skip
    site.set("/rules", 200, ROBOTS, TEXT)
    one, two, three = (site.url("/private", f"127.0.0.{n}") for n in (1, 2, 3))
    site.set("/robots.txt", 503, host="127.0.0.3")
    project(
        ADDON + "ROBOTSTXT_OBEY = True\nNETSPY_ROBOTS_ON_ERROR = 'disallow'\n"
        f"NETSPY_DOMAIN_POLICIES = {{'127.0.0.3:{site.port}': {{'delay': 10, 'jitter': 0}}}}\n"
        "DOWNLOAD_SLOTS = {'127.0.0.2': {'concurrency': 3, 'delay': 0}}\n",
        books=plain("books", one, two, three),
    )
    report = doctor()
    first, second, third = report.rows("robots.txt")[1:]

    assert report.rows("forbidden") == [[one], [three]]
    assert report.row("allowed") == [two]
    assert first[0].endswith("s, 48 bytes")
    assert second[0].endswith("there is none, so every URL is allowed")
    assert third[0].startswith("503 in ")
    assert "it cannot be read; until it can, no URL is allowed" in report.flat
    assert [row[0].partition(" (")[2][:-1] for row in report.rows("delay")] == [
        "Crawl-delay of robots.txt", "DOWNLOAD_SLOTS", "NETSPY_DOMAIN_POLICIES"
    ]  # fmt: skip
    assert report.rows("at once")[1] == ["3 (DOWNLOAD_SLOTS)"]
    assert report.rows("pages per hour")[2] == ["about 360 (by the delay)"]
    assert {arrival.path for arrival in site.log()} == {"/robots.txt", "/rules"}


@pytest.mark.timed
def test_sites_that_cannot_be_reached(site: Site) -> None:
    """A site that refuses, is silent, breaks off or is unknown: it says so, soon, with status 0."""
    site.set("/robots.txt", delay=30)
    site.set(
        "/robots.txt", raw=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nUser", host="127.0.0.2"
    )
    closed = f"http://127.0.0.1:{closed_port()}/"
    project(
        ADDON + "ROBOTSTXT_OBEY = True\n",
        books=plain("books", closed, site.url("/"), site.url("/", "127.0.0.2"),
                    "http://no-such-host.invalid/"),
    )  # fmt: skip
    begin = time.monotonic()
    report = doctor("--timeout", "1.5")

    assert time.monotonic() - begin < 10
    assert report.status == 0
    assert report.flat.count("the site cannot be reached") == 3
    assert "it cannot be read: IncompleteRead(4 bytes read, 5 more expected)" in report.flat
    assert "the site cannot be reached: Connection refused; until it can, every URL" in report.flat
    assert "the site cannot be reached: no answer within 1.5 s" in report.flat
    assert report.rows("pages per hour") == [["unknown: no answer was timed"]] * 4
    assert report.rows("allowed")[0] == [closed]


def test_no_network(site: Site) -> None:
    """With --no-network nothing is fetched, and the configured delay is all there is to say."""
    project(ADDON, books=plain("books", site.url("/"), DOWNLOAD_DELAY=3))
    report = doctor("--no-network")

    assert site.log() == []
    assert report.rows("robots.txt")[1] == ["not asked (--no-network)"]
    assert report.row("delay") == ["3 s +-50 % (DOWNLOAD_DELAY)"]
    assert report.row("pages per hour") == ["about 1,200 (by the delay)"]


def test_it_only_reads(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of the project is made or changed, and only robots.txt is fetched."""
    project(
        ADDON + 'ROBOTSTXT_OBEY = True\nJOBDIR = "job"\nSQLITE_PATH = "out/books.db"\n'
        'CSV_OUTPUT_DIR = "csv"\nHTTPCACHE_ENABLED = True\nLOG_FILE = "crawl.log"\n'
        'ITEM_PIPELINES = {"netspy_scrapy.pipelines.sqlite.SqlitePipeline": 1,\n'
        '    "netspy_scrapy.pipelines.csv.CsvPipeline": 2}\n',
        books=plain("books", site.url("/page/1")),
        news=NETSPY.replace("News().start()", ""),
    )

    def state() -> dict[str, tuple[int, bytes]]:
        files = [path for path in Path().rglob("*") if path.is_file()]
        return {str(one): (one.stat().st_mtime_ns, one.read_bytes()) for one in files}

    # Scrapy itself imports the settings, for each of its commands.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    subprocess.run([sys.executable, "-m", "scrapy", "version"], check=True, capture_output=True)
    before, folders = state(), sorted(map(str, Path().rglob("*")))
    report = doctor()

    assert report.status == 0, report.out
    assert report.rows("queued at a stop")[0] == ["kept in job", "JOBDIR", "project"]
    assert state() == before
    assert sorted(map(str, Path().rglob("*"))) == folders
    assert {arrival.path for arrival in site.log()} == {"/robots.txt"}


# Use -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there is no Scrapy project here: name a spider file"),
        (("books",), "there is no Scrapy project here that could have a spider 'books'"),
        (("none.py",), "there is no file none.py"),
        (("--timeout", "0"), "invalid seconds value: '0'"),
        (("--netwrok",), "unrecognized arguments: --netwrok"),
        (("--url", "www.example.com"), "--url www.example.com: Missing scheme"),
        (("--url", "data:,x"), "--url data:,x: no web site"),
    ],
)
def test_wrong_use(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be done as given ends with status 2 and one line that says why."""
    with pytest.raises(SystemExit) as ended:
        execute(["scrapy", "netspy-doctor", *arguments])
    out, err = capsys.readouterr()

    assert ended.value.code == 2
    assert message in err
    assert out == ""


def test_spiders_that_cannot_be_had() -> None:
    """A name that no spider has is answered with those there are; a broken module is named."""
    project(ADDON, books=plain("books"))
    unknown = doctor("nwes")
    Path("shop/spiders/broken.py").write_text("import nowhere_to_be_found\n")
    broken = doctor()

    assert unknown.status == broken.status == 2
    assert "there is no spider 'nwes'; there are: books" in unknown.err
    assert "error: ModuleNotFoundError: No module named 'nowhere_to_be_found'" in broken.err


def test_options_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/reference/commands.md has each option that the command has beside Scrapy's."""
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md"
    section = (
        page.read_text(encoding="utf-8").partition("## netspy-doctor")[2].partition("\n## ")[0]
    )
    with pytest.raises(SystemExit):
        execute(["scrapy", "netspy-doctor", "--help"])
    shown = capsys.readouterr().out.partition("Global Options")[0]
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", shown)) - {"--help"}

    assert set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE)) == options


# Rules -----------------------------------------------------------------------------------------
class Listed(scrapy.Spider):
    name = "listed"
    start_urls = ["https://a.test/", "data:,x"]


class Own(Listed):
    name = "own"

    async def start(self) -> Any:
        raise AssertionError
        yield


class Netspy(mw.AirSpider):
    start_urls = ["https://a.test/"]


class Slow(Listed):
    name = "slow"
    download_delay = 4


class Patient:
    """Another add-on."""

    def update_settings(self, settings: Settings) -> None:
        settings.set("RETRY_TIMES", 5, "addon")


class Mapped(SitemapSpider):
    name = "mapped"
    sitemap_urls = ["https://a.test/sitemap.xml"]


@pytest.mark.parametrize(
    ("spider", "given", "urls", "hints"),
    [
        (Listed, [], ["https://a.test/"], ["1 of the 2 start URLs are not of a web site."]),
        (Netspy, [], ["https://a.test/"], []),
        (Netspy, ["http://b.test/"], ["https://a.test/", "http://b.test/"], []),
        (Mapped, [], ["https://a.test/sitemap.xml"], []),
        (type("Empty", (scrapy.Spider,), {}), [], [], [
            "start_urls of the class is empty: give --url URL."]),
    ],
)  # fmt: skip
def test_start_urls(
    spider: type[scrapy.Spider], given: list[str], urls: list[str], hints: list[str]
) -> None:
    """Start URLs are read from the class, for every kind of spider that has them there."""
    start = Start.of(spider, given)

    assert start.urls == urls
    assert start.hints == hints


def test_start_is_not_run() -> None:
    """A spider's own start() is not run: the report asks for a URL."""
    start = Start.of(Own, [])

    assert start.hints[0] == "The start URLs are made by start(): give --url URL."
    assert start.urls == ["https://a.test/"]
    assert start.faults == []


def test_other_addons_run_too() -> None:
    """What another add-on sets counts and is called its own; ours is proposed beside it."""
    found = diagnose(Listed, Settings({"ADDONS": {Patient: 100}}), [])

    assert not found.is_on
    assert found.other_addons == [f"{__name__}.Patient"]
    assert ("retries of a page", "5", "RETRY_TIMES", "another add-on") in found.policy
    assert found.warnings == []


def test_an_addon_that_is_switched_off_is_not_on() -> None:
    """``ADDONS = {"netspy_scrapy.Addon": None}`` does not count as having it."""
    assert not diagnose(Listed, Settings({"ADDONS": {"netspy_scrapy.Addon": None}}), []).is_on
    assert diagnose(Listed, Settings({"ADDONS": {mw.Addon: 1}}), []).is_on


def test_download_delay_of_a_spider() -> None:
    """The attribute that Scrapy takes for DOWNLOAD_DELAY counts, unless the spider sets that."""
    found = diagnose(Slow, Settings({"DOWNLOAD_DELAY": 1}), [])

    assert ("delay of a domain", "4 s +-50 %", "DOWNLOAD_DELAY", "spider") in found.policy


@pytest.mark.parametrize("middlewares", [{}, {RobotsTxtMiddleware: None}])
def test_robots_txt_that_is_not_obeyed(middlewares: dict[type, None]) -> None:
    """It says that robots.txt is not obeyed, or its middleware is off, and what it would forbid."""
    asked = {"ROBOTSTXT_OBEY": True, "DOWNLOADER_MIDDLEWARES": middlewares} if middlewares else {}
    found = diagnose(Listed, Settings(asked), ["https://a.test/private"])
    (wish,) = origins_of([found])
    (site,) = site_reports(found, {wish: Answer(200, ROBOTS.encode(), 0.1)})

    assert [one.partition(" is switched off")[0] for one in found.warnings] == (
        ["RobotsTxtMiddleware"] if middlewares else []
    )
    assert site.pairs == [
        ("robots.txt", "200 in 0.100 s, 48 bytes"),
        ("", "not obeyed (ROBOTSTXT_OBEY), so every URL is fetched; if it were:"),
        ("forbidden", "https://a.test/private"),
        ("allowed", "https://a.test/"),
        ("delay", "none (DOWNLOAD_DELAY)"),
        ("at once", "8 (CONCURRENT_REQUESTS_PER_DOMAIN)"),
        ("pages per hour", "at most 288,000 (estimate: 8 at once, robots.txt took 0.100 s)"),
    ]


@pytest.mark.parametrize(
    ("delay", "jitter", "crawl_delay", "gap"),
    [(0, 0.5, 0, 0), (2, 0.5, 0, 2), (2, 0, 1, 2), (2, 0, 3, 3), (2, 0.5, 4, 5), (0, 0, 4, 4)],
)
def test_mean_gap(delay: float, jitter: float, crawl_delay: float, gap: float) -> None:
    """A delay varies both ways; a Crawl-delay is a floor, from which jitter only leads upwards."""
    assert mean_gap(Pace(delay=delay, jitter=jitter), crawl_delay) == gap


@pytest.mark.parametrize(
    ("gap", "most", "latency", "throttle", "text"),
    [
        (2.0, 8, 0.1, 0, "about 1,800 (by the delay)"),
        (2.0, 8, 0.0, 0, "about 1,800 (by the delay)"),
        (0.01, 1, 0.5, 0, "at most 7,200 (estimate: 1 at once, robots.txt took 0.500 s)"),
        (0.0, 8, 0.1, 0, "at most 288,000 (estimate: 8 at once, robots.txt took 0.100 s)"),
        (0.0, 8, 0.1, 2, "at most 72,000 (estimate: AutoThrottle, robots.txt took 0.100 s)"),
        (300.0, 8, 0.1, 1, "about 12 (by the delay)"),
        (10_000.0, 8, 0.1, 0, "about 0.36 (by the delay)"),
        (0.0, 16, 0.0001, 0, "at most 576,000,000 (estimate: 16 at once, robots.txt took 0.000 s)"),
        (0.0, 8, 0.0, 0, "unknown: no answer was timed"),
    ],
)
def test_pages_per_hour(gap: float, most: int, latency: float, throttle: float, text: str) -> None:
    """The slower of delay and latency decides; what latency decides is called an estimate."""
    assert pages_per_hour(gap, most, latency, throttle) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:s3cr@t@host/0", "redis://***@host/0"),
        ("http://a.test/?key=1&x=2&auth_token=3#f", "http://a.test/?key=***&x=2&auth_token=***#f"),
        ("it is 'top-secret', and stop-secretly", "it is '***', and stop-secretly"),
        ("nested deeply", "nested ***"),
        ("a port of 6379", "a port of 6379"),
        ("http://a.test/mail@host", "http://a.test/mail@host"),
    ],
)
def test_secrets(text: str, shown: str) -> None:
    """What a setting of a telling name holds is masked as a whole word, wherever it stands."""
    secrets = Secrets()
    secrets.learn(
        Settings({
            "DB_PASSWORD": "top-secret",
            "REDIS_PARAMS": {"port": 6379, "password": "deeply"},
            "API_TOKEN": None,
        })
    )  # fmt: skip

    assert secrets.mask(text) == shown


def test_what_earlier_runs_and_other_nodes_know():
    """Cache, incremental crawling and a queue in Redis are in the policy, no password with them."""

    class Plain(scrapy.Spider):
        name = "plain"

    off = diagnose(Plain, Settings(), []).policy
    on = diagnose(
        Plain,
        Settings(
            {
                "RESPONSE_CACHE_ENABLE": True,
                "NETSPY_INCREMENTAL": True,
                "SCHEDULER": "netspy_scrapy.redis.scheduler.RedisScheduler",
                "REDIS_URL": "redis://:geheim@127.0.0.1:1/0",
            }
        ),
        [],
    ).policy

    scrapys = diagnose(Plain, Settings({"HTTPCACHE_ENABLED": True}), []).policy
    assert ("response cache", "off", "HTTPCACHE_ENABLED", "Scrapy default") in off
    assert ("response cache", "Scrapy's HTTP cache", "HTTPCACHE_ENABLED", "project") in scrapys
    assert ("pages of earlier runs", "off", "NETSPY_INCREMENTAL", "netspy default") in off
    assert not [row for row in off if row[0] == "queue"]
    rows = {label: (value, setting) for label, value, setting, _ in on}
    assert rows["response cache"] == (".netspy_cache, for 3600 s", "RESPONSE_CACHE_ENABLE")
    assert rows["pages of earlier runs"][0] == "asked for changes (netspy_incremental.db)"
    assert rows["a page that is unchanged"] == ("skip", "NETSPY_INCREMENTAL_ON_304")
    assert rows["queue"] == ("in Redis, shared by nodes", "REDIS_URL")
    assert rows["delays"] == ("each node its own", "GLOBAL_THROTTLE")
    assert "geheim" not in str(on)
