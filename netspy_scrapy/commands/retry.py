"""``netspy-retry``: replay what a crawl could not store, and fetch again what failed.

Exit status: 0 if nothing is left, 1 if rows or requests are left (or were set aside as broken), 2
if the command or the project's settings cannot be used, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError
from scrapy.utils.log import configure_logging

from netspy_scrapy.commands.base import BaseCommand, refuse_arguments
from netspy_scrapy.commands.console import Console, Interrupted, brief
from netspy_scrapy.commands.project import (
    add_set_option,
    complete,
    find_spider,
    make_importable,
    settings_of_script,
)
from netspy_scrapy.commands.replay import ItemReplay, ProjectClasses
from netspy_scrapy.commands.requests import Probe, RequestCommand
from netspy_scrapy.commands.sinks import Sinks, describe
from netspy_scrapy.dumps.files import DumpFile
from netspy_scrapy.exceptions import ConfigError, DumpError
from netspy_scrapy.settings import SinkSettings, read_text
from netspy_scrapy.spiders.setup import pipelines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapy import Spider
    from scrapy.settings import Settings

    from netspy_scrapy.dumps.claims import ClaimedFile

_NAME = "netspy-retry"
_DESCRIPTION = (
    "Replay what a crawl could not store: each row goes to the sinks that still owe it (--items). "
    "Fetch again what failed or was not done: each request runs through its spider (--requests)."
)
_LEFT = 1
_UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; return the exit status."""
    parser = argparse.ArgumentParser(prog=_NAME, description=_DESCRIPTION)
    _add_options(parser)
    add_set_option(parser)
    options = parser.parse_args(arguments)
    try:
        settings = settings_of_script(_with_pipelines(options.set))
    except UsageError as exc:
        return _refuse(str(exc))
    return _run(options, settings)


def _add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--items", action="store_true", help="replay the rows of FAILED_ITEM_PATH")
    what.add_argument(
        "--requests", action="store_true", help="fetch the requests of FAILED_REQUEST_PATH again"
    )
    parser.add_argument("--limit", type=_positive, metavar="N", help="--requests: N at most")
    parser.add_argument(
        "--reason", metavar="TEXT", help="--requests: only those with TEXT in reason or status"
    )
    parser.add_argument(
        "--probe",
        action="store_true",
        help="--requests: only ask whether the sites answer; nothing is replayed",
    )
    parser.add_argument("--path", metavar="FILE", help="replay this file instead")
    parser.add_argument(
        "--spider",
        metavar="SPIDER",
        help="use what this spider (its name, or its file) sets for itself too",
    )


class Command(BaseCommand):
    """``scrapy netspy-retry``: the same as the console script."""

    usage = "--items | --requests [--path FILE]"
    summary = "Replay what a crawl could not store"
    description = _DESCRIPTION
    options = staticmethod(_add_options)

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Set settings from the options."""
        opts.set = _with_pipelines(opts.set)
        super().process_options(args, opts)

    def execute(self, args: list[str], opts: argparse.Namespace, settings: Settings) -> int:
        """Replay."""
        refuse_arguments(args)
        make_importable()
        return _run(opts, settings)


def _run(options: argparse.Namespace, settings: Settings) -> int:
    try:
        complete(settings)
        spider = find_spider(options.spider, settings) if options.spider else None
        replay = _replay_requests if options.requests else _replay_items
        return replay(options, settings, spider)
    except ConfigError as exc:
        because = "" if exc.__cause__ is None else f" ({describe(exc.__cause__)})"
        return _refuse(describe(exc) + because)
    except UsageError as exc:
        return _refuse(str(exc))
    except DumpError as exc:
        print(f"{_NAME}: {exc}", file=sys.stderr)
        return _LEFT
    except KeyboardInterrupt:
        print(f"{_NAME}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _replay_items(
    options: argparse.Namespace, settings: Settings, spider: type[Spider] | None
) -> int:
    for name in ("limit", "reason", "probe"):
        if getattr(options, name):
            raise UsageError(f"--{name} belongs to --requests", print_help=False)
    if spider is not None:
        spider.update_settings(settings)
    return _ItemCommand(settings, options.path).run()


def _replay_requests(
    options: argparse.Namespace, settings: Settings, spider: type[Spider] | None
) -> int:
    reason = options.reason or ""
    if options.probe:
        return Probe(settings, _NAME, path=options.path, reason=reason).run()
    command = RequestCommand(
        settings, _NAME, path=options.path, spider=spider, reason=reason, limit=options.limit
    )
    return command.run()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _refuse(text: str) -> int:
    print(f"{_NAME}: error: {text}", file=sys.stderr)
    return _UNUSABLE


# Settings --------------------------------------------------------------------------------------
def _with_pipelines(pairs: list[str]) -> list[str]:
    """Return ``-s`` values where a list of ITEM_PIPELINES has become Scrapy's dict."""
    changed = []
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if name == "ITEM_PIPELINES" and sign:
            try:
                value = json.loads(text)
            except ValueError:
                value = [one.strip() for one in text.split(",") if one.strip()]
            if isinstance(value, list):
                text = json.dumps(pipelines(value))
        changed.append(f"{name}{sign}{text}")
    return changed


# Items -----------------------------------------------------------------------------------------
class _ItemCommand:
    """``--items``: from the settings to the exit status."""

    def __init__(self, settings: Settings, path: str | None) -> None:
        self._console = Console(settings, _NAME)
        self._shown = path or read_text(settings, "FAILED_ITEM_PATH")
        self._dump = DumpFile(self._shown)
        self._settings = settings
        self._sink_settings = SinkSettings.from_settings(settings)
        configure_logging(settings)
        self._sinks = Sinks(settings)

    def run(self) -> int:
        """Replay, and say what came of it."""
        try:
            if why := self._refusal():
                return _refuse(why)
            claimed = self._dump.claim()
        except OSError as exc:
            return _refuse(f"{self._dump.path} cannot be read: {exc.strerror or exc}")
        except DumpError as exc:
            return _refuse(str(exc))
        if claimed is None:
            return self._conclude_without_rows()
        with claimed:
            return asyncio.run(self._replay(claimed))

    def _refusal(self) -> str | None:
        """Return why the file is not even taken over, or None."""
        path = self._dump.path
        if path.is_file() and not os.access(path, os.R_OK):
            return f"{path} cannot be read: permission denied"
        if path.exists() and (why := self._dump.check_writable()):
            return why
        if not self._sinks.configured and _has_row_without_sinks(path):
            return (
                f"ITEM_PIPELINES names no sink, and {self._shown} has rows that do not say which "
                "sinks owe them: name the sinks in the settings, or for this run with "
                "-s ITEM_PIPELINES=module.Class"
            )
        return None

    def _conclude_without_rows(self) -> int:
        if _is_being_replayed(self._dump.path):
            self._console.conclude(f"nothing done: another replay of {self._shown} is running")
            return _LEFT
        state = "is empty" if self._dump.path.exists() else "does not exist"
        self._console.conclude(f"nothing to replay: {self._shown} {state}")
        return 0

    async def _replay(self, claimed: ClaimedFile) -> int:
        total = claimed.remaining()
        replay = ItemReplay(
            claimed,
            self._sinks,
            self._sink_settings,
            ProjectClasses(self._settings),
            say=self._console.say,
            advance=self._console.advance,
        )
        interrupted = Interrupted(replay.stop, self._console.say)
        self._console.begin(total, "rows")
        try:
            await interrupted.run(replay.run())
        finally:
            self._console.end()
        status = _LEFT if replay.stored < total or replay.close_failed else 0
        try:
            claimed.close()
        except DumpError as exc:
            self._console.say(f"{exc}; the next replay finds the rows all the same")
            status = _LEFT
        self._console.conclude(self._summary(replay, total, claimed.broken))
        if interrupted.signal:
            status = 128 + interrupted.signal
        if interrupted.abandoned:
            # Python would wait for the thread that is still in a sink.
            sys.stdout.flush()
            os._exit(status)
        return status

    def _summary(self, replay: ItemReplay, total: int, broken: int) -> str:
        stored = replay.stored
        if not total:
            return f"nothing to replay: {self._shown} is empty"
        rows = total - broken
        text = f"replayed {stored} of {rows} rows: {stored} stored"
        left = rows - stored
        if left:
            text += f", {left} left in {self._shown}"
            faults = "; ".join(
                f"{label}: {fault.rows}, {brief(fault.reason)}"
                for label, fault in replay.faults.items()
            )
            text += f" ({faults})" if faults else ""
        if broken:
            lines = "line" if broken == 1 else "lines"
            text += f"; {broken} broken {lines} set aside in {self._shown}.broken"
        return text


def _has_row_without_sinks(path: Path) -> bool:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return False
    with file:
        for raw in file:
            try:
                fields = json.loads(raw)
            except (RecursionError, ValueError):
                continue
            if isinstance(fields, dict) and "table" in fields and not fields.get("pipelines"):
                return True
    return False


def _is_being_replayed(path: Path) -> bool:
    start = f"{path.name}.replaying-"
    return path.parent.is_dir() and any(one.name.startswith(start) for one in path.parent.iterdir())


if __name__ == "__main__":
    # Under its own name, by which a spider's start() knows that it is only imported.
    from netspy_scrapy.commands import retry  # noqa: PLW0406 - this module is __main__

    sys.exit(retry.main())
