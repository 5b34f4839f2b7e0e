"""One summary of several processes."""

from __future__ import annotations

from typing import Any

from netspy_scrapy.processes.job import Report
from netspy_scrapy.processes.merge import Part, Run, merged_lines, merged_record


def report(pages: int, seconds: float, *, sinks: bool = True) -> Report:
    domain = {"rests": 1, "seconds": seconds, "circuits": 0}
    tables: dict[str, Any] = {"books": {"stored": pages, "dumped": 1}} if pages > 3 else {}
    return Report(
        record={
            "schema": 1, "spider": "shop", "elapsed": 3.0, "rate": 1.0, "reason": "finished",
            "pages": pages, "statuses": {"200": pages}, "requests_dumped": 1, "requests_lost": 0,
            "sinks": {"SqlitePipeline": tables} if sinks else {},
            "domains": {"a.example": domain},
        },
        stats={
            "response_received_count": pages, "netspy/rests": 1,
            "netspy/rows/SqlitePipeline/stored": pages, "netspy/requests/dumped": 1,
        },
        facts={
            "sinks": ["SqlitePipeline"] if sinks else [], "domains": {"a.example": domain},
            "item_path": "items.jsonl", "request_path": "requests.jsonl", "cache_path": "",
            "cache_age": 0.0,
        },
    )  # fmt: skip


RUN = Run(
    spider="shop",
    reason="shutdown",
    elapsed=2.0,
    parts=[
        Part(1, "1", "stopped", True, report(5, 1.5)),
        Part(2, "2", "was killed by SIGKILL", False, report(3, 2.25)),
        Part(2, "2b", "stopped", True, report(2, 0.25, sinks=False)),
        Part(3, "3", "was killed by SIGKILL", False, Report()),
    ],
    dumped=7,
    notes=["something"],
)


def test_counts_are_sums() -> None:
    """Of every process, also one that was killed, or said nothing; time is that of the run."""
    record = merged_record(RUN)

    assert record["pages"] == 10
    assert record["statuses"] == {"200": 10}
    assert record["sinks"] == {"SqlitePipeline": {"books": {"stored": 5, "dumped": 1}}}
    assert record["domains"] == {"a.example": {"rests": 3, "seconds": 4.0, "circuits": 0}}
    assert record["requests_dumped"] == 3 + 7
    assert (record["schema"], record["spider"], record["reason"]) == (1, "shop", "shutdown")
    assert (record["elapsed"], record["rate"]) == (2.0, 5.0)
    assert [one["process"] for one in record["processes"]] == ["1", "2", "2b", "3"]
    assert [one["pages"] for one in record["processes"]] == [5, 3, 2, 0]
    assert [one["ok"] for one in record["processes"]] == [True, False, True, False]


def test_the_block_for_people() -> None:
    """It has the lines of one process's, with the sums, and one for each process."""
    lines = merged_lines(RUN)

    assert lines[0] == "Run summary of shop (shutdown), 3 processes"
    assert "  pages    10" in lines
    assert "  rests    3" in lines
    assert "    a.example: 3 rests, 4 s" in lines
    assert "  SqlitePipeline: rows 10 stored, 0 refused, 0 dumped" in lines
    assert any("10 requests in requests.jsonl" in line for line in lines)
    assert lines[-5:] == [
        "  process 1: 5 pages, stopped",
        "  ! process 2: 3 pages, was killed by SIGKILL",
        "  process 2b: 2 pages, stopped",
        "  ! process 3: 0 pages, was killed by SIGKILL",
        "  ! something",
    ]


def test_a_run_of_which_nothing_is_known() -> None:
    """Processes that were killed before they said anything leave a record all the same."""
    run = Run("shop", "process_failed", 1.0, [Part(1, "1", "failed", False, Report())])

    assert merged_record(run)["pages"] == 0
    assert merged_lines(run)[0] == "Run summary of shop (process_failed), 1 processes"
