"""The documentation: its examples run, its links lead somewhere."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    ROOT / "CHANGELOG.md",
    ROOT / "example_project" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SHOP = "http://127.0.0.1:8000/"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [body for kind, body in _BLOCK.findall(text) if kind == language]


def write_files(page: str, folder: Path, url: str = SHOP) -> None:
    """Write the blocks that begin with a file's name; they crawl *url*."""
    for body in blocks(ROOT / page, "python"):
        if match := _FILE.match(body):
            (folder / match[1]).write_text(body.replace(SHOP, url), encoding="utf-8")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip


def dumped(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the example project's bookshop."""
    monkeypatch.syspath_prepend(str(ROOT / "example_project"))
    from bookshop import serve

    with serve() as shop:
        yield shop.url


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_are_python(page: Path) -> None:
    """Each example can at least be parsed."""
    for body in blocks(page, "python"):
        ast.parse(body)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A link within the documentation names a file that exists and a title that it has."""
    for link in _LINK.findall(_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page

        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in titles]
            assert anchor in anchors, link


def test_the_first_spider(tmp_path: Path, shop: str) -> None:
    """docs/start.md: the spider stores what the page says, and its summary is the one shown."""
    write_files("docs/start.md", tmp_path, shop)
    done = run(tmp_path, "books.py")
    shown = next(body for body in blocks(ROOT / "docs/start.md", "") if body.startswith("Run summ"))

    assert done.returncode == 0, done.stderr
    assert shown in done.stderr
    assert len((tmp_path / "books.csv").read_text(encoding="utf-8").splitlines()) == 235
    assert sorted(str(line["status"]) for line in dumped(tmp_path / "failed_requests.jsonl")) == [
        "404", "404", "404", "404", "404", "500"
    ]  # fmt: skip


def test_the_spider_of_a_scrapy_project(tmp_path: Path, shop: str) -> None:
    """docs/scrapy-project.md: the plain spider stores its dataclass items with the add-on."""
    write_files("docs/scrapy-project.md", tmp_path, shop)
    done = run(tmp_path, "-m", "scrapy", "runspider", "books_spider.py")

    assert done.returncode == 0, done.stderr
    assert "CsvPipeline: rows 234 stored, 0 refused, 0 dumped" in done.stderr
    assert len((tmp_path / "book.csv").read_text(encoding="utf-8").splitlines()) == 235


def test_single_parts(tmp_path: Path, shop: str) -> None:
    """docs/scrapy-project.md: a sink, the filter and the summary work without the add-on."""
    write_files("docs/scrapy-project.md", tmp_path, shop)
    parts = next(
        body for body in blocks(ROOT / "docs/scrapy-project.md", "python") if "DUPEFILTER" in body
    )
    values = {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(parts).body}  # type: ignore[attr-defined]
    spider = tmp_path / "books_spider.py"
    text = re.sub(r"(?s)custom_settings = \{.*?\n    \}", f"custom_settings = {values!r}",
                  spider.read_text())  # fmt: skip
    spider.write_text(text)
    done = run(tmp_path, "-m", "scrapy", "runspider", "books_spider.py")

    assert done.returncode == 0, done.stderr
    assert "Run summary of books" in done.stderr
    assert "netspy_scrapy.addon" not in done.stderr
    assert "SqlitePipeline: rows 234 stored" in done.stderr
    assert (tmp_path / "items.db").exists()


def test_a_sink_of_your_own(tmp_path: Path) -> None:
    """docs/sinks.md: the sink stores two rows and refuses one, which a replay offers it again."""
    write_files("docs/sinks.md", tmp_path)
    done = run(tmp_path, "-m", "scrapy", "runspider", "lines_spider.py")
    path = tmp_path / "failed_items.jsonl"
    stored = (tmp_path / "out" / "items.jsonl").read_text(encoding="utf-8").splitlines()

    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["id"] for line in stored] == [1, 3]
    (line,) = dumped(path)
    assert line["reason"] == "Object of type dict_keys is not JSON serializable"
    assert line["pipelines"] == ["lines.LinesPipeline"]

    # Once its cause is gone, the row is stored.
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'"title": \{.*?\}', '"title": "mended"', text), encoding="utf-8")
    replay = run(tmp_path, "-m", "netspy_scrapy.commands.retry", "--items", "-s", "LINES_DIR=out")

    assert replay.returncode == 0, replay.stdout + replay.stderr
    stored = (tmp_path / "out" / "items.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(stored[-1]) == {"id": 2, "title": "mended"}
    assert not path.exists() or not path.read_text(encoding="utf-8")
