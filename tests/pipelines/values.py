"""Values that scraped rows hold, and few drivers know."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Name(str):
    __slots__ = ()


@dataclass
class Price:
    value: Decimal = Decimal("2.50")
    tags: set[str] = field(default_factory=lambda: {"b", "a"})


def odd_values() -> dict[str, Any]:
    """Return a field of each kind."""
    return {
        "decimal": Decimal("1.50"),
        "moment": datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc),
        "date": date(2026, 1, 2),
        "time": time(3, 4),
        "span": timedelta(hours=25),
        "uuid": UUID(int=5),
        "bytes": b"\xff\x00",
        "text_bytes": b"abc",
        "set": {2, 1},
        "enum": Colour.RED,
        "int_enum": Size.BIG,
        "name": Name("x"),
        "huge": 2**70,
        "path": PurePosixPath("/a/b"),
        "nested": {"list": [Price(), {Decimal(1)}], "a.b": {"$x": 1}},
        "emoji": "新闻 😀",
        "none": None,
    }
