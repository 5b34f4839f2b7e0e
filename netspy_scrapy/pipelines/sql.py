"""What the SQL sinks share: identifiers, statements, columns of a batch, values.

Nothing here talks to a database or imports a driver. A sink brings its :class:`Dialect` and its
:class:`Adapter`, and for each batch asks in this order::

    rows, refused = ADAPTER.rows(items)                         # values the driver takes
    for group in sound_groups(rows, refused, keys=keys):        # rows of the same fields
        run(DIALECT.insert(table, group.columns), group.values(rows))
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from itemadapter import ItemAdapter

from netspy_scrapy.items import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

#: Turns one value into what a driver or a format takes; raises if it cannot.
Rule: TypeAlias = "Callable[[Any], Any]"
#: Rows with their reasons, by position in the batch.
Refused: TypeAlias = "dict[int, str]"

# Decimals are written out up to here; 1E+1000000 would be a megabyte of zeros.
_MAX_ZEROS = 100


# Identifiers and statements --------------------------------------------------------------------
@dataclass(frozen=True)
class Dialect:
    """How a database writes identifiers, placeholders and a comparison in which NULL is NULL."""

    quote_mark: str = '"'
    placeholder: str = "?"
    """``?``, or ``%s`` for drivers that format (a percent sign in a name is doubled then)."""
    is_same: str = "IS NOT DISTINCT FROM"
    """Compares two values of which both may be NULL: ``IS`` in SQLite, ``<=>`` in MySQL."""

    def quote(self, name: str) -> str:
        """Return *name* as an identifier, whatever is in it.

        Raises :exc:`ValueError` for what no database takes: NUL, and lone surrogates.
        """
        fault = fault_of_name(name)
        if fault is not None:
            raise ValueError(fault)
        if self.placeholder == "%s":
            name = name.replace("%", "%%")
        mark = self.quote_mark
        return mark + name.replace(mark, mark + mark) + mark

    def names(self, columns: Iterable[str]) -> str:
        """Return *columns* as a quoted list."""
        return ", ".join(map(self.quote, columns))

    def insert(self, table: str, columns: Collection[str], *, verb: str = "INSERT") -> str:
        """Return the statement that inserts one row; its parameters are in *columns*' order."""
        marks = ", ".join([self.placeholder] * len(columns))
        return f"{verb} INTO {self.quote(table)} ({self.names(columns)}) VALUES ({marks})"

    def update(
        self, table: str, columns: Iterable[str], keys: Iterable[str], *, verb: str = "UPDATE"
    ) -> str:
        """Return the statement that sets *columns* where *keys* match; parameters in that order.

        A key that is None finds the rows where the column is NULL.
        """
        changes = ", ".join(f"{self.quote(name)} = {self.placeholder}" for name in columns)
        found = " AND ".join(f"{self.quote(key)} {self.is_same} {self.placeholder}" for key in keys)
        return f"{verb} {self.quote(table)} SET {changes} WHERE {found}"


def fault_of_name(name: Any) -> str | None:
    """Return why *name* cannot be a table or column in any database, or None."""
    if not isinstance(name, str):
        return f"the name {name!r} is not text"
    if "\0" in name:
        return f"the name {name!r} contains NUL"
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            return f"the name {name!r} contains lone surrogates"
    return None


# Columns of a batch ----------------------------------------------------------------------------
@dataclass(slots=True)
class ColumnGroup:
    """Rows of a batch that have the same fields, so that one statement stores them."""

    columns: tuple[str, ...]
    """In the order of the first of these rows."""
    positions: list[int] = field(default_factory=list)
    """Of the rows in the batch, ascending."""

    def values(self, rows: Mapping[int, Mapping[str, Any]]) -> list[list[Any]]:
        """Return the rows' values, in the order of *columns*."""
        columns = self.columns
        return [list(map(rows[position].__getitem__, columns)) for position in self.positions]

    def refuse(self, reason: str, refused: Refused) -> None:
        """Refuse every row of the group."""
        refused.update(dict.fromkeys(self.positions, reason))


def group_by_columns(
    rows: Mapping[int, Mapping[str, Any]], keys: Collection[str] = ()
) -> list[ColumnGroup]:
    """Group *rows* (by position) by their set of fields, whatever their order.

    Written group after group, rows with equal values of *keys* are written in the order in which
    they came, so of an upsert the last one wins.
    """
    shapes: dict[tuple[str, ...], list[int]] = {}
    for position, row in rows.items():
        shape = tuple(row)
        found = shapes.get(shape)
        if found is None:
            shapes[shape] = [position]
        else:
            found.append(position)
    if len(shapes) <= 1:
        return [ColumnGroup(shape, positions) for shape, positions in shapes.items()]
    canonical: dict[frozenset[str], tuple[str, ...]] = {}
    for shape in shapes:
        canonical.setdefault(frozenset(shape), shape)
    if keys and len(canonical) > 1:
        return _group_in_order_of_keys(rows, keys, canonical)
    merged: dict[tuple[str, ...], list[int]] = {}
    for shape, positions in shapes.items():
        merged.setdefault(canonical[frozenset(shape)], []).extend(positions)
    return [ColumnGroup(shape, sorted(positions)) for shape, positions in merged.items()]


def sound_groups(
    rows: dict[int, dict[str, Any]],
    refused: Refused,
    *,
    keys: Collection[str] = (),
    fold: Callable[[str], str] = str,
) -> list[ColumnGroup]:
    """Group *rows* (as :func:`group_by_columns`), and refuse those with impossible fields.

    *fold* maps names that are one column to the database onto one text. Rows that are refused
    leave *rows*.
    """
    groups = []
    for group in group_by_columns(rows, keys):
        fault = _fault_of_columns(group.columns, fold)
        if fault is None:
            groups.append(group)
            continue
        group.refuse(fault, refused)
        for position in group.positions:
            del rows[position]
    return groups


def _group_in_order_of_keys(
    rows: Mapping[int, Mapping[str, Any]],
    keys: Collection[str],
    canonical: Mapping[frozenset[str], tuple[str, ...]],
) -> list[ColumnGroup]:
    groups: list[ColumnGroup] = []
    newest: dict[tuple[str, ...], int] = {}  # the last group of each shape
    written: dict[tuple[Any, ...], int] = {}  # the last group that holds a row of this key
    for position, row in rows.items():
        shape = canonical[frozenset(row)]
        key = tuple(_comparable(row.get(name)) for name in keys)
        number = newest.get(shape, -1)
        if number < written.get(key, 0):
            number = newest[shape] = len(groups)
            groups.append(ColumnGroup(shape))
        groups[number].positions.append(position)
        written[key] = number
    return groups


def _comparable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def union_of_columns(groups: Iterable[ColumnGroup]) -> list[str]:
    """Return the fields of all *groups*, in the order in which they first appear."""
    return list(dict.fromkeys(name for group in groups for name in group.columns))


def split_keys(
    columns: Iterable[str], keys: Iterable[str], fold: Callable[[str], str] = str
) -> tuple[list[str], list[str]]:
    """Return the fields that are *keys*, and the others; a key that is no field is left out."""
    names = {fold(name): name for name in columns}
    finders = [names.pop(folded) for key in keys if (folded := fold(key)) in names]
    return finders, list(names.values())


def not_found(table: str, row: Mapping[str, Any], finders: Iterable[str]) -> str:
    """Return the reason why an update is refused that found no row."""
    key = ", ".join(f"{name} = {row[name]!r:.200}" for name in finders)
    return f"no row of {table!r} has {key}"


def _fault_of_columns(columns: Sequence[str], fold: Callable[[str], str]) -> str | None:
    if not columns:
        return "the row has no fields"
    seen: dict[str, str] = {}
    for name in columns:
        fault = fault_of_name(name)
        if fault is not None:
            return fault
        other = seen.setdefault(fold(name), name)
        if other is not name:
            return f"the fields {other!r} and {name!r} would be one column"
    return None


# Values ----------------------------------------------------------------------------------------
class Adapter:
    """Turns the values of rows into what a driver takes, by type.

    *as_is* are the types that it takes as they are (compared exactly, so this is fast). For any
    other the rule of the nearest base class counts: of *rules*, else of :data:`RULES`. An Enum
    without a rule is its value. *nested* takes mappings, lists, sets and items; give it, or a
    rule, for types that a database has of its own (JSON, arrays, timestamps, numerics).
    """

    def __init__(
        self,
        as_is: Collection[type],
        rules: Mapping[type, Rule] | None = None,
        nested: Rule | None = None,
    ) -> None:
        self._as_is = frozenset(as_is)
        self._nested = nested or json_text
        self._rules: dict[type, Rule] = dict(RULES)
        self._rules.update(dict.fromkeys(_CONTAINERS, self._nested))
        self._rules.update(dict.fromkeys(self._as_is - _SCALARS.keys(), _unchanged))
        self._rules.update(rules or {})

    def __call__(self, value: Any) -> Any:
        """Return *value* as the driver takes it; raises :exc:`TypeError` if nothing says how."""
        return value if type(value) in self._as_is else self._rule_for(value)(value)

    def _rule_for(self, value: Any) -> Rule:
        for base in type(value).__mro__:
            rule = self._rules.get(base)
            if rule is not None:
                return rule
        if isinstance(value, Enum):
            return lambda member: self(member.value)
        # What numpy's numbers register as.
        if isinstance(value, Integral):
            return int
        if isinstance(value, Real):
            return float
        if isinstance(value, Mapping) or ItemAdapter.is_item(value):
            return self._nested
        raise TypeError(f"cannot store a value of type {type(value).__qualname__}")

    def rows(self, items: Sequence[dict[str, Any]]) -> tuple[dict[int, dict[str, Any]], Refused]:
        """Return the rows by position, and those that cannot be stored with the reason.

        *items* are not changed; a row that needs no change is returned as it is.
        """
        rows: dict[int, dict[str, Any]] = {}
        refused: Refused = {}
        are_plain = self._as_is.issuperset
        for position, item in enumerate(items):
            if are_plain(map(type, item.values())):
                rows[position] = item
                continue
            try:
                rows[position] = self._row(item)
            except ValueError as exc:
                refused[position] = str(exc)
        return rows, refused

    def _row(self, item: dict[str, Any]) -> dict[str, Any]:
        row = item.copy()
        as_is = self._as_is
        for name, value in item.items():
            if type(value) in as_is:
                continue
            try:
                row[name] = self._rule_for(value)(value)
            except Exception as exc:
                raise ValueError(f"field {name!r}: {_sentence(exc)}") from exc
        return row


def _unchanged(value: Any) -> Any:
    return value


def _sentence(exc: Exception) -> str:
    if isinstance(exc, RecursionError):
        return "contains itself, or is nested too deep"
    return str(exc) if type(exc) in {TypeError, ValueError} else f"{type(exc).__name__}: {exc}"


def plain_decimal(value: Decimal) -> str:
    """Return *value* without an exponent, unless it would be very long.

    >>> plain_decimal(Decimal("1.50")), plain_decimal(Decimal("1E+3"))
    ('1.50', '1000')
    """
    if not value.is_finite() or abs(value.adjusted()) > _MAX_ZEROS:
        return str(value)
    return format(value, "f")


def escape_surrogates(text: str) -> str:
    r"""Return *text* with each lone surrogate written out, as ``\udc80``: it has no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


_CONTAINERS = (dict, list, tuple, set, frozenset)

#: Subclasses of these (Enums too) are stored as what they are a kind of.
_SCALARS: dict[type, Rule] = {
    bool: bool,
    str: str.__str__,
    int: int,
    float: float.__float__,
    bytes: bytes,
}

#: How the types are stored that few drivers know.
RULES: dict[type, Rule] = {
    **_SCALARS,
    bytearray: bytes,
    memoryview: bytes,
    Decimal: plain_decimal,
    date: lambda value: value.isoformat(),  # datetime too
    time: lambda value: value.isoformat(),
    timedelta: str,
    UUID: str,
    PurePath: str,
}


# JSON ------------------------------------------------------------------------------------------
def json_text(value: Any) -> str:
    """Return a nested value as JSON.

    Sets become lists sorted by ``repr``, items their fields, bytes their text or base64, other
    values what :data:`RULES` say; keys become text; NaN and infinities, which JSON has not, null.
    Lone surrogates stay: the sink escapes them as in any text, and JSON reads them back then.
    Raises :exc:`TypeError` for a value of any other type, :exc:`RecursionError` for one that
    contains itself.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError):
        # A key that is no text, or a NaN; else this raises again, and says why.
        return _encode(_with_text_keys(value))


def text_of_bytes(value: bytes) -> str:
    """Return *value* decoded as UTF-8, or as base64 if it is no UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode("ascii")


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {_key(key): _with_text_keys(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(member) for member in value]
    return _with_text_keys(_jsonable(value))


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    plain = _jsonable(key)
    return plain if isinstance(plain, str) else _encode(plain)


def _plain_container(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, (list, tuple)):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else fields_of(value)


def _text_of_buffer(value: Any) -> str:
    return text_of_bytes(bytes(value))


_jsonable = Adapter(
    {type(None), bool, int, float, str},
    dict.fromkeys((bytes, bytearray, memoryview), _text_of_buffer),
    nested=_plain_container,
)
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_jsonable).encode
