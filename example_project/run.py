"""Crawls the bundled bookshop with both spiders and shows what was stored.

``python3 example_project/run.py`` is all there is to do: the first time it makes a virtual
environment (``.venv`` at the top) and installs the package from this checkout. With ``--here`` it
uses the Python that runs it, which must have the package.
"""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if sys.version_info < (3, 10):  # noqa: UP036 - said here, as pip would say it at length
    sys.exit(f"Python 3.10 or newer is needed; this is {sys.version.split()[0]}")

from bookshop import READABLE_IDS, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "output"
LOG = "crawl.log"


class Run(NamedTuple):
    """One of the two ways to run a spider."""

    title: str
    folder: str
    """Where in output/ its results are."""
    command: tuple[str, ...]
    """What follows ``python``; ``{url}`` is the shop's."""

    def arguments(self, url: str) -> list[str]:
        """Return the command for the shop at *url*."""
        return [part.format(url=url) for part in self.command]


RUNS = (
    Run("A netspy spider: MySpider().start()", "netspy_style", ("netspy_style.py", "{url}")),
    Run(
        "A plain Scrapy spider, with the add-on in settings.py",
        "scrapy",
        ("-m", "scrapy", "crawl", "books", "-a", "url={url}"),
    ),
)


def main() -> int:
    """Run the command; the exit status is 0 if both spiders got every book that can be had."""
    if "--here" in sys.argv[1:]:
        return crawl_all()
    sys.path.insert(0, str(HERE.parent))
    from tools.bootstrap import ROOT, environment  # noqa: PLC0415 - it is not there with --here

    python = environment(ROOT / ".venv", str(ROOT), editable=True)
    return subprocess.run([str(python), __file__, "--here"], check=False).returncode


def crawl_all() -> int:
    """Run both spiders side by side, and show one after the other what they stored."""
    print(
        "Two spiders crawl the bookshop. It asks for a second's rest now and then ...", flush=True
    )
    with ExitStack() as stack:
        crawls = [stack.enter_context(crawl(run)) for run in RUNS]
        statuses = [process.wait() for _, process in crawls]
    complete = [
        show(number, run, url, status)
        for number, (run, (url, _), status) in enumerate(
            zip(RUNS, crawls, statuses, strict=True), 1
        )
    ]
    return 0 if all(complete) else 1


@contextmanager
def crawl(run: Run) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run one spider against a shop of its own; give the shop's URL and the spider's process."""
    folder = OUTPUT / run.folder
    if folder.exists():
        shutil.rmtree(folder)  # what the last run left would be counted too
    folder.mkdir(parents=True)
    # A shop remembers whom it has turned away once: each spider gets a new one.
    with serve() as shop, (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *run.arguments(shop.url)],
            cwd=HERE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        with process:
            yield shop.url, process


def show(number: int, run: Run, url: str, status: int) -> bool:
    """Show what a spider stored; tell whether that is all there is."""
    folder = OUTPUT / run.folder
    log = folder / LOG
    lines = log.read_text("utf-8", "replace").splitlines()
    print(f"\n{number}. {run.title}")
    print(f"$ python {' '.join(run.arguments(url))}")
    print("\n".join(f"  {line}" for line in summary(lines)))
    print(f"Stored in {shown(folder)}:")
    for name, what in contents(folder):
        print(f"  {name:<22} {what}")
    if status:
        print("\n".join(lines[-20:]))
        print(f"It ended with status {status}; all of the log is in {shown(log)}")
        return False
    books = tables(folder / "books.db").get("books", 0)
    print(f"{books} books of {len(READABLE_IDS)} that can be had")
    return books == len(READABLE_IDS)


def summary(log: list[str]) -> list[str]:
    """Return the run summary's lines from a log."""
    starts = [place for place, line in enumerate(log) if "INFO: Run summary of" in line]
    if not starts:
        return ["(no run summary in the log)"]
    first, *rest = log[starts[-1] :]
    block = [first.partition("INFO: ")[2]]
    for line in rest:
        if not line.startswith(" "):
            break
        block.append(line)
    return block


def contents(folder: Path) -> list[tuple[str, str]]:
    """Return each file of *folder* that holds something, and what it holds."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".db":
            counts = tables(path)
            what = ", ".join(f"table {name}: {count} rows" for name, count in counts.items())
            found.append((path.name, what))
        elif path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                found.append((path.name, f"{sum(1 for _ in csv.reader(file)) - 1} rows"))
        elif path.name == "failed_requests.jsonl":
            statuses = Counter(
                json.loads(line)["status"] for line in path.read_text("utf-8").splitlines()
            )
            causes = ", ".join(f"{count} x {status}" for status, count in statuses.most_common())
            found.append((path.name, f"{statuses.total()} failed requests ({causes})"))
        elif path.name == "failed_items.jsonl":
            found.append((path.name, f"{len(path.read_text('utf-8').splitlines())} rows"))
        elif path.name == LOG:
            found.append((path.name, "the log"))
    return found


def tables(path: Path) -> dict[str, int]:
    """Return the number of rows of each table of a SQLite file."""
    if not path.exists():
        return {}
    connection = sqlite3.connect(path)
    try:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
            "ORDER BY name"
        ).fetchall()
        return {
            name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608
            for (name,) in names
        }
    finally:
        connection.close()


def shown(path: Path) -> str:
    """Return *path* from the top of the checkout."""
    return str(path.relative_to(HERE.parent))


if __name__ == "__main__":
    sys.exit(main())
