"""The project around a console script: its folder and its settings."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from netspy_scrapy.spiders.setup import environment_settings, file_settings, translated

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


def make_importable() -> None:
    """Let modules of the working folder be imported, as a script there could."""
    here = os.getcwd()  # noqa: PTH109 - sys.path holds texts
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def complete(settings: BaseSettings) -> None:
    """Add what a netspy spider reads besides the project: its file and its variables."""
    settings.set("LOG_LEVEL", "INFO", "command")
    settings.setdict(translated(file_settings()), "project")
    settings.setdict(translated(environment_settings(os.environ)), "project")
