"""``netspy-retry --requests``: failed requests, fetched again by the spiders that wanted them."""

from __future__ import annotations

import json
import logging
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import scrapy
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.exceptions import UsageError

from netspy_scrapy.commands.console import Console
from netspy_scrapy.commands.spiders import spiders_of_project
from netspy_scrapy.context import CrawlContext
from netspy_scrapy.dumps.files import DumpFile
from netspy_scrapy.logs import counted
from netspy_scrapy.receipts import Verdict
from netspy_scrapy.settings import read_text
from netspy_scrapy.spidermiddlewares.replay import ReplayOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy import Spider
    from scrapy.settings import Settings

    from netspy_scrapy.dumps.claims import ClaimedFile

_ADDON = "netspy_scrapy.Addon"
_LEFT = 1


class RequestCommand:
    """``--requests``: from the settings to the exit status.

    0: all were fetched and nothing is left; 1: some failed again, or were not done.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        path: str | None,
        spider: type[Spider] | None,
        reason: str,
        limit: int | None,
    ) -> None:
        self._settings = settings
        self._console = Console(settings, name)
        self._shown = path or read_text(settings, "FAILED_REQUEST_PATH")
        self._dump = DumpFile(self._shown)
        self._spider = spider
        self._reason = reason
        self._limit = limit
        self._verdicts: Counter[Verdict] = Counter()
        self._unusable: Counter[str] = Counter()

    def run(self) -> int:
        """Replay, and say what came of it."""
        if self._dump.path.exists() and (why := self._dump.check_writable()):
            raise UsageError(why, print_help=False)
        try:
            claimed = self._dump.claim()
        except OSError as exc:
            raise UsageError(
                f"{self._shown} cannot be read: {exc.strerror or exc}", print_help=False
            ) from exc
        if claimed is None:
            state = "is empty" if self._dump.path.exists() else "does not exist"
            self._console.conclude(f"nothing to replay: {self._shown} {state}")
            return 0
        with claimed:
            return self._replay(claimed)

    def _replay(self, claimed: ClaimedFile) -> int:
        names = Counter(line.get("spider") for line in _lines(claimed, self._reason))
        spiders = self._spiders(names)
        wanted = sum(count for name, count in names.items() if self._is_taken(name, spiders))
        total = wanted if self._limit is None else min(wanted, self._limit)
        self._console.begin(total, "requests")
        try:
            interrupted = self._crawl(spiders, claimed) if total else False
        finally:
            self._console.end()
        left = claimed.close()
        for why, count in self._unusable.items():
            self._console.say(f"{count} lines stay: {why}")
        self._console.conclude(self._summary(names, total, left))
        if interrupted:
            return 128 + signal.SIGINT
        return _LEFT if left or self._verdicts[Verdict.FAILED] else 0

    def _spiders(self, names: Counter[Any]) -> list[type[Spider]]:
        """Return the spiders that the lines need, as far as they are known here."""
        if self._spider is not None:
            return [self._spider]
        found = []
        for name in names:
            if name is None:
                self._console.say(f"{names[None]} lines name no spider: give it with --spider")
                continue
            try:
                found += spiders_of_project(self._settings, [name])
            except UsageError as exc:
                self._console.say(f"{names[name]} lines stay: {exc}; or give its file: --spider")
        return found

    def _is_taken(self, name: str | None, spiders: list[type[Spider]]) -> bool:
        return any(one.name == name for one in spiders) or (
            name is None and self._spider is not None
        )

    def _crawl(self, spiders: list[type[Spider]], claimed: ClaimedFile) -> bool:
        """Run the spiders side by side; tell whether Ctrl-C or SIGTERM ended them."""
        settings = self._settings.copy()
        # What is left over from another run of the spider is not what is asked for here.
        # The bar shows how far it is, and what is left decides the exit status.
        ours = {"NETSPY_PROGRESS": False, "NETSPY_FAIL_ON": []}
        path = {"JOBDIR": None, "FAILED_REQUEST_PATH": self._shown}
        settings.setdict({**path, **ours}, "cmdline")
        if not any(_ADDON in str(one) or "netspy_scrapy" in str(one) for one in settings["ADDONS"]):
            settings.set("ADDONS", {**settings.getdict("ADDONS"), _ADDON: 500}, "cmdline")
        process = AsyncCrawlerProcess(settings)
        crawlers = [process.create_crawler(cls) for cls in spiders]
        for crawler in crawlers:
            CrawlContext.of(crawler).replay_order = ReplayOrder(
                claimed=claimed,
                only=True,
                takes_unnamed=self._spider is not None,
                reason=self._reason,
                limit=self._limit,
                settled=self._settled,
                unusable=self._cannot_be_used,
            )
            process.crawl(crawler)
        process.start()
        reasons = [one.stats.get_value("finish_reason") for one in crawlers if one.stats]
        return "shutdown" in reasons

    def _settled(self, verdict: Verdict) -> None:
        self._verdicts[verdict] += 1
        self._console.advance(1)

    def _cannot_be_used(self, why: str) -> None:
        self._unusable[why] += 1

    def _summary(self, names: Counter[Any], total: int, left: int) -> str:
        if not names:
            return f"nothing to replay: {self._shown} has no line that is asked for"
        done, dropped, failed = (
            self._verdicts[one] for one in (Verdict.DONE, Verdict.DROPPED, Verdict.FAILED)
        )
        text = f"replayed {done + dropped + failed} of {counted(total, 'request')}: {done} done"
        if dropped:
            text += f", {dropped} dropped"
        if failed:
            text += f", {failed} failed again (new lines in {self._shown})"
        if left:
            text += f"; {counted(left, 'line')} left in {self._shown}"
        return text


class Probe:
    """``--requests --probe``: does each site of the dump answer? Nothing is replayed."""

    def __init__(self, settings: Settings, name: str, *, path: str | None, reason: str) -> None:
        self._settings = settings
        self._console = Console(settings, name)
        self._shown = path or read_text(settings, "FAILED_REQUEST_PATH")
        self._reason = reason

    def run(self) -> int:
        """Ask, and say what came; 1 if a site did not answer, or with an error of its own."""
        claimed = DumpFile(self._shown).claim()
        if claimed is None:
            self._console.conclude(f"nothing to ask: {self._shown} has no line")
            return 0
        with claimed:
            waiting: Counter[str] = Counter()
            urls: dict[str, str] = {}
            for line in _lines(claimed, self._reason):
                url = str(line.get("url"))
                site = urlsplit(url).netloc.rpartition("@")[2].lower()
                waiting[site] += 1
                urls.setdefault(site, url)
        answers: dict[str, str | int] = {}
        # A site without an answer is what the probe is to find: no traceback of its robots.txt.
        logging.getLogger(RobotsTxtMiddleware.__module__).setLevel(logging.CRITICAL)
        process = AsyncCrawlerProcess(self._settings_of_probe())
        process.crawl(_ProbeSpider, urls=urls, answers=answers)
        process.start()
        for site, count in waiting.most_common():
            answer = answers.get(site, "robots.txt forbids to ask")
            waits = counted(count, "request waits", "requests wait")
            self._console.conclude(f"{site}: {answer} ({waits})")
        well = [one for one in answers.values() if isinstance(one, int) and one < 500]  # noqa: PLR2004
        return 0 if len(well) == len(urls) else _LEFT

    def _settings_of_probe(self) -> Settings:
        settings = self._settings.copy()
        settings.setdict(
            {
                "JOBDIR": None, "ITEM_PIPELINES": {}, "SPIDER_MIDDLEWARES": {}, "FEEDS": {},
                "RETRY_ENABLED": False, "HTTPERROR_ALLOW_ALL": True, "LOG_LEVEL": "WARNING",
                "ADDONS": {},
            },
            "cmdline",
        )  # fmt: skip
        return settings


class _ProbeSpider(scrapy.Spider):
    """Fetches one page of each site."""

    name = "netspy_probe"
    urls: dict[str, str]
    answers: dict[str, str | int]

    async def start(self) -> Any:
        for site, url in self.urls.items():
            yield scrapy.Request(
                url, errback=self.no_answer, cb_kwargs={"site": site}, dont_filter=True
            )

    def parse(self, response: Any, site: str) -> None:
        self.answers[site] = response.status

    def no_answer(self, failure: Any) -> None:
        site = failure.request.cb_kwargs["site"]
        if not failure.check(scrapy.exceptions.IgnoreRequest):
            self.answers[site] = f"no answer, {failure.value.__class__.__name__}"


def _lines(claimed: ClaimedFile, reason: str) -> Iterator[dict[str, Any]]:
    """Yield the lines that are asked for, as plain JSON."""
    for _, text in claimed.lines():
        try:
            fields = json.loads(text.lstrip("\ufeff"))
        except (RecursionError, ValueError):
            continue
        if not reason or reason in f"{fields.get('status')} {fields.get('reason')}":
            yield fields
