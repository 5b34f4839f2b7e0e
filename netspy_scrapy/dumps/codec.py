"""JSON lines that keep Python types.

What JSON can say stays plain JSON, so other tools read a dump as they read any JSON lines file.
Everything else is an object with the key ``"$netspy"``, which names the type::

    {"price": 99, "seen": {"$netspy": "datetime", "v": "2025-03-01T12:00:00+00:00"}}

Kept exactly: None, bool, int and float of any size (NaN and infinities too), str (lone surrogates
too), list, dict (any keys, and those that look like a tag), tuple, set, frozenset, bytes,
bytearray, datetime, date, time, timedelta, Decimal, UUID, paths, Enum members, and the items that
Scrapy knows, with their class.

Kept as their base: named tuples as tuples, and subclasses of the above (``defaultdict``,
``numpy.float64``, lxml's strings) if the plain value equals them. Time zones become the offset
that was in force. Of an item its fields are kept (what sinks store), so attributes that are no
fields are not; it is rebuilt without its ``__init__``, whose work was done the first time.
"""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any
from uuid import UUID

from itemadapter import ItemAdapter

from netspy_scrapy.dumps.classes import ClassResolver, build_item, class_name
from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.items import Item, fields_of

__all__ = ["ClassResolver", "Unencodable", "decode_line", "encode_line", "encode_line_lossy"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

TAG = "$netspy"
#: Containers inside each other. A tag takes up to three levels of JSON, and Python's parser ends
#: at about a thousand.
MAX_DEPTH = 64

_VALUE = "v"
_MAX_REPR = 10_000
# Longer integers cannot be written in decimal where PYTHONINTMAXSTRDIGITS is at its minimum.
_MAX_INT_BITS = 2048
# Two lone surrogates in a row would be read back as the one character that they encode in UTF-16.
_SURROGATE_PAIR = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
# Surrogates cannot be written as UTF-8, and the others end a line for str.splitlines().
_ESCAPED = re.compile(r"[\x85\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Unencodable:
    """Stands where a value was that a dump line cannot keep."""

    repr: str
    """What ``repr()`` gave for it, cut at 10,000 characters."""


def encode_line(record: Mapping[str, Any]) -> str:
    """Return *record* as one line, without the newline.

    Raises :exc:`~netspy_scrapy.exceptions.DumpError`, which names the field, if a value cannot be
    kept, contains itself, or is nested more than 64 levels deep.
    """
    return _to_json(_Encoder(lossy=False).encode(dict(record)))


def encode_line_lossy(record: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return *record* as one line, and a sentence on each value that could not be kept.

    Each such value becomes an :class:`Unencodable`; the sentences are those of
    :func:`encode_line`'s errors and begin with the path to the field.
    """
    encoder = _Encoder(lossy=True)
    return _to_json(encoder.encode(dict(record))), encoder.replaced


def decode_line(line: str, classes: ClassResolver | None = None) -> dict[str, Any]:
    """Return the record that *line* holds; lines of other JSON tools are fine.

    Raises :exc:`~netspy_scrapy.exceptions.DumpError` if the line is no JSON object, if a tag in it
    is wrong, or if *classes* does not give a class that it names.
    """
    decoder = _Decoder(classes if classes is not None else ClassResolver())
    try:
        # Editors on Windows put a byte order mark before the first line.
        record = json.loads(line.lstrip("\ufeff"), object_hook=decoder.decode)
    except RecursionError as exc:
        raise DumpError("the line is nested too deep") from exc
    except ValueError as exc:
        raise DumpError(f"the line is not JSON: {exc}") from exc
    if not isinstance(record, dict):
        raise DumpError(f"the line is not a JSON object but a {type(record).__name__}")
    return record


def _to_json(tree: Any) -> str:
    text = json.dumps(tree, ensure_ascii=False, allow_nan=False)
    if text.isascii():
        return text
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


# Writing ---------------------------------------------------------------------------------------
class _Encoder:
    """Turns one record into what :mod:`json` can write; knows where in the record it is."""

    def __init__(self, *, lossy: bool) -> None:
        self.replaced: list[str] = []
        self._lossy = lossy
        self._path: list[Any] = []
        self._inside: set[int] = set()

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return value if _is_plain(value) else _tag("text", _to_base64(_utf8(value)))
        if kind is int:
            return value if value.bit_length() <= _MAX_INT_BITS else _tag("int", hex(value))
        if kind is float:
            return value if math.isfinite(value) else _tag("float", repr(value))
        try:
            return self._encode_rest(kind, value)
        except DumpError:
            raise
        except Exception as exc:  # noqa: BLE001 - a user's class may raise anything when it is read
            return self._refuse(value, f"reading it raised {type(exc).__name__}: {exc}", exc)

    def _encode_rest(self, kind: type, value: Any) -> Any:
        if kind in _CONTAINERS:
            return self._encode_container(kind, value)
        if kind in _SCALARS:
            return _SCALARS[kind](value)
        if isinstance(value, Enum):
            return self._encode_enum(value)
        if isinstance(value, (PurePath, Unencodable)):
            return _tag(*self._encode_text(value))
        if _is_item(value):
            return self._encode_container(Item, value)
        return self._encode_subclass(value)

    def _encode_text(self, value: PurePath | Unencodable) -> tuple[str, Any]:
        if isinstance(value, Unencodable):
            return "unencodable", self.encode(value.repr)
        return _path_name(value), self.encode(str(value))

    def _encode_container(self, kind: type, value: Any) -> Any:
        if len(self._path) >= MAX_DEPTH:
            return self._refuse(value, f"nested more than {MAX_DEPTH} levels deep")
        if id(value) in self._inside:
            return self._refuse(value, f"a {type(value).__qualname__} that contains itself")
        self._inside.add(id(value))
        try:
            if kind is dict:
                return self._encode_mapping(value)
            if kind is list:
                return self._encode_members(value)
            if kind is Item:
                fields = self._encode_mapping(fields_of(value))
                return {TAG: "item", "class": class_name(type(value)), _VALUE: fields}
            return _tag(kind.__name__, self._encode_members(value))
        finally:
            self._inside.discard(id(value))

    def _encode_mapping(self, value: dict[Any, Any]) -> dict[str, Any]:
        # A copy: a pipeline may still be changing the item in another thread.
        pairs = list(value.items())
        if all(type(key) is str and key != TAG and _is_plain(key) for key, _ in pairs):
            return {key: self._encode_at(key, member) for key, member in pairs}
        return _tag(
            "dict", [[self._encode_at(key, key), self._encode_at(key, one)] for key, one in pairs]
        )

    def _encode_members(self, members: Iterable[Any]) -> list[Any]:
        return [self._encode_at(index, one) for index, one in enumerate(list(members))]

    def _encode_at(self, step: Any, value: Any) -> Any:
        self._path.append(step)
        try:
            return self.encode(value)
        finally:
            self._path.pop()

    def _encode_enum(self, member: Enum) -> Any:
        kind = type(member)
        if member.name in kind.__members__:
            return {TAG: "enum", "class": class_name(kind), _VALUE: member.name}
        # A combination of flags, which has no name of its own.
        return {TAG: "flag", "class": class_name(kind), _VALUE: self.encode(member.value)}

    def _encode_subclass(self, value: Any) -> Any:
        for base, to_base in _SCALAR_BASES:
            if isinstance(value, base):
                plain = to_base(value)
                # pandas' NaT is a datetime, and so is its Timestamp with nanoseconds.
                return self.encode(plain) if plain == value else self._refuse(value)
        for base in _CONTAINERS:
            if isinstance(value, base):
                return self._encode_container(base, value)
        return self._refuse(value)

    def _refuse(self, value: Any, why: str | None = None, cause: Exception | None = None) -> Any:
        why = why or f"cannot keep a value of type {type(value).__qualname__}"
        sentence = f"{_written(self._path)}: {why}"
        if not self._lossy:
            raise DumpError(sentence) from cause
        self.replaced.append(sentence)
        return _tag("unencodable", self.encode(_safe_repr(value)))


def _tag(name: str, value: Any) -> dict[str, Any]:
    return {TAG: name, _VALUE: value}


def _is_item(value: Any) -> bool:
    # To ItemAdapter every dict is an item; only ours has a class that says something.
    return isinstance(value, Item) if isinstance(value, dict) else ItemAdapter.is_item(value)


def _is_plain(text: str) -> bool:
    return text.isascii() or _SURROGATE_PAIR.search(text) is None


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _to_base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def _tag_clock(name: str, value: datetime | time) -> dict[str, Any]:
    tagged = _tag(name, value.isoformat())
    if value.fold:
        tagged["fold"] = value.fold
    return tagged


def _path_name(path: PurePath) -> str:
    if isinstance(path, Path):
        return "path"
    return "windows_path" if isinstance(path, PureWindowsPath) else "posix_path"


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)[:_MAX_REPR]
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__qualname__} whose repr() raised>"


def _written(path: list[Any]) -> str:
    text = ""
    for step in path:
        if isinstance(step, str):
            text += f".{step}" if text else step
        else:
            text += f"[{_safe_repr(step)[:80]}]"
    return text or "the record"


_SCALARS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    datetime: lambda value: _tag_clock("datetime", value),
    time: lambda value: _tag_clock("time", value),
    date: lambda value: _tag("date", value.isoformat()),
    timedelta: lambda value: _tag("timedelta", [value.days, value.seconds, value.microseconds]),
    Decimal: lambda value: _tag("decimal", str(value)),
    UUID: lambda value: _tag("uuid", str(value)),
    bytes: lambda value: _tag("bytes", _to_base64(value)),
    bytearray: lambda value: _tag("bytearray", _to_base64(value)),
}
_CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, frozenset)
#: How a subclass becomes its base; datetime before date, whose subclass it is.
_SCALAR_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__index__),
    (float, float.__float__),
    (bytes, bytes),
    (bytearray, bytearray),
    (datetime, lambda value: datetime.combine(datetime.date(value), datetime.timetz(value))),
    (date, lambda value: date(value.year, value.month, value.day)),
    (time, lambda value: time.fromisoformat(time.isoformat(value))),
    (timedelta, lambda value: timedelta(value.days, value.seconds, value.microseconds)),
    (Decimal, Decimal),
    (UUID, lambda value: UUID(int=value.int)),
)


# Reading ---------------------------------------------------------------------------------------
class _Decoder:
    """Turns tagged objects back; json calls it for each object, the inner ones first."""

    def __init__(self, classes: ClassResolver) -> None:
        self._classes = classes

    def decode(self, found: dict[str, Any]) -> Any:
        name = found.get(TAG)
        if name is None and TAG not in found:
            return found
        try:
            value = found[_VALUE]
            if name in _PLAIN_TAGS:
                return _PLAIN_TAGS[name](value)
            if name in _CLOCK_TAGS:
                return _CLOCK_TAGS[name](value).replace(fold=found.get("fold", 0))
            if name in _CLASS_TAGS:
                return _CLASS_TAGS[name](self._classes.resolve(found["class"]), value)
        except DumpError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
            raise DumpError(f"{_safe_repr(found)[:200]} is not a valid {name!r}: {exc!r}") from exc
        raise DumpError(f'"{TAG}": {name!r} names no type that is known here')


def _build_enum(kind: type, name: str) -> Enum:
    if not issubclass(kind, Enum):
        raise DumpError(f"{class_name(kind)} is not an Enum")
    try:
        return kind[name]
    except KeyError:
        raise DumpError(f"{class_name(kind)} has no member {name!r}") from None


def _build_flag(kind: type, value: Any) -> Enum:
    if not issubclass(kind, Enum):
        raise DumpError(f"{class_name(kind)} is not an Enum")
    return kind(value)


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_PLAIN_TAGS: Mapping[Any, Callable[[Any], Any]] = {
    "text": lambda value: _from_base64(value).decode("utf-8", "surrogatepass"),
    "int": lambda value: int(value, 16),
    "float": float,
    "decimal": Decimal,
    "bytes": _from_base64,
    "bytearray": lambda value: bytearray(_from_base64(value)),
    "uuid": UUID,
    "date": date.fromisoformat,
    "timedelta": lambda value: timedelta(*value),
    "path": Path,
    "posix_path": PurePosixPath,
    "windows_path": PureWindowsPath,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "unencodable": Unencodable,
}
_CLOCK_TAGS: Mapping[Any, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "time": time.fromisoformat,
}
_CLASS_TAGS: Mapping[Any, Callable[[type, Any], Any]] = {
    "enum": _build_enum,
    "flag": _build_flag,
    "item": build_item,
}
