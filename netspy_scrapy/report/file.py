"""Where the report of a run is written: whole, or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
import uuid
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.settings import ReportSettings

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

_SETTING = "NETSPY_REPORT"
#: Characters of a name that would lead into another folder, or are no file name anywhere.
_UNFIT = str.maketrans(dict.fromkeys('/\\:*?"<>|\0', "_"))


class ReportFile:
    """The file that NETSPY_REPORT names.

    It is replaced as a whole, so whoever has it open, or looks at it meanwhile, sees one report or
    the other.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        """Absolute, links followed: a link stays one."""

    @classmethod
    def from_settings(cls, settings: BaseSettings, name: str) -> ReportFile | None:
        """Return the report's file of the spider *name*; None: no report is wanted.

        Raises :exc:`~netspy_scrapy.exceptions.ConfigError` if it cannot be written.
        """
        template = ReportSettings.from_settings(settings).template
        if not template:
            return None
        now = datetime.now(timezone.utc).replace(microsecond=0)
        values = {"name": name.translate(_UNFIT), "time": now.isoformat().replace(":", "-")}
        try:
            file = cls(template % values)
            file.check_writable()
        except (OSError, ValueError) as exc:
            why = getattr(exc, "strerror", None) or exc
            raise ConfigError(_SETTING, template, f"a path that can be written ({why})") from exc
        return file

    def check_writable(self) -> None:
        """Raise OSError or ValueError if :meth:`write` would fail; leaves nothing behind."""
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise ValueError(f"{self.path} is not a regular file")
            os.close(os.open(self.path, os.O_WRONLY | os.O_APPEND))
        folder = self.path.parent
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass

    def write(self, text: str) -> None:
        """Put *text* in the place of what was there. Blocks for the disk; may raise OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{uuid.uuid4().hex}")
        try:
            with beside.open("xb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise
