"""``netspy-create``: write the files of a project, a spider or an item.

Exit status: 0 if they are written, 1 if they are not (a file exists, the table cannot be read),
2 if the command or the project's settings cannot be used.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy.exceptions import UsageError
from scrapy.utils.conf import arglist_to_dict
from scrapy.utils.project import get_project_settings, inside_project

from netspy_scrapy.commands.base import BaseCommand, refuse_arguments
from netspy_scrapy.commands.console import brief
from netspy_scrapy.commands.scaffold import item_text, project_files, spider_text, words_of
from netspy_scrapy.commands.tables import (
    Place,
    TableError,
    place_of,
    read_mysql,
    read_postgres,
    read_sqlite,
)
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.pipelines.servers import ServerSettings
from netspy_scrapy.spiders.setup import environment_settings, file_settings, translated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.settings import BaseSettings, Settings

    from netspy_scrapy.commands.tables import Table

_NAME: Final = "netspy-create"
_DESCRIPTION: Final = (
    "Write the files of a project, a spider or an item; an item may be read from a table of a "
    "database. Files that exist stay as they are, unless --force is given."
)
_NOT_WRITTEN: Final = 1
_UNUSABLE: Final = 2
#: Files that a message names.
_SHOWN: Final = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; return the exit status."""
    parser = argparse.ArgumentParser(prog=_NAME, description=_DESCRIPTION)
    _add_options(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="set/override setting (may be repeated)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        settings = get_project_settings()
        settings.setdict(arglist_to_dict(options.set), priority="cmdline")
    except Exception as exc:  # noqa: BLE001 - runs the project's code
        reason = brief(f"{type(exc).__name__}: {exc}")
        return _say(f"error: the project's settings cannot be read: {reason}", _UNUSABLE)
    return _run(options, settings)


def _add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-p", "--project", metavar="NAME", help="a project, in a folder of that name")
    what.add_argument("-s", "--spider", metavar="NAME", help="a netspy spider")
    what.add_argument("-i", "--item", metavar="NAME", help="an item")
    parser.add_argument(
        "--table", metavar="TABLE", help="with -i, give the item the columns of this table"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--mysql", metavar="URL", help="read it from mysql://user:password@host/database "
        "(without any of these three from the database of the MYSQL_ settings)",
    )  # fmt: skip
    where.add_argument(
        "--postgres", metavar="URL", help="read it from postgresql://user:password@host/database"
    )
    where.add_argument("--sqlite", metavar="FILE", help="read it from a SQLite file")
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


class Command(BaseCommand):
    """``scrapy netspy-create``: the same as the console script; settings have ``--set``."""

    usage = "-p NAME | -s NAME | -i NAME [--table TABLE [--mysql URL]] [--force]"
    summary = "Write the files of a project, a spider or an item"
    description = _DESCRIPTION
    options = staticmethod(_add_options)

    def execute(self, args: list[str], opts: argparse.Namespace, settings: Settings) -> int:
        """Write."""
        refuse_arguments(args)
        return _run(opts, settings)


def _run(options: argparse.Namespace, settings: BaseSettings) -> int:
    try:
        files = _files(options, settings)
        _write(files, force=options.force)
    except (TableError, FileExistsError) as exc:
        return _say(str(exc), _NOT_WRITTEN)
    except OSError as exc:
        return _say(f"{exc.filename} cannot be written: {exc.strerror or exc}", _NOT_WRITTEN)
    except (ConfigError, UsageError, ValueError) as exc:
        return _say(f"error: {exc}", _UNUSABLE)
    for path in files:
        print(f"created {os.path.relpath(path)}")
    if options.project:
        print(f"next: cd {options.project} && scrapy crawl {options.project}")
    return 0


def _say(text: str, status: int) -> int:
    print(f"{_NAME}: {text}", file=sys.stderr)
    return status


# What to write -----------------------------------------------------------------------------------
def _files(options: argparse.Namespace, settings: BaseSettings) -> dict[Path, str]:
    if options.table is None and (options.mysql or options.postgres or options.sqlite):
        raise UsageError("--table says which table is meant")
    if options.table is not None and options.item is None:
        raise UsageError("--table needs -i NAME: the item that gets its columns")
    if options.project is not None:
        _check_project(options.project)
        return {Path(path): text for path, text in project_files(options.project).items()}
    if options.spider is not None:
        words = words_of(options.spider, "spider")
        folder = _folder(settings, "spiders")
        return {folder / f"{'_'.join(words)}_spider.py": spider_text(words)}
    words = words_of(options.item, "item")
    path = _folder(settings, "items") / f"{'_'.join(words)}_item.py"
    if path.exists() and not options.force:
        raise _exists([path])  # before a database is asked
    table = None if options.table is None else _table(options, settings)
    return {path: item_text(words, table)}


def _check_project(name: str) -> None:
    words_of(name, "")
    if not name.isascii() or not name.isidentifier() or name != name.lower():
        raise ValueError(
            f"{name!r} cannot be the name of a project: expected small ASCII letters, digits and "
            "_, beginning with a letter"
        )
    if not Path(name).exists() and find_spec(name) is not None:
        raise ValueError(
            f"{name!r} cannot be the name of a project: there is a module of that name"
        )


def _table(options: argparse.Namespace, settings: BaseSettings) -> Table:
    if options.sqlite:
        return read_sqlite(options.sqlite, options.table)
    if options.postgres:
        return read_postgres(place_of(options.postgres, "PostgreSQL"), options.table)
    if options.mysql:
        return read_mysql(place_of(options.mysql, "MySQL"), options.table)
    return read_mysql(_mysql_place(settings), options.table)


def _mysql_place(settings: BaseSettings) -> Place:
    """Return the database of the project's MYSQL_ settings."""
    settings.setdict(translated(file_settings()), "project")
    settings.setdict(translated(environment_settings(os.environ)), "project")
    server = ServerSettings.from_settings(settings, "MYSQL")
    return Place(server.host, server.port, server.user, server.password, server.database)


def _folder(settings: BaseSettings, kind: str) -> Path:
    """Return the folder for new ``spiders`` or ``items``: the project's, else the present one."""
    module = settings.get("NEWSPIDER_MODULE")
    if inside_project() and module:
        try:
            spiders = Path(str(import_module(module).__file__)).parent
        except Exception as exc:
            reason = brief(f"{type(exc).__name__}: {exc}")
            raise ConfigError("NEWSPIDER_MODULE", module, f"a package ({reason})") from exc
        if kind == "spiders":
            return spiders
        items = spiders.parent / "items"
        return items if items.is_dir() else spiders.parent
    return Path(kind) if Path(kind).is_dir() else Path()


# Writing -----------------------------------------------------------------------------------------
def _write(files: dict[Path, str], *, force: bool) -> None:
    """Write all files, or none if one exists."""
    there = [path for path in files if os.path.lexists(path)]
    if there and not force:
        raise _exists(there)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        # "x" refuses what came into being meanwhile.
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)


def _exists(paths: Sequence[Path]) -> FileExistsError:
    names = ", ".join(os.path.relpath(path) for path in paths[:_SHOWN])
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return FileExistsError(f"nothing written: {names}{more} there already; --force overwrites")


if __name__ == "__main__":
    sys.exit(main())
