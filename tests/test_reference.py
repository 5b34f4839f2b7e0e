"""The reference pages say what the code says."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider

import netspy_scrapy.addon
from netspy_scrapy import meta, policies, signals, stats
from netspy_scrapy.commands import cache, create, incremental, retry, run
from netspy_scrapy.dumps.codec import decode_line, encode_line
from netspy_scrapy.dumps.items import ItemRecord
from netspy_scrapy.dumps.requests import request_record
from netspy_scrapy.settings import SETTINGS, UNSUPPORTED, Setting
from netspy_scrapy.spiders import setup
from tests.pages import BLOCK, PAGES, ROOT, all_blocks, name_of

#: A variable of the environment, and the mark of the summary for programs.
OTHER_NAMES = {"NETSPY_SETTING", "NETSPY_RUN_SUMMARY"}
REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
TITLE = re.compile(r"^## +(.+)$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")


def text_of(page: str) -> str:
    return (REFERENCE / page).read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """Return the text under a second-level title."""
    parts = TITLE.split(text_of(page))
    return parts[parts.index(title) + 1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of each table row whose first cell holds code."""
    return [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]


def code(cell: str) -> str:
    match = CODE.fullmatch(cell)
    assert match is not None, cell
    return match[1]


def all_code(text: str) -> list[str]:
    return [name for cells in rows(text) for name in CODE.findall(cells[0])]


def constants(module: object) -> set[str]:
    """Return the values of a module's public constants."""
    return {
        value
        for name, value in vars(module).items()
        if name.isupper() and name[0] != "_" and isinstance(value, str)
    }


def documented_settings() -> dict[str, list[str]]:
    before = text_of("settings.md").partition("## What netspy spiders set besides")[0]
    return {code(cells[0]): cells for cells in rows(before)}


def test_each_setting_has_one_row_and_no_other_has() -> None:
    """A setting that is not on the page does not exist, and one on the page does."""
    before = text_of("settings.md").partition("## What netspy spiders set besides")[0]
    names = [code(cells[0]) for cells in rows(before)]

    assert sorted(names) == sorted(SETTINGS)


@pytest.mark.parametrize(("name", "setting"), SETTINGS.items(), ids=SETTINGS)
def test_a_setting_has_its_default_and_its_counterpart(name: str, setting: Setting) -> None:
    """The default on the page is the one that counts, and so is Scrapy's name for it."""
    _, default, scrapy, meaning = documented_settings()[name]

    assert ast.literal_eval(code(default)) == setting.default
    assert type(ast.literal_eval(code(default))) is type(setting.default)
    assert (code(scrapy) if scrapy else None) == setting.scrapy
    assert meaning.endswith((".", ")"))


def test_what_netspy_spiders_set_besides() -> None:
    """The page names each setting of Scrapy's that a netspy spider starts with, and its value."""
    table = rows(section("settings.md", "What netspy spiders set besides"))
    given = {code(cells[0]): ast.literal_eval(code(cells[1])) for cells in table}

    assert given == setup._SCRAPY_DEFAULTS


def test_keys_of_a_domain_policy() -> None:
    """The page has each key that NETSPY_DOMAIN_POLICIES takes."""
    assert all_code(section("settings.md", "NETSPY_DOMAIN_POLICIES")) == list(policies._CHECKS)


def test_signals() -> None:
    """Each signal has one row."""
    names = [name for name in vars(signals) if name.islower() and name[0] != "_"]

    assert all_code(section("stats.md", "Signals")) == [n for n in names if n != "annotations"]


def test_arguments_of_signals() -> None:
    """A receiver gets the arguments that the page names."""
    sent = {}
    for path in Path(netspy_scrapy.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and call.args and isinstance(call.func, ast.Attribute):
                what = call.args[0]
                ours = isinstance(what, ast.Attribute) and what.attr in vars(signals)
                if call.func.attr.startswith("send_catch_log") and ours:
                    sent[what.attr] = [one.arg for one in call.keywords if one.arg != "sender"]
    shown = {
        code(cells[0]): CODE.findall(cells[1]) for cells in rows(section("stats.md", "Signals"))
    }

    assert shown == sent


def test_each_command_has_a_part() -> None:
    """The page tells of each command that this package installs, and of no other."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    there = set(re.findall(r'^(netspy-\S+) = "netspy_scrapy\.', project, re.MULTILINE))

    page = text_of("commands.md")

    assert set(TITLE.findall(page)) <= there
    assert {name for name in there if not re.search(rf"\b{name}\b", page)} == set()


def test_where_the_parts_go() -> None:
    """docs/scrapy-project.md names each component that the add-on puts somewhere."""
    page = (REFERENCE.parent / "scrapy-project.md").read_text(encoding="utf-8")
    table = page.partition("## Where the parts go")[2].partition("\n## ")[0]
    tree = ast.parse(inspect.getsource(netspy_scrapy.addon))
    put = {
        call.args[-2].id
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("_add", "_replace")
        and isinstance(call.args[-2], ast.Name)
    }

    assert len(put) > 10
    assert put <= set(all_code(table))


def test_what_can_be_imported() -> None:
    """The page has each public name; errors are in the tree of their module."""
    page = text_of("api.md")
    exceptions = netspy_scrapy.exceptions
    errors = {name for name, one in vars(exceptions).items() if isinstance(one, type)}
    ours = {name for name in errors if issubclass(vars(exceptions)[name], exceptions.NetspyError)}

    assert exceptions.__doc__ is not None
    assert [name for name in ours if not re.search(rf"\b{name}\b", exceptions.__doc__)] == []
    assert {
        name for name in netspy_scrapy.__all__ if f":: netspy_scrapy.{name}\n" not in page
    } <= ours


def test_settings_that_do_nothing() -> None:
    """The page lists the settings of netspy that a warning names."""
    named = CODE.findall(section("settings.md", "Settings of netspy that do nothing here"))

    assert sorted(named) == sorted(UNSUPPORTED)


def test_stats() -> None:
    """Each key that is counted has one row."""
    table, _, _ = text_of("stats.md").partition("## ")
    keys = [name.replace("<", "{").replace(">", "}") for name in all_code(table)]

    assert sorted(keys) == sorted(constants(stats))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_on_each_page(page: Path) -> None:
    """A stat or a setting of ours that a page names, exists."""
    names = CODE.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
    counted = re.compile("|".join(re.sub(r"\{.*?\}", "[^/]+", key) for key in constants(stats)))
    stats_named = [name for name in names if re.fullmatch(r"netspy/.*[^./]", name)]
    found = {one for name in names for one in re.findall(r"\bNETSPY_[A-Z0-9_]+\b", name)}
    ours = {one for one in found if "TEST" not in one and one[-1] != "_"}  # NETSPY_MAX_...

    assert [name for name in stats_named if not counted.fullmatch(name)] == []
    assert ours <= SETTINGS.keys() | OTHER_NAMES


def test_meta() -> None:
    """Each meta key of ours has one row."""
    assert sorted(all_code(text_of("meta.md"))) == sorted(constants(meta))


def test_fields_of_a_dumped_row() -> None:
    """A line of FAILED_ITEM_PATH has the fields of the page, in that order."""
    record = ItemRecord("t", {"a": 1}, ("a",), ("p",), "why", "now", "spider")

    fields = all_code(section("dumps.md", "Rows: `FAILED_ITEM_PATH`"))

    assert fields == list(decode_line(record.to_line()))


def test_fields_of_a_dumped_request() -> None:
    """A line of FAILED_REQUEST_PATH has the fields of the page, in that order."""
    record = request_record(Request("http://a.test/"), Spider(name="s"), reason="why")

    fields = all_code(section("dumps.md", "Requests: `FAILED_REQUEST_PATH`"))

    assert sorted(fields) == sorted(record)
    assert fields.index("request") == list(record).index("request")


def test_dump_examples() -> None:
    """The lines that the page shows can be read, and say what the page says they do."""
    shown = re.findall(r"```json\n(.+)\n```", text_of("dumps.md"))
    row, typed = shown

    assert ItemRecord.from_line(row).update_keys == ("url",)
    assert encode_line(decode_line(typed)) == typed


@pytest.mark.parametrize("command", [cache, create, retry, run])
def test_options_of_a_console_script(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The page has each option that ``netspy-retry --help`` shows, and no other."""
    with pytest.raises(SystemExit):
        command.main(["--help"])
    shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out))

    assert documented_options(command._NAME) == shown


def test_options_of_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    """The page has each option that ``netspy-incremental --help`` shows, and no other."""
    with pytest.raises(SystemExit):
        incremental.main(["--help"])
    shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out))

    assert documented_options("netspy-incremental") == shown


@pytest.mark.parametrize("name", ["netspy-doctor", "netspy-queue"])
def test_options_of_a_command_of_scrapys(tmp_path: Path, name: str) -> None:
    """The page has each option of ``scrapy netspy-...`` that is not Scrapy's own."""
    command = [sys.executable, "-m", "scrapy", name, "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    own = done.stdout.partition("\nOptions\n")[2].partition("\nGlobal Options\n")[0]
    shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", own))

    assert documented_options(name) == shown


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_on_each_page(page: Path) -> None:
    """A command of ours that a page shows has the options that it is shown with."""
    typed = [line.removeprefix("$ ") for body in all_code_of(page) for line in body.splitlines()]
    for line in typed:
        if match := re.match(r"(?:scrapy )?(netspy-[a-z]+)(?: |$)", line):
            options = {word for word in line.split() if re.match("--?[a-z]", word)}

            assert options <= documented_options(title_of(match[1])) | {"-s"}, line


def title_of(command: str) -> str:
    """Return the part that tells of *command*: its own, or that of one which does the same."""
    _, *parts = TITLE.split(text_of("commands.md"))
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    return command if command in texts else next(one for one in texts if command in texts[one])


def all_code_of(page: Path) -> list[str]:
    """Return what a page shows of terminals, in blocks and within sentences."""
    text = page.read_text(encoding="utf-8")
    return [
        *(body for kind, body in all_blocks(page) if kind in ("bash", "console")),
        *CODE.findall(BLOCK.sub("", text)),
    ]


def documented_options(command: str) -> set[str]:
    """Return the options in the tables of a command."""
    options = all_code(section("commands.md", command))
    return {part for one in options for part in one.split() if part.startswith("-")}
