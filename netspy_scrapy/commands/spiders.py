"""The spiders that a command is given by name or by file."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from scrapy.addons import AddonManager
from scrapy.exceptions import UsageError
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.project import inside_project
from scrapy.utils.spider import iter_spider_classes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapy import Spider
    from scrapy.settings import Settings


def is_file(name: str) -> bool:
    """Tell whether *name* is that of a spider's file rather than of a spider."""
    return name.endswith((".py", ".pyw"))


def spiders_of_file(path: Path) -> list[type[Spider]]:
    """Return the spiders of a file, as ``scrapy runspider`` finds them.

    Raises :exc:`scrapy.exceptions.UsageError` if there is none.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}", print_help=False)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        found = list(iter_spider_classes(import_module(path.stem)))
    finally:
        sys.path.remove(folder)
    if not found:
        raise UsageError(f"there is no spider in {path}", print_help=False)
    return found


def spiders_of_project(settings: Settings, names: Sequence[str]) -> list[type[Spider]]:
    """Return the project's spiders of these *names*, or all of them if there are no names.

    Raises :exc:`scrapy.exceptions.UsageError` for a name that the project does not have.
    """
    if names and not inside_project():
        raise UsageError(
            f"there is no Scrapy project here that could have a spider {names[0]!r}",
            print_help=False,
        )
    AddonManager.load_pre_crawler_settings(settings)
    loader = get_spider_loader(settings)
    known = sorted(loader.list())
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no spider {name!r}; there are: {', '.join(known) or 'none'}",
                print_help=False,
            )
    return [loader.load(name) for name in names or known]
