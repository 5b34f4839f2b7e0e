"""``netspy-cache``: what the response cache holds, and emptying it.

Exit status: 0 if done, 1 if there is no entry of the URL, 2 if the command, the settings or the
cache cannot be used.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from netspy_scrapy.cache.file import CacheFile
from netspy_scrapy.cache.listing import Shown, delete, entries_of, use_by_domain
from netspy_scrapy.commands.base import BaseCommand, refuse_arguments
from netspy_scrapy.commands.project import (
    add_set_option,
    complete,
    make_importable,
    settings_of_script,
)
from netspy_scrapy.commands.sinks import describe
from netspy_scrapy.exceptions import CacheError, ConfigError
from netspy_scrapy.logs import age_text, shown_url
from netspy_scrapy.settings import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy.settings import BaseSettings, Settings

_NAME = "netspy-cache"
_DESCRIPTION = (
    "Show what the response cache (RESPONSE_CACHE_ENABLE) holds for each domain, or the entry of a "
    "URL, or delete entries. A crawl may use the cache meanwhile."
)
_NONE = 1
_UNUSABLE = 2

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)
_SECRET = re.compile(
    r"cookie|authori[sz]ation|token|secret|passw|api-?key|session|csrf", re.IGNORECASE
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; return the exit status."""
    parser = argparse.ArgumentParser(prog=_NAME, description=_DESCRIPTION)
    parser.add_argument("url", nargs="?", metavar="URL", help="show the entries of this page")
    _add_options(parser)
    add_set_option(parser)
    options = parser.parse_args(arguments)
    try:
        settings = settings_of_script(options.set)
    except UsageError as exc:
        return _refuse(str(exc))
    return _run(options, options.url, settings)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clear",
        action="store_true",
        help="delete entries: all, or those that --domain and --older-than name",
    )
    parser.add_argument(
        "--domain", metavar="DOMAIN", help="only this domain, as the list names it (host and port)"
    )
    parser.add_argument(
        "--older-than", type=age, metavar="AGE", help="only entries that are older: 30m, 12h, 2d"
    )
    parser.add_argument("--path", metavar="FOLDER", help="use this cache, not RESPONSE_CACHE_PATH")
    parser.add_argument(
        "--show-secrets", action="store_true", help="show cookies and tokens in the headers of URL"
    )


class Command(BaseCommand):
    """``scrapy netspy-cache``: the same as the console script."""

    usage = "[URL | --clear] [--domain DOMAIN] [--older-than AGE]"
    summary = "Show or empty the response cache"
    description = _DESCRIPTION
    options = staticmethod(_add_options)

    def execute(self, args: list[str], opts: argparse.Namespace, settings: Settings) -> int:
        """Show, or delete."""
        if len(args) > 1 or (args and args[0].startswith("-")):
            refuse_arguments(args)
        make_importable()
        return _run(opts, args[0] if args else None, settings)


def age(text: str) -> float:
    """Read an age, and return it in seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age such as 90s, 30m, 12h, 2d or 1w")
    return float(match[1]) * _UNITS[match[2]]


def _run(options: argparse.Namespace, url: str | None, settings: BaseSettings) -> int:
    if url is not None and (options.clear or options.domain or options.older_than is not None):
        return _refuse("URL shows one page: --clear, --domain and --older-than do not go with it")
    try:
        complete(settings)
        folder = options.path or read_text(settings, "RESPONSE_CACHE_PATH")
    except ConfigError as exc:
        return _refuse(describe(exc))
    if Path(folder).exists() and not Path(folder).is_dir():
        return _refuse(f"{folder} cannot be used: it is no folder")
    file = CacheFile(folder)
    if not file.path.exists():
        print(f"There is no cache in {folder}.")
        return 0 if url is None else _NONE
    return _use(file, options, url)


def _use(file: CacheFile, options: argparse.Namespace, url: str | None) -> int:
    try:
        file.open(create=False)
        if url is not None:
            return _show(file, url, unmasked=options.show_secrets)
        before = None if options.older_than is None else time.time() - options.older_than
        domain = None if options.domain is None else options.domain.lower()
        return (_clear if options.clear else _list)(file, domain, before)
    except CacheError as exc:
        if options.clear and options.domain is None and options.older_than is None:
            return _remove(file, exc)
        return _refuse(f"{exc}; netspy-cache --clear begins the cache anew")
    finally:
        file.close()


def _refuse(text: str) -> int:
    print(f"{_NAME}: error: {text}", file=sys.stderr)
    return _UNUSABLE


# Deleting --------------------------------------------------------------------------------------
def _clear(file: CacheFile, domain: str | None, before: float | None) -> int:
    if file.read_only:
        return _refuse(f"{file.path} cannot be written: it is read-only")
    count = delete(file, domain, before)
    left = sum(one.entries for one in use_by_domain(file))
    print(f"{_count(count)} deleted from {file.folder}, {left:,} left.")
    return 0


def _remove(file: CacheFile, exc: CacheError) -> int:
    """Remove a file that cannot be read."""
    file.close()
    try:
        for ending in ("", "-wal", "-shm"):
            file.path.with_name(file.path.name + ending).unlink(missing_ok=True)
    except OSError as error:
        return _refuse(f"{file.path} cannot be removed: {error.strerror or error}")
    print(f"{file.path} removed, for it could not be used: {exc}.")
    return 0


# Showing ---------------------------------------------------------------------------------------
def _list(file: CacheFile, domain: str | None, before: float | None) -> int:
    now = time.time()
    found = use_by_domain(file, domain, before)
    rows = [
        (one.domain, f"{one.entries:,}", _size(one.size), age_text(now - one.oldest),
         age_text(now - one.newest))
        for one in found
    ]  # fmt: skip
    if found:
        rows.append(
            ("in all", f"{sum(one.entries for one in found):,}",
             _size(sum(one.size for one in found)),
             age_text(now - min(one.oldest for one in found)),
             age_text(now - max(one.newest for one in found)))
        )  # fmt: skip
        print(_table(("domain", "entries", "size", "oldest", "newest"), rows))
    else:
        print("No entries.")
    on_disk = sum(one.stat().st_size for one in file.folder.glob(f"{file.path.name}*"))
    print(f"{file.folder} takes {_size(on_disk)} on disk.")
    return 0


def _show(file: CacheFile, url: str, *, unmasked: bool) -> int:
    found = entries_of(file, url)
    for place, one in enumerate(found):
        if place:
            print()
        print("\n".join(_lines_of(one, unmasked=unmasked)))
    if not found:
        print(f"{file.folder} has no entry of {shown_url(url)}.")
        return _NONE
    return 0


def _lines_of(one: Shown, *, unmasked: bool) -> list[str]:
    head = one.head
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.stored))
    lines = [
        _clean(one.url),
        f"  status   {head.status}",
        f"  stored   {when} ({age_text(time.time() - one.stored)} ago)",
        f"  spider   {_clean(one.spider)}",
        f"  body     {_size(one.size)} as received",
    ]
    if one.vary:
        lines.append(f"  varies   by {_clean(one.vary)}")
    if head.url != one.url:
        lines.append(f"  answered by {_clean(shown_url(head.url))}")
    for title, headers in (("request", head.request_headers), ("answer", head.headers)):
        lines.append(f"  {title} headers")
        lines += [f"    {line}" for line in _header_lines(headers, unmasked=unmasked)]
    return lines


def _header_lines(headers: Mapping[str, list[bytes]], *, unmasked: bool) -> list[str]:
    return [
        f"{_clean(name)}: "
        + (_clean(value.decode("latin-1")) if unmasked or not _SECRET.search(name) else "***")
        for name, values in headers.items()
        for value in values
    ]


def _clean(text: str) -> str:
    """Return *text* without what would steer a terminal."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _count(number: int) -> str:
    return f"{number:,} {'entry' if number == 1 else 'entries'}"


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if number < 1000:  # noqa: PLR2004
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    )


if __name__ == "__main__":
    sys.exit(main())
