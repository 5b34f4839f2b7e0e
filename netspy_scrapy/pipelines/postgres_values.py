"""Values as PostgreSQL reads them: text, which the column's own type takes in."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from netspy_scrapy.pipelines.sql import Adapter, json_text
from netspy_scrapy.pipelines.staging import without_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_INTEGERS = frozenset({"int2", "int4", "int8"})
_JSON = frozenset({"json", "jsonb"})


class Column(NamedTuple):
    """A column of a table, as far as its values depend on it."""

    name: str
    type: str
    """As a statement names it: ``character varying(80)``; of a domain what it is made of."""
    base: str
    """The type's own name: ``int4``, ``_text`` (an array)."""
    category: str
    """``A`` array, ``B`` boolean, ``N`` number, ...: pg_type.typcategory."""


#: Types of PostgreSQL's that take a type of Python's as it is; all else goes as text.
_BINARY: dict[type, frozenset[str]] = {
    str: frozenset({"text", "varchar"}),
    int: _INTEGERS,
    float: frozenset({"float8"}),
    bool: frozenset({"bool"}),
    datetime: frozenset({"timestamp", "timestamptz"}),
    date: frozenset({"date"}),
    bytes: frozenset({"bytea"}),
    UUID: frozenset({"uuid"}),
}
_BITS = {"int2": 15, "int4": 31, "int8": 63}


def is_binary(column: Column, values: Sequence[Any]) -> bool:
    """Tell whether psycopg may send *values* in the column's own format, which is faster."""
    kinds = set(map(type, values))
    has_none = type(None) in kinds
    kinds.discard(type(None))
    if len(kinds) != 1:
        return False
    kind = kinds.pop()
    if column.base not in _BINARY.get(kind, ()):
        return False
    present = [value for value in values if value is not None] if has_none else values
    if kind is str:
        text = "".join(present)
        return "\0" not in text and (text.isascii() or without_surrogates([text])[0] is text)
    if kind is int:
        bound = 1 << _BITS[column.base]
        return bool(-bound <= min(present) and max(present) < bound)
    if kind is datetime:
        has_zone = column.base == "timestamptz"
        return all((value.tzinfo is not None) is has_zone for value in present)
    return True


def texts(column: Column, values: Sequence[Any]) -> tuple[Sequence[str | None], dict[int, str]]:
    """Return *values* as text, and why some have none, by position (their text is then None)."""
    found: Sequence[str | None] | None = None
    kinds = set(map(type, values))
    has_none = type(None) in kinds
    kinds.discard(type(None))
    quick = _quick(column, kinds.pop()) if len(kinds) == 1 else None
    refused: dict[int, str] = {}
    if quick is str and values and type(values[0]) is str and not has_none:
        found = values
    elif quick is not None:
        try:
            found = (
                [None if value is None else quick(value) for value in values]
                if has_none
                else list(map(quick, values))
            )
        except ValueError:  # an int of over 4,300 digits
            found = None
    if found is None:
        found = _each(column, values, refused)
    found = without_surrogates(found)
    if "\0" in "".join(filter(None, found)):
        refused |= {
            position: f"field {column.name!r}: PostgreSQL has no NUL character in text"
            for position, text in enumerate(found)
            if text is not None and "\0" in text
        }
    return found, refused


def _quick(column: Column, kind: type) -> Callable[[Any], str] | None:
    """Return what makes text of every value of a type; None: it depends on the value."""
    if kind is str or kind is int or (kind is float and column.base not in _INTEGERS):
        return None if column.category == "A" or column.base == "bytea" else str
    if kind is bool:
        return partial(_bool, column)
    if kind is datetime and column.category != "A":
        return partial(_datetime, column)
    return None


def _each(column: Column, values: Sequence[Any], refused: dict[int, str]) -> list[str | None]:
    found: list[str | None] = []
    for position, value in enumerate(values):
        try:
            found.append(None if value is None else _text(column, value))
        except Exception as exc:  # noqa: BLE001 - whatever a value's methods raise
            refused[position] = f"field {column.name!r}: {exc}"
            found.append(None)
    return found


def _text(column: Column, value: Any) -> str | None:
    if isinstance(value, Enum) and not isinstance(value, (str, int, float)):
        value = value.value
    if value is None:
        return None
    if column.category == "A" and isinstance(value, (list, tuple, set, frozenset)):
        return _array(column, value)
    if column.base == "bytea" and isinstance(value, str):
        value = value.encode()
    for kind, rule in _RULES.items():
        if isinstance(value, kind):
            return rule(column, value)
    return str(_PLAIN(value))


def _bool(column: Column, value: bool) -> str:  # noqa: FBT001
    if column.category == "N":
        return "1" if value else "0"
    return "true" if value else "false"


def _bytes(column: Column, value: bytes) -> str:
    if column.base == "bytea":
        return "\\x" + value.hex()
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"bytes that are no UTF-8, in a column of type {column.type}") from None


def _datetime(column: Column, value: datetime) -> str:
    if value.tzinfo is not None and column.base == "timestamp":
        # PostgreSQL would leave the offset out and keep the digits.
        value = value.astimezone(timezone.utc).replace(tzinfo=None)
    return value.isoformat(" ")


def _interval(column: Column, value: timedelta) -> str:
    del column
    # In parts of one sign each, which need no rules for negative ones.
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


def _number(column: Column, value: float | Decimal) -> str:
    if column.base in _INTEGERS and value == int(value):
        return str(int(value))
    return str(_PLAIN(value))


def _array(column: Column, values: Any) -> str:
    """Return an array literal; lists within are further dimensions, unless they are JSON."""
    member = Column(column.name, column.type, column.base[1:], "")
    members = sorted(values, key=repr) if isinstance(values, (set, frozenset)) else values
    found = []
    for value in members:
        if value is None:
            found.append("NULL")
        elif isinstance(value, (list, tuple)) and member.base not in _JSON:
            found.append(_array(column, value))
        else:
            text = json_text(value) if member.base in _JSON else _text(member, value)
            quoted = (text or "").replace("\\", "\\\\").replace('"', '\\"')
            found.append(f'"{quoted}"')
    return "{" + ",".join(found) + "}"


_PLAIN = Adapter({str, int, float})
_RULES: dict[type | tuple[type, ...], Callable[[Column, Any], str]] = {
    bool: _bool,
    (bytes, bytearray, memoryview): lambda column, value: _bytes(column, bytes(value)),
    datetime: _datetime,
    timedelta: _interval,
    (float, Decimal): _number,
}
