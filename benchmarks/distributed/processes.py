"""What the parts of this benchmark share: a Redis, nodes as processes, what they stored."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

OURS = {
    "ADDONS": '{"netspy_scrapy.Addon": 500}',
    "SCHEDULER": "netspy_scrapy.redis.scheduler.RedisScheduler",
    "ITEM_PIPELINES": '{"spider.FileSink": 300}',
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "SPIDER_TASK_LEASE": 3,
}
STOCK = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "ITEM_PIPELINES": '{"spider.BufferedSink": 300}',
    "SCHEDULER_PERSIST": True,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
}


class Redis:
    """A Redis of the benchmark's own; *keeps*: what it was told outlives a kill."""

    def __init__(self, *, keeps=False):
        self._keeps = keeps
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="bench-redis-")
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        self._folder.cleanup()

    def start(self):
        """Start it, at the same port and on the same data as before."""
        program = shutil.which("redis-server") or sys.exit("redis-server is not installed")
        self.process = subprocess.Popen(
            [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--dir", self._folder.name, "--appendonly", "yes" if self._keeps else "no"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        until(self._answers)

    def kill(self):
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def flush(self):
        self.ask(b"FLUSHALL")

    def ask(self, command):
        """Send a command without arguments that need quoting; return the start of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as sock:
            sock.sendall(command + b"\r\n")
            return sock.recv(1 << 16)

    def _answers(self):
        try:
            return self.ask(b"PING").startswith(b"+PONG")
        except OSError:
            return False


def start(folder, spider, arguments, settings):
    """Start a node in *folder*."""
    command = [sys.executable, "-m", "scrapy", "runspider", str(HERE / f"{spider}.py")]
    for name, value in arguments.items():
        command += ["-a", f"{name}={value}"]
    shared = {"LOG_LEVEL": "WARNING", "TELNETCONSOLE_ENABLED": False}
    for name, value in {**shared, **settings}.items():
        command += ["-s", f"{name}={value}"]
    log = (Path(folder) / "log").open("ab")
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent.parent}"}
    with log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)


def rows(folder):
    path = Path(folder) / "rows.txt"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def fetched(origin):
    return sum(path.startswith("/page/1") for _, _, path, *_ in origin.log())


def until(condition, *, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)
