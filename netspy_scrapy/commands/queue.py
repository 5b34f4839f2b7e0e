"""``scrapy netspy-queue``: what nodes share in Redis, and how it is doing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

from netspy_scrapy.commands.console import Console
from netspy_scrapy.exceptions import ConfigError, RedisFailedError
from netspy_scrapy.redis.connection import Connection
from netspy_scrapy.redis.options import RedisSettings
from netspy_scrapy.redis.queue import QueueNames, RedisQueue
from netspy_scrapy.redis.settings import QueueSettings, queue_base, rendered
from netspy_scrapy.redis.status import Status, purge, queues, status
from netspy_scrapy.settings import read_text

if TYPE_CHECKING:
    import argparse

#: Domains that are shown one by one.
_DOMAINS = 20
_ENDED = 1


class Command(ScrapyCommand):
    """Shows queues in Redis, and mends them."""

    requires_crawler_process = False
    default_settings = {"LOG_ENABLED": False}  # noqa: RUF012 - as Scrapy's commands have it

    def syntax(self) -> str:
        """Return the arguments."""
        return "[options] [spider ...]"

    def short_desc(self) -> str:
        """Return the line of ``scrapy -h``."""
        return "Show what nodes share in Redis: queue, domains, nodes (RedisScheduler, mw.Spider)"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        super().add_options(parser)
        parser.add_argument(
            "--requeue-dead", action="store_true", help="put the dead tasks into the queue again"
        )
        parser.add_argument(
            "--purge", action="store_true",
            help="delete the queue, the dead tasks and the request filter of the spiders named",
        )  # fmt: skip
        parser.add_argument("--yes", action="store_true", help="purge without asking")

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Show the queues of the spiders named, or all."""
        assert self.settings is not None
        if (opts.purge or opts.requeue_dead) and not args:
            raise UsageError("--purge and --requeue-dead want the name of a spider")
        console = Console(self.settings, "netspy-queue")
        connection = None
        try:
            connection = Connection(RedisSettings.from_settings(self.settings))
            self._show(connection, console, args, opts)
        except (ConfigError, RedisFailedError) as exc:
            console.say(str(exc))
            self.exitcode = _ENDED
        finally:
            if connection is not None:
                connection.close()

    def _show(
        self, connection: Connection, console: Console, args: list[str], opts: argparse.Namespace
    ) -> None:
        bases = [self._base(connection, name) for name in args]
        if not args:
            pattern = f"{connection.settings.prefix}:{{*}}:queue"
            bases = connection.call(lambda client: queues(client, pattern))
            if not bases:
                console.conclude(f"There is no queue in {connection.settings.shown}")
                return
        for place, base in enumerate(bases):
            names = QueueNames(base)
            if opts.requeue_dead:
                queue = RedisQueue(names, None, "")
                count = connection.call(queue.requeue_dead)
                console.conclude(f"{base}: {count} dead tasks are in the queue again")
            elif opts.purge:
                self._purge(connection, console, names, args[place], sure=opts.yes)
            else:
                console.conclude(text_of(_look(connection, names)))

    def _purge(
        self,
        connection: Connection,
        console: Console,
        names: QueueNames,
        spider: str,
        *,
        sure: bool,
    ) -> None:
        found = _look(connection, names)
        what = (
            f"{names.base}: {found.ready} ready, {found.in_flight} in flight, {found.delayed} "
            f"delayed, {found.dead} dead tasks"
        )
        if not sure:
            if not sys.stdin.isatty():
                raise UsageError("--purge asks first: add --yes where nobody can answer")
            if input(f"Delete {what}, and what the request filter knows? [y/N] ").lower() != "y":
                console.conclude("Nothing was deleted")
                return
        keys = self._filters(connection, spider)
        connection.call(lambda client: [purge(client, names, key) for key in keys])
        console.conclude(f"Deleted {what}")

    def _base(self, connection: Connection, name: str) -> str:
        return queue_base(connection, self._settings().queue_key, name)

    def _filters(self, connection: Connection, name: str) -> list[str]:
        assert self.settings is not None
        template = self._settings().filter_key
        if template:
            return [rendered("SCHEDULER_DUPEFILTER_KEY", template, name)]
        run = self.settings.get("RUN_ID")
        scope = ["run", read_text(self.settings, "RUN_ID")] if run else []
        return [connection.key(name, *scope, "seen", "requests", kind) for kind in ("set", "bloom")]

    def _settings(self) -> QueueSettings:
        assert self.settings is not None
        return QueueSettings.from_settings(self.settings)


def _look(connection: Connection, names: QueueNames) -> Status:
    return connection.call(lambda client: status(client, names))


def text_of(found: Status) -> str:
    """Return a queue as a person reads it."""
    counts = f"ready {found.ready}, in flight {found.in_flight}, delayed {found.delayed}"
    lines = [found.name, f"  {counts}, dead {found.dead}"]
    if found.start:
        lines.append(f"  first requests: {found.start}")
    if found.dead:
        lines.append("  ! dead tasks: netspy-queue --requeue-dead tries them again")
    lines += _table(
        ("domain", "ready", "in flight", "rests"),
        [
            (one.name or "(start URLs)", one.ready, one.in_flight,
             f"{one.rests:.1f} s" if one.rests else "")
            for one in found.domains[:_DOMAINS]
        ],
    )  # fmt: skip
    if len(found.domains) > _DOMAINS:
        lines.append(f"  and {len(found.domains) - _DOMAINS} more domains")
    lines += _table(
        ("node", "heard of", "holds", "unacknowledged"),
        [
            (one.name, f"{one.heard:.1f} s ago" + ("" if one.is_alive else ", GONE"), one.held,
             one.unacknowledged)
            for one in found.nodes
        ],
    )  # fmt: skip
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    if not rows:
        return []
    cells = [head, *[tuple(map(str, row)) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
