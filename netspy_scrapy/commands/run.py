"""``netspy-run`` and ``scrapy netspy-crawl``: a spider, in as many processes as you like.

Exit status: 0 if all is well, 1 if a process failed or was killed, 2 if the command or the settings
cannot be used, 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError
from scrapy.utils.conf import arglist_to_dict
from scrapy.utils.log import configure_logging

from netspy_scrapy.commands.base import BaseCommand
from netspy_scrapy.commands.project import (
    add_set_option,
    find_spider,
    make_importable,
    settings_of_script,
)
from netspy_scrapy.commands.sinks import describe
from netspy_scrapy.exceptions import ConfigError, RedisFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.settings import Settings

_NAME = "netspy-run"
_COMMAND = "netspy-crawl"
_DESCRIPTION = (
    "Crawl with a spider. With --processes N, N processes on this machine share its work by Redis: "
    "the server that REDIS_URL names, or a redis-server that is started for the run."
)
_UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; return the exit status."""
    parser = argparse.ArgumentParser(prog=_NAME, description=_DESCRIPTION)
    parser.add_argument(
        "spider", metavar="SPIDER", help="the spider's file, or its name in the project"
    )
    _add_options(parser)
    add_set_option(parser)
    options = parser.parse_args(arguments)
    try:
        settings = settings_of_script(options.set)
    except UsageError as exc:
        return _refuse(_NAME, str(exc))
    return _run(_NAME, options.spider, options, settings)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes", type=_positive, default=1, metavar="N",
        help="share the work among N processes (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "-a", dest="spargs", action="append", default=[], metavar="NAME=VALUE",
        help="set spider argument (may be repeated)",
    )  # fmt: skip


class Command(BaseCommand):
    """``scrapy netspy-crawl``: the same for a project."""

    usage = "[options] <spider>"
    summary = "Crawl with a spider, in several processes (--processes N)"
    description = _DESCRIPTION
    options = staticmethod(_add_options)

    def execute(self, args: list[str], opts: argparse.Namespace, settings: Settings) -> int:
        """Crawl."""
        if len(args) != 1:
            raise UsageError("name one spider")
        make_importable()
        return _run(_COMMAND, args[0], opts, settings)


def _run(name: str, target: str, options: argparse.Namespace, settings: Settings) -> int:
    try:
        return _crawl(target, options, settings)
    except ConfigError as exc:
        return _refuse(name, describe(exc))
    except RedisFailedError as exc:
        return _refuse(name, f"{exc} (REDIS_URL, REDIS_HOST or REDIS_PARAMS names that server)")
    except UsageError as exc:
        return _refuse(name, str(exc))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _crawl(target: str, options: argparse.Namespace, settings: Settings) -> int:
    try:
        arguments = arglist_to_dict(options.spargs)
    except ValueError as exc:
        raise UsageError("invalid -a value, use -a NAME=VALUE", print_help=False) from exc
    spider = find_spider(target, settings)
    if options.processes == 1:
        from netspy_scrapy.processes.child import crawl  # noqa: PLC0415 - installs a reactor

        return crawl(spider, settings, arguments)
    from netspy_scrapy.processes import supervisor  # noqa: PLC0415 - needs the extra redis
    from netspy_scrapy.processes.plan import Plan  # noqa: PLC0415

    plan = Plan.of(spider, target, arguments, settings, options.processes)
    if plan.settings.get("LOG_FILE"):
        Path(plan.settings["LOG_FILE"]).parent.mkdir(parents=True, exist_ok=True)
    configure_logging(plan.settings)
    return supervisor.run(plan)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _refuse(name: str, text: str) -> int:
    print(f"{name}: error: {text}", file=sys.stderr)
    return _UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
