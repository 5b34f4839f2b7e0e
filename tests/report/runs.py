"""Runs that never were, as the report is made of them."""

from __future__ import annotations

import math
import random
from collections import Counter
from datetime import datetime, timezone
from typing import Any

from netspy_scrapy.report.history import History
from netspy_scrapy.report.page import Report

BEGAN = datetime(2026, 12, 1, 9, 30, tzinfo=timezone.utc)


class Clock:
    """A clock that shows what it was set to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def record(**given: Any) -> dict[str, Any]:
    """Return the summary of a run for programs, of an empty one but for what is *given*."""
    empty: dict[str, Any] = {
        "spider": "books", "reason": "finished", "pages": 0, "bytes": 0, "retry": 0,
        "request_failed": 0, "dropped": 0, "items": 0, "dedup_dropped": 0, "item_dedup_dropped": 0,
        "cache_hits": 0, "retries": {}, "failures": {}, "drops": {}, "statuses": {}, "sinks": {},
        "domains": {}, "next_steps": [], "exit_status": 0,
    }  # fmt: skip
    return {**empty, **given}


def report(facts: dict[str, Any], history: History, seconds: float) -> Report:
    return Report(facts, history, BEGAN, seconds)


def empty() -> Report:
    """Return the report of a run that fetched nothing."""
    return report(record(), History(Clock()), 0.02)


class _Invented:
    """A run in which much goes wrong."""

    def __init__(self, domains: int) -> None:
        self.clock = Clock()
        self.history = History(self.clock)
        self.names = [f"shop-{n}.example" for n in range(domains)]
        self.rested: dict[str, dict[str, Any]] = {}
        self.counts: dict[str, Counter[str]] = {
            what: Counter() for what in ("retries", "failures", "drops", "statuses")
        }
        self.draw = random.Random(1)

    def page(self) -> None:
        draw, history, counts = self.draw, self.history, self.counts
        name = self.names[int(draw.random() ** 3 * len(self.names))]
        history.answered(name, draw.lognormvariate(-2.2, 0.8))
        counts["statuses"]["200"] += 1
        if draw.random() < 0.03:
            history.retried(name)
            cause = draw.choice(["503", "429", "TimeoutError"])
            counts["retries"][cause] += 1
            counts["statuses"][cause] += cause.isdigit()
        if draw.random() < 0.008:
            history.failed(name)
            counts["failures"][draw.choice(["404", "404", "500", "TimeoutError"])] += 1
        if draw.random() < 0.004:
            history.dropped(name)
            counts["drops"][draw.choice(["robots", "content_type"])] += 1
        if draw.random() < 0.012:
            causes = ("HTTP status 429, Retry-After: 5", "HTTP status 503, Retry-After: 9",
                      "TimeoutError, backoff")  # fmt: skip
            self.rest(name, draw.uniform(1, 15), draw.choice(causes))

    def rest(self, name: str, seconds: float, cause: str) -> None:
        self.history.rested(name, seconds, cause)
        facts = self.rested.setdefault(name, {"rests": 0, "seconds": 0.0, "circuits": 0})
        facts["rests"] += 1
        facts["seconds"] += seconds
        if cause == "circuit":
            self.history.circuit_opened(name, seconds)
            facts["circuits"] += 1

    def causes(self) -> dict[str, dict[str, int]]:
        """Return the counts by cause, as the summary has them: those above 0, the largest first."""
        return {what: dict((+causes).most_common()) for what, causes in self.counts.items()}


def busy(pages: int = 10_000, domains: int = 300, seconds: float = 420) -> Report:
    """Return the report of a run of so many pages, at a pace that goes up and down."""
    run = _Invented(domains)
    for n in range(pages):
        share = n / pages
        run.clock.now = seconds * (share - math.sin(share * 4 * math.pi) / 20)
        run.page()
    run.clock.now = 0.9 * seconds
    for name in run.names[:2]:
        run.rest(name, 60, "circuit")
    run.clock.now = seconds
    failures = run.counts["failures"].total()
    sinks = {
        "PostgresPipeline": {
            "books": {"stored": 8211}, "prices": {"stored": 7990, "refused": 12, "dumped": 12},
        },
        "CsvPipeline": {"books": {"stored": 8211}, "prices": {"stored": 8002}},
    }  # fmt: skip
    path = "/srv/crawl/failed_requests.jsonl"
    steps = [
        "12 rows in /srv/crawl/failed_items.jsonl: netspy-retry --items stores them",
        f"{failures} requests in {path}: netspy-retry --requests fetches them",
    ]
    facts = record(
        **run.causes(), retry=run.counts["retries"].total(), request_failed=failures,
        dropped=run.counts["drops"].total(), pages=pages, bytes=pages * 31_000, items=16_213,
        sinks=sinks, domains=run.rested, dedup_dropped=512, item_dedup_dropped=40,
        next_steps=steps,
    )  # fmt: skip
    return report(facts, run.history, seconds)
