"""The rows that are written: eight columns, one of them unique; some too long on demand."""

from __future__ import annotations

import datetime as dt
import random

COLUMNS = ["url", "title", "price", "qty", "category", "descr", "seen", "flag"]
#: Characters of a title, at most.
TITLE = 80


def rows(count, generation=1, bad=0):
    """Return *count* rows; *bad* of them have a title that is too long."""
    dice = random.Random(1)
    text = "lorem ipsum dolor sit amet, consectetur adipiscing elit; tab\there \\ back "
    made = [
        {
            "url": f"https://example.test/catalog/item-{number}?ref=bench",
            "title": f"Item {number} 标题 'quoted' v{generation}",
            "price": round(dice.random() * 1000, 2),
            "qty": number % 97,
            "category": f"cat-{number % 40}",
            "descr": text + str(number),
            "seen": dt.datetime(2026, 1, 1, 12, 0, number % 60),  # noqa: DTZ001 - as columns are
            "flag": bool(number & 1),
        }
        for number in range(count)
    ]
    for number in range(bad):
        made[(number * 977 + 13) % count]["title"] = "x" * (TITLE + 20)
    return made


def batches(made, size):
    """Return the rows in lists of *size*."""
    return [made[start : start + size] for start in range(0, len(made), size)]


def tuples(batch):
    """Return the rows' values."""
    return [tuple(row[name] for name in COLUMNS) for row in batch]
