"""What the commands have in common as commands of Scrapy's."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError

if TYPE_CHECKING:
    import argparse

    from scrapy.settings import Settings


class BaseCommand(ScrapyCommand):
    """A command that says what it is in class attributes, and returns its exit status."""

    requires_project = False
    requires_crawler_process = False

    usage: ClassVar[str] = ""
    """The arguments, for the help."""
    summary: ClassVar[str] = ""
    """The line in the list of commands."""
    description: ClassVar[str] = ""

    def syntax(self) -> str:
        """Return the arguments, for the help."""
        return self.usage

    def short_desc(self) -> str:
        """Return what the list of commands says."""
        return self.summary

    def long_desc(self) -> str:
        """Return what the help says."""
        return self.description or self.summary

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        """Add the command's own options."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options, Scrapy's too."""
        super().add_options(parser)
        self.options(parser)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Do what is asked for."""
        assert self.settings is not None
        self.exitcode = self.execute(args, opts, self.settings)

    def execute(self, args: list[str], opts: argparse.Namespace, settings: Settings) -> int:
        """Do what is asked for; return the exit status."""
        raise NotImplementedError


def refuse_arguments(args: list[str]) -> None:
    """Raise :exc:`scrapy.exceptions.UsageError` if there are any arguments."""
    if args:
        raise UsageError(f"unrecognized arguments: {' '.join(args)}", print_help=False)
