"""What the benchmarks share: the origin, a measured child process, medians, tables."""

from __future__ import annotations

import compileall
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: A child prints what it measured about itself in one line that begins with this.
MARK = "BENCH "


class Origin:
    """Runs ``origin.py``, or a *script* that extends it, while the ``with`` block lasts."""

    def __init__(self, script=HERE / "origin.py"):
        self._script = script

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, str(self._script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        word, port = self._process.stdout.readline().split()
        assert word == "READY"
        self._port = int(port)
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self._port}{path}"

    def reset(self):
        self.control("reset")

    def stats(self):
        return self.control("stats")

    def log(self):
        return self.control("log")

    def control(self, what):
        with urllib.request.urlopen(self.url(f"/ctl/{what}"), timeout=30) as answer:
            return json.load(answer)


class ChildError(RuntimeError):
    """A child failed, or did not report."""


def run_child(command, *, timeout=600):
    """Run *command* in an empty folder; return what it reported after MARK."""
    _compile_package()
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True,
                timeout=timeout, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            raise ChildError(f"{command} took longer than {timeout} s") from exc
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK) and done.returncode == 0:
            return json.loads(line[len(MARK) :])
    raise ChildError(
        f"{command} ended with {done.returncode} and reported nothing:\n"
        + (done.stdout + done.stderr)[-2000:]
    )


@functools.cache
def _compile_package():
    """Compile the package, as pip does with what it installs, and not with an editable install."""
    found = importlib.util.find_spec("netspy_scrapy")
    if found is not None:
        compileall.compile_dir(Path(found.origin).parent, quiet=2)


def in_turns(names, runs):
    """Yield (run, name) so that each run has every name, every second run backwards.

    A drift of the machine's load then meets all of them alike.
    """
    for run in range(runs):
        for name in names if run % 2 == 0 else names[::-1]:
            yield run, name


def median(values):
    return statistics.median(values) if values else float("nan")


def table(head, rows):
    """Return *rows* as lines under *head*; the first column is text, the others are figures."""
    cells = [head, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def write_json(path, data):
    Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
