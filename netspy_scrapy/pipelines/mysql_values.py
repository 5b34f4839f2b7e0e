"""Values as MySQL takes them, in statements and in LOAD DATA."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from netspy_scrapy.pipelines.sql import Adapter, plain_decimal
from netspy_scrapy.pipelines.staging import escaped, without_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_INT64 = range(-(2**63), 2**63)
_TO_SESSION = "CONVERT_TZ({}, '+00:00', @@session.time_zone)"


class Utc(str):
    """A time in UTC, of a value that had a zone."""

    __slots__ = ()


def _datetime(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(" ")
    return Utc(value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(" "))


def _timedelta(value: timedelta) -> str:
    """Return a TIME, whose hours may be many."""
    sign = "-" if value < timedelta(0) else ""
    value = abs(value)
    seconds = value.days * 86400 + value.seconds
    text = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{value.microseconds:06}" if value.microseconds else "")


#: Values become None, str, int, float, bool, bytes or Utc.
ADAPTER = Adapter(
    {type(None), str, int, float, bool, bytes},
    {datetime: _datetime, timedelta: _timedelta, Decimal: plain_decimal},
)


class Column(NamedTuple):
    """A column of a table, as far as its values depend on it."""

    name: str
    type: str
    """As SHOW COLUMNS has it: ``varchar(80)``."""

    @property
    def is_text(self) -> bool:
        """Whether it compares as text."""
        return self.type.startswith(("char", "varchar", "tinytext", "text", "mediumtext",
                                     "longtext", "enum", "set"))  # fmt: skip


class Kind(NamedTuple):
    """How the values of a column go through the temporary table, so that none is changed.

    LOAD DATA LOCAL never fails: what does not fit is cut. So that column takes every value, and
    it is the INSERT that judges it.
    """

    type: str
    """Of the temporary table's column."""
    texts: Callable[[Sequence[Any]], list[str]]
    """Makes the values ready for LOAD DATA."""
    read: str = ""
    """What LOAD DATA makes of the text, if anything."""
    select: str = "{}"
    """What the table gets."""


def _integers(values: Sequence[Any]) -> list[str]:
    return ["\\N" if value is None else str(int(value)) for value in values]


def _floats(values: Sequence[Any]) -> list[str]:
    return ["\\N" if value is None else repr(value) for value in values]


def _texts(values: Sequence[Any]) -> list[str]:
    return escaped([None if value is None else _text(value) for value in values])


def _text(value: Any) -> str:
    return str(int(value)) if value is True or value is False else str(value)


def _times(values: Sequence[Any]) -> list[str]:
    marked = [f"{value}+00:00" if isinstance(value, Utc) else value for value in values]
    return _texts(marked)


def _bytes(values: Sequence[Any]) -> list[str]:
    return [
        "\\N" if value is None else
        (value if isinstance(value, bytes) else _text(value).encode()).hex()
        for value in values
    ]  # fmt: skip


_INTEGERS = Kind("BIGINT", _integers)
_FLOATS = Kind("DOUBLE", _floats)
_STRINGS = Kind("LONGTEXT", escaped)
_MIXED = Kind("LONGTEXT", _texts)
_BYTES = Kind("LONGBLOB", _bytes, read="UNHEX({})")
_TIMES = Kind(
    "LONGTEXT",
    _times,
    select="IF(RIGHT({0}, 6) = '+00:00', "
    + _TO_SESSION.format("LEFT({0}, CHAR_LENGTH({0}) - 6)")
    + ", {0})",
)


def prepared(column: Column, values: Sequence[Any]) -> tuple[Sequence[Any], Kind, dict[int, str]]:
    """Return *values* as the column gets them, their kind, and why some cannot be stored."""
    kinds = set(map(type, values))
    refused: dict[int, str] = {}
    if Utc in kinds and not column.type.startswith("timestamp"):
        # Nothing but a TIMESTAMP knows of zones.
        values = [str(value) if type(value) is Utc else value for value in values]
        kinds = set(map(type, values))
    if float in kinds or int in kinds:
        refused = {
            position: f"field {column.name!r}: {fault}"
            for position, value in enumerate(values)
            if (fault := _fault(value)) is not None
        }
    if str in kinds:
        values = _sound(values, kinds)
    kinds.discard(type(None))
    return values, _kind(kinds, values), refused


def _fault(value: Any) -> str | None:
    if type(value) is float and not math.isfinite(value):
        return f"MySQL has no {value}"
    if type(value) is int and value not in _INT64:
        try:
            str(value)
        except ValueError as exc:
            return str(exc)
    return None


def _sound(values: Sequence[Any], kinds: set[type]) -> Sequence[Any]:
    if kinds <= {str, type(None)}:
        return without_surrogates(values)
    return [without_surrogates([one])[0] if type(one) is str else one for one in values]


def _kind(kinds: set[type], values: Sequence[Any]) -> Kind:
    if kinds <= {str}:
        return _STRINGS
    if bytes in kinds:
        return _BYTES
    if Utc in kinds:
        return _TIMES
    if kinds <= {int, bool}:
        fits = all(value is None or value in _INT64 for value in values)
        return _INTEGERS if fits else _MIXED
    return _FLOATS if kinds == {float} else _MIXED


def literal(
    escape: Callable[[Any], str], column: Column, value: Any, *, finds: bool = False
) -> str:
    """Return *value* as a statement has it; *finds*: it is compared with the column."""
    if type(value) is Utc:
        return _TO_SESSION.format(escape(str(value)))
    if finds and column.is_text and isinstance(value, (bool, int, float)):
        # MySQL would compare numbers, by which '5 pieces' is 5.
        return escape(_text(value))
    return escape(value)
