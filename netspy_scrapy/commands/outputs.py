"""Where the rows of a spider would go, and the lines of its dumps; touches nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scrapy.utils.misc import load_object

from netspy_scrapy.commands.components import brief, chain_of, first_sentence, short_name
from netspy_scrapy.commands.page import is_secret
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.pipelines.csv import CsvPipeline
from netspy_scrapy.pipelines.sqlite import SqlitePipeline
from netspy_scrapy.settings import ReportSettings, read_text, user_set

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.settings import BaseSettings


class Output(NamedTuple):
    """Where rows, or lines of a dump, go."""

    name: str
    where: str
    setting: str
    fault: str = ""
    """Why nothing can be written there; empty: it can."""


class Outputs:
    """Finds the outputs of *settings*, as the crawl would have them."""

    def __init__(self, settings: BaseSettings) -> None:
        self._settings = settings

    def find(self) -> list[Output]:
        """Return sinks, feeds, dumps, and the report if one is wanted."""
        return [*self._pipelines(), *self._feeds(), *self._dumps(), *self._report()]

    def _pipelines(self) -> Iterator[Output]:
        name = "ITEM_PIPELINES"
        chain = chain_of(self._settings, name)
        for path in sorted(chain, key=lambda one: chain[one]):
            cls = load_object(path)
            label = short_name(path)
            if not isinstance(cls, type) or not issubclass(cls, BasePipeline):
                yield Output(label, path, name)
            elif issubclass(cls, SqlitePipeline):
                yield self._path_output(label, "SQLITE_PATH")
            elif issubclass(cls, CsvPipeline):
                yield self._path_output(label, "CSV_OUTPUT_DIR", is_folder=True)
            else:
                yield Output(label, self._settings_of(label) or first_sentence(cls) or path, name)

    def _settings_of(self, name: str) -> str:
        """Return the settings of a sink, by its name: ``MYSQL_...`` of MysqlPipeline."""
        stem = f"{name.removesuffix('Pipeline').upper()}_"
        names = sorted(
            one
            for one in self._settings
            if isinstance(one, str) and one.startswith(stem) and user_set(self._settings, one)
        )
        return ", ".join(
            f"{one} = {'***' if is_secret(one) else brief(self._settings[one])}" for one in names
        )

    def _feeds(self) -> Iterator[Output]:
        for uri in self._settings.getdict("FEEDS"):
            yield Output("feed", str(uri), "FEEDS")

    def _dumps(self) -> Iterator[Output]:
        yield self._path_output("rows not stored", "FAILED_ITEM_PATH")
        yield self._path_output("requests that failed", "FAILED_REQUEST_PATH")

    def _report(self) -> Iterator[Output]:
        if ReportSettings.from_settings(self._settings).template:
            yield self._path_output("page about the run", "NETSPY_REPORT")

    def _path_output(self, name: str, setting: str, *, is_folder: bool = False) -> Output:
        try:
            given = read_text(self._settings, setting)
        except ConfigError as exc:
            return Output(name, "nowhere: the setting cannot be used", setting, str(exc))
        if given == ":memory:":
            return Output(name, f"{given} (gone after the crawl)", setting)
        path = Path(os.path.realpath(given))
        why = _folder_fault(path) if is_folder else _file_fault(path)
        if why:
            fault = f"{setting} = {given!r} cannot be written: {why}"
            return Output(name, f"{_shown(path)} (not writable)", setting, fault)
        state = "exists" if path.exists() else "new"
        return Output(name, f"{_shown(path)} ({state}, writable)", setting)


# Files -----------------------------------------------------------------------------------------
def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _file_fault(path: Path) -> str:
    """Return why a file cannot be written, or nothing; touches nothing."""
    if not os.path.lexists(path):
        return _folder_fault(path.parent)
    if not path.is_file():
        return f"{_shown(path)} is no file"
    return "" if os.access(path, os.W_OK) else "permission denied"


def _folder_fault(path: Path) -> str:
    """Return why a file cannot be made in a folder, which may be missing, or nothing."""
    while not os.path.lexists(path):
        path = path.parent
    if not path.is_dir():
        return f"{_shown(path)} is no folder"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"nothing can be made in {_shown(path)}"
    return ""
