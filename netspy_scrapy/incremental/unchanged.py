"""The callback of pages that did not change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request
    from scrapy.http import Response


class Unchanged:
    """The callback of a page that did not change; in mode ``follow`` it yields what was kept."""

    netspy_callback = True

    def __init__(self, children: Iterable[Request] = ()) -> None:
        self._children = children

    def __call__(self, response: Response, **kwargs: Any) -> Iterable[Request]:  # noqa: ARG002
        """Yield what the page's own callback yielded last time."""
        return self._children
