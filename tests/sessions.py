"""Runs the terminal sessions of the documentation, as a reader would type them.

A ``console`` block of a page is a session: what follows ``$`` is run by a shell, in the folder
where the page's files are (Python blocks that begin with ``# name.py``), and each line that is
shown has to be among those that the command wrote, in that order. ``...`` stands for any text
within a line. A command that fails says so: ``$ command  # exit status 1``.

Replaced are: the bookshop on port 8000 (``python -m bookshop`` starts it, on a port that is free),
the Redis on port 6379, and the path of the browser.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.pages import FILE, all_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

REDIS = "redis://localhost:6379/0"
BROWSER = '{"executable_path": "/usr/bin/chromium"}'
_STATUS = re.compile(r"\s+# exit status (\d+)$")
_SECONDS = 60


class Session:
    """A folder in which the blocks of one page are written and run, one after the other."""

    def __init__(self, folder: Path, serve: Callable[..., Any], replaced: dict[str, str]) -> None:
        self._folder = folder
        self._serve = serve
        self._port = free_port()
        self._replaced = {
            **replaced,
            "127.0.0.1:8000": f"127.0.0.1:{self._port}",
            "localhost:8000": f"localhost:{self._port}",
        }
        self._shops = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shops.close()

    def play(self, page: Path) -> None:
        """Write each file and run each command of *page*."""
        for language, body in all_blocks(page):
            if language == "python" and (match := FILE.match(body)):
                file = self._folder / match[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(self._here(body), encoding="utf-8")
            elif language == "console":
                for command, shown in commands(body):
                    self._run(command, shown)

    def _run(self, command: str, shown: list[str]) -> None:
        if command.startswith("python -m bookshop"):
            self._open_shop(command)
            return
        status = _STATUS.search(command)
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONIOENCODING": "utf-8",
        }
        done = subprocess.run(
            ["bash", "-c", self._here(_STATUS.sub("", command))],
            check=False, cwd=self._folder, env=environment, timeout=_SECONDS,
            encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        written = done.stdout
        for text, here in self._replaced.items():
            written = written.replace(here, text)

        # As a shell says it: a signal is 128 and its number.
        returned = done.returncode if done.returncode >= 0 else 128 - done.returncode

        assert returned == int(status[1] if status else 0), f"{command}: {returned}\n{written}"
        absent = first_absent(shown, written.splitlines())
        assert absent is None, f"{command}\ndoes not show: {absent}\n{written}"

    def _open_shop(self, command: str) -> None:
        """Serve the shop; one that is open already closes."""
        words = shlex.split(command)
        edition = int(words[words.index("--edition") + 1]) if "--edition" in words else 1
        self._shops.close()
        self._shops.enter_context(self._serve("127.0.0.1", self._port, edition=edition))

    def _here(self, text: str) -> str:
        for name, here in self._replaced.items():
            text = text.replace(name, here)
        return text


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def commands(body: str) -> list[tuple[str, list[str]]]:
    """Return each command of a session, and the lines that it is said to write."""
    found: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip() and line.strip() != "...":
            found[-1][1].append(line)
    return found


def first_absent(shown: list[str], written: list[str]) -> str | None:
    """Return the first line of *shown* that does not follow, in *written*, those before it."""
    lines = iter(written)
    for line in shown:
        text = ".*".join(re.escape(part) for part in line.rstrip().split("..."))
        # Of a line of the log the page may leave out date, name and level.
        wanted = re.compile(rf"(?:\S+ \S+ \[\S+\] [A-Z]+: )?{text}\s*")
        if not any(wanted.fullmatch(one) for one in lines):
            return line
    return None
