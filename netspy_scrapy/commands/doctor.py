"""``scrapy netspy-doctor``: what the add-on does, or would do, in the present project.

Exit status: 0 if there is nothing to warn of, 1 if settings contradict each other or cannot be
used, 2 if the command cannot be used as given, or a spider not be loaded. What the sites answer
does not change it.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import scrapy
from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError
from scrapy.utils.project import inside_project

import netspy_scrapy
from netspy_scrapy.commands.page import Page, Secrets
from netspy_scrapy.commands.spiders import is_file, spiders_of_file, spiders_of_project

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from scrapy.settings import BaseSettings, Settings

    from netspy_scrapy.commands.diagnosis import Diagnosis
    from netspy_scrapy.commands.sites import Answers

_TROUBLE = 1
_UNUSABLE = 2

#: Widths of the columns; with the gaps between them they make up the width of the page.
_POLICY = (22, 28, 30, 14)
_PARTS = (22, 26, 48)
_OUTPUTS = (20, 41, 19, 14)
_PAIR = (16, 80)

_LINE = 'ADDONS = {"netspy_scrapy.Addon": 500}'


class Command(ScrapyCommand):
    """Prints what the add-on would do with the project's spiders; reads only."""

    requires_project = False
    requires_crawler_process = False

    def syntax(self) -> str:
        """Return the options, for the help."""
        return "[--url URL] [--no-network] [--timeout SECONDS] [SPIDER | FILE.py ...]"

    def short_desc(self) -> str:
        """Return what the list of commands says."""
        return "Show what netspy_scrapy does, or would do, in this project"

    def long_desc(self) -> str:
        """Return what the help says."""
        return (
            "Show for each spider what the add-on does, or would do: effective settings and who "
            "set them, what is replaced, contradictions, and for the sites of the start URLs what "
            "robots.txt allows and how fast they would be crawled. Fetches nothing but robots.txt "
            "and changes nothing."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options, Scrapy's too."""
        super().add_options(parser)
        parser.add_argument(
            "--url", action="append", default=[], metavar="URL",
            help="look at this URL besides the start URLs (may be repeated)",
        )  # fmt: skip
        parser.add_argument("--no-network", action="store_true", help="do not fetch robots.txt")
        parser.add_argument(
            "--timeout", type=seconds, default=5.0, metavar="SECONDS",
            help="wait that long for robots.txt (default: 5)",
        )  # fmt: skip

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the report."""
        if unknown := [one for one in args if one.startswith("-")]:
            raise UsageError(f"unrecognized arguments: {' '.join(unknown)}", print_help=False)
        assert self.settings is not None
        with _quietly():
            self.exitcode = _examine(self.settings, args, opts)


def seconds(text: str) -> float:
    """Read a time-out; the name is what argparse calls a wrong one."""
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError
    return number


@contextmanager
def _quietly() -> Iterator[None]:
    """Log nothing, for the report says it all; leave no bytecode beside the project's modules."""
    level, bytecode = logging.root.manager.disable, sys.dont_write_bytecode
    logging.disable(logging.CRITICAL)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        logging.disable(level)
        sys.dont_write_bytecode = bytecode


def _examine(settings: Settings, args: Sequence[str], opts: argparse.Namespace) -> int:
    # Here, for scrapy imports this module for each of its commands.
    from netspy_scrapy.commands.diagnosis import diagnose  # noqa: PLC0415
    from netspy_scrapy.commands.sites import ask, origins_of, unusable  # noqa: PLC0415

    for url in opts.url:
        why = unusable(url)
        if why or not url.startswith(("http://", "https://")):
            raise UsageError(f"--url {url}: {why or 'no web site'}", print_help=False)
    page = Page(Secrets())
    try:
        spiders = _spiders(settings, args)
    except UsageError:
        raise
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - imports the project's code
        page.secrets.learn(settings)
        print(
            page.secrets.mask(f"netspy-doctor: error: {type(exc).__name__}: {exc}"), file=sys.stderr
        )
        return _UNUSABLE
    found = [diagnose(spider, settings, opts.url) for spider in spiders]
    page.secrets.learn(settings, *(one.settings for one in found))
    origins = origins_of(one for one in found if not one.error)
    answers: Answers = {} if opts.no_network else ask(origins, opts.timeout)
    _print(page, settings, found, None if opts.no_network else answers)
    return _TROUBLE if any(one.error or one.warnings for one in found) else 0


# Which spiders ---------------------------------------------------------------------------------
def _spiders(settings: Settings, args: Sequence[str]) -> list[type[scrapy.Spider]]:
    """Return the spiders that are named, or all of the project."""
    in_project = inside_project()
    if not args and not in_project:
        raise UsageError(
            "there is no Scrapy project here: name a spider file (scrapy netspy-doctor spider.py)",
            print_help=False,
        )
    files = [one for one in args if is_file(one)]
    names = [one for one in args if one not in files]
    chosen = [spider for file in files for spider in spiders_of_file(Path(file))]
    if names or not args:
        chosen += spiders_of_project(settings, names)
    return chosen


# The report ------------------------------------------------------------------------------------
def _print(
    page: Page, settings: BaseSettings, found: list[Diagnosis], answers: Answers | None
) -> None:
    page.text(
        f"netspy_scrapy {netspy_scrapy.__version__}, Scrapy {scrapy.__version__}, "
        f"Python {platform.python_version()}"
    )
    module = os.environ.get("SCRAPY_SETTINGS_MODULE")
    page.text(f"Project {settings['BOT_NAME']} ({module})" if module else "No Scrapy project")
    page.text(f"Folder {Path.cwd()}")
    for group in _alike(page, found):
        _print_group(page, group, answers)
    page.text()
    warnings = sum(len(one.warnings) + bool(one.error) for one in found)
    verdict = "nothing to warn of" if not warnings else _count(warnings, "warning")
    page.text(f"{_count(len(found), 'spider')}: {verdict}")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    print("\n".join(page.lines))


def _alike(page: Page, found: list[Diagnosis]) -> list[list[Diagnosis]]:
    """Put those together of which the same is to be said."""
    groups: dict[str, list[Diagnosis]] = {}
    for one in found:
        draft = Page(page.secrets)
        _print_settings(draft, one)
        groups.setdefault("\n".join(draft.lines), []).append(one)
    return list(groups.values())


def _print_group(page: Page, group: list[Diagnosis], answers: Answers | None) -> None:
    from netspy_scrapy.commands.sites import site_reports  # noqa: PLC0415

    page.title(", ".join(one.name for one in group))
    _print_settings(page, group[0])
    for one in group:
        if one.error:
            continue
        page.head("Sites" if len(group) == 1 else f"Sites of {one.name}")
        for hint in one.start.hints:
            page.text(hint)
        for site in site_reports(one, answers):
            page.table(_PAIR, [(site.origin, ""), *((f"  {a}", b) for a, b in site.pairs)])


def _print_settings(page: Page, one: Diagnosis) -> None:
    if one.error:
        page.text(f"! {one.error}")
        return
    _print_switch(page, one)
    if one.warnings:
        page.head("Warnings")
        for warning in one.warnings:
            page.text(f"! {warning}", hanging=2)
    page.table(_POLICY, one.policy, "Policy", "Effective", "Decided by", "Set by")
    page.table(_PARTS, one.parts, "Part", "Where", "What it does")
    page.table(_OUTPUTS, one.outputs, "Items, dumps", "Where", "Decided by", "Set by")


def _print_switch(page: Page, one: Diagnosis) -> None:
    if one.is_on:
        page.text(f"The add-on is on (ADDONS: {one.switched_on_by}).")
        return
    others = ", ".join(one.other_addons)
    page.text("The add-on is not in ADDONS. One line in settings.py switches it on:")
    page.text()
    page.text(f"    {_LINE}" + (f"   (beside {others})" if others else ""))
    page.text()
    page.text("What follows is what would then hold; nothing has been changed.")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
