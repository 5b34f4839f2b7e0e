"""The run summary for programs: one line of JSON."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from netspy_scrapy import stats as keys
from netspy_scrapy.extensions.exit_status import failing, findings_of
from netspy_scrapy.extensions.next_steps import next_steps

if TYPE_CHECKING:
    from netspy_scrapy.context import CrawlContext

#: What the line in the log begins with.
MARK = "NETSPY_RUN_SUMMARY"

_STATUSES = "downloader/response_status_count/{cause}"


async def complete(context: CrawlContext) -> None:
    """Wait until all of a run is counted, after the spider was closed."""
    await context.request_dump.flush()
    if context.cache is not None:
        await context.cache.close()


def run_record(
    name: str, reason: str, stats: dict[str, Any], context: CrawlContext
) -> dict[str, Any]:
    """Return what came of a run: netspy's counts under its names, and more.

    Seconds, bytes, counts; ``domains`` holds those that rested, ``sinks`` the rows by table.
    ``findings`` says what is not well, and how many requests or rows it concerns.
    """
    found = findings_of(context, reason)
    drops = by_cause(stats, keys.DROPS_BY_CAUSE)
    failures = by_cause(stats, keys.FAILURES_BY_CAUSE)
    start = stats.get("start_time")
    # Scrapy notes how long it took at about the same moment, before or after.
    elapsed = (datetime.now(timezone.utc) - start).total_seconds() if start else 0.0
    pages = stats.get("response_received_count", 0)
    failed = stats.get(keys.FAILURES, 0)
    dropped = stats.get(keys.DROPS, 0)
    return {
        # As netspy calls them.
        "schema": 1,
        "spider": name,
        "elapsed": round(elapsed, 3),
        "rate": round(pages / elapsed, 3) if elapsed else 0.0,
        "request_ok": max(0, pages - failed),
        "request_failed": failed,
        "retry": stats.get(keys.RETRIES, 0),
        "dropped": dropped,
        "robots_dropped": drops.get("robots", 0),
        "content_type_dropped": drops.get("content_type", 0),
        "parse_error": stats.get("spider_exceptions/count", 0),
        "dedup_dropped": stats.get("dupefilter/filtered", 0),
        "dedup_degraded": stats.get(keys.FILTER_DEGRADED, 0)
        + stats.get(keys.UNFILTERED_BATCHES, 0),
        "items": item_count(stats),
        "item_dedup_dropped": stats.get(keys.ITEMS_DUPLICATE, 0),
        "item_failed": sum(one.rows["dumped"] for one in _sinks(context)),
        # Beyond it.
        "reason": reason,
        "exit_status": 1 if failing(context, found) else stats.get(keys.EXIT_STATUS, 0),
        "findings": found,
        "next_steps": next_steps(stats, context, found),
        "pages": pages,
        "statuses": by_cause(stats, _STATUSES),
        "bytes": stats.get("downloader/response_bytes", 0),
        "cache_hits": stats.get(keys.CACHE_HITS, 0),
        "retries": by_cause(stats, keys.RETRIES_BY_CAUSE),
        "drops": drops,
        "failures": failures,
        "incremental": _incremental(stats),
        "requests_dumped": stats.get(keys.REQUESTS_DUMPED, 0),
        "requests_lost": stats.get(keys.REQUESTS_LOST, 0),
        "sinks": {one.name: one.tables for one in _sinks(context)},
        "domains": {
            name: {
                "rests": record.rests,
                "seconds": round(record.seconds, 3),
                "circuits": record.circuits,
            }
            for name, record in context.politeness.health.records.items()
        },
    }


def _incremental(stats: dict[str, Any]) -> dict[str, float]:
    """Return what came of asking sites whether pages changed; empty: none was asked."""
    asked = stats.get(keys.INCREMENTAL_ASKED, 0)
    if not asked:
        return {}
    unchanged = stats.get(keys.INCREMENTAL_NOT_MODIFIED, 0)
    return {
        "asked": asked,
        "not_modified": unchanged,
        "share": round(unchanged / asked, 4),
        "bytes_saved": stats.get(keys.INCREMENTAL_SAVED, 0),
    }


def item_count(stats: dict[str, Any]) -> int:
    """Return how many items came to the sinks; where there is no sink, through the pipelines."""
    count: int = stats.get(keys.ITEMS, stats.get("item_scraped_count", 0))
    return count


def by_cause(stats: dict[str, Any], pattern: str) -> dict[str, int]:
    """Return the counts of a stat by what is in the place of ``{cause}``, the largest first."""
    prefix = pattern.partition("{")[0]
    found = {key[len(prefix) :]: count for key, count in stats.items() if key.startswith(prefix)}
    return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


class _Sink:
    def __init__(self, name: str, tables: dict[str, Counter[str]]) -> None:
        self.name = name
        self.tables = {table: dict(counts) for table, counts in tables.items()}
        self.rows: Counter[str] = sum(tables.values(), Counter())


def _sinks(context: CrawlContext) -> list[_Sink]:
    return [_Sink(one.name, one.tables) for one in context.intake.batchers]
