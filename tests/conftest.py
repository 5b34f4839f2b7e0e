"""Fixtures that all tests share."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from netspy_scrapy.downloader import missing
from tests import crawling
from tests.site import Site

pytest_plugins = ["tests.servers.fixtures"]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try again what failed by chance; the report names each test that needed it (``-r R``).

    ``timed``: up to three times, for another program may take the processor. In CI the others too
    are tried twice: of nine thousand tests with real processes and servers one always meets a pause
    of the machine. A test that is tried again often is a fault to be found.
    """
    in_ci = bool(os.environ.get("CI"))
    for item in items:
        timed = item.get_closest_marker("timed") is not None
        if timed or in_ci:
            item.add_marker(pytest.mark.flaky(reruns=2 if timed else 1))


@pytest.fixture(scope="session")
def running_site() -> Iterator[Site]:
    """The local web site, one process for the whole run."""
    with Site("127.0.0.1", "127.0.0.2", "127.0.0.3") as site:
        yield site


@pytest.fixture
def site(running_site: Site) -> Site:
    """The local web site, with nothing set and an empty log."""
    running_site.reset()
    return running_site


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run each test in a folder of its own, with no setting from outside."""
    monkeypatch.chdir(tmp_path)
    for name in ("SCRAPY_SETTINGS_MODULE", "NETSPY_SETTING"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(params=["http11", "aiohttp"])
def downloader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the crawls of a test fetch by each of Scrapy's handlers that this Scrapy has."""
    name: str = request.param
    if name == "aiohttp" and (lacking := missing()):
        pytest.skip(f"needs {lacking}")
    monkeypatch.setattr(crawling, "DOWNLOADER", name)
    return name


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
