"""Metrics of the running crawl for Prometheus."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import NotConfigured

from netspy_scrapy.context import CrawlContext
from netspy_scrapy.escapes import in_thread
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.metrics import COUNTER, CrawlMetrics, Metric
from netspy_scrapy.settings import WatchSettings
from netspy_scrapy.shared import shared

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

#: Seconds that a busy event loop has for an answer; Prometheus itself waits for 10 s.
_PATIENCE = 5.0


class PrometheusEndpoint:
    """Serves the metrics of the crawl on NETSPY_PROMETHEUS_PORT, while it runs.

    Crawls of one process share the port, and are told apart by the label ``spider``. A port that
    cannot be had is named in a warning, and the crawl goes on.

    Settings: NETSPY_PROMETHEUS_PORT, NETSPY_PROMETHEUS_HOST.
    """

    def __init__(self, crawler: Crawler) -> None:
        settings = WatchSettings.from_settings(crawler.settings)
        if not settings.prometheus_port:
            raise NotConfigured
        self._client = client(settings.prometheus_port)
        self._address = settings.prometheus_host, settings.prometheus_port
        self._crawler = crawler
        self._server: _Server | None = None
        self._label = ""
        crawler.signals.connect(self.spider_opened, signals.spider_opened)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the extension."""
        return cls(crawler)

    def spider_opened(self) -> None:
        """Begin to serve."""
        context = CrawlContext.of(self._crawler)
        server = shared(("metrics", *self._address), lambda: _Server(self._client, *self._address))
        try:
            self._label = server.add(context.spider_name, CrawlMetrics(context))
        except OSError as exc:
            host, port = self._address
            logger.warning(
                "NETSPY_PROMETHEUS_PORT: no metrics are served, since %s:%d cannot be had: %s",
                host, port, exc.strerror or exc, extra={"spider": self._crawler.spider},
            )  # fmt: skip
            return
        self._server = server
        logger.info(
            "Metrics for Prometheus: http://%s:%d/metrics", *self._address,
            extra={"spider": self._crawler.spider},
        )  # fmt: skip

    async def spider_closed(self) -> None:
        """Stop serving; with the last crawl of the process the port is free again."""
        if self._server is not None:
            await self._server.remove(self._label)


def client(port: int) -> Any:
    """Return the module ``prometheus_client``; raises ConfigError if it is not installed."""
    try:
        import prometheus_client  # noqa: PLC0415 - an extra
        import prometheus_client.core  # noqa: PLC0415
    except ImportError as exc:
        raise ConfigError(
            "NETSPY_PROMETHEUS_PORT", port,
            "prometheus_client to be installed: pip install 'netspy-scrapy[prometheus]'",
        ) from exc  # fmt: skip
    return prometheus_client


class _Server:
    """The port, and the crawls whose metrics are found there."""

    def __init__(self, module: Any, host: str, port: int) -> None:
        self._module = module
        self._host = host
        self._port = port
        self._crawls: dict[str, CrawlMetrics] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: tuple[Any, Any] | None = None
        """The server and its thread."""

    def add(self, name: str, metrics: CrawlMetrics) -> str:
        """Serve *metrics* too, and return the label that they got; raises OSError."""
        self._loop = asyncio.get_running_loop()
        if self._running is None:
            registry = self._module.CollectorRegistry(auto_describe=False)
            registry.register(self)
            self._running = self._module.start_http_server(
                self._port, self._host, registry=registry
            )
        number = 1
        label = name
        while label in self._crawls:  # two crawls of one spider are two series
            number += 1
            label = f"{name}#{number}"
        self._crawls[label] = metrics
        return label

    async def remove(self, label: str) -> None:
        """Take a crawl out; stop with the last."""
        del self._crawls[label]
        if self._crawls or self._running is None:
            return
        (server, thread), self._running = self._running, None
        await in_thread(_stop, server, thread)

    def collect(self) -> list[Any]:
        """Return the metrics of all crawls, as Prometheus' registry wants them.

        It asks in a thread of its own, and what crawls write to is read on their loop. One that
        is blocked for long has no metrics.
        """
        assert self._loop is not None
        asking = asyncio.run_coroutine_threadsafe(self._collect(), self._loop)
        try:
            return asking.result(_PATIENCE)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            return []

    async def _collect(self) -> list[Any]:
        families: dict[str, Any] = {}
        for spider, metrics in self._crawls.items():
            for metric in metrics.collect():
                family = families.get(metric.name)
                if family is None:
                    family = families[metric.name] = self._family(metric)
                for value, number in metric.values.items():
                    labels = [spider, value] if metric.label else [spider]
                    family.add_metric(labels, number)
        return list(families.values())

    def _family(self, metric: Metric) -> Any:
        core = self._module.core
        kind = core.CounterMetricFamily if metric.kind == COUNTER else core.GaugeMetricFamily
        labels = ["spider", metric.label] if metric.label else ["spider"]
        return kind(f"netspy_{metric.name}", metric.meaning, labels=labels)


def _stop(server: Any, thread: Any) -> None:
    server.shutdown()
    server.server_close()
    thread.join()
