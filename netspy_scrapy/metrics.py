"""What a crawl is doing, as counters and gauges: read when somebody asks, at no cost for a page.

Nothing here is counted: the numbers are Scrapy's stats, ours, and what the registry of domains
knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from netspy_scrapy import _scrapy
from netspy_scrapy import stats as keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from netspy_scrapy.context import CrawlContext

COUNTER = "counter"
GAUGE = "gauge"

#: Values of a label that are told apart; all others are OTHER together.
LIMIT = 50
OTHER = "other"


class Metric(NamedTuple):
    """One metric of a crawl."""

    name: str
    kind: str
    meaning: str
    label: str
    """The name of its label; empty: it has none."""
    values: dict[str, float]
    """By the value of the label; without one, the only key is empty."""


#: Counters that are one stat each.
_TOTALS = {
    "requests": ("downloader/request_count", "Requests that were sent."),
    "pages": ("response_received_count", "Answers that left the downloader middlewares."),
    "response_bytes": ("downloader/response_bytes", "Bytes of answers, as they were received."),
    "download_errors": ("downloader/exception_count", "Downloads that ended without an answer."),
    "callback_errors": ("spider_exceptions/count", "Callbacks that raised."),
    "filtered_requests": ("dupefilter/filtered", "Requests that the request filter knew."),
    "requests_delayed": (keys.REQUESTS_DELAYED, "Requests that waited for a time of their own."),
    "requests_dumped": (keys.REQUESTS_DUMPED, "Lines written to FAILED_REQUEST_PATH."),
    "requests_lost": (keys.REQUESTS_LOST, "Requests that could be neither queued nor dumped."),
    "items": (keys.ITEMS, "Items that came to the sinks."),
    "items_duplicate": (keys.ITEMS_DUPLICATE, "Items skipped as their fingerprint was known."),
    "items_refused": (keys.ITEMS_REFUSED, "Items dumped before any sink."),
    "items_scraped": ("item_scraped_count", "Items that went through all pipelines."),
    "items_dropped": ("item_dropped_count", "Items that pipelines dropped."),
    "unfiltered_batches": (keys.UNFILTERED_BATCHES, "Batches stored while the filter was down."),
    "filter_degraded": (keys.FILTER_DEGRADED, "Fingerprints that were not kept."),
    "cache_hits": (keys.CACHE_HITS, "Answers that came from the response cache."),
    "incremental_asked": (keys.INCREMENTAL_ASKED, "Conditional requests."),
    "incremental_not_modified": (keys.INCREMENTAL_NOT_MODIFIED, "Of these, those with a 304."),
}

#: Counters whose stats end with the value of a label.
_BY_LABEL = {
    "responses": (
        "status", "downloader/response_status_count/{}",
        "Answers by status, those that were fetched again included.",
    ),
    "retries": ("cause", keys.RETRIES_BY_CAUSE, "Retries by cause."),
    "failures": ("cause", keys.FAILURES_BY_CAUSE, "Requests that failed for good, by cause."),
    "drops": ("cause", keys.DROPS_BY_CAUSE, "Requests given up on purpose, by cause."),
    "log_records": ("level", "log_count/{}", "Log records by level."),
}  # fmt: skip

#: Counters of each sink.
_OF_SINKS = {
    "rows_stored": (keys.ROWS_STORED, "Rows that the sink stored."),
    "rows_refused": (keys.ROWS_REFUSED, "Rows that it refused."),
    "rows_dumped": (keys.ROWS_DUMPED, "Rows written to FAILED_ITEM_PATH for it."),
    "rows_lost": (keys.ROWS_LOST, "Rows that could be neither stored nor dumped."),
    "sink_outages": (keys.OUTAGES, "Times that its server went away."),
}


class CrawlMetrics:
    """The metrics of one crawl.

    Of a label LIMIT values are told apart. Of counters it is the first that come, of those that
    come at once the largest: who is among them stays so, and no counter ever falls. Of gauges it
    is the largest of the moment.
    """

    def __init__(self, context: CrawlContext) -> None:
        self._context = context
        self._told_apart: dict[str, set[str]] = {}

    def collect(self) -> Iterator[Metric]:
        """Return all metrics as they are now."""
        stats = self._context.stats.get_stats()
        for name, (key, meaning) in _TOTALS.items():
            yield Metric(name, COUNTER, meaning, "", {"": stats.get(key, 0)})
        for name, (label, pattern, meaning) in _BY_LABEL.items():
            prefix = pattern.partition("{")[0]
            found = {one[len(prefix) :]: n for one, n in stats.items() if one.startswith(prefix)}
            yield self._bounded(name, COUNTER, meaning, label, found)
        yield from self._of_sinks(stats)
        yield from self._of_queue(stats)
        yield from self._of_domains()

    def _of_sinks(self, stats: Mapping[str, Any]) -> Iterator[Metric]:
        batchers = self._context.intake.batchers
        for name, (key, meaning) in _OF_SINKS.items():
            found = {one.name: stats.get(key.format(sink=one.name), 0) for one in batchers}
            yield Metric(name, COUNTER, meaning, "sink", found)
        held = {one.name: float(one.held) for one in batchers}
        yield Metric("rows_held", GAUGE, "Rows that the sink has yet to store.", "sink", held)

    def _of_queue(self, stats: Mapping[str, Any]) -> Iterator[Metric]:
        crawler = self._context.crawler
        start = stats.get("start_time")
        for name, value, meaning in (
            ("queued_requests", _scrapy.pending(crawler), "Requests in the scheduler."),
            (
                "requests_in_flight", len(_scrapy.requests_under_way(crawler)),
                "Requests that the downloader or its middlewares have.",
            ),
            (
                "start_time_seconds", start.timestamp() if start is not None else 0,
                "When the crawl began, as Unix time.",
            ),
        ):  # fmt: skip
            yield Metric(name, GAUGE, meaning, "", {"": value})

    def _of_domains(self) -> Iterator[Metric]:
        politeness = self._context.politeness
        registry, health = politeness.registry, politeness.health
        records, resting = health.records, health.resting()
        yield Metric("known_domains", GAUGE, "Domains in use.", "", {"": len(registry)})
        yield Metric("resting_domains", GAUGE, "Domains that rest now.", "", {"": len(resting)})
        for name, meaning, found in (
            ("domain_rests", "Rests that began, or grew longer.",
             {one: record.rests for one, record in records.items()}),
            ("domain_rest_seconds", "Seconds that the domain has rested.",
             {one: record.seconds for one, record in records.items()}),
            ("domain_circuits", "Circuits that opened.",
             {one: record.circuits for one, record in records.items()}),
        ):  # fmt: skip
            yield self._bounded(name, COUNTER, meaning, "domain", found)
        # Of the others the one that rests longest: a sum of waits would mean nothing.
        yield self._bounded(
            "domain_rest_left_seconds", GAUGE, "Seconds until the rest ends.", "domain", resting,
            joined=max,
        )  # fmt: skip
        in_flight = {one.name: one.in_flight for one in registry if one.in_flight}
        yield self._bounded(
            "domain_requests_in_flight", GAUGE, "Requests in flight.", "domain", in_flight
        )

    def _bounded(
        self, name: str, kind: str, meaning: str, label: str, found: Mapping[str, float],
        joined: Callable[[Iterable[float]], float] = sum,
    ) -> Metric:  # fmt: skip
        """Return a metric with at most LIMIT values of its label, and OTHER."""
        told_apart = self._told_apart.setdefault(label, set()) if kind == COUNTER else set()
        if len(told_apart) < LIMIT:
            fresh = sorted(found.keys() - told_apart, key=lambda one: (-found[one], one))
            told_apart.update(fresh[: LIMIT - len(told_apart)])
        values = {one: count for one, count in found.items() if one in told_apart}
        if rest := [count for one, count in found.items() if one not in told_apart]:
            values[OTHER] = joined(rest)
        return Metric(name, kind, meaning, label, values)
