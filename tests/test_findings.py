"""What is found in the stats of a run."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy.settings import Settings

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.findings import FINDINGS, findings
from netspy_scrapy.logs import bytes_text, counted, seconds_text
from netspy_scrapy.settings import WatchSettings

PAGES = {"response_received_count": 25}
STORED = {"netspy/rows/A/stored": 1}


def found(
    stats: dict[str, Any],
    reason: str = "finished",
    *,
    sink_failed: bool = False,
    expects_rows: bool = True,
) -> dict[str, int]:
    return findings(stats, reason, sink_failed=sink_failed, expects_rows=expects_rows)


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        ({**PAGES, **STORED}, {}),
        ({**PAGES}, {"nothing_stored": 25}),
        ({"netspy/failures": 7, "response_received_count": 3}, {"nothing_stored": 7}),
        ({}, {}),
        ({**PAGES, **STORED, "netspy/rows/A/dumped": 2, "netspy/rows/B/dumped": 1},
         {"rows_dumped": 3}),
        ({**PAGES, **STORED, "netspy/requests/dumped": 5, "netspy/requests/unfinished_dumped": 3},
         {"requests_failed": 2, "requests_unfinished": 3}),
        ({**PAGES, **STORED, "netspy/requests/lost": 1}, {"requests_lost": 1}),
        ({**PAGES, **STORED, "netspy/rows/A/lost": 4}, {"sink_failed": 4}),
    ],
)  # fmt: skip
def test_what_is_found(stats: dict[str, Any], expected: dict[str, int]) -> None:
    """Each finding has how many rows or requests it concerns."""
    assert found(stats) == expected


@pytest.mark.parametrize(
    "known",
    ["netspy/items/duplicate", "netspy/incremental/not_modified", "netspy/incremental/same_body",
     "netspy/incremental/fresh", "netspy/queue/done"],
)  # fmt: skip
def test_nothing_new_is_not_nothing_stored(known: str) -> None:
    """A run whose pages or items were known before, or one node of several, may store nothing."""
    assert found({**PAGES, known: 1}) == {}


@pytest.mark.parametrize(
    ("reason", "is_found"),
    [("finished", True), ("max_runtime", True), ("closespider_timeout", True),
     ("shutdown", False), ("stopped", False), ("nothing new today", False)],
)  # fmt: skip
def test_who_stops_a_run_early_need_not_have_rows(reason: str, *, is_found: bool) -> None:
    """A run that was stopped, or stopped itself, is not blamed for storing nothing."""
    assert ("nothing_stored" in found(PAGES, reason)) == is_found


def test_a_run_without_sinks_stores_nothing() -> None:
    """Where no sink expects rows none are missed."""
    assert found(PAGES, expects_rows=False) == {}


def test_a_sink_that_failed_is_found_though_its_rows_were_stored_in_the_end() -> None:
    """It stopped the crawl, and may have cost pages."""
    assert found({**PAGES, **STORED}, "sink_failed", sink_failed=True) == {"sink_failed": 0}


# Settings ----------------------------------------------------------------------------------------
def test_findings_that_fail_a_run() -> None:
    """NETSPY_FAIL_ON is a list, JSON, or text with commas; by default nothing stored."""

    def read(value: Any) -> frozenset[str]:
        return WatchSettings.from_settings(Settings({"NETSPY_FAIL_ON": value})).fail_on

    assert WatchSettings.from_settings(Settings()).fail_on == {"nothing_stored"}
    assert read(["rows_dumped", "requests_failed"]) == {"rows_dumped", "requests_failed"}
    assert read("rows_dumped, requests_lost") == {"rows_dumped", "requests_lost"}
    assert read("[]") == read([]) == frozenset()
    with pytest.raises(ConfigError, match=r"NETSPY_FAIL_ON.*expected some of sink_failed, noth"):
        read(["rows_dumpd"])
    assert read(list(FINDINGS)) == set(FINDINGS)


@pytest.mark.parametrize("port", [-1, 65_536, "http"])
def test_a_wrong_port(port: Any) -> None:
    """NETSPY_PROMETHEUS_PORT is a port."""
    with pytest.raises(ConfigError, match="NETSPY_PROMETHEUS_PORT"):
        WatchSettings.from_settings(Settings({"NETSPY_PROMETHEUS_PORT": port}))


# Words -------------------------------------------------------------------------------------------
def test_numbers_in_words() -> None:
    """One row is a row, and numbers stay readable."""
    assert [counted(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert counted(2, "batch", "batches") == "2 batches"
    assert [bytes_text(n) for n in (999, 1000, 490_300_000, 2_000_000_000)] == [
        "999 bytes", "1.0 KB", "490.3 MB", "2.0 GB",
    ]  # fmt: skip
    assert [seconds_text(n) for n in (0.0, 1.2345, 999.4, 86_400.0)] == [
        "0 s", "1.23 s", "999 s", "86400 s",
    ]  # fmt: skip
