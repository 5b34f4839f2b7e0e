"""A part of Debian's documentation of Python, by its links: what a real site's pages look like.

All of it, and a larger one, on several nodes, with a kill: ``benchmarks/real_sites``.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import scrapy

import netspy_scrapy as mw
from tests.crawling import MEMORY, crawl, dumped, rows
from tests.servers.base import missing
from tests.servers.nginx import Nginx

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PART = Path("/usr/share/doc/python3/html/c-api")


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Nginx]:
    """nginx with one chapter, whose links to other chapters are broken therefore."""
    if not PART.is_dir():
        missing("python3-doc is not installed")
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    for page in PART.glob("*.html"):
        shutil.copyfile(page.resolve(), root / page.name)
    with Nginx(root) as server:
        yield server


def links(response: Any) -> set[str]:
    urls = (response.urljoin(one) for one in response.css("a::attr(href)").getall())
    site = response.urljoin("/")
    return {url for one in urls if (url := one.partition("#")[0]).startswith(site)}


class PlainDocs(scrapy.Spider):
    """Follows every link to a page."""

    name = "plain_docs"
    url = ""

    async def start(self) -> Any:
        yield scrapy.Request(self.url)

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.split("/", 3)[3]}
        yield from (scrapy.Request(url) for url in links(response) if url.endswith(".html"))


class NetspyDocs(mw.AirSpider):
    """The same as a netspy spider."""

    url = ""
    __custom_setting__ = {"ITEM_FILTER_ENABLE": False}

    def start_requests(self) -> Any:
        yield mw.Request(self.url)

    def parse(self, request: Any, response: Any) -> Any:
        yield {"path": response.url.split("/", 3)[3]}
        yield from (mw.Request(url) for url in links(response) if url.endswith(".html"))


@pytest.mark.parametrize("spider", [PlainDocs, NetspyDocs])
def test_each_page_that_is_linked_once(
    part: Nginx, spider: type[scrapy.Spider], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page is sent and stored once; each link that leads nowhere is in the dump, once."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "real_sites"))
    expected = importlib.import_module("disk").read(part.root)
    crawler = crawl(spider, MEMORY, url=f"{part.url}/index.html")
    paths = sorted(row["path"] for _, row in rows(crawler))
    failed = sorted(line["url"].split("/", 3)[3] for line in dumped())
    asked = sorted(path.lstrip("/") for _, _, path in part.requests() if path != "/robots.txt")

    assert len(paths) > 50
    assert len(failed) > 50
    assert paths == sorted(expected.pages)
    assert failed == sorted(expected.broken)
    assert asked == sorted(expected.pages | expected.broken)
