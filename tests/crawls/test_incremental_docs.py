"""A real site: Debian's documentation of Python, served by nginx with its own ETags."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scrapy

from netspy_scrapy import stats as keys
from tests.crawling import crawl, rows
from tests.crawls.test_incremental import ON, stat
from tests.servers.base import missing
from tests.servers.nginx import Nginx

DOCS = Path("/usr/share/doc/python3/html")


class Docs(scrapy.Spider):
    """Fetches every page there is, or what a list page links to."""

    name = "docs"
    urls: tuple[str, ...] = ()

    async def start(self) -> Any:
        for url in self.urls:
            yield scrapy.Request(url)

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.split("/", 3)[3], "title": response.css("title::text").get()}
        if response.url.endswith("/library/index.html") and len(self.urls) == 1:
            for link in response.css("li.toctree-l1 > a"):
                yield response.follow(link, self.parse_chapter)

    def parse_chapter(self, response: Any) -> Any:
        yield {"path": response.url.split("/", 3)[3], "title": response.css("title::text").get()}


@pytest.fixture
def docs(tmp_path: Path) -> Iterator[Nginx]:
    """nginx with a copy of the documentation, so that files can be touched."""
    if not DOCS.is_dir():
        missing("python3-doc is not installed")
    root = tmp_path / "root"
    for source in DOCS.resolve().rglob("*.html"):
        target = root / source.relative_to(DOCS.resolve())
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source.resolve(), target)
        os.utime(target, (1_600_000_000, 1_600_000_000))
    root.chmod(0o755)
    with Nginx(root) as server:
        yield server


def paths(crawler: Any) -> list[str]:
    return sorted(row["path"] for _, row, *_ in rows(crawler))


@pytest.mark.parametrize("prefix", ["", "dates/"], ids=["etags", "dates"])
def test_the_documentation_of_python(docs: Nginx, prefix: str) -> None:
    """Crawled twice, then with 5 % of the files touched: exactly those are sent and parsed."""
    names = sorted(str(one.relative_to(docs.root)) for one in docs.root.rglob("*.html"))
    urls = tuple(f"{docs.url}/{prefix}{name}" for name in names)
    first = crawl(Docs, ON, urls=urls)
    second = crawl(Docs, ON, urls=urls)
    touched = sorted(random.Random(1).sample(names, len(names) // 20))
    for name in touched:
        os.utime(docs.root / name, (1_700_000_000, 1_700_000_000))
    third = crawl(Docs, ON, urls=urls)
    compared = {**ON, "NETSPY_INCREMENTAL_COMPARE_BODY": True}
    for name in touched:
        os.utime(docs.root / name, (1_700_000_001, 1_700_000_001))
    crawl(Docs, compared, urls=urls)  # there is no hash to compare with yet
    for name in touched:
        os.utime(docs.root / name, (1_700_000_002, 1_700_000_002))
    last = crawl(Docs, compared, urls=urls)

    assert len(names) > 400
    assert paths(first) == [prefix + name for name in names]
    assert paths(second) == []
    assert stat(second, keys.INCREMENTAL_NOT_MODIFIED) == len(names)
    assert stat(second, "downloader/response_bytes") < stat(first, "downloader/response_bytes") / 20
    assert paths(third) == [prefix + name for name in touched]
    assert paths(last) == []
    assert stat(last, keys.INCREMENTAL_SAME_BODY) == len(touched)


def test_chapters_behind_an_unchanged_list(docs: Nginx) -> None:
    """In mode follow the contents page is not sent again, and leads to the chapter that changed."""
    follow = {**ON, "NETSPY_INCREMENTAL_ON_304": "follow"}
    url = f"{docs.url}/library/index.html"
    first = crawl(Docs, follow, urls=(url,))
    os.utime(docs.root / "library" / "functions.html")
    second = crawl(Docs, follow, urls=(url,))

    assert len(paths(first)) > 30
    assert paths(second) == ["library/functions.html"]
    assert stat(second, keys.INCREMENTAL_FOLLOWED) >= len(paths(first)) - 1
