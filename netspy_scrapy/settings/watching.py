"""Settings of what a crawl tells of itself: while it runs, at its end, by its exit status."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.findings import FINDINGS
from netspy_scrapy.settings.reading import read, read_bool, read_int, read_names, read_text

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

_LAST_PORT = 65_535

#: A percent sign and what may follow it.
_PLACEHOLDER = re.compile(r"%(%|\((?:name|time)\)s|)")


@dataclass(frozen=True)
class WatchSettings:
    """The run summary, the exit status, the line on a terminal, the metrics."""

    summary: bool
    fail_on: frozenset[str]
    """Findings that make the exit status 1, beside those that always do."""
    progress: bool
    prometheus_port: int
    """0: no metrics are served."""
    prometheus_host: str

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> WatchSettings:
        """Read what is told, and where."""
        port = read_int(settings, "NETSPY_PROMETHEUS_PORT")
        if port > _LAST_PORT:
            raise ConfigError("NETSPY_PROMETHEUS_PORT", port, f"a port, {_LAST_PORT} at most")
        fail_on = frozenset(read_names(settings, "NETSPY_FAIL_ON", what="findings"))
        if fail_on - FINDINGS.keys():
            raise ConfigError(
                "NETSPY_FAIL_ON", read(settings, "NETSPY_FAIL_ON"), f"some of {', '.join(FINDINGS)}"
            )
        return cls(
            summary=read_bool(settings, "RUN_SUMMARY_ENABLE"),
            fail_on=fail_on,
            progress=read_bool(settings, "NETSPY_PROGRESS"),
            prometheus_port=port,
            prometheus_host=read_text(settings, "NETSPY_PROMETHEUS_HOST"),
        )


@dataclass(frozen=True)
class ReportSettings:
    """The page about a run."""

    template: str
    """Its file, with ``%(name)s`` and ``%(time)s``; empty: none is written."""

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> ReportSettings:
        """Read where the report goes."""
        value = read(settings, "NETSPY_REPORT")
        template = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
        if template is None:
            template = ""
        if not isinstance(template, str) or not all(
            found[1] for found in _PLACEHOLDER.finditer(template)
        ):
            raise ConfigError(
                "NETSPY_REPORT", value,
                "a path, with %(name)s and %(time)s at most, and %% for a percent sign",
            )  # fmt: skip
        return cls(template=template)
