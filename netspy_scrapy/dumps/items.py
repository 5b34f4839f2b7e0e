"""Lines of FAILED_ITEM_PATH: rows that could not be stored.

A line holds netspy's fields ``table``, ``data`` and, if they say something, ``update_keys`` and
``pipelines``; of our own ``reason``, ``time`` (ISO 8601, UTC) and ``spider``::

    {"table": "prices", "data": {"url": "https://example.com/1", "price": 99}, "update_keys": ["url"]}
"""  # noqa: E501 - a line

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from netspy_scrapy.dumps.codec import decode_line, encode_line, encode_line_lossy
from netspy_scrapy.dumps.files import DumpFile
from netspy_scrapy.exceptions import DumpError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from netspy_scrapy.dumps.codec import ClassResolver

_NAMES = frozenset(
    {"table", "data", "update_keys", "unique_keys", "pipelines", "reason", "time", "spider"}
)


def now() -> str:
    """Return the time as dump lines give it: ISO 8601, UTC, in seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """A row that could not be stored, and how it was to be stored."""

    table: str
    data: dict[str, Any]
    update_keys: tuple[str, ...] | None = None
    """The fields that find the row to update; None: it is a new row."""
    pipelines: tuple[str, ...] | None = None
    """Import paths of the sinks that still owe the row; None: all of them."""
    reason: str = ""
    time: str = ""
    """When it was dumped: ISO 8601, UTC."""
    spider: str = ""
    unique_keys: tuple[str, ...] = ()
    """The item's ``__unique_key__``, by which some sinks know a row that they have."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields that another tool wrote into the line; they stay in it."""

    def to_line(self) -> str:
        """Return the line; raises :exc:`~netspy_scrapy.exceptions.DumpError` as the codec does."""
        return encode_line(self._fields())

    def to_line_lossy(self) -> tuple[str, list[str]]:
        """Return the line, and a sentence on each value of which it keeps only the ``repr()``."""
        return encode_line_lossy(self._fields())

    @classmethod
    def from_line(cls, line: str, resolver: ClassResolver | None = None) -> ItemRecord:
        """Read a line of ours or of netspy's.

        A line that is to be put back should be put back as it was read, unless something in it
        changed. Raises :exc:`~netspy_scrapy.exceptions.DumpError`, which names the field.
        """
        fields = decode_line(line, resolver)
        return cls(
            table=_table(fields),
            data=_data(fields),
            update_keys=_names(fields, "update_keys"),
            pipelines=_names(fields, "pipelines"),
            reason=_text(fields, "reason"),
            time=_text(fields, "time"),
            spider=_text(fields, "spider"),
            unique_keys=_names(fields, "unique_keys") or (),
            extra={name: value for name, value in fields.items() if name not in _NAMES},
        )

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"table": self.table, "data": dict(self.data)}
        if self.update_keys is not None:
            fields["update_keys"] = list(self.update_keys)
        if self.unique_keys:
            fields["unique_keys"] = list(self.unique_keys)
        if self.pipelines is not None:
            fields["pipelines"] = list(self.pipelines)
        for name in ("reason", "time", "spider"):
            if text := getattr(self, name):
                fields[name] = text
        return {**fields, **{name: one for name, one in self.extra.items() if name not in _NAMES}}


class ItemDump:
    """Writes rows to FAILED_ITEM_PATH."""

    def __init__(self, path: str | os.PathLike[str], spider_name: str) -> None:
        self.spider = spider_name
        """Written into each line that names no spider itself."""
        self.file = DumpFile(path)

    @property
    def path(self) -> Path:
        """The file, as an absolute path."""
        return self.file.path

    def append(self, records: Sequence[ItemRecord]) -> list[str]:
        """Write *records*, and return a warning for each value that could not be kept.

        Such a value is replaced by the text that ``repr()`` gives, so that the row is not lost.
        Blocks, so call it in a thread. Raises :exc:`~netspy_scrapy.exceptions.DumpError` if the
        file cannot be written; nothing of *records* is in it then.
        """
        lines = []
        warnings = []
        for record in records:
            stamped = replace(
                record, time=record.time or now(), spider=record.spider or self.spider
            )
            line, replaced = stamped.to_line_lossy()
            lines.append(line)
            warnings += [f"{record.table}: {why}; only its repr() is kept" for why in replaced]
        self.file.append(lines)
        return warnings


def _table(fields: dict[str, Any]) -> str:
    table = fields.get("table")
    if isinstance(table, str) and table:
        return table
    raise _wrong(fields, "table", "the name of a table")


def _data(fields: dict[str, Any]) -> dict[str, Any]:
    data = fields.get("data")
    if isinstance(data, dict) and all(isinstance(name, str) for name in data):
        return data
    raise _wrong(fields, "data", "an object whose keys are field names")


def _names(fields: dict[str, Any], name: str) -> tuple[str, ...] | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise _wrong(fields, name, "a list of names, or null")


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise _wrong(fields, name, "a text")


def _wrong(fields: dict[str, Any], name: str, expected: str) -> DumpError:
    if name not in fields:
        return DumpError(f"the line has no {name!r}: expected {expected}")
    return DumpError(f"{name!r} of the line is {fields[name]!r:.100}: expected {expected}")
