"""The documentation: its examples run, its links lead somewhere."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.pages import (
    BLOCK,
    LINK,
    PAGES,
    ROOT,
    all_blocks,
    blocks,
    dumped,
    name_of,
    run,
    start,
    write_files,
)

TRANSLATED = [
    ("README.md", "README.zh.md"),
    ("docs/start.md", "docs/zh/start.md"),
    ("docs/netspy-spider.md", "docs/zh/netspy-spider.md"),
]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the function that serves the example project's bookshop."""
    monkeypatch.syspath_prepend(str(ROOT / "example_project"))
    import bookshop

    return bookshop.serve


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_are_python(page: Path) -> None:
    """Each example can at least be parsed."""
    for body in blocks(page, "python"):
        ast.parse(body)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """A link within the documentation names a file that exists and a title that it has."""
    for link in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page

        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in titles]
            assert anchor in anchors, link


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED)
def test_chinese_pages_say_the_same(english: str, chinese: str) -> None:
    """A page and its translation have the same code, and the same names in each row of a table."""
    one, other = ROOT / english, ROOT / chinese

    assert _code(one) == _code(other)
    assert _rows(one) == _rows(other)


def _code(page: Path) -> list[list[str]]:
    """Return the code blocks without their comments."""
    return [re.sub(r" *#.*", "", body).splitlines() for _, body in all_blocks(page)]


def _rows(page: Path) -> list[set[str]]:
    """Return the code in each row of the page's tables; placeholders are translated."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    return [
        {name for name in re.findall(r"`([^`]+)`", row) if "<" not in name}
        for row in re.findall(r"^\|.*", text, re.MULTILINE)
    ]


def test_the_spiders_of_the_first_pages(tmp_path: Path, serve: Any) -> None:
    """docs/start.md and docs/scrapy-project.md: the spiders store what the pages say."""
    facade, plain = tmp_path / "facade", tmp_path / "plain"
    facade.mkdir()
    plain.mkdir()
    with serve() as one, serve() as other:  # side by side, as the shop asks for many rests
        write_files("docs/start.md", facade, one.url)
        write_files("docs/scrapy-project.md", plain, other.url)
        with (
            start(facade, "books.py") as first,
            start(plain, "-m", "scrapy", "runspider", "books_spider.py") as second,
        ):
            said = first.communicate(timeout=90)[0], second.communicate(timeout=90)[0]
    shown = next(body for body in blocks(ROOT / "docs/start.md", "") if body.startswith("Run summ"))
    # As many as were not under way; a port has four digits or five.
    rests = re.compile(
        r"^  rests    \d+\n    \S+: \d+ rests?, \S+ s$|^  bytes    .+$", re.MULTILINE
    )
    failed = [str(line["status"]) for line in dumped(facade / "failed_requests.jsonl")]

    assert (first.returncode, second.returncode) == (0, 0), said
    assert rests.sub("", shown) in rests.sub("", said[0])
    assert len((facade / "books.csv").read_text(encoding="utf-8").splitlines()) == 235
    assert sorted(failed) == ["404", "404", "404", "404", "404", "500"]
    assert "CsvPipeline: rows 234 stored, 0 refused, 0 dumped" in said[1]
    assert len((plain / "book.csv").read_text(encoding="utf-8").splitlines()) == 235


def test_single_parts(tmp_path: Path, serve: Any) -> None:
    """docs/scrapy-project.md: a sink, the filter and the summary work without the add-on."""
    parts = next(
        body for body in blocks(ROOT / "docs/scrapy-project.md", "python") if "DUPEFILTER" in body
    )
    values = {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(parts).body}  # type: ignore[attr-defined]
    with serve() as shop:
        write_files("docs/scrapy-project.md", tmp_path, shop.url)
        spider = tmp_path / "books_spider.py"
        settings = f"custom_settings = {values!r}"
        text = re.sub(r"(?s)custom_settings = \{.*?\n    \}", settings, spider.read_text())
        spider.write_text(text)
        status, said = run(tmp_path, "-m", "scrapy", "runspider", "books_spider.py")

    assert status == 0, said
    assert "Run summary of books" in said
    assert "netspy_scrapy.addon" not in said
    assert "SqlitePipeline: rows 234 stored" in said
    assert (tmp_path / "items.db").exists()


def test_items_in_redis(tmp_path: Path, own_redis: Any) -> None:
    """docs/filters.md: the first run stores two rows, the second none."""
    write_files("docs/filters.md", tmp_path)
    spider = tmp_path / "news_spider.py"
    spider.write_text(spider.read_text().replace("redis://localhost:6379/0", own_redis().url))
    first, second = (run(tmp_path, "-m", "scrapy", "runspider", spider.name) for _ in range(2))

    assert (first[0], second[0]) == (0, 0), first[1] + second[1]
    assert "SqlitePipeline: rows 2 stored" in first[1]
    assert "SqlitePipeline: rows 0 stored" in second[1]
    assert "items    2  (duplicate 2)" in second[1]


def test_a_sink_of_your_own(tmp_path: Path) -> None:
    """docs/sinks.md: the sink stores two rows and refuses one, which a replay offers it again."""
    write_files("docs/sinks.md", tmp_path)
    status, said = run(tmp_path, "-m", "scrapy", "runspider", "lines_spider.py")
    path = tmp_path / "failed_items.jsonl"
    stored = (tmp_path / "out" / "items.jsonl").read_text(encoding="utf-8").splitlines()

    assert status == 0, said
    assert [json.loads(line)["id"] for line in stored] == [1, 3]
    (line,) = dumped(path)
    assert line["reason"] == "Object of type dict_keys is not JSON serializable"
    assert line["pipelines"] == ["lines.LinesPipeline"]

    # Once its cause is gone, the row is stored.
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'"title": \{.*?\}', '"title": "mended"', text), encoding="utf-8")
    status, said = run(
        tmp_path, "-m", "netspy_scrapy.commands.retry", "--items", "-s", "LINES_DIR=out"
    )

    assert status == 0, said
    stored = (tmp_path / "out" / "items.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(stored[-1]) == {"id": 2, "title": "mended"}
    assert not path.exists() or not path.read_text(encoding="utf-8")


def test_an_async_sink_of_your_own(tmp_path: Path, redis_server: Any) -> None:
    """docs/sinks.md: an exception, False and a dict each dump what the page says, with a reason."""
    redis = pytest.importorskip("redis", reason="redis is not installed")
    write_files("docs/sinks.md", tmp_path)
    spider = tmp_path / "hashes_spider.py"
    url = "redis://localhost:6379/0"
    text = spider.read_text(encoding="utf-8")
    assert url in text
    spider.write_text(text.replace(url, redis_server.url), encoding="utf-8")
    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    client.delete("book", "broken")
    status, said = run(tmp_path, "hashes_spider.py")
    books = {key: json.loads(row) for key, row in client.hgetall("book").items()}
    lines = dumped(tmp_path / "failed_items.jsonl")

    assert status == 0, said
    assert books == {
        "1": {"id": 1, "title": "One", "price": 5}, "2": {"id": 2, "title": "Two", "price": 9},
    }  # fmt: skip
    assert [line["reason"] for line in lines] == [
        "there is no row 3",
        "update_items returned False",
        "TypeError: Object of type set is not JSON serializable",
    ]
    assert client.exists("broken") == 0
    client.delete("book")
