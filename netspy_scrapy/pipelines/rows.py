"""What an item becomes on its way into the sinks."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CONTAINERS = (str, bytes, list, tuple, dict, set, frozenset)
_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None), Decimal, datetime, date})


class Settlement:
    """Counts down the sinks that owe one item, and reports when the last has answered."""

    __slots__ = ("_all", "_on_settled", "dumped", "duplicate", "handed", "mark", "owed")

    def __init__(
        self,
        owed: int,
        on_settled: Callable[[bool], None],
        mark: bytes = b"",
        *,
        duplicate: bool | None = False,
    ) -> None:
        self._all = owed
        self.mark = mark
        """The item's fingerprint."""
        self.duplicate = duplicate
        """Whether it was stored before; None: the filter has yet to be asked."""
        self.handed = 0
        """Sinks that have got the row."""
        self.owed = owed
        self.dumped = False
        self._on_settled = on_settled

    def settle(self, *, stored: bool) -> None:
        """One sink stored the row, or dumped it."""
        self.owed -= 1
        self.dumped = self.dumped or not stored
        if self.owed == 0:
            self._on_settled(not self.dumped)

    def abandon(self) -> None:
        """No further sink will get the row."""
        missing = self._all - self.handed
        if missing > 0:
            self.handed = self._all
            self.owed -= missing
            if self.owed == 0:
                self._on_settled(not self.dumped)


@dataclass(slots=True, eq=False)
class Row:
    """A snapshot of one item, as one sink is to store it."""

    table: str
    data: dict[str, Any]
    update_keys: tuple[str, ...] | None
    """Fields that find the row to update; None: the row is inserted."""
    unique_keys: tuple[str, ...]
    route: tuple[str, ...] | None
    """``item.pipelines``; None: every sink."""
    settlement: Settlement | None = None
    weight: int = 0
    """Bytes of its text and binary values, roughly."""

    @property
    def label(self) -> str:
        """What names the row in a log line: its keys, else its first fields."""
        names = self.update_keys or self.unique_keys or tuple(self.data)[:2]
        return ", ".join(f"{name}={_short(self.data.get(name))}" for name in names)


def snapshot(data: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Copy *data* so that later changes to the item do not reach the row; return it and its weight.

    Rows wait in a batch and are written in a thread, while later pipelines or the spider may
    still change the item and what it holds.
    """
    weight = 0
    for name, value in data.items():
        kind = type(value)
        if kind is str or kind is bytes:
            weight += len(value)
        elif kind not in _IMMUTABLE:
            data[name], size = _copy(value)
            weight += size
    return data, weight


def _copy(value: Any) -> tuple[Any, int]:
    try:
        copied = deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever refuses to be copied is passed as it is
        return value, 0
    return copied, _weight(copied)


def _weight(value: Any) -> int:
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, dict):
        return sum(_weight(one) for one in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return sum(_weight(one) for one in value)
    return 8


def fingerprint(table: str, data: dict[str, Any], keys: Iterable[str], *, update: bool) -> bytes:
    """Return 16 bytes that are equal for equal items.

    Of an item with unique keys only these fields count, else, and where none of them has a value,
    all that are not empty; of an update always the latter, and it never equals that of a new row.
    """
    chosen = None if update else tuple(keys)
    if chosen and all(_is_empty(data.get(name)) for name in chosen):
        chosen = None
    fields = (
        {name: data.get(name) for name in chosen}
        if chosen
        else {name: value for name, value in data.items() if not _is_empty(value)}
    )
    try:
        text = json.dumps([table, update, fields], sort_keys=True, default=_stable)
    except (TypeError, ValueError):  # keys that cannot be sorted, a value that holds itself
        text = f"{table} {update} {sorted((name, repr(value)) for name, value in fields.items())}"
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, _CONTAINERS) and not value)


def _stable(value: Any) -> str:
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}:{sorted(map(repr, value))}"
    return f"{type(value).__name__}:{value!r}"


def _short(value: Any, width: int = 60) -> str:
    try:
        text = repr(value)
    except Exception as exc:  # noqa: BLE001 - a user's class; a log line must not cost rows
        text = f"<{type(value).__name__}, whose repr() raised {type(exc).__name__}>"
    return text if len(text) <= width else text[: width - 3] + "..."
