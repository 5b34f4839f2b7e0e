"""The settings that a command works with: those of the project, and of a spider."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError
from scrapy.utils.conf import arglist_to_dict
from scrapy.utils.project import get_project_settings

from netspy_scrapy.commands.sinks import describe
from netspy_scrapy.commands.spiders import is_file, spiders_of_file, spiders_of_project
from netspy_scrapy.spiders.setup import environment_settings, file_settings, translated

if TYPE_CHECKING:
    import argparse

    from scrapy import Spider
    from scrapy.settings import BaseSettings, Settings


def make_importable() -> None:
    """Let modules of the working folder be imported, as a script there could."""
    here = os.getcwd()  # noqa: PTH109 - sys.path holds texts
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """Give a console script the ``-s`` that every command of Scrapy's has."""
    parser.add_argument(
        "-s", "--set", action="append", default=[], metavar="NAME=VALUE",
        help="set/override setting (may be repeated)",
    )  # fmt: skip


def settings_of_script(pairs: list[str]) -> Settings:
    """Return the settings that a console script works with: the project's, then ``-s``.

    Raises :exc:`scrapy.exceptions.UsageError` if they cannot be read.
    """
    make_importable()
    try:
        settings = get_project_settings()
    except Exception as exc:
        why = f"the project's settings cannot be read: {describe(exc)}"
        raise UsageError(why, print_help=False) from exc
    try:
        settings.setdict(arglist_to_dict(pairs), priority="cmdline")
    except ValueError as exc:
        raise UsageError("invalid -s value, use -s NAME=VALUE", print_help=False) from exc
    return settings


def complete(settings: BaseSettings) -> None:
    """Add what a netspy spider reads besides the project: its file and its variables."""
    settings.set("LOG_LEVEL", "INFO", "command")
    settings.setdict(translated(file_settings()), "project")
    settings.setdict(translated(environment_settings(os.environ)), "project")


def find_spider(name: str, settings: Settings) -> type[Spider]:
    """Return the spider *name*, of the project or of a file."""
    if is_file(name):
        spiders = spiders_of_file(Path(name))
        if len(spiders) > 1:
            raise UsageError(f"there are {len(spiders)} spiders in {name}", print_help=False)
    else:
        spiders = spiders_of_project(settings, [name])
    return spiders[0]
