"""What the sinks share that store documents and messages: values, names, keys, outcomes.

Nothing here talks to a server or imports a driver.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from netspy_scrapy.dumps.codec import encode_line
from netspy_scrapy.exceptions import PipelineError, SinkUnavailableError
from netspy_scrapy.pipelines.sql import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from netspy_scrapy.pipelines.sql import Refused
    from netspy_scrapy.spiders.logger import SpiderLogger

_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_REASON = 500
_MAX_DIVIDED = 64
_PLAIN = frozenset({str, int, bool, type(None)})
_to_json = json.JSONEncoder(ensure_ascii=False).encode


def quiet(name: str, level: int) -> logging.Logger:
    """Return a driver's logger, which passes nothing below *level* unless the user set one."""
    log = logging.getLogger(name)
    if log.level == logging.NOTSET:
        log.setLevel(level)
    return log


# What came of a batch --------------------------------------------------------------------------
@dataclass
class Outcome:
    """Which rows of a batch are stored and which are refused, by position."""

    stored: set[int] = field(default_factory=set)
    refused: Refused = field(default_factory=dict)
    _divided: int = 0

    def is_hopeless(self, requests: int = 1) -> bool:
        """Count requests that failed as a whole; tell whether to divide them gets nowhere."""
        self._divided += requests
        return self._divided > _MAX_DIVIDED and not self.stored

    def refuse(self, positions: Iterable[int], reason: str) -> None:
        """Refuse rows for one reason."""
        self.refused.update(dict.fromkeys(positions, shortened(reason)))

    def unavailable(self, reason: str, in_doubt: Iterable[int] = ()) -> SinkUnavailableError:
        """Return the error that says so, with what is known of the rows."""
        return SinkUnavailableError(
            shortened(reason), stored=self.stored, refused=self.refused, in_doubt=in_doubt
        )


def shortened(reason: str) -> str:
    """Return a server's *reason* in one line that a dump line can hold."""
    text = " ".join(reason.split())
    return text if len(text) <= _MAX_REASON else text[: _MAX_REASON - 3] + "..."


class RowIds:
    """Gives each row an id, and the same id when the row is offered again.

    A connection can break before the server's answer comes. Sent once more under its old id, a row
    that was stored is not stored twice. A row is known by its very values, which the batcher
    hands over again; those of one batch are kept.
    """

    def __init__(self, new_id: Callable[[], Any]) -> None:
        self._new_id = new_id
        self._known: dict[tuple[Any, ...], list[Any]] = {}
        # As long as the values live, no other object gets their identity.
        self._held: Sequence[Mapping[str, Any]] = ()

    def of(self, items: Sequence[Mapping[str, Any]]) -> tuple[list[Any], set[int]]:
        """Return an id for each row, and the positions of those that have one already."""
        if not self._known:
            return [self._new_id() for _ in items], set()
        ids = []
        again = set()
        for position, item in enumerate(items):
            old = self._known.get(_identity(item))
            if old:
                again.add(position)
            ids.append(old.pop() if old else self._new_id())
        self.forget()
        return ids, again

    def keep(self, items: Sequence[Mapping[str, Any]], ids: Sequence[Any]) -> None:
        """Remember the ids of a batch that is in doubt."""
        self._held = items
        self._known = {}
        for item, one in zip(items, ids, strict=True):
            self._known.setdefault(_identity(item), []).append(one)

    def forget(self) -> None:
        """Forget the last batch."""
        self._known = {}
        self._held = ()


def _identity(item: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*item, *map(id, item.values()))


# Names -----------------------------------------------------------------------------------------
class Destinations:
    """The index or topic of each table: its name, as far as the server takes it.

    *clean* turns a table's name into one that the server takes. Where that is another, one
    warning says so. Two tables never meet in one place: the second is refused.
    """

    def __init__(self, kind: str, clean: Callable[[str], str], logger: SpiderLogger) -> None:
        self._kind = kind
        self._clean = clean
        self._logger = logger
        self._names: dict[str, str] = {}

    def of(self, table: str) -> str:
        """Return the name; raises :exc:`PipelineError` if there is none for *table*."""
        name = self._names.get(table)
        if name is not None:
            return name
        name = self._clean(table)
        if not name.strip("_-."):
            raise PipelineError(
                f"the table {table!r} cannot be {self._kind}: set __table_name__, or "
                "ITEM_DEFAULT_TABLE for dicts"
            )
        other = next((one for one, taken in self._names.items() if taken == name), None)
        if other is not None:
            raise PipelineError(
                f"the tables {other!r} and {table!r} would both be {self._kind} called {name!r}"
            )
        if name != table:
            self._logger.warning("%r cannot be %s: its rows go to %r", table, self._kind, name)
        self._names[table] = name
        return name


# Values ----------------------------------------------------------------------------------------
def json_bytes(value: Any) -> bytes:
    r"""Return a row, or another value, as JSON in UTF-8.

    It is what :func:`~netspy_scrapy.pipelines.sql.json_text` writes, but for one thing: a lone
    surrogate, which UTF-8 has not, is written out as the text ``\udc80``. Raises
    :exc:`TypeError` for a value of a type that nothing is known of, :exc:`ValueError` for one
    that contains itself.
    """
    try:
        text = json_text(value)
    except RecursionError:
        raise ValueError("it contains itself, or is nested too deep") from None
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Two backslashes: with one, JSON would read the surrogate back.
        return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()


def encode_rows(
    items: Sequence[Mapping[str, Any]], outcome: Outcome, skip: Collection[int] = ()
) -> Iterator[tuple[int, bytes]]:
    """Yield each row as JSON, with its position; those that cannot be written are refused."""
    for position, item in enumerate(items):
        if position not in skip:
            try:
                row = json_bytes(item)
            except Exception as exc:  # noqa: BLE001 - a value's own methods may raise anything
                outcome.refuse([position], f"{type(exc).__name__}: {exc}")
            else:
                yield position, row


def key_text(values: Sequence[Any], max_bytes: int = 0) -> str:
    """Return a text that only these values have: ``("a", "bc")`` and ``("ab", "c")`` differ.

    One value that is a text is that text. All others are JSON with their types, as in dump lines:
    1, "1" and Decimal("1") differ too. What is longer than *max_bytes* in UTF-8 becomes a hash.

    >>> key_text(["A-1"]), key_text(["a", "bc"]), key_text([1])
    ('A-1', '["a", "bc"]', '[1]')
    """
    text = values[0] if len(values) == 1 and type(values[0]) is str else ""
    if not text or text[0] == "[" or _SURROGATE.search(text):
        text = _typed_json(values)
    data = text.encode()
    if max_bytes and len(data) > max_bytes:
        # No JSON begins like this.
        return f"[#{blake2b(data, digest_size=32).hexdigest()}]"
    return text


def _typed_json(values: Sequence[Any]) -> str:
    if _PLAIN.issuperset(map(type, values)):
        text = _to_json(list(values))
        if not _SURROGATE.search(text):
            return text
    return encode_line({"k": list(values)}).removeprefix('{"k": ').removesuffix("}")


def missing_keys(row: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return why *row* cannot be found by *keys*; empty: it can."""
    missing = [key for key in keys if key not in row]
    return "no value for the update key " + ", ".join(map(repr, missing)) if missing else ""


def has_key(row: Mapping[str, Any], keys: Collection[str]) -> bool:
    """Tell whether *row* has a value for each of *keys*."""
    return bool(keys) and all(row.get(key) is not None for key in keys)
