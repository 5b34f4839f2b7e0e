"""What is not well with a run, found in its stats. Pure: it knows nothing of Scrapy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from netspy_scrapy import stats as keys

if TYPE_CHECKING:
    from collections.abc import Mapping

SINK_FAILED: Final = "sink_failed"
NOTHING_STORED: Final = "nothing_stored"

#: What may be found, and what it means.
FINDINGS: Final[dict[str, str]] = {
    SINK_FAILED: "rows could be neither stored nor dumped",
    NOTHING_STORED: "no row was stored",
    "rows_dumped": "rows are in FAILED_ITEM_PATH",
    "requests_failed": "requests that failed are in FAILED_REQUEST_PATH",
    "requests_unfinished": "requests that were still queued are in FAILED_REQUEST_PATH",
    "requests_lost": "failed requests could not be written to FAILED_REQUEST_PATH",
}

#: What makes the exit status 1 whatever the settings say.
ALWAYS_FAIL: Final = frozenset({SINK_FAILED})

#: Counts of what was known before: a run that finds nothing new has nothing to store.
_KNOWN_BEFORE = (
    keys.ITEMS_DUPLICATE,
    keys.INCREMENTAL_NOT_MODIFIED,
    keys.INCREMENTAL_SAME_BODY,
    keys.INCREMENTAL_FRESH,
)

#: Where the nodes share a queue, one of them may have had pages that only lead to others.
_SHARED_QUEUE = keys.QUEUE_DONE.rpartition("/")[0] + "/"


def findings(
    stats: Mapping[str, Any], reason: str, *, sink_failed: bool, expects_rows: bool
) -> dict[str, int]:
    """Return what was found in a run that closed for *reason*, each with how many it concerns.

    *expects_rows*: whether the run has sinks that would have got what it yielded.
    """
    lost = rows(stats, keys.ROWS_LOST)
    unfinished = stats.get(keys.UNFINISHED_DUMPED, 0)
    found = {
        "rows_dumped": rows(stats, keys.ROWS_DUMPED),
        "requests_failed": max(0, stats.get(keys.REQUESTS_DUMPED, 0) - unfinished),
        "requests_unfinished": unfinished,
        "requests_lost": stats.get(keys.REQUESTS_LOST, 0),
    }
    if expects_rows and _ran_to_its_end(reason) and _stored_nothing(stats):
        found[NOTHING_STORED] = pages_and_failures(stats)
    counted = {name: count for name, count in found.items() if count}
    return {SINK_FAILED: lost, **counted} if sink_failed or lost else counted


def rows(stats: Mapping[str, Any], key: str) -> int:
    """Return the sum of a stat over all sinks; ``{sink}`` in *key* stands for their names."""
    prefix, _, suffix = key.partition("{sink}")
    return sum(
        count for one, count in stats.items() if one.startswith(prefix) and one.endswith(suffix)
    )


def pages_and_failures(stats: Mapping[str, Any]) -> int:
    """Return how many requests came to an end, with an answer or for good without one."""
    pages: int = stats.get("response_received_count", 0)
    failures: int = stats.get(keys.FAILURES, 0)
    return max(pages, failures)


def _ran_to_its_end(reason: str) -> bool:
    """Tell whether a run was left to do its work: who stops it early need not have rows yet."""
    return reason in {"finished", "max_runtime"} or reason.startswith("closespider_")


def _stored_nothing(stats: Mapping[str, Any]) -> bool:
    return not (
        rows(stats, keys.ROWS_STORED)
        or any(stats.get(key) for key in _KNOWN_BEFORE)
        or any(key.startswith(_SHARED_QUEUE) for key in stats)
    )
