"""What a person may want to do after a run, in sentences."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netspy_scrapy import stats as keys
from netspy_scrapy.findings import NOTHING_STORED, rows
from netspy_scrapy.logs import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from netspy_scrapy.context import CrawlContext


def next_steps(stats: dict[str, Any], context: CrawlContext, found: dict[str, int]) -> list[str]:
    """Return what went wrong in a run or is left of it, and what helps; *found*: its findings."""
    return [
        *_of_the_cache(stats, context),
        *_of_dumps(stats, context),
        *_of_filters(stats),
        *_of_sinks(stats),
        *([_nothing_stored(stats)] if NOTHING_STORED in found else []),
    ]


def _of_the_cache(stats: dict[str, Any], context: CrawlContext) -> Iterator[str]:
    if (hits := stats.get(keys.CACHE_HITS)) and context.cache is not None:
        yield (
            f"{counted(hits, 'answer is a copy', 'answers are copies')} from "
            f"{context.cache.settings.path}, up to {context.cache.oldest_age()} old: "
            "netspy-cache --clear has them fetched again"
        )
    if errors := stats.get(keys.CACHE_ERRORS):
        yield (
            f"{counted(errors, 'answer')} could not be read from the response cache, or not be "
            "stored in it: LOG_LEVEL=DEBUG shows why"
        )


def _of_dumps(stats: dict[str, Any], context: CrawlContext) -> Iterator[str]:
    if dumped := rows(stats, keys.ROWS_DUMPED):
        path = context.dump_settings.item_path
        yield (
            f"{counted(dumped, 'row')} in {path}: "
            f"netspy-retry --items{_spider(context, for_settings=True)} stores "
            f"{'it' if dumped == 1 else 'them'}"
        )
    if requests := stats.get(keys.REQUESTS_DUMPED, 0):
        path = context.dump_settings.request_path
        yield (
            f"{counted(requests, 'request')} in {path}: "
            f"netspy-retry --requests{_spider(context, for_settings=False)} fetches "
            f"{'it' if requests == 1 else 'them'}"
        )
    if lost := stats.get(keys.REQUESTS_LOST):
        yield f"{counted(lost, 'failed request')} could not be written to the dump"


def _spider(context: CrawlContext, *, for_settings: bool) -> str:
    """Return the option that has a replay find the spider, where it needs one.

    Requests need the file of a spider that no project has. Rows need the spider's own settings
    (*for_settings*): without them they would go where the project's settings say.
    """
    cls = context.crawler.spidercls
    modules = context.crawler.settings.getlist("SPIDER_MODULES")
    in_project = any(f"{cls.__module__}.".startswith(f"{one}.") for one in modules)
    if for_settings and not (cls.custom_settings or getattr(cls, "__custom_setting__", None)):
        return ""
    if in_project:
        return f" --spider {shlex.quote(cls.name)}" if for_settings else ""
    path = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if path is None:
        return ""
    file = Path(path)
    with contextlib.suppress(OSError, ValueError):  # the folder is gone, the file is elsewhere
        file = file.resolve().relative_to(Path.cwd())
    return f" --spider {shlex.quote(str(file))}"


def _of_filters(stats: dict[str, Any]) -> Iterator[str]:
    if unfiltered := stats.get(keys.UNFILTERED_BATCHES):
        yield (
            f"the item filter was down: {counted(unfiltered, 'batch', 'batches')} may hold rows "
            "that were stored before"
        )
    if unrecorded := stats.get(keys.FILTER_DEGRADED):
        yield (
            f"{counted(unrecorded, 'fingerprint was', 'fingerprints were')} not kept: a later run "
            f"does not know {'it' if unrecorded == 1 else 'them'}"
        )


def _of_sinks(stats: dict[str, Any]) -> Iterator[str]:
    if lost := rows(stats, keys.ROWS_LOST):
        yield (
            f"{counted(lost, 'ROW IS', 'ROWS ARE')} LOST: neither stored nor dumped; the errors "
            "above name what is lost"
        )
    if in_doubt := rows(stats, keys.ROWS_IN_DOUBT):
        yield (
            f"{counted(in_doubt, 'row')} may be stored twice: the connection broke before the "
            "server confirmed what it had, and it was sent again"
        )


def _nothing_stored(stats: dict[str, Any]) -> str:
    failures = stats.get(keys.FAILURES, 0)
    pages = stats.get("response_received_count", 0) - failures
    if pages <= 0:
        return f"nothing was stored: {counted(failures, 'request')} failed, and no page came"
    text = f"nothing was stored although {counted(pages, 'page was', 'pages were')} fetched: "
    if items := stats.get(keys.ITEMS, 0):
        return text + f"no sink took any of {counted(items, 'item')}"
    if dropped := stats.get("item_dropped_count", 0):
        return text + f"pipelines dropped {counted(dropped, 'item')}"
    return text + "no callback yielded an item"
