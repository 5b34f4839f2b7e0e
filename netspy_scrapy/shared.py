"""What the crawls of one process have to share: it has one terminal, and a port is free once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

_ATTRIBUTE = "_netspy_shared"


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """Return what is kept under *key* for all crawls of the running loop, made by the first.

    Crawls of one process run in one loop, so nothing has to be global for it.
    """
    loop = asyncio.get_running_loop()
    shelf: dict[Hashable, Any] = loop.__dict__.setdefault(_ATTRIBUTE, {})
    if key not in shelf:
        shelf[key] = make()
    kept: T = shelf[key]
    return kept
