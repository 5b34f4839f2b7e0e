"""What the benchmarks share: command line, origin, a measured child process, medians, tables."""

from __future__ import annotations

import argparse
import compileall
import functools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from child import MARK

HERE = Path(__file__).resolve().parent

#: The add-on in a Scrapy project.
ADDON = {"ADDONS": {"netspy_scrapy.Addon": 500}}


class Parser(argparse.ArgumentParser):
    """The command line of a benchmark: what all have in common, and other defaults for --quick."""

    def __init__(self, doc, *, runs=3, quick=None):
        title = doc.partition("\n")[0]
        super().__init__(description=title)
        self.set_defaults(title=title)
        self._quick = {"runs": 1, **(quick or {})}
        self.add_argument("--runs", type=int, default=runs, help="rounds")
        self.add_argument("--quick", action="store_true", help="small sizes: does it all run?")
        self.add_argument("--json", metavar="FILE", help="write the results there")

    def add_netspy(self):
        """Add the option for a netspy that lives elsewhere."""
        self.add_argument(
            "--netspy-python", metavar="FILE", help="a Python that has netspy, if this one has not"
        )

    def parse_args(self, args=None, namespace=None):
        options = super().parse_args(args, namespace)
        if options.quick:
            self.set_defaults(**self._quick)
            options = super().parse_args(args, namespace)
        return options


def python_of_netspy(options):
    """Return the Python that has netspy, or None."""
    if options.netspy_python:
        return options.netspy_python
    return sys.executable if find_spec("netspy") else None


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


def run_child(command, *, timeout=600, folder=None):
    """Run *command* in *folder*, or an empty one; return what it told (see child.py)."""
    with tempfile.TemporaryDirectory(prefix="bench-") as empty:
        process = start_child(command, folder or empty)
        try:
            return result_of(process, timeout=timeout)
        finally:
            process.kill()
            process.wait()


def start_child(command, folder):
    """Start *command* in *folder*, with the modules of this folder at hand."""
    _compile_package()
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": path},
    )  # fmt: skip


def result_of(process, *, timeout=600):
    """Wait for a child; return what it told."""
    try:
        printed, logged = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as exc:
        raise ChildError(f"{process.args} took longer than {timeout} s") from exc
    for line in reversed(printed.splitlines()):
        if line.startswith(MARK) and process.returncode == 0:
            return json.loads(line[len(MARK) :])
    raise ChildError(
        f"{process.args} ended with {process.returncode} and told nothing:\n"
        + (printed + logged)[-2000:]
    )


@functools.cache
def _compile_package():
    """Compile the package, as pip does with what it installs, and not with an editable install."""
    found = find_spec("netspy_scrapy")
    if found is not None:
        compileall.compile_dir(Path(found.origin).parent, quiet=2)


def run_variants(script, variants, report):
    """Run *script* with the arguments of each variant in turns; return what it told, by name."""
    results = {name: [] for name in variants}
    for run, name in report.in_turns(list(variants)):
        found = run_child([sys.executable, str(script), *map(str, variants[name])])
        results[name].append(found)
        report.progress(run + 1, name, found)
    return results


def in_turns(names, runs):
    """Yield (run, name) so that each run has every name, every second run backwards.

    A drift of the machine's load then meets all of them alike.
    """
    for run in range(runs):
        for name in names if run % 2 == 0 else names[::-1]:
            yield run, name


def median(values):
    return statistics.median(values) if values else float("nan")


def ratios(ours, theirs, key):
    """Return *key* of ours / theirs, round by round."""
    return [one[key] / other[key] for one, other in zip(ours, theirs, strict=False)]


def of(found, key):
    """Return *key* of each round."""
    return [one[key] for one in found]


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
    """Write *data*, with each innermost list or object on one line."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    text = re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda one: re.sub(r"\n *", " ", one[0]), text)
    Path(path).write_text(text + "\n", encoding="utf-8")
