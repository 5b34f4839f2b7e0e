"""``netspy-incremental``: what is remembered of pages (NETSPY_INCREMENTAL).

Exit status: 0, or 1 if no page matches, or 2 if the command, the settings or a file cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import UsageError
from scrapy.utils.misc import build_from_crawler, load_object

from netspy_scrapy.commands.base import BaseCommand, refuse_arguments
from netspy_scrapy.commands.project import (
    add_set_option,
    complete,
    find_spider,
    make_importable,
    settings_of_script,
)
from netspy_scrapy.commands.sinks import describe
from netspy_scrapy.exceptions import ConfigError, DumpError, StoreError
from netspy_scrapy.incremental.backends import backend_of
from netspy_scrapy.incremental.entry import Entry, key_headers, key_of
from netspy_scrapy.incremental.pages import request_lines
from netspy_scrapy.incremental.store import Changes
from netspy_scrapy.logs import shown
from netspy_scrapy.settings import IncrementalSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy import Spider
    from scrapy.settings import Settings

    from netspy_scrapy.incremental.store import Backend

_NAME = "netspy-incremental"
_DESCRIPTION = "Show, forget or import what is remembered of pages (NETSPY_INCREMENTAL)."
_NOTHING = 1
_UNUSABLE = 2
_BATCH = 5000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; return the exit status."""
    parser = argparse.ArgumentParser(prog=_NAME, description=_DESCRIPTION)
    _add_options(parser)
    add_set_option(parser)
    options = parser.parse_args(arguments)
    try:
        settings = settings_of_script(options.set)
    except UsageError as exc:
        return _refuse(str(exc))
    return _run(options, settings)


def _add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="list the pages, one a line")
    what.add_argument("--show", metavar="URL", help="show all that is known of a page")
    what.add_argument(
        "--forget", metavar="PATTERN", help="forget the pages with this URL (* and ? match)"
    )
    what.add_argument(
        "--import", metavar="FILE", dest="file",
        help='take over a JSON file {"url": {"etag": ..., "ts": ..., "status": ...}}; '
        "needs --spider",
    )  # fmt: skip
    parser.add_argument(
        "--unseen", metavar="N", type=_positive, help="only pages that no run of the last N saw"
    )
    parser.add_argument(
        "--dynamic", action="store_true", help="only pages whose ETag is not asked by any more"
    )
    parser.add_argument(
        "--spider", metavar="SPIDER",
        help="only pages of this spider, with what it sets for itself (its name, or its file)",
    )  # fmt: skip


class Command(BaseCommand):
    """``scrapy netspy-incremental``: the same as the console script."""

    usage = "--list | --show URL | --forget PATTERN | --import FILE"
    summary = "Show, forget or import what is remembered of pages"
    description = _DESCRIPTION
    options = staticmethod(_add_options)

    def execute(self, args: list[str], opts: argparse.Namespace, settings: Settings) -> int:
        """Do what the options ask for."""
        refuse_arguments(args)
        make_importable()
        return _run(opts, settings)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _run(options: argparse.Namespace, settings: Settings) -> int:
    try:
        complete(settings)
        spider = find_spider(options.spider, settings) if options.spider else None
        if spider is not None:
            spider.update_settings(settings)
        read = IncrementalSettings.from_settings(settings)
        backend = backend_of(settings, read, create=options.file is not None)
        try:
            backend.check()
            if options.file is not None:
                if spider is None:
                    return _refuse("--import needs --spider: pages are remembered by spider")
                return _import(Path(options.file), backend, _Keys(spider, settings, read))
            return _Pages(backend, options, spider).run()
        finally:
            backend.close()
    except (ConfigError, StoreError, UsageError) as exc:
        return _refuse(describe(exc))


def _refuse(text: str) -> int:
    print(f"{_NAME}: error: {text}", file=sys.stderr)
    return _UNUSABLE


# Looking and forgetting --------------------------------------------------------------------------
class _Pages:
    """The pages that the options mean."""

    def __init__(
        self, backend: Backend, options: argparse.Namespace, spider: type[Spider] | None
    ) -> None:
        self._backend = backend
        self._options = options
        self._spider = None if spider is None else spider.name
        self._runs = backend.runs()

    def run(self) -> int:
        if self._options.list:
            return self._list()
        return self._show() if self._options.show is not None else self._forget()

    def _list(self) -> int:
        count = 0
        for entry in self._matching("*"):
            print(_line(entry, self._age(entry)))
            count += 1
        print(f"{count} pages", file=sys.stderr)
        return 0 if count else _NOTHING

    def _show(self) -> int:
        found = list(self._matching(self._options.show, exact=True))
        for entry in found:
            for name, value in self._facts(entry):
                print(f"{name:<14}{value}")
            print()
        if not found:
            print(f"nothing is known of {self._options.show}", file=sys.stderr)
        return 0 if found else _NOTHING

    def _forget(self) -> int:
        changes, count = Changes(), 0
        for entry in list(self._matching(self._options.forget)):
            changes.put(entry.key, None)
            count += 1
            if len(changes) == _BATCH:
                self._backend.write(changes)
                changes = Changes()
        self._backend.write(changes)
        print(f"forgot {count} pages: the next run fetches them in full")
        return 0 if count else _NOTHING

    def _matching(self, pattern: str, *, exact: bool = False) -> Iterator[Entry]:
        options = self._options
        for entry in self._backend.entries():
            if (
                (self._spider is None or entry.spider == self._spider)
                and (not options.dynamic or entry.dynamic)
                and (options.unseen is None or self._age(entry) >= options.unseen)
                and (entry.url == pattern or (not exact and fnmatchcase(entry.url, pattern)))
            ):
                yield entry

    def _age(self, entry: Entry) -> int:
        """Return how many runs of its spider have passed since one saw the page."""
        return self._runs.get(entry.spider, entry.run) - entry.run

    def _facts(self, entry: Entry) -> Iterator[tuple[str, Any]]:
        age = self._age(entry)
        yield "url", entry.url
        yield "spider", entry.spider
        yield "etag", _text(entry.etag) + ("  (dynamic: not asked by)" if entry.dynamic else "")
        yield "last-modified", _text(entry.modified)
        yield "last answer", f"{entry.status}, {_time(entry.checked)}"
        yield "last fetched", f"{_time(entry.fetched)}, {entry.size} bytes"
        yield "last seen", "by the last run" if age == 0 else f"{age} runs before the last one"
        if entry.changes:
            yield "etag changed", f"{entry.changes} times in a row, and the body did not"
        if entry.body is not None:
            yield "body", "kept"
        if entry.children is not None:
            yield "yielded", f"{entry.children} requests"
            data = self._backend.read_children(entry.key)
            try:
                for state in request_lines(data or b""):
                    yield "", shown(Request(state["url"], method=state.get("method", "GET")))
            except (DumpError, KeyError, TypeError, ValueError) as exc:
                yield "", f"(they cannot be read: {exc})"


def _line(entry: Entry, age: int) -> str:
    marks = "dynamic" if entry.dynamic else "" if entry.has_validator else "no validator"
    seen = "" if age == 0 else f"unseen {age}"
    parts = (entry.spider, str(entry.status), _time(entry.checked), seen, marks,
             _text(entry.etag or entry.modified), entry.url)  # fmt: skip
    return "\t".join(parts)


def _text(value: bytes | None) -> str:
    return "-" if value is None else ascii(value.decode("latin-1"))[1:-1]


def _time(seconds: float) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return "-"
    return moment.strftime("%Y-%m-%d %H:%M:%S") if seconds else "never"


# Importing ---------------------------------------------------------------------------------------
class _Keys:
    """Under which key a spider will look for a URL."""

    def __init__(
        self, spider: type[Spider], settings: Settings, incremental: IncrementalSettings
    ) -> None:
        self.spider = str(spider.name)
        crawler = Crawler(spider, settings)
        self._fingerprinter = build_from_crawler(
            load_object(settings["REQUEST_FINGERPRINTER_CLASS"]), crawler
        )
        self._headers = key_headers(settings, incremental)

    def of(self, url: str) -> bytes:
        return key_of(Request(url), self._fingerprinter, spider=self.spider, headers=self._headers)


def _import(path: Path, backend: Backend, keys: _Keys) -> int:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        return _refuse(f"{path} cannot be read: {exc}")
    if not isinstance(data, dict):
        return _refuse(f"{path} is not a JSON object by URL")
    taken = known = refused = 0
    for some in _portions(data.items()):
        entries = {}
        for url, fields in some:
            entry = _imported(url, fields, keys)
            if entry is None:
                refused += 1
            else:
                entries[entry.key] = entry
        already = backend.read(list(entries))
        known += len(already)
        changes = Changes()
        for key, entry in entries.items():
            if key not in already:
                changes.put(key, entry)
        backend.write(changes)
        taken += len(changes)
    said = f"imported {taken} pages for the spider {keys.spider}"
    said += f", {known} were known already" if known else ""
    said += f", {refused} are no pages with an etag, ts and status" if refused else ""
    print(said)
    return 0 if taken or known or not refused else _NOTHING


def _imported(url: str, fields: Any, keys: _Keys) -> Entry | None:
    try:
        etag, moment = fields["etag"], float(fields.get("ts", time.time()))
        if etag is not None:
            etag = etag.encode("utf-8", "surrogateescape") or None
        return Entry(
            keys.of(url), keys.spider, url, etag=etag, status=int(fields.get("status", 200)),
            fetched=moment, checked=moment,
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _portions(items: Iterable[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    some: list[tuple[str, Any]] = []
    for item in items:
        some.append(item)
        if len(some) == _BATCH:
            yield some
            some = []
    yield some


if __name__ == "__main__":
    # Under its own name, by which a spider's start() knows that it is only imported.
    from netspy_scrapy.commands import incremental  # noqa: PLW0406 - this module is __main__

    sys.exit(incremental.main())
