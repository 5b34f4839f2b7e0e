"""The sinks of a replay: found by their paths, built without a crawl, opened on first use."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.pipelines.batcher import call
from netspy_scrapy.spiders.setup import pipelines

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.settings import Settings

logger = logging.getLogger(__name__)

# What a script's own module is called, there and in its child processes.
_SCRIPTS = ("__main__", "__mp_main__")


class Sink:
    """A sink that lines name, and why it cannot be used, if so."""

    def __init__(self, path: str, cls: type[BasePipeline] | None, fault: str = "") -> None:
        self.path = path
        self.cls = cls
        self.fault = fault
        """Why its rows are not offered to it; empty: they are."""
        self.pipeline: BasePipeline | None = None
        """The open sink."""

    @property
    def label(self) -> str:
        """What messages call it: the class name, or the path if there is no class."""
        return self.path if self.cls is None else self.cls.__name__

    async def open(self, crawler: Crawler) -> None:
        """Build the sink and open it, or note the fault; only the first call does anything."""
        if self.cls is None or self.pipeline is not None or self.fault:
            return
        try:
            pipeline = self.cls()
            pipeline.bind(crawler)
            await call(pipeline.open)
        except Exception as exc:
            self.fault = f"it cannot be opened: {describe(exc)}"
            logger.debug("%s cannot be opened", self.path, exc_info=exc)
        else:
            self.pipeline = pipeline


class Sinks:
    """Finds the sinks of a project and those that lines name; one object per class."""

    def __init__(self, settings: Settings) -> None:
        self._crawler = replay_crawler(settings)
        self._by_path: dict[str, Sink] = {}
        self._by_class: dict[type[BasePipeline], Sink] = {}
        chosen = pipelines(self._crawler.settings.getdict("ITEM_PIPELINES"))
        used = [(order, one) for one, order in chosen.items() if order is not None]
        found = [self._configured(one) for _, one in sorted(used, key=lambda pair: pair[0])]
        #: The sinks of ITEM_PIPELINES in their order, which get the lines that name none.
        self.configured = [sink for sink in found if sink is not None]

    def named(self, path: str) -> Sink:
        """Return the sink that a line calls *path*."""
        sink = self._by_path.get(path)
        if sink is None:
            sink = self._by_path[path] = self._find(path)
        return sink

    async def open(self, sink: Sink) -> bool:
        """Open *sink* if it is not open; tell whether it can be used."""
        await sink.open(self._crawler)
        return not sink.fault

    async def close(self, on_fault: Callable[[Sink, str], None]) -> None:
        """Close every open sink; *on_fault* gets each whose ``close()`` raised, and why."""
        for sink in self._by_class.values():
            if sink.pipeline is not None:
                try:
                    await call(sink.pipeline.close)
                except Exception as exc:  # noqa: BLE001 - a user's sink may raise anything
                    on_fault(sink, describe(exc))

    def _configured(self, one: Any) -> Sink | None:
        """Return a sink of ITEM_PIPELINES; None: it is a pipeline of another kind."""
        path = one if isinstance(one, str) else global_object_name(one)
        try:
            cls = load_object(one)
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - imports the project's code
            sink = Sink(path, None, f"it cannot be loaded: {describe(exc)}")
            return self._by_path.setdefault(path, sink)
        return self._of_class(cls) if _is_sink_class(cls) else None

    def _find(self, path: str) -> Sink:
        module, _, name = path.rpartition(".")
        if module in _SCRIPTS:
            return self._of_script(path, name)
        (ours,) = pipelines([path])
        try:
            cls = load_object(ours)
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - imports the project's code
            return Sink(path, None, f"it cannot be loaded: {describe(exc)}")
        if not _is_sink_class(cls):
            return Sink(path, None, "it is not a BasePipeline")
        return self._of_class(cls)

    def _of_script(self, path: str, name: str) -> Sink:
        """Return the sink that took the place of a script's class."""
        for sink in self.configured:
            if sink.cls is not None and sink.cls.__name__ == name:
                return sink
        return Sink(
            path,
            None,
            f"the class of a script cannot be imported: move {name} to a module, and name it in "
            f"ITEM_PIPELINES (for this run: -s ITEM_PIPELINES=module.{name})",
        )

    def _of_class(self, cls: type[BasePipeline]) -> Sink:
        sink = self._by_class.get(cls)
        if sink is None:
            sink = self._by_class[cls] = Sink(global_object_name(cls), cls)
        return sink


def replay_crawler(settings: Settings) -> Crawler:
    """Return a crawler that never crawls: what sinks read of one is there."""
    crawler = Crawler(_ReplaySpider, settings)
    crawler.stats = load_object(crawler.settings["STATS_CLASS"])(crawler)
    crawler.spider = _ReplaySpider.from_crawler(crawler)
    crawler.settings.freeze()
    return crawler


def describe(exc: BaseException) -> str:
    """Return what *exc* says, without the value of a setting."""
    if isinstance(exc, ConfigError):
        return f"{exc.setting} cannot be used: expected {exc.allowed}"
    return f"{type(exc).__name__}: {exc}"


def _is_sink_class(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, BasePipeline)


class _ReplaySpider(Spider):
    name = "netspy-retry"
