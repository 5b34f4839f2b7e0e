"""Sinks without a crawl: built as the replay builds them, and offered rows."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

from netspy_scrapy.exceptions import SinkUnavailableError

if TYPE_CHECKING:
    from netspy_scrapy.pipelines.base import BasePipeline


def opened(sink: type[BasePipeline], settings: dict[str, Any], **attributes: Any) -> Any:
    """Return an open *sink*; *attributes* take the place of its class's (time-outs)."""
    made = type(sink.__name__, (sink,), attributes)()
    made.bind(SimpleNamespace(settings=Settings(settings)))  # type: ignore[arg-type]
    made.open()
    return made


def offer(sink: Any, table: str, rows: list[dict[str, Any]], unique: tuple[str, ...] = ()) -> Any:
    """Offer *rows* as the batcher does, in dicts of the sink's own."""
    sink.unique_keys = unique
    return sink.save_items(table, [dict(row) for row in rows])


def away(sink: Any, table: str, rows: list[dict[str, Any]], **options: Any) -> SinkUnavailableError:
    """Offer *rows* to a sink whose server is away, and return what it says."""
    try:
        answer = offer(sink, table, rows, **options)
    except SinkUnavailableError as exc:
        return exc
    raise AssertionError(f"it answered {answer!r}")


def offer_until_taken(sink: Any, table: str, rows: list[dict[str, Any]]) -> Any:
    """Offer *rows* to a sink whose server is coming back, as often as needed."""
    until = time.monotonic() + 20
    while True:
        try:
            return offer(sink, table, rows)
        except SinkUnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
