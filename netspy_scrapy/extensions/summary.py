"""The run summary: what came of a crawl, and what to do next."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import NotConfigured

from netspy_scrapy import stats as keys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.extensions.record import MARK, by_cause, complete, run_record
from netspy_scrapy.settings import read_bool

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from netspy_scrapy.health import DomainRecord

logger = logging.getLogger(__name__)

#: Domains that are named with their rests.
_DOMAINS = 5


class RunSummary:
    """Logs one block at the end of a run: pages, retries, drops, failures, rows, next steps.

    And one line for programs: ``NETSPY_RUN_SUMMARY`` and JSON.

    Setting: RUN_SUMMARY_ENABLE.
    """

    def __init__(self, crawler: Crawler) -> None:
        if not read_bool(crawler.settings, "RUN_SUMMARY_ENABLE"):
            raise NotConfigured
        self._crawler = crawler
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the extension."""
        return cls(crawler)

    async def spider_closed(self, spider: Spider, reason: str) -> None:
        """Log the summary, once the dumps are written."""
        context = CrawlContext.of(self._crawler)
        await complete(context)
        text = "\n".join(summary_lines(spider.name, reason, context.stats.get_stats(), context))
        logger.info("%s", text, extra={"spider": spider})
        record = run_record(spider.name, reason, context.stats.get_stats(), context)
        logger.info("%s %s", MARK, json.dumps(record), extra={"spider": spider})


def summary_lines(
    name: str, reason: str, stats: dict[str, Any], context: CrawlContext
) -> list[str]:
    """Return the lines of the summary, from the stats of a run."""
    lines = [f"Run summary of {name} ({reason})"]
    pages = stats.get("response_received_count", 0)
    statuses = by_cause(stats, "downloader/response_status_count/{cause}")
    lines.append(_line("pages", pages, statuses))
    lines += _cache_lines(stats)
    for label, total, pattern in (
        ("retries", keys.RETRIES, keys.RETRIES_BY_CAUSE),
        ("drops", keys.DROPS, keys.DROPS_BY_CAUSE),
        ("failures", keys.FAILURES, keys.FAILURES_BY_CAUSE),
    ):
        lines.append(_line(label, stats.get(total, 0), by_cause(stats, pattern)))
    rests, circuits = stats.get(keys.RESTS, 0), stats.get(keys.CIRCUITS, 0)
    if rests or circuits:
        lines.append(_line("rests", rests, {"circuits opened": circuits}))
        lines += _domain_lines(context.politeness.health.records)
    filtered = {
        "duplicate requests": stats.get("dupefilter/filtered", 0),
        "outside allowed_domains": stats.get("offsite/filtered", 0),
    }
    if any(filtered.values()):
        lines.append(_line("filtered", sum(filtered.values()), filtered))
    lines += _incremental_lines(stats)
    items = {
        "duplicate": stats.get(keys.ITEMS_DUPLICATE, 0),
        "refused": stats.get(keys.ITEMS_REFUSED, 0),
    }
    lines.append(_line("items", stats.get(keys.ITEMS, 0), items))
    lines += [_sink_line(batcher.name, stats) for batcher in context.intake.batchers]
    lines += [f"  ! {step}" for step in next_steps(stats, context)]
    return lines


def _cache_lines(stats: dict[str, Any]) -> list[str]:
    parts = {
        "fetched": stats.get(keys.CACHE_MISSES, 0),
        "stored": stats.get(keys.CACHE_STORED, 0),
        "taken out": stats.get(keys.CACHE_DISCARDED, 0),
        "errors": stats.get(keys.CACHE_ERRORS, 0),
    }
    hits = stats.get(keys.CACHE_HITS, 0)
    return [_line("cached", hits, parts)] if hits or any(parts.values()) else []


def _line(label: str, total: int, parts: dict[str, int]) -> str:
    shown = ", ".join(f"{cause} {count}" for cause, count in parts.items() if count)
    return f"  {label:<9}{total}" + (f"  ({shown})" if shown else "")


def _domain_lines(records: dict[str, DomainRecord]) -> list[str]:
    """Return a line for each of the domains that rested longest."""
    longest = sorted(records.items(), key=lambda pair: -pair[1].seconds)
    lines = []
    for name, record in longest[:_DOMAINS]:
        circuits = f", circuit opened {record.circuits} times" if record.circuits else ""
        lines.append(f"    {name}: {record.rests} rests, {record.seconds:.3g} s{circuits}")
    if len(longest) > _DOMAINS:
        lines.append(f"    and {len(longest) - _DOMAINS} more domains")
    return lines


def _incremental_lines(stats: dict[str, Any]) -> list[str]:
    """Return what came of asking sites whether pages changed."""
    asked = stats.get(keys.INCREMENTAL_ASKED, 0)
    parts = {
        label: stats.get(key, 0)
        for label, key in (
            ("fetched", keys.INCREMENTAL_FETCHED),
            ("of these dynamic", keys.INCREMENTAL_DYNAMIC),
            ("without validators", keys.INCREMENTAL_PLAIN),
            ("sent again with the same body", keys.INCREMENTAL_SAME_BODY),
            ("not old enough", keys.INCREMENTAL_FRESH),
            ("gone", keys.INCREMENTAL_GONE),
            ("followed requests", keys.INCREMENTAL_FOLLOWED),
        )
    }
    if not asked and not any(parts.values()):
        return []
    unchanged = stats.get(keys.INCREMENTAL_NOT_MODIFIED, 0)
    line = "  unchanged 0  (no page was asked about)"
    if asked:
        share = 100 * unchanged / asked
        line = f"  unchanged {unchanged} of {asked} pages that were asked about ({share:.1f} %)"
    if saved := stats.get(keys.INCREMENTAL_SAVED, 0):
        line += f", {_bytes(saved)} not sent"
    shown = ", ".join(f"{label} {count}" for label, count in parts.items() if count)
    return [line, f"    {shown}"] if shown else [line]


def _bytes(count: int) -> str:
    number = float(count)
    for unit in ("bytes", "KB", "MB"):
        if number < 1000:  # noqa: PLR2004
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def _sink_line(sink: str, stats: dict[str, Any]) -> str:
    parts = [
        f"{stats.get(key.format(sink=sink), 0)} {label}"
        for label, key in (
            ("stored", keys.ROWS_STORED),
            ("refused", keys.ROWS_REFUSED),
            ("dumped", keys.ROWS_DUMPED),
            ("LOST", keys.ROWS_LOST),
            ("outages", keys.OUTAGES),
        )
        if label in ("stored", "refused", "dumped") or stats.get(key.format(sink=sink), 0)
    ]
    return f"  {sink}: rows " + ", ".join(parts)


def next_steps(stats: dict[str, Any], context: CrawlContext) -> list[str]:
    """Return what a person may want to do after the run, a sentence each."""
    steps = []
    if stats.get(keys.CACHE_HITS) and context.cache is not None:
        steps.append(
            f"{stats[keys.CACHE_HITS]} answers are copies from {context.cache.settings.path}, up "
            f"to {context.cache.oldest_age()} old: netspy-cache --clear has them fetched again"
        )
    errors = stats.get(keys.CACHE_ERRORS)
    if errors:
        steps.append(
            f"{errors} answers could not be read from the response cache, or not be stored in it: "
            "LOG_LEVEL=DEBUG shows why"
        )
    rows = _total(keys.ROWS_DUMPED, stats, context)
    if rows:
        steps.append(
            f"{rows} rows in {context.dump_settings.item_path}: netspy-retry --items stores them"
        )
    requests = stats.get(keys.REQUESTS_DUMPED, 0)
    if requests:
        path = context.dump_settings.request_path
        steps.append(f"{requests} requests in {path}: netspy-retry --requests fetches them")
    unfiltered, unrecorded = stats.get(keys.UNFILTERED_BATCHES), stats.get(keys.FILTER_DEGRADED)
    if unfiltered:
        steps.append(
            f"the item filter was down: {unfiltered} batches may hold rows that were stored before"
        )
    if unrecorded:
        steps.append(f"{unrecorded} fingerprints were not kept: a later run does not know them")
    lost = _total(keys.ROWS_LOST, stats, context)
    if lost:
        steps.append(f"{lost} ROWS ARE LOST: neither stored nor dumped; the errors above name them")
    in_doubt = _total(keys.ROWS_IN_DOUBT, stats, context)
    if in_doubt:
        steps.append(
            f"{in_doubt} rows may be stored twice: the connection broke before the server "
            "confirmed them, and they were written again"
        )
    if stats.get(keys.REQUESTS_LOST):
        steps.append(
            f"{stats[keys.REQUESTS_LOST]} failed requests could not be written to the dump"
        )
    return steps


def _total(key: str, stats: dict[str, Any], context: CrawlContext) -> int:
    names = {batcher.name for batcher in context.intake.batchers}
    return sum(stats.get(key.format(sink=name), 0) for name in names)
