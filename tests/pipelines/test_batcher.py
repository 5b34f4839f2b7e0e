"""Batches of a sink where neither sink nor dump takes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings

from netspy_scrapy.dumps.files import DumpFile
from netspy_scrapy.dumps.items import ItemDump
from netspy_scrapy.pipelines.batcher import Batcher
from netspy_scrapy.pipelines.rows import Row
from netspy_scrapy.settings import SinkSettings
from tests.crawling import idle_crawler

if TYPE_CHECKING:
    from pathlib import Path


class Opens:
    """A sink that hangs until its gate is opened."""

    unique_keys: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.stored: list[int] = []

    async def save_items(self, table: str, items: list[dict[str, Any]]) -> bool:
        await self.gate.wait()
        self.stored += [item["n"] for item in items]
        return True

    update_items: Any = save_items


def test_the_mark_does_not_pass_rows_that_are_lost(tmp_path: Path) -> None:
    """What a sink that was given up had, and no dump took, never counts as durable."""
    (tmp_path / "file").touch()
    stats = idle_crawler().stats
    assert stats is not None
    dump = ItemDump(tmp_path / "file" / "items.jsonl", "spider")
    marks: list[int] = []

    async def run() -> Batcher:
        sink = Opens()
        batcher = Batcher(
            sink, name="Opens", path="Opens", settings=SinkSettings.from_settings(Settings()),
            dump=dump, stats=stats, on_stuck=lambda: None,
            on_mark=lambda: marks.append(batcher.mark),
        )  # fmt: skip
        batcher.accept(Row("t", {"n": 1}, None, (), None))
        batcher.hurry()
        await asyncio.sleep(0)
        batcher.give_up()
        dump.file = DumpFile(tmp_path / "items.jsonl")  # it can be written by now
        batcher.accept(Row("t", {"n": 2}, None, (), None))
        await batcher.close()
        return batcher

    batcher = asyncio.run(run())

    assert stats.get_value("netspy/rows/Opens/lost") == 1
    assert stats.get_value("netspy/rows/Opens/dumped") == 1
    assert batcher.accepted == 2
    assert marks == []
