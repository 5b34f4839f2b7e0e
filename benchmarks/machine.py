"""What a benchmark ran on: the machine, and the versions of all that took part."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent

PACKAGES = (
    "Scrapy", "Twisted", "lxml", "netspy", "scrapy-redis", "redis", "uvloop", "aiohttp", "httpx",
    "scrapy-playwright", "PyMySQL", "psycopg", "pymongo", "elasticsearch", "confluent-kafka",
    "SecantusDB", "noida-db",
)  # fmt: skip
SERVERS = {
    "Redis": ("redis-server", "--version"),
    "nginx": ("nginx", "-v"),
    "MariaDB": ("mariadbd", "--version"),
    "PostgreSQL": ("postgres", "--version"),
    "Chromium": ("chromium", "--version"),
}
#: Where Debian keeps the servers.
_FOLDERS = ("/usr/sbin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"))))
_NUMBER = re.compile(r"\d+(?:\.\d+)+")


def machine():
    """Return what the machine is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
    }


def versions():
    """Return the versions of what is installed; what is not there is not in it."""
    found = {"Python": platform.python_version(), "netspy-scrapy": _own()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    for name, command in SERVERS.items():
        number = _server(*command)
        if number:
            found[name] = number
    return found


def _processor():
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = re.findall(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return names[0] if names else platform.machine()


def _own():
    """Return the version of this package, and the last commit that changed it."""
    try:
        number = version("netspy-scrapy")
    except PackageNotFoundError:
        number = "not installed"
    commit = _said("git", "-C", str(HERE.parent), "log", "-1", "--format=%h", "--", "netspy_scrapy")
    changed = _said("git", "-C", str(HERE.parent), "status", "--porcelain", "--", "netspy_scrapy")
    if not commit:
        return number
    return f"{number} ({commit.strip()}{' and changes' if changed else ''})"


def _server(name, option):
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS]))
    number = _NUMBER.search(_said(path, option)) if path else None
    return number[0] if number else None


def _said(*command):
    """Return what a program prints; nothing if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""
