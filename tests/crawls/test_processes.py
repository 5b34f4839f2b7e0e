"""netspy-run --processes N: real crawls in several processes, killed, stopped, without Redis."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from netspy_scrapy.commands import run
from tests.crawling import times
from tests.nodes import ROOT, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.redis import Redis

AIR = """
import json
import os
import time
import netspy_scrapy as mw


class Same(mw.Item):
    url = ""


class News(mw.{kind}):
    name = "news"
    __custom_setting__ = {{
        "ITEM_PIPELINES": ["netspy.pipelines.sqlite.SqlitePipeline",
                           "netspy.pipelines.csv.CsvPipeline"],
        "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
        "RANDOM_USER_AGENT": False,
    }}

    def start_callback(self):
        print("start_callback")

    def start_requests(self):
        yield mw.Request(self.base + "/page/2", callback=self.list)

    def list(self, request, response):
        for n in range(int(self.n)):
            yield mw.Request(f"{{self.base}}{{getattr(self, 'path', '/page/1?n=')}}{{n}}")
        for url in json.loads(getattr(self, "urls", "[]")):
            yield mw.Request(url)

    def parse(self, request, response):
        time.sleep(float(getattr(self, "seconds", 0)))
        if getattr(self, "poison", None) and request.url.endswith("n=13"):
            os._exit(3)
        yield {{"url": request.url}}
        same = Same()
        same.table_name = "items"
        same.url = "the same in all"
        yield same


if __name__ == "__main__":
    News().start()
"""

PLAIN = """
import scrapy


class Plain(scrapy.Spider):
    name = "plain"

    def __init__(self, base, n, **kwargs):
        super().__init__(**kwargs)
        self.start_urls = [f"{base}/page/1?list={k}" for k in range(4)]
        self.base, self.n = base, int(n)

    def parse(self, response):
        for k in range(self.n):
            yield response.follow(f"{self.base}/page/1?n={k}", self.page)

    def page(self, response):
        yield {"url": response.url}
"""


class Command:
    """The command, as a process of its own; its output is in files."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.stdout, self.stderr = Path("stdout.txt"), Path("stderr.txt")
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env={
                    **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}.", "TMPDIR": str(Path.cwd()),
                    **environment,
                },
                start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self.stderr.read_text(errors="replace")

    def wait(self, seconds: float = 90) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.log[-4000:]}") from None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    @property
    def record(self) -> dict[str, Any]:
        (line,) = re.findall(r"NETSPY_RUN_SUMMARY (\{.*)", self.log)
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def family(self) -> list[int]:
        """The processes that came of it and live, whatever became of it."""
        here = Path.cwd()
        mark = f"TMPDIR={here}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) not in {os.getpid(), self.process.pid}:
                with suppress(OSError):
                    # Redis overwrites its environment, but works in a folder of the run's.
                    cwd = (folder / "cwd").readlink()
                    mine = mark in (folder / "environ").read_bytes().split(b"\0")
                    if mine or here in [cwd, *cwd.parents]:
                        found.append(int(folder.name))
        return found

    def children(self) -> dict[str, int]:
        """Return the process id of each crawling process that lives, by its label."""
        found = {}
        for pid in self.family:
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"netspy_scrapy.processes.child" in words:
                    found[words[-2].decode()] = pid
        return found

    def close(self) -> None:
        for pid in [self.process.pid, *self.family]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start(site: Any) -> Iterator[Callable[..., Command]]:
    """Give a function that starts ``netspy-run`` (or another command) in the test's folder."""
    made: list[Command] = []

    def begin(
        n: int, processes: int, *more: str, kind: str = "AirSpider", **environment: str
    ) -> Command:
        Path("news.py").write_text(AIR.format(kind=kind))
        base = site.url("").rstrip("/")
        command = ["-m", "netspy_scrapy.commands.run", "news.py", "--processes", str(processes)]
        command += ["-a", f"n={n}", "-a", f"base={base}"]
        made.append(Command(*command, *more, **environment))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def rows() -> list[str]:
    if not Path("items.db").exists():
        return []
    with closing(sqlite3.connect("items.db")) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchone():
            return []
        return [url for (url,) in db.execute("SELECT url FROM items")]


def csv_rows() -> list[str]:
    with Path("items.csv").open(newline="") as file:
        return [row["url"] for row in csv.DictReader(file)]


def pages(found: list[str]) -> list[str]:
    return [one for one in found if "the same" not in one]


def dumped() -> list[dict[str, Any]]:
    path = Path("failed_requests.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def dumped_pages() -> set[str]:
    """Return the pages in the dump; the list is there too if not all it yielded was safe."""
    return {one["url"] for one in dumped() if "/page/2" not in one["url"]}


def left_behind() -> list[str]:
    return [one.name for one in Path.cwd().glob("netspy-redis-*")]


def until_stored(command: Command, count: int) -> None:
    def enough() -> bool:
        assert command.process.poll() is None, command.log[-4000:]
        return len(rows()) >= count

    until(enough, 60)


def test_three_processes_share_one_spider(start: Any, site: Any) -> None:
    """start_requests is run by one, pages are fetched once, all rows are in every sink once, and
    the summary is that of one crawl."""
    command = start(150, 3, "-a", "seconds=0.01")

    assert command.wait() == 0, command.log[-3000:]
    assert (site.hits("/page/2"), site.hits("/page/1")) == (1, 150)
    for found in (rows(), csv_rows()):
        assert len(pages(found)) == len(set(pages(found))) == 150
    record = command.record
    assert (record["pages"], record["reason"], record["request_failed"]) == (151, "finished", 0)
    assert record["sinks"]["SqlitePipeline"]["items"]["stored"] == len(rows())
    assert [one["process"] for one in record["processes"]] == ["1", "2", "3"]
    assert sum(one["pages"] for one in record["processes"]) == 151
    assert all(one["pages"] > 0 for one in record["processes"])
    log = command.log
    assert log.count("Run summary of news (finished), 3 processes") == 1
    assert {line[:4] for line in log.splitlines() if line.startswith("[")} == {
        "[1] ",
        "[2] ",
        "[3] ",
    }
    assert command.stdout.read_text().split() == ["start_callback"] * 3
    # Equal items of different processes are known to all of them, but for those of one moment.
    assert 1 <= rows().count("the same in all") <= 6
    assert not command.family
    assert not left_behind()


def test_a_plain_spider_of_a_project(start: Any, site: Any) -> None:
    """``scrapy netspy-crawl``: start() runs once, though Scrapy's own yields past the filter; all
    lines are in one LOG_FILE, and a feed with the process in its URI is one for each."""
    Path("scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    Path("shop/spiders").mkdir(parents=True)
    Path("shop/__init__.py").touch()
    Path("shop/spiders/__init__.py").touch()
    Path("shop/spiders/plain.py").write_text(PLAIN)
    Path("shop/settings.py").write_text(
        'SPIDER_MODULES = ["shop.spiders"]\nLOG_FILE = "logs/crawl.log"\n'
        'ITEM_PIPELINES = {"netspy_scrapy.pipelines.sqlite.SqlitePipeline": 300}\n'
    )
    feeds = json.dumps({"rows.%(netspy_process)s.jsonl": {"format": "jsonlines"}})
    command = Command(
        "-m", "scrapy", "netspy-crawl", "plain", "--processes", "2", "-a", "n=60",
        "-a", f"base={site.url('').rstrip('/')}", "-s", f"FEEDS={feeds}",
    )  # fmt: skip
    status = command.wait()
    log = Path("logs/crawl.log").read_text()

    assert status == 0, log[-3000:]
    assert site.hits("/page/1") == 64
    assert len(rows()) == len(set(rows())) == 60
    text = "".join(Path(f"rows.{n}.jsonl").read_text() for n in (1, 2))
    assert {json.loads(line)["url"] for line in text.splitlines()} == set(rows())
    assert log.count("NETSPY_RUN_SUMMARY") == 1
    assert "[1] " in log
    assert "[2] " in log
    assert not command.family


def test_one_that_is_killed(start: Any, site: Any) -> None:
    """Its work goes on at once, another takes its place, the summary names it; no row is lost."""
    command = start(200, 2, "-a", "seconds=0.02")
    until_stored(command, 30)
    os.kill(command.children()["2"], signal.SIGKILL)

    assert command.wait() == 1
    assert set(pages(rows())) == {site.url(f"/page/1?n={n}") for n in range(200)}
    assert site.hits("/page/1") <= 200 + 40
    record = command.record
    fates = {one["process"]: one["fate"] for one in record["processes"]}
    assert set(fates) == {"1", "2", "2b"}
    assert re.fullmatch(
        r"was killed by SIGKILL; the \d+ tasks that it held went back to the queue; 2b took its "
        "place", fates["2"],
    )  # fmt: skip
    assert fates["1"] == fates["2b"] == "finished"
    assert "! process 2: " in command.log
    assert record["reason"] == "finished"
    # What a process says each second may be a second old when it is killed.
    assert record["pages"] <= site.hits("/page/1")
    assert not command.family
    assert not left_behind()


def test_a_page_that_kills_its_process(start: Any, site: Any) -> None:
    """It is given up and dumped; all other pages are stored, or dumped with it."""
    command = start(40, 2, "-a", "poison=1", "-s", "NETSPY_MAX_DELIVERIES=2")

    assert command.wait() == 1
    done, given_up = set(pages(rows())), dumped_pages()
    assert done | given_up == {site.url(f"/page/1?n={n}") for n in range(40)}
    assert site.url("/page/1?n=13") in given_up
    assert command.record["reason"] == "finished"
    fates = [one["fate"] for one in command.record["processes"]]
    assert sum("ended with exit status 3 in the midst of its work" in fate for fate in fates) == 2
    assert fates.count("finished") == 2


def test_ctrl_c(start: Any, site: Any) -> None:
    """All stop gently, what was queued is dumped, and netspy-retry fetches the rest."""
    command = start(400, 2, "-a", "seconds=0.03")
    until_stored(command, 30)
    command.signal(signal.SIGINT)
    status = command.wait()
    done, queued = set(pages(rows())), dumped_pages()

    assert status == 130
    assert not command.family
    assert not left_behind()
    assert done | queued == {site.url(f"/page/1?n={n}") for n in range(400)}
    assert not done & queued
    assert all(one["reason"] == "unfinished: shutdown" for one in dumped())
    record = command.record
    assert (record["reason"], record["requests_dumped"]) == ("shutdown", len(dumped()))
    assert {one["fate"] for one in record["processes"]} == {"stopped"}

    again = Command("-m", "netspy_scrapy.commands.retry", "--requests", "--spider", "news.py")
    assert again.wait() == 0
    assert len(set(pages(rows()))) == 400


def test_ctrl_c_twice(start: Any, site: Any) -> None:
    """The second ends all at once, whatever callbacks do; no row and no request is lost."""
    command = start(200, 2, "-a", "seconds=0.05", "-a", "path=/slow?ms=1500&n=")
    until(lambda: site.hits("/slow") >= 8, 60)
    command.signal(signal.SIGINT)
    time.sleep(0.5)
    begun = time.monotonic()
    command.signal(signal.SIGINT)
    status = command.wait()

    assert status == 130
    assert time.monotonic() - begun < 14
    assert not command.family
    known = dumped_pages() | set(pages(rows()))
    assert known >= {site.url(f"/slow?ms=1500&n={n}") for n in range(200)}


def test_the_command_itself_is_killed(start: Any, site: Any) -> None:
    """Its processes store what they have and end, and so does the redis-server."""
    command = start(400, 2, "-a", "seconds=0.03")
    until_stored(command, 20)
    command.process.kill()
    command.wait()
    until(lambda: not command.family, 40)

    done, queued = set(pages(rows())), dumped_pages()
    assert done | queued == {site.url(f"/page/1?n={n}") for n in range(400)}
    assert queued
    assert not left_behind()


def test_a_server_of_ones_own(start: Any, site: Any, own_redis: Callable[..., Redis]) -> None:
    """REDIS_URL is used; its password is in no log and no process list. A second run is no empty
    one, and what was known of the run alone is forgotten."""
    server = own_redis("--requirepass", "s3cret-pw")
    url = server.url.replace("redis://", "redis://:s3cret-pw@")
    client = redis.Redis.from_url(url)
    for number in (1, 2):
        command = start(40, 2, NETSPY_REDIS_URL=url)
        assert command.wait() == 0, command.log[-3000:]
        assert site.hits("/page/1") == 40 * number
        assert "s3cret-pw" not in command.log
        assert len(pages(rows())) == 40 * number
        left = [key.decode() for key in client.scan_iter()]
        assert not [key for key in left if ":run" in key or "seen:items" in key]


def test_a_stop_and_a_next_start(start: Any, site: Any, own_redis: Callable[..., Redis]) -> None:
    """What is queued stays in one's own server; the next start goes on, also a netspy Spider's."""
    url = own_redis().url
    command = start(200, 2, "-a", "seconds=0.03", kind="Spider", NETSPY_REDIS_URL=url)
    until_stored(command, 20)
    command.signal(signal.SIGTERM)

    assert command.wait() == 143
    assert not dumped()
    assert "the next start goes on with them" in command.log
    command = start(200, 2, kind="Spider", NETSPY_REDIS_URL=url)
    assert command.wait() == 0, command.log[-3000:]
    assert len(set(pages(rows()))) == 200
    assert site.hits("/page/1") <= 200 + 16


def test_the_redis_server_dies(start: Any) -> None:
    """That ends the run, with a status and a note that say so."""
    command = start(400, 2, "-a", "seconds=0.03")
    until_stored(command, 10)
    for pid in command.family:
        with suppress(OSError):
            if b"redis-server" in Path(f"/proc/{pid}/comm").read_bytes():
                os.kill(pid, signal.SIGKILL)

    assert command.wait() == 1
    assert "THE REDIS SERVER of the run ended" in command.log
    assert not command.family
    assert not left_behind()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("JOBDIR=job", "JOBDIR cannot be used: expected no value with --processes"),
        ("NETSPY_REPORT=run.html", "NETSPY_REPORT cannot be used: expected no value"),
        ("NETSPY_INCREMENTAL=1", 'NETSPY_INCREMENTAL_STORE cannot be used: expected "redis"'),
        ('FEEDS={"rows.jsonl": {}}', "FEEDS cannot be used: expected a URI for each process"),
        ("SCHEDULER=scrapy.core.scheduler.Scheduler", "SCHEDULER cannot be used: expected"),
        # One that was set is not replaced by another server.
        (
            "REDIS_URL=redis://:s3cret-pw@127.0.0.1:9/0",
            "Redis at redis://***@127.0.0.1:9/0 is",
        ),
        ("REDIS_HOST=", "REDIS_URL cannot be used: expected a Redis server for --processes"),
    ],
)
def test_what_several_processes_cannot_do(
    setting: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before a process is started, and the error says what would do."""
    monkeypatch.setenv("PATH", str(Path.cwd()))  # no redis-server here
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("some_news.py").write_text(AIR.format(kind="AirSpider"))
    status = run.main(["some_news.py", "--processes", "2", "-s", setting])
    error = capsys.readouterr().err

    assert status == 2
    assert f"netspy-run: error: {said}" in error
    assert "s3cret-pw" not in error
    if setting == "REDIS_HOST=":
        assert "apt install redis-server" in error


def test_one_that_cannot_start(start: Any) -> None:
    """Its error is in the log and in the summary, and the run fails as a whole."""
    command = start(10, 2, "-s", "SPIDER_MAX_RETRY_TIMES=many")

    assert command.wait() == 1
    assert "SPIDER_MAX_RETRY_TIMES" in command.log
    assert "failed: ConfigError" in command.record["processes"][0]["fate"]
    assert not command.family


def test_one_process(start: Any, site: Any) -> None:
    """Without --processes it is a crawl as any other, and needs no Redis."""
    Path("nothing").mkdir()
    command = start(20, 1, PATH=str(Path("nothing").absolute()))

    assert command.wait() == 0
    assert site.hits("/page/1") == 20
    assert command.record["pages"] == 21
    assert "processes" not in command.record


def most_at_once(site: Any, host: str, seconds: float) -> int:
    """Return how many requests came to *host* within so many seconds at most."""
    moments = times(site, "/slow", host)
    return max(sum(1 for other in moments if 0 <= other - one < seconds) for one in moments)


@pytest.mark.timed
def test_sites_see_the_load_of_one_process(start: Any, site: Any) -> None:
    """What may be in flight at a domain is divided, also where there are fewer places than
    processes; a delay is kept by all together."""
    policies = {
        f"127.0.0.1:{site.port}": {"concurrency": 1, "delay": 0},
        f"127.0.0.2:{site.port}": {"concurrency": 4},
        f"127.0.0.3:{site.port}": {"delay": 0.25, "jitter": 0},
    }
    urls = [site.url(f"/slow?ms=300&n={n}", f"127.0.0.{1 + n % 2}") for n in range(16)]
    urls += [site.url(f"/page/1?n={n}", "127.0.0.3") for n in range(12)]
    command = start(
        0, 2, "-a", f"urls={json.dumps(urls)}",
        "-s", f"NETSPY_DOMAIN_POLICIES={json.dumps(policies)}",
    )  # fmt: skip

    assert command.wait() == 0, command.log[-3000:]
    assert len(pages(rows())) == len(urls)
    assert most_at_once(site, "127.0.0.1", 0.28) == 1
    assert most_at_once(site, "127.0.0.2", 0.28) <= 4
    slow = times(site, "/page/1", "127.0.0.3")
    # The first requests of a process wait for their connection.
    gaps = [after - before for before, after in pairwise(slow[4:])]
    assert min(gaps) >= 0.2, gaps


@pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")
def test_the_guardian_is_killed() -> None:
    """The server ends with it (Linux)."""
    import asyncio

    from netspy_scrapy.processes.server import OwnRedis

    async def run() -> None:
        server = OwnRedis()
        await server.start()
        path = Path(server.url.removeprefix("unix://").partition("?")[0])
        assert path.parent.stat().st_mode & 0o77 == 0
        server._guardian.kill()  # type: ignore[union-attr]
        server._guardian.wait()  # type: ignore[union-attr]
        until(lambda: not server._answers(), 10)
        await server.stop()
        assert not path.parent.exists()

    tempfile.tempdir = None
    asyncio.run(run())
