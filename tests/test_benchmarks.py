"""The command that runs the benchmarks, and the page that it makes of their results."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"

GOOD = '''"""Counts to three."""
import sys
sys.path.insert(0, {benchmarks!r})
from common import Parser
from report import Report
options = Parser(__doc__, quick={{"pages": 1}}).parse_args()
report = Report(options)
report.table(("", "pages/s"), [("ours", "3")], "Three pages.")
report.compare("ours: pages/s", [0.5, 0.7, 2.0], peer="netspy", at_least=1.0)
report.left_out("feapder, which is not installed")
report.finish()
'''
OLD = '"""Prints a table of its own."""\nprint("a table")\n'
BROKEN = '"""Breaks."""\nprint("half of it")\nraise RuntimeError("no such luck")\n'
SLOW = '''"""Never ends, and has a server."""
import subprocess, sys, time
server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(server.pid, flush=True)
time.sleep(60)
'''


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import modules of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    """Make benchmarks, by their names and texts."""

    def make(**texts: str) -> Path:
        for name, text in texts.items():
            (tmp_path / name).mkdir()
            script = text.replace("{benchmarks!r}", repr(str(BENCHMARKS))).replace("{{", "{")
            (tmp_path / name / "run.py").write_text(script.replace("}}", "}"))
        return tmp_path

    return make


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the command on the benchmarks in *folder*; return its status and the page."""
    code = (
        "import sys; from pathlib import Path;"
        f"sys.path.insert(0, {str(BENCHMARKS)!r}); import run;"
        f"sys.exit(run.main({list(arguments)!r}, Path({str(folder)!r}),"
        f" Path({str(folder / 'page.md')!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    page = folder / "page.md"
    return done.returncode, page.read_text() if page.exists() else done.stdout


def runs(pid: int) -> bool:
    """Tell whether a process is there, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_fails_is_named_and_the_others_go_on(folder: Any) -> None:
    """The page has the table of one, the text of another, and why the third has no result."""
    status, page = run(folder(good=GOOD, old=OLD, broken=BROKEN))

    assert status == 1
    assert "| ours | 3 |" in page
    assert "**missed**, **lost to** netspy" in page
    assert "| 0.70 | 0.50 to 2.00 | >= 1 |" in page
    assert "feapder, which is not installed" in page
    assert "a table" in page
    assert "**Did not come to their end:** [broken](#broken)" in page
    assert "RuntimeError: no such luck" in page
    assert "half of it" in page


def test_a_benchmark_that_takes_too_long(folder: Any) -> None:
    """It is stopped, with all that it had started, and is named."""
    begun = time.monotonic()
    status, page = run(folder(slow=SLOW, good=GOOD), "--limit", "3")
    server = int(json.loads((folder().joinpath("results/full/slow.json")).read_text())["text"])

    assert status == 1
    assert "stopped after 3 s" in page
    assert "| ours | 3 |" in page
    assert time.monotonic() - begun < 40
    assert not runs(server)


def test_some_benchmarks(folder: Any) -> None:
    """The results of others stay; a quick result does not replace a full one."""
    made = folder(good=GOOD, old=OLD, new=OLD)
    run(made, "good")
    status, page = run(made, "old", "good", "--quick")

    assert status == 0
    assert "**Not run:** new." in page
    assert page.count("**quick: small sizes, one round**") == 1
    assert run(made, "--document") == (0, page)


def test_quick_sizes(modules: Any) -> None:
    """--quick changes the defaults, and what is given by hand stays."""
    parser = modules("common").Parser("Title.\n\nMore.", quick={"pages": 5})
    parser.add_argument("--pages", type=int, default=500)

    assert parser.parse_args([]).pages == 500
    assert (parser.parse_args(["--quick"]).pages, parser.parse_args(["--quick"]).runs) == (5, 1)


def test_quick_and_a_size(modules: Any) -> None:
    """A size that is given counts, whatever else is quick."""
    parser = modules("common").Parser("Title.", quick={"pages": 5})
    parser.add_argument("--pages", type=int, default=500)

    assert parser.parse_args(["--quick", "--pages", "7"]).pages == 7


@pytest.mark.parametrize(
    ("values", "how", "verdict"),
    [
        ([1.5], {"at_least": 1.3}, "met"),
        ([1.2], {"at_least": 1.3}, "MISSED"),
        ([1.0, 2.0, 2.0], {"at_least": 1.3}, "met"),
        ([1.0, 2.0, 2.0], {"at_least": 1.3, "in_each_round": True}, "MISSED"),
        ([0.0, 1.0, 0.0], {"at_most": 0, "in_each_round": True}, "MISSED"),
        ([0.95], {"at_least": 0.92, "peer": "Scrapy"}, "met, lost to Scrapy"),
        ([0.98], {"at_least": 0.92, "peer": "Scrapy"}, "met, even with Scrapy"),
        ([0.5], {"peer": "Scrapy", "less_is_better": True}, "better than Scrapy"),
        ([1.1], {"peer": "a script", "at_most": 1.15}, "met, lost to a script"),
        ([1.1], {}, ""),
    ],
)
def test_verdicts(modules: Any, values: list[float], how: dict[str, Any], verdict: str) -> None:
    """A target is met or missed, and beside a peer a result is better, even or lost."""
    assert modules("report").Comparison("x", values, **how).verdict() == verdict


def test_the_page_is_that_of_the_results(modules: Any) -> None:
    """docs/benchmarks.md is what `python benchmarks/run.py --document` writes."""
    command = modules("run")
    names = sorted(one.parent.name for one in BENCHMARKS.glob("*/run.py"))
    page = modules("document").render(command._results(BENCHMARKS, names), names)

    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    "script", sorted(BENCHMARKS.glob("*/run.py")), ids=lambda script: script.parent.name
)
def test_each_benchmark_takes_the_common_options(script: Path) -> None:
    """Each runs alone, says what it measures, and writes its results where it is told to."""
    done = subprocess.run(
        [sys.executable, str(script), "--help"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert "--json" in done.stdout
