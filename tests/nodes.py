"""Runs a spider in several processes, as nodes do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

ROOT = Path(__file__).resolve().parent.parent

#: A spider of one list page and ``n`` pages, each of which gives a row; its sink is a file.
SPIDER = """
import os, time
import scrapy
from netspy_scrapy import BasePipeline


class FileSink(BasePipeline):
    def save_items(self, table, items):
        time.sleep(self.crawler.settings.getfloat("SINK_SECONDS"))
        with open("rows.txt", "a") as file:
            file.writelines(one["url"] + "\\n" for one in items)
        return True


class Pages(scrapy.Spider):
    name = "pages"

    def __init__(self, *args, clock=0, until=None, **kwargs):
        super().__init__(*args, **kwargs)
        while until and not os.path.exists(until):
            time.sleep(0.05)
        real = time.time
        time.time = lambda: real() + int(clock)

    async def start(self):
        yield scrapy.Request(self.base + "/page/1?list", self.list)

    def list(self, response):
        for n in range(int(self.n)):
            yield scrapy.Request(f"{self.base}/page/1?n={n}", self.parse)

    def parse(self, response):
        if "n=13" in response.url and getattr(self, "poison", None):
            os._exit(3)
        yield {"url": response.url}
"""

SETTINGS: dict[str, Any] = {
    "ADDONS": '{"netspy_scrapy.Addon": 500}',
    "SCHEDULER": "netspy_scrapy.redis.scheduler.RedisScheduler",
    "ITEM_PIPELINES": '{"pages.FileSink": 300}',
    "SINK_SECONDS": 0.0,
    "SPIDER_TASK_LEASE": 2,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "REDIS_PARAMS": '{"socket_timeout": 1, "socket_connect_timeout": 1}',
    "TELNETCONSOLE_ENABLED": False,
    "HTTP_REMOTE_CONTROL_ENABLED": False,
}


class Zygote:
    """Starts nodes in a tenth of the time: forks of a process that has imported what they need."""

    def __enter__(self) -> Self:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        for name in ("SCRAPY_SETTINGS_MODULE", "NETSPY_SETTING"):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote"], cwd=ROOT, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)

    def fork(self, command: tuple[str, ...], log: Path) -> Forked:
        """Start what ``python`` with *command* would be, in the working folder."""
        wish = {"run": command, "folder": str(Path.cwd()), "log": str(log)}
        return Forked(self, int(self.ask(**wish)))

    def ask(self, **wish: Any) -> Any:
        """Send a command; return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(wish) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Forked:
    """A process of the zygote's, used as a Popen."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self.pid = pid
        self._zygote = zygote
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._zygote.ask(poll=self.pid)
        return self._status

    def wait(self, seconds: float) -> int:
        end = time.monotonic() + seconds
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), seconds)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # until then the process id is this one's
            os.kill(self.pid, number)


class Node:
    """A process that runs the spider in the working folder; its log is ``<name>.log``."""

    def __init__(self, name: str, command: tuple[str, ...], zygote: Zygote | None) -> None:
        self.name = name
        self.process: Any
        if zygote is not None:
            self.process = zygote.fork(command, self.log_path)
            return
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}."},
            )  # fmt: skip

    @property
    def log_path(self) -> Path:
        return Path(f"{self.name}.log")

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)

    def wait(self, seconds: float = 60) -> int:
        """Wait for the end, and return the status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end:\n{self.log[-3000:]}") from None


class Nodes:
    """Nodes of one spider, killed at the end of the test."""

    def __init__(self, site: Any, redis_url: str, zygote: Zygote | None = None) -> None:
        self.site = site
        self.zygote = zygote
        """What starts the nodes; None: a new interpreter for each."""
        self.settings = {**SETTINGS, "REDIS_URL": redis_url}
        self.all: list[Node] = []
        Path("pages.py").write_text(SPIDER)

    def start(self, n: int = 100, *arguments: str, **settings: Any) -> Node:
        """Start a node of the spider above, which fetches *n* pages."""
        command = ["-m", "scrapy", "runspider", "pages.py", "-a", f"n={n}"]
        command += ["-a", f"base=http://127.0.0.1:{self.site.port}"]
        for name, value in {**self.settings, **settings}.items():
            command += ["-s", f"{name}={value}"]
        return self.run(*command, *arguments)

    def run(self, *command: str) -> Node:
        """Start a node by a command of Python's."""
        node = Node(f"node{len(self.all)}", command, self.zygote)
        self.all.append(node)
        return node

    def until_fetched(self, count: int) -> None:
        """Wait until the site was asked for so many pages."""
        try:
            until(lambda: self.site.hits("/page/1") >= count)
        except AssertionError as exc:
            logs = "\n".join(f"{node.name}:\n{node.log[-2000:]}" for node in self.all)
            raise AssertionError(f"{self.site.hits('/page/1')} pages of {count}:\n{logs}") from exc

    def close(self) -> None:
        for node in self.all:
            if node.is_alive:
                node.signal(signal.SIGCONT)
                node.kill()


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until *condition* holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def rows() -> list[str]:
    """Return what the sink stored."""
    path = Path("rows.txt")
    return path.read_text().split() if path.exists() else []
