"""How each benchmark gives its results: tables, and comparisons that are judged; as text and JSON.

A benchmark makes one :class:`Report`, adds to it what it found, and calls ``finish()``. What is
measured once a round is kept once a round: medians, ranges and verdicts are made when they are
shown.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from common import in_turns, median, table, write_json
from machine import machine, versions

#: Closer to a peer than this is even: the clock shows no less (see README.md).
EVEN = 0.03


@dataclass
class Comparison:
    """One figure of ours: of each round, beside a peer's, beside a target."""

    what: str
    values: list[float]
    """One for each round."""
    peer: str | None = None
    """Whose figure the values are ratios to: ours / theirs."""
    at_least: float | None = None
    at_most: float | None = None
    less_is_better: bool = False
    """Of a ratio to a peer; always so with ``at_most``."""
    in_each_round: bool = False
    """Whether every round has to reach the target, and not their median."""
    digits: int = 2
    unit: str = ""

    def figure(self):
        """Return the median."""
        return self._text(median(self.values)) + self.unit

    def spread(self):
        """Return the range over the rounds, or nothing if there was one."""
        if len(self.values) < 2:
            return ""
        return f"{self._text(min(self.values))} to {self._text(max(self.values))}"

    def target(self):
        """Return what has to be reached, or nothing."""
        if self.at_least is None and self.at_most is None:
            return ""
        text = f">= {self.at_least:g}" if self.at_most is None else f"<= {self.at_most:g}"
        return text + self.unit + (" each time" if self.in_each_round else "")

    def met(self):
        """Tell whether the target is met; None: there is none."""
        values = self.values if self.in_each_round else [median(self.values)]
        if self.at_least is not None:
            return min(values) >= self.at_least
        if self.at_most is not None:
            return max(values) <= self.at_most
        return None

    def against_peer(self):
        """Return ``won``, ``lost`` or ``even``; None: there is no peer."""
        if self.peer is None:
            return None
        ratio = median(self.values)
        if abs(ratio - 1) <= EVEN:
            return "even"
        less = self.less_is_better or self.at_most is not None
        return "won" if (ratio < 1) is less else "lost"

    def verdict(self):
        """Return the result in words, such as ``met, lost to netspy``."""
        words = {"won": "better than", "lost": "lost to", "even": "even with"}
        met, against = self.met(), self.against_peer()
        parts = [] if met is None else ["met" if met else "MISSED"]
        if against is not None:
            parts.append(f"{words[against]} {self.peer}")
        return ", ".join(parts)

    def _text(self, value):
        return f"{value:,.{self.digits}f}"


@dataclass
class Result:
    """All that a benchmark found, as it is written to a file."""

    benchmark: str
    title: str
    begun: str
    quick: bool = False
    arguments: list[str] = field(default_factory=list)
    seconds: float = 0.0
    load: list[float] = field(default_factory=list)
    """The load of one minute, at the start and before each measurement."""
    machine: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    tables: list[dict] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    text: str = ""
    """What a benchmark printed that gives no tables."""
    error: str = ""
    """Why it did not come to its end."""

    @classmethod
    def read(cls, path):
        """Return the result in a file; raises ValueError if it holds none."""
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        try:
            found["comparisons"] = [Comparison(**one) for one in found["comparisons"]]
            return cls(**found)
        except (KeyError, TypeError) as exc:
            raise ValueError(f"{path} holds no result") from exc

    def write(self, path):
        """Write it to a file."""
        write_json(path, asdict(self))


def now():
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


class Report:
    """What one benchmark finds, while it runs."""

    def __init__(self, options):
        self._options = options
        self._begun = time.monotonic()
        # A benchmark that takes too long stops its servers on its way out.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
        self.result = Result(
            Path(sys.argv[0]).resolve().parent.name, options.title, now(), options.quick,
            sys.argv[1:], load=[_load()],
        )  # fmt: skip

    def in_turns(self, names, runs=None):
        """Yield (run, name) as :func:`common.in_turns` does, and note the load."""
        for run, name in in_turns(names, runs or self._options.runs):
            self.result.load.append(_load())
            yield run, name

    def progress(self, *words):
        """Say on the terminal what was found just now."""
        print(*words, f"(load {_load():.1f})", file=sys.stderr, flush=True)

    def left_out(self, what):
        """Name something that was not measured, and why."""
        self.result.left_out.append(what)
        print("left out:", what, file=sys.stderr, flush=True)

    @contextmanager
    def part(self, name):
        """Run a part; if its server or its driver is missing, name it, so that the others go on."""
        try:
            yield
        except _missing() as exc:
            self.left_out(f"{name}: {exc}")

    def table(self, head, rows, title=""):
        """Add a table; the first column is text, the others are figures."""
        self.result.tables.append(
            {"title": title, "head": list(head), "rows": list(map(list, rows))}
        )

    def compare(self, what, values, **how):
        """Add a comparison, see :class:`Comparison`; without values it is left out."""
        values = [round(value, 4) for value in values]
        if values:
            self.result.comparisons.append(Comparison(what, values, **how))

    def finish(self):
        """Print everything, and write it to the file that was asked for."""
        self.result.seconds = round(time.monotonic() - self._begun, 1)
        self.result.machine, self.result.versions = machine(), versions()
        print(as_text(self.result))
        if self._options.json:
            self.result.write(self._options.json)


def as_text(result):
    """Return a result as it is printed."""
    parts = [
        (one["title"] + "\n" if one["title"] else "") + table(one["head"], one["rows"])
        for one in result.tables
    ]
    judged = [one for one in result.comparisons if one.verdict()]
    if judged:
        rows = [
            (one.what, one.figure(), one.spread(), one.target(), one.verdict()) for one in judged
        ]
        parts.append(table(("comparison", "median", "range", "target", "verdict"), rows))
    parts += [f"left out: {what}" for what in result.left_out]
    return "\n\n".join(parts)


def _missing():
    """Return what is raised where a driver is missing, or a server, which are the tests'."""
    try:
        import pytest  # noqa: PLC0415 - only those benchmarks need it that start servers
    except ImportError:
        return (ImportError,)
    return (ImportError, pytest.skip.Exception)


def _load():
    return round(os.getloadavg()[0], 2)
