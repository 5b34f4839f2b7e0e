"""The run summary: what came of a crawl, and what to do next."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import NotConfigured

from netspy_scrapy import stats as keys
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.extensions.exit_status import failing, findings_of
from netspy_scrapy.extensions.next_steps import next_steps
from netspy_scrapy.extensions.record import MARK, by_cause, complete, item_count, run_record
from netspy_scrapy.logs import bytes_text, counted, seconds_text
from netspy_scrapy.settings import WatchSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from netspy_scrapy.health import DomainRecord
    from netspy_scrapy.pipelines.batcher import Batcher

logger = logging.getLogger(__name__)

#: Domains that are named with their rests.
_DOMAINS = 5

#: Tables of a sink that are named with their rows.
_TABLES = 20


class RunSummary:
    """Logs one block at the end of a run: pages, retries, drops, failures, rows, next steps.

    And one line for programs: ``NETSPY_RUN_SUMMARY`` and JSON.

    Setting: RUN_SUMMARY_ENABLE.
    """

    def __init__(self, crawler: Crawler) -> None:
        if not WatchSettings.from_settings(crawler.settings).summary:
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
    lines.append(_line("bytes", bytes_text(stats.get("downloader/response_bytes", 0)), {}))
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
    lines.append(_line("items", item_count(stats), items))
    for batcher in context.intake.batchers:
        lines += _sink_lines(batcher, stats)
    found = findings_of(context, reason)
    lines += [f"  ! {step}" for step in next_steps(stats, context, found)]
    if names := failing(context, found):
        lines.append(f"  ! the exit status is 1: {', '.join(names)}")
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


def _line(label: str, total: int | str, parts: dict[str, int]) -> str:
    shown = ", ".join(f"{cause} {count}" for cause, count in parts.items() if count)
    return f"  {label:<9}{total}" + (f"  ({shown})" if shown else "")


def _domain_lines(records: dict[str, DomainRecord]) -> list[str]:
    """Return a line for each of the domains that rested longest."""
    longest = sorted(records.items(), key=lambda pair: -pair[1].seconds)
    lines = []
    for name, record in longest[:_DOMAINS]:
        text = f"    {name}: {counted(record.rests, 'rest')}, {seconds_text(record.seconds)}"
        if record.circuits:
            text += f", circuit opened {counted(record.circuits, 'time')}"
        lines.append(text)
    if len(longest) > _DOMAINS:
        lines.append(f"    and {counted(len(longest) - _DOMAINS, 'more domain')}")
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
        pages = counted(asked, "page that was", "pages that were")
        line = f"  unchanged {unchanged} of {pages} asked about ({share:.1f} %)"
    if saved := stats.get(keys.INCREMENTAL_SAVED, 0):
        line += f", {bytes_text(saved)} not sent"
    shown = ", ".join(f"{label} {count}" for label, count in parts.items() if count)
    return [line, f"    {shown}"] if shown else [line]


def _sink_lines(batcher: Batcher, stats: dict[str, Any]) -> list[str]:
    """Return what a sink did with its rows, and with those of each table if there are several."""
    rows = {
        what: stats.get(key.format(sink=batcher.name), 0)
        for what, key in (
            ("stored", keys.ROWS_STORED),
            ("refused", keys.ROWS_REFUSED),
            ("dumped", keys.ROWS_DUMPED),
            ("lost", keys.ROWS_LOST),
        )
    }
    line = f"  {batcher.name}: rows {_rows_text(rows)}"
    if outages := stats.get(keys.OUTAGES.format(sink=batcher.name), 0):
        line += f", {counted(outages, 'outage')}"
    tables = list(batcher.tables.items())
    if len(tables) == 1:
        return [f"{line}  ({tables[0][0]})"]
    lines = [line, *(f"    {name}: {_rows_text(counts)}" for name, counts in tables[:_TABLES])]
    if len(tables) > _TABLES:
        lines.append(f"    and {counted(len(tables) - _TABLES, 'more table')}")
    return lines


def _rows_text(counts: Mapping[str, int]) -> str:
    parts = [f"{counts.get(what, 0)} {what}" for what in ("stored", "refused", "dumped")]
    return ", ".join([*parts, f"{counts['lost']} LOST"] if counts.get("lost") else parts)
