"""robots.txt by origin: what it says, for how long, and who waits for it (RFC 9309)."""

from __future__ import annotations

import codecs
import logging
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protego import Protego
from scrapy import Request
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.httpobj import urlparse_cached

from netspy_scrapy import meta as metakeys
from netspy_scrapy import stats as keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.http import Response
    from scrapy.statscollectors import StatsCollector

    from netspy_scrapy.settings import RobotsSettings

logger = logging.getLogger(__name__)

#: Bytes that are parsed; RFC 9309 2.5 asks for 500 KiB at least.
MAX_PARSED = 1024 * 1024
#: Bytes of a robots.txt that are downloaded, whatever limit other answers have.
MAX_SIZE = 10 * 1024 * 1024
#: Seconds of the longest Crawl-delay that is kept to; a longer one is cut to this.
CRAWL_DELAY_MAX = 300.0
#: Seconds after which a robots.txt that could not be read is asked for again.
ERROR_TTL = 60.0
#: Rules that are read: lines, times the user agents that they stand for. (A megabyte can name
#: 35,000 agents and give 50,000 rules to each, which would fill any memory.)
MAX_RULES = 250_000
#: Rules with a wildcard that are read; every page of the origin is held against each of them.
MAX_PATTERNS = 10_000
#: Lines of all robots.txt files that are kept (about 300 bytes of memory each); the oldest file
#: goes, and is fetched again when it is needed.
MAX_LINES = 300_000
#: Seconds for which "last_good" remembers rules that are old.
LAST_GOOD = 86_400.0
#: Origins from which on those whose rules are old are forgotten.
_KEPT = 1000
#: Redirects that are followed (RFC 9309 2.3.1.2).
_REDIRECTS = 5

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# As Protego reads them: the colon may be missing.
_AGENT = re.compile(r"user[-\s]*agent\b", re.IGNORECASE)
_RULE = re.compile(r"(dis)?allow\s*:", re.IGNORECASE)
_CRAWL_DELAY = re.compile(r"crawl(?:-|\s+)delay\s*[:\s]\s*(.*)", re.IGNORECASE)
_DELAY_VALUE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


@dataclass
class Rules:
    """What is known of one origin's robots.txt."""

    parser: Protego | None
    """None: everything is allowed, or nothing is (see *allowed*)."""
    allowed: bool
    expires: float
    """Time of the clock; infinite: never."""
    agent: str = "*"
    """The User-Agent that asked for it, if it said one."""
    lines: int = 1
    """What they take of MAX_LINES."""

    def allows(self, url: str, agent: str) -> bool:
        """Tell whether *agent* may fetch *url*."""
        return self.allowed if self.parser is None else bool(self.parser.can_fetch(url, agent))


class Robots:
    """The robots.txt of every origin (scheme, host and port) that the crawl came across."""

    def __init__(
        self, settings: RobotsSettings, stats: StatsCollector, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._stats = stats
        self._clock = clock
        self._rules: dict[str, Rules] = {}
        self._warned: set[str] = set()
        self._full = _KEPT
        self._lines = 0
        self.pending: dict[str, Request] = {}
        """Origins whose robots.txt is being fetched, each with the request that does."""

    def rules_of(self, origin: str) -> Rules | None:
        """Return the rules of *origin*; None: they have to be fetched."""
        rules = self._rules.get(origin)
        return None if rules is None or rules.expires <= self._clock() else rules

    def knows(self, origin: str) -> bool:
        """Tell whether there are rules of *origin*, be they old."""
        return origin in self._rules

    def request(self, origin: str) -> Request:
        """Return the request that fetches the robots.txt of *origin*."""
        self._stats.inc_value(keys.ROBOTS_FETCHED)
        request = self.pending[origin] = Request(
            f"{origin}/robots.txt",
            callback=NO_CALLBACK,
            dont_filter=True,
            meta={
                metakeys.ROBOTS: origin,
                "dont_retry": True,
                "dont_obey_robotstxt": True,
                "download_maxsize": MAX_SIZE,
                "redirect_ttl": _REDIRECTS,
            },
        )
        return request

    def learn(self, origin: str, response: Response) -> None:
        """Take in the answer to :meth:`request`. The body of an error is never read as rules."""
        status = response.status
        if 200 <= status < 300:  # noqa: PLR2004
            text, left_out = readable(decode(response.body))
            if left_out:
                logger.warning(
                    "robots.txt of %s has too many rules: the last %d lines do not count",
                    origin, left_out,
                )  # fmt: skip
            lines = text.count("\n") + 1
            parser = Protego.parse(text)
            self._set(origin, Rules(parser, allowed=True, expires=self._expiry(), lines=lines))
        elif 400 <= status < 500:  # noqa: PLR2004
            self._set(origin, Rules(None, allowed=True, expires=self._expiry()))
        else:
            self.learn_error(origin, f"HTTP status {status}")

    def learn_error(self, origin: str, reason: str) -> None:
        """Take in that robots.txt could not be read: NETSPY_ROBOTS_ON_ERROR says what holds."""
        self._stats.inc_value(keys.ROBOTS_ERRORS)
        policy = self._settings.on_error
        last = self._rules.get(origin)
        expires = self._clock() + ERROR_TTL
        if policy == "last_good" and last is not None:
            rules = Rules(last.parser, last.allowed, expires, last.agent, last.lines)
        else:
            rules = Rules(None, allowed=policy != "disallow", expires=expires)
        if origin not in self._warned:
            self._warned.add(origin)
            logger.warning(
                "robots.txt of %s cannot be read (%s): %s until it can (NETSPY_ROBOTS_ON_ERROR)",
                origin, reason, "allowed" if rules.allowed else "disallowed",
            )  # fmt: skip
        self._set(origin, rules)

    def allows(self, origin: str, url: str, agent: str | bytes | None) -> bool:
        """Tell whether the rules of *origin* let *agent* fetch *url*."""
        rules = self._rules.get(origin)
        return rules is None or rules.allows(
            url, self._settings.user_agent or _name(agent or self._settings.default_agent)
        )

    def crawl_delay(self, origin: str) -> float:
        """Return the seconds that the origin's Crawl-delay asks for, cut to CRAWL_DELAY_MAX."""
        rules = self._rules.get(origin)
        if rules is None or rules.parser is None:
            return 0.0
        delay = rules.parser.crawl_delay(self._settings.user_agent or rules.agent)
        if delay is None or not math.isfinite(delay) or delay <= 0:
            return 0.0
        if delay > CRAWL_DELAY_MAX:
            logger.warning(
                "%s asks for a Crawl-delay of %g s: %g s are kept to", origin, delay,
                CRAWL_DELAY_MAX,
            )  # fmt: skip
            return CRAWL_DELAY_MAX
        return float(delay)

    def _expiry(self) -> float:
        ttl = self._settings.cache_ttl
        return self._clock() + ttl if ttl > 0 else math.inf

    def _set(self, origin: str, rules: Rules) -> None:
        if len(self._rules) >= self._full and origin not in self._rules:
            self._forget_old()
        self._drop(origin)
        self._rules[origin] = rules
        self._lines += rules.lines
        while self._lines > MAX_LINES and len(self._rules) > 1:
            self._drop(next(iter(self._rules)))
        request = self.pending.pop(origin, None)
        if request is not None:  # the downloader has written its User-Agent into it
            agent = request.headers.get(b"User-Agent") or self._settings.default_agent
            rules.agent = _name(agent)

    def _drop(self, origin: str) -> None:
        rules = self._rules.pop(origin, None)
        if rules is not None:
            self._lines -= rules.lines

    def _forget_old(self) -> None:
        """Forget what is old, and do so again once there is twice as much as is left."""
        until = self._clock()
        if self._settings.on_error == "last_good":
            until -= LAST_GOOD
        for origin in [one for one, rules in self._rules.items() if rules.expires <= until]:
            self._drop(origin)
        self._warned &= self._rules.keys()
        self._full = max(_KEPT, 2 * len(self._rules))


def origin_of(request: Request) -> str:
    """Return scheme, host and port of a request's URL."""
    parts = urlparse_cached(request)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def decode(body: bytes) -> str:
    """Return the text of a robots.txt: UTF-8, what its BOM says, else Latin-1.

    Of a body that is too long only whole lines count: half of one could forbid the whole site.
    """
    is_whole = len(body) <= MAX_PARSED
    body = body[:MAX_PARSED]
    encoding = next((name for bom, name in _BOMS if body.startswith(bom)), None)
    decoder = codecs.getincrementaldecoder(encoding or "utf-8")("replace" if encoding else "strict")
    try:
        text = decoder.decode(body, is_whole)
    except UnicodeDecodeError:
        text = body.decode("latin-1")
    return text if is_whole else text[: max(text.rfind("\n"), text.rfind("\r")) + 1]


def readable(text: str) -> tuple[str, int]:
    """Return the lines of *text* that count, and how many are left out at its end.

    A Crawl-delay that is no plain number does not count, nor what comes after MAX_RULES or
    MAX_PATTERNS.
    """
    lines = text.splitlines()
    kept: list[str] = []
    agents = rules = patterns = 0
    in_rules = False
    for number, line in enumerate(lines):
        directive = line.partition("#")[0].strip()
        if not directive:
            continue
        if _AGENT.match(directive):
            agents = 1 if in_rules else agents + 1
            in_rules = False
            rules += agents >> 4  # it is looked up among those before it
        else:
            delay = _CRAWL_DELAY.match(directive)
            if delay is not None and not _DELAY_VALUE.fullmatch(delay[1]):
                directive = "Crawl-delay:"  # without its line two groups could become one
            in_rules = in_rules or _RULE.match(directive) is not None
            rules += agents
            patterns += "*" in directive or "$" in directive
        if rules > MAX_RULES or patterns > MAX_PATTERNS:
            return "\n".join(kept), len(lines) - number
        kept.append(directive)
    return "\n".join(kept), 0


def _name(agent: str | bytes | None) -> str:
    return (agent.decode("latin-1") if isinstance(agent, bytes) else agent) or "*"
