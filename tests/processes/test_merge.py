"""One summary of several processes."""

from __future__ import annotations

from typing import Any

import pytest

from netspy_scrapy.processes.merge import Part, Run, merged_lines, merged_record, stored_nothing


def record(pages: int, seconds: float, *, sinks: bool = True) -> dict[str, Any]:
    rows = {"stored": pages, "dumped": 1}
    tables: dict[str, Any] = {"books": rows, "names": rows} if pages > 3 else {"books": rows}
    return {
        "schema": 1, "spider": "shop", "elapsed": 3.0, "rate": 1.0, "reason": "finished",
        "pages": pages, "statuses": {"200": pages}, "requests_dumped": 1, "requests_lost": 0,
        "items": pages, "item_dedup_dropped": 1, "retry": 2, "retries": {"503": 2},
        "sinks": {"SqlitePipeline": tables} if sinks else {},
        "domains": {"a.example": {"rests": 1, "seconds": seconds, "circuits": 0}},
    }  # fmt: skip


RUN = Run(
    spider="shop",
    reason="shutdown",
    elapsed=2.0,
    parts=[
        Part(1, "1", "stopped", True, record(5, 1.5)),
        Part(2, "2", "was killed by SIGKILL", False, record(3, 2.25)),
        Part(2, "2b", "stopped", True, record(2, 0.25, sinks=False)),
        Part(3, "3", "was killed by SIGKILL", False, {}),
    ],
    target="my shop.py",
    item_path="items.jsonl",
    request_path="requests.jsonl",
    dumped=7,
    notes=["something"],
)


def test_counts_are_sums() -> None:
    """Of every process, also one that was killed, or said nothing; time is that of the run."""
    merged = merged_record(RUN)

    assert merged["pages"] == 10
    assert merged["statuses"] == {"200": 10}
    assert merged["sinks"]["SqlitePipeline"] == {
        "books": {"stored": 8, "dumped": 2}, "names": {"stored": 5, "dumped": 1},
    }  # fmt: skip
    assert merged["domains"] == {"a.example": {"rests": 3, "seconds": 4.0, "circuits": 0}}
    assert merged["requests_dumped"] == 3 + 7
    assert (merged["schema"], merged["spider"], merged["reason"]) == (1, "shop", "shutdown")
    assert (merged["elapsed"], merged["rate"]) == (2.0, 5.0)
    assert [one["process"] for one in merged["processes"]] == ["1", "2", "2b", "3"]
    assert [one["pages"] for one in merged["processes"]] == [5, 3, 2, 0]
    assert [one["ok"] for one in merged["processes"]] == [True, False, True, False]


def test_the_block_for_people() -> None:
    """It has the lines of one process's, with the sums, and one for each process."""
    lines = merged_lines(RUN, merged_record(RUN))

    assert lines[0] == "Run summary of shop (shutdown), 3 processes"
    assert "  pages    10  (200 10)" in lines
    assert "  retries  6  (503 6)" in lines
    assert "  items    10  (duplicate 3)" in lines
    assert "  rests    3" in lines
    assert "    a.example: 3 rests, 4 s" in lines
    assert "  SqlitePipeline: rows 13 stored, 0 refused, 3 dumped" in lines
    assert lines[-7:] == [
        "  ! 3 rows in items.jsonl: netspy-retry --items --spider 'my shop.py'",
        "  ! 10 requests in requests.jsonl: netspy-retry --requests --spider 'my shop.py'",
        "  ! something",
        "  process 1: 5 pages, stopped",
        "  ! process 2: 3 pages, was killed by SIGKILL",
        "  process 2b: 2 pages, stopped",
        "  ! process 3: 0 pages, was killed by SIGKILL",
    ]


@pytest.mark.parametrize(
    ("change", "nothing"),
    [
        ({}, False),
        ({"sinks": {"SqlitePipeline": {}}}, True),
        ({"sinks": {"SqlitePipeline": {"books": {"stored": 0, "dumped": 3}}}}, True),
        ({"sinks": {"SqlitePipeline": {}}, "item_dedup_dropped": 2}, False),
        ({"sinks": {"SqlitePipeline": {}}, "incremental": {"not_modified": 2}}, False),
        ({"sinks": {"SqlitePipeline": {}}, "pages": 0}, False),
        ({"sinks": {}}, False),
    ],
)
def test_a_run_that_stored_nothing(change: dict[str, Any], nothing: bool) -> None:
    """It is one that fetched pages, has a sink, and neither stored rows nor knew them before."""
    known = {**record(5, 1.0), "item_dedup_dropped": 0}

    assert stored_nothing({**known, **change}) is nothing


def test_a_run_of_which_nothing_is_known() -> None:
    """Processes that were killed before they said anything leave a record all the same."""
    run = Run("shop", "process_failed", 1.0, [Part(1, "1", "failed", False, {})])

    assert merged_record(run)["pages"] == 0
    assert (
        merged_lines(run, merged_record(run))[0]
        == "Run summary of shop (process_failed), 1 processes"
    )
