"""Every example of the documentation that claims to run is run."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest
from scrapy.settings import default_settings

from netspy_scrapy.settings import SETTINGS
from tests.pages import DOCS, FILE, PAGES, ROOT, blocks, name_of
from tests.servers.browser import browser_settings
from tests.sessions import BROWSER, REDIS, Session, commands, first_absent

if TYPE_CHECKING:
    from pathlib import Path

#: Settings of other packages.
FOREIGN = {"PLAYWRIGHT_LAUNCH_OPTIONS"}


def contents(language: str, text: str) -> list[Any]:
    """Return the pages that have *text* in a block of *language*."""
    return [
        pytest.param(page, id=name_of(page))
        for page in PAGES
        if "zh" not in page.parts  # a translation has the same code, says test_docs.py
        and any(text in body for body in blocks(page, language))
    ]


@pytest.mark.timed
@pytest.mark.parametrize("page", contents("console", "$ "))
def test_a_session_of_a_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Whoever types what the page says sees what the page shows."""
    text = page.read_text(encoding="utf-8")
    monkeypatch.syspath_prepend(str(ROOT / "example_project"))
    import bookshop

    replaced = {}
    if REDIS in text:
        replaced[REDIS] = request.getfixturevalue("own_redis")().url
    if BROWSER in text:
        replaced[BROWSER] = repr(browser_settings()["PLAYWRIGHT_LAUNCH_OPTIONS"])
    folder = tmp_path / "session"
    folder.mkdir()
    with Session(folder, bookshop.serve, replaced) as session:
        session.play(page)


@pytest.mark.parametrize("page", contents("python", ""))
def test_files_of_a_page_are_run(page: Path) -> None:
    """A block that is a file is run: by the page's session, or by a test that names the page."""
    files = [match[1] for body in blocks(page, "python") if (match := FILE.match(body))]
    typed = [command for body in blocks(page, "console") for command, _ in commands(body)]
    tests = (ROOT / "tests" / "test_docs.py").read_text(encoding="utf-8")
    elsewhere = f'write_files("{name_of(page)}"' in tests

    assert elsewhere or not files or typed, f"{files} are run by nothing"


@pytest.mark.parametrize("page", contents("python", ""))
def test_settings_that_a_page_shows_exist(page: Path) -> None:
    """A block that is made of settings names none that nobody reads."""
    fragments = [body for body in blocks(page, "python") if not FILE.match(body)]
    names = {
        statement.targets[0].id
        for body in fragments
        for statement in ast.parse(body).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id.isupper()
    }

    assert names <= SETTINGS.keys() | FOREIGN | set(vars(default_settings))


def test_each_page_is_in_the_table_of_contents() -> None:
    """A page that is not in a toctree of docs/index.md is found by nobody."""
    listed = {
        line
        for body in blocks(DOCS / "index.md", "{toctree}")
        for line in body.splitlines()
        if line and not line.startswith(":")
    }
    there = {
        page.relative_to(DOCS).with_suffix("").as_posix()
        for page in PAGES
        if DOCS in page.parents and page != DOCS / "index.md"
    }

    assert listed == there


@pytest.mark.parametrize(
    ("shown", "written", "absent"),
    [
        (["a", "c"], ["a", "b", "c"], None),
        (["c", "a"], ["a", "b", "c"], "a"),
        (["a ... z"], ["a b c z"], None),
        (["a"], ["a b"], "a"),
        (["(a)"], ["2026-01-31 12:00:00 [some.module] INFO: (a)"], None),
        (["a"], ["INFO: not a"], "a"),
    ],
)
def test_what_is_compared(shown: list[str], written: list[str], absent: str | None) -> None:
    """The comparison takes the lines in their order, whole, and nothing for what is not there."""
    assert first_absent(shown, written) == absent
