"""What the sites of the start URLs allow, and how fast they would be crawled.

Only robots.txt is fetched (and where it redirects to, as the crawl would). What it means is left
to the objects that decide it in a crawl.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    build_opener,
)
from urllib.request import Request as UrllibRequest

import scrapy
from scrapy import Request
from scrapy.http import Response
from scrapy.spiders import SitemapSpider
from scrapy.statscollectors import DummyStatsCollector

from netspy_scrapy.context import CrawlContext
from netspy_scrapy.domains import Pace, domain_of
from netspy_scrapy.downloadermiddlewares.robots import RobotsMiddleware
from netspy_scrapy.exceptions import RobotsDeniedError
from netspy_scrapy.http.agents import USER_AGENTS
from netspy_scrapy.policies import slot_of
from netspy_scrapy.robots import CRAWL_DELAY_MAX, MAX_SIZE, Robots, origin_of
from netspy_scrapy.settings import PolitenessSettings, RobotsSettings, deciding
from netspy_scrapy.spiders.air import AirSpider

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy import Spider
    from scrapy.settings import BaseSettings

    from netspy_scrapy.commands.diagnosis import Diagnosis

#: Origins that are asked; a project may have a list of thousands.
MOST_ORIGINS = 50
#: URLs of an origin that are named one by one.
_MOST_URLS = 10
#: Redirects of a robots.txt that are followed (RFC 9309 2.3.1.2), as in a crawl.
_REDIRECTS = 5
_MOVED = frozenset({301, 302, 303, 307, 308})
_CHUNK = 64 * 1024
_HOUR = 3600.0
_MILLION = 1_000_000
_FETCHED = ("http://", "https://")


# Start URLs ------------------------------------------------------------------------------------
@dataclass
class Start:
    """The first requests of a spider to web sites, as far as its class tells them."""

    urls: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, spider: type[Spider], given: Sequence[str]) -> Start:
        """Read the start URLs of a class without running anything of it."""
        start = cls()
        maker = _maker(spider)
        by_sitemap = not maker and issubclass(spider, SitemapSpider)
        attribute = "sitemap_urls" if by_sitemap else "start_urls"
        urls = list(start._listed(attribute, getattr(spider, attribute, None)))
        if not given and maker:
            start.hints.append(f"The start URLs are made by {maker}(): give --url URL.")
        elif not given and not urls:
            start.hints.append(f"{attribute} of the class is empty: give --url URL.")
        sites = [url for url in urls if url.startswith(_FETCHED)]
        if len(sites) < len(urls):
            others = len(urls) - len(sites)
            start.hints.append(f"{others} of the {len(urls)} start URLs are not of a web site.")
        start.urls = list(dict.fromkeys([*sites, *given]))
        return start

    def _listed(self, attribute: str, value: Any) -> Iterator[str]:
        """Yield the URLs of an attribute that requests can be made of."""
        if isinstance(value, str):
            self.faults.append(f"{attribute} = {value!r} cannot be used: expected a list of URLs")
        elif isinstance(value, (list, tuple, set, frozenset)):
            for url in value:
                why = unusable(url)
                if why:
                    self.faults.append(f"{attribute}: {url!r} cannot be used: {why}")
                else:
                    yield url


def _maker(spider: type[Spider]) -> str:
    """Return the method of the spider's own that makes its first requests, or nothing."""
    names = ["start"]
    if issubclass(spider, AirSpider) or hasattr(scrapy.Spider, "start_requests"):
        names.append("start_requests")
    for base in spider.__mro__:
        if base.__module__.partition(".")[0] in {"scrapy", "netspy_scrapy", "builtins"}:
            continue
        for name in names:
            # A netspy spider without a start() of its own has AirSpider's in its class too.
            if vars(base).get(name, AirSpider.start) is not AirSpider.start:
                return name
    return ""


def unusable(url: Any) -> str:
    """Return why no request can be made of *url*; empty: it can."""
    try:
        Request(url)
    except (TypeError, ValueError) as exc:
        return str(exc)
    return ""


# Fetching robots.txt ---------------------------------------------------------------------------
class Wish(NamedTuple):
    """A robots.txt that is to be fetched, and how."""

    origin: str
    agent: str
    verifies: bool
    """Whether certificates are checked."""
    redirects: bool
    """Whether redirects are followed."""
    proxies: bool
    """Whether the proxies of the environment are used."""

    @classmethod
    def of(cls, origin: str, spider: type[Spider], settings: BaseSettings) -> Wish:
        """Fetch it as the crawl would."""
        return cls(
            origin,
            user_agent(spider, settings),
            settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES"),
            settings.getbool("REDIRECT_ENABLED"),
            settings.getbool("HTTPPROXY_ENABLED", True),
        )


@dataclass(frozen=True)
class Answer:
    """What came of a robots.txt."""

    status: int = 0
    """0: there was no answer."""
    body: bytes = b""
    seconds: float = 0.0
    """From the start of the last attempt to its headers."""
    error: str = ""
    """Why there is nothing to read, as a sentence; empty: there is."""


Answers = dict[Wish, Answer]


def user_agent(spider: type[Spider], settings: BaseSettings) -> str:
    """Return the User-Agent of the requests that say nothing of it."""
    headers = settings.getdict("DEFAULT_REQUEST_HEADERS")
    given = next((value for name, value in headers.items() if str(name).lower() == "user-agent"), 0)
    return str(given or getattr(spider, "user_agent", None) or settings["USER_AGENT"] or "")


def origins_of(found: Iterable[Diagnosis]) -> list[Wish]:
    """Return each robots.txt that is worth fetching, once."""
    wishes = {
        Wish.of(origin, one.spider, one.settings): None
        for one in found
        for origin in _by_origin(one.start.urls)
    }
    return list(wishes)[:MOST_ORIGINS]


def ask(wishes: Sequence[Wish], timeout: float) -> Answers:
    """Fetch all of them at once; none takes longer than *timeout* seconds."""
    answers: Answers = {}

    def fetch(wish: Wish) -> None:
        answers[wish] = _fetch(wish, timeout)

    # A thread that hangs (in a look-up, or in headers that drip) must not hold up the process.
    threads = [threading.Thread(target=fetch, args=[wish], daemon=True) for wish in wishes]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = Answer(error=_unreachable(TimeoutError(), timeout))
    return {wish: answers.get(wish, late) for wish in wishes}


def _fetch(wish: Wish, timeout: float) -> Answer:
    opener = _opener(wish)
    url = f"{wish.origin}/robots.txt"
    try:
        for left in range(_REDIRECTS if wish.redirects else 0, -1, -1):
            begin = time.monotonic()
            answer = _open(opener, url, wish.agent, timeout)
            seconds = time.monotonic() - begin
            with answer:
                status = int(answer.status)
                target = answer.headers.get("Location")
                if status in _MOVED and target and wish.redirects:
                    url = urljoin(url, target)
                    if left and url.startswith(_FETCHED):
                        continue
                    return Answer(error=f"it is redirected too often, at last to {url}")
                body = _body(answer) if 200 <= status < 300 else b""  # noqa: PLR2004
                return Answer(status, body, seconds)
    except OSError as exc:
        return Answer(error=_unreachable(exc, timeout))
    except (http.client.HTTPException, ValueError, zlib.error) as exc:
        return Answer(error=f"it cannot be read: {exc or type(exc).__name__}")
    raise AssertionError  # pragma: no cover - the loop returns


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_args: Any) -> None:
        """Leave it to the caller, who counts."""


def _opener(wish: Wish) -> OpenerDirector:
    context = ssl.create_default_context()
    if not wish.verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    proxies = ProxyHandler() if wish.proxies else ProxyHandler({})
    return build_opener(proxies, HTTPSHandler(context=context), _NoRedirect())


def _open(opener: OpenerDirector, url: str, agent: str, timeout: float) -> Any:
    request = UrllibRequest(url, headers={"User-Agent": agent} if agent else {})  # noqa: S310
    try:
        return opener.open(request, timeout=timeout)
    except HTTPError as answer:
        return answer


def _body(answer: Any) -> bytes:
    body = bytearray()
    while chunk := answer.read(_CHUNK):
        body += chunk
        if len(body) > MAX_SIZE:
            raise ValueError(f"it is larger than {MAX_SIZE:,} bytes")
    if answer.length:
        raise http.client.IncompleteRead(bytes(body), answer.length)
    if answer.headers.get("Content-Encoding", "").lower() in {"gzip", "x-gzip"}:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(bytes(body), MAX_SIZE)
    return bytes(body)


def _unreachable(exc: OSError, timeout: float) -> str:
    cause = exc.reason if isinstance(exc, URLError) else exc
    reason = str(cause) or type(cause).__name__
    if isinstance(cause, TimeoutError):
        reason = f"no answer within {timeout:g} s"
    elif isinstance(cause, OSError) and cause.strerror and not isinstance(cause, ssl.SSLError):
        reason = cause.strerror
    return f"the site cannot be reached: {reason}"


# What it means ---------------------------------------------------------------------------------
class SiteReport(NamedTuple):
    """What is to be said of one origin."""

    origin: str
    pairs: list[tuple[str, str]]


def site_reports(found: Diagnosis, answers: Answers | None) -> Iterator[SiteReport]:
    """Judge the start URLs of a spider by origin; *answers* is None without the network."""
    crawl = _Crawl(found)
    for origin, urls in _by_origin(found.start.urls).items():
        if answers is None:
            answer: Answer | str = "not asked (--no-network)"
        else:
            wish = Wish.of(origin, found.spider, found.settings)
            answer = answers.get(wish, f"not asked: {MOST_ORIGINS} others were")
        yield SiteReport(origin, list(_Site(crawl, origin, urls, answer).pairs()))


def _by_origin(urls: Iterable[str]) -> dict[str, list[str]]:
    origins: dict[str, list[str]] = {}
    for url in urls:
        origins.setdefault(origin_of(Request(url)), []).append(url)
    return origins


class _Crawl:
    """The parts of a crawl that judge its requests; it never starts."""

    def __init__(self, found: Diagnosis) -> None:
        assert found.crawler is not None
        self.crawler = found.crawler
        self.settings = found.settings
        self.polite = PolitenessSettings.from_settings(found.settings)
        self.robots = RobotsSettings.from_settings(found.settings)
        self.politeness = CrawlContext.of(found.crawler).politeness
        self.agent = user_agent(found.spider, found.settings)
        self.headers: dict[str, str] = {}
        """Those that a request has when robots.txt is considered."""
        if found.draws_agent:
            self.agent = self.headers["User-Agent"] = USER_AGENTS[0]
        self.middleware: RobotsMiddleware | None = None
        if self.politeness.robots is not None and found.judges_robots:
            self.middleware = RobotsMiddleware.from_crawler(found.crawler)


class _Site:
    """One origin of a crawl."""

    def __init__(self, crawl: _Crawl, origin: str, urls: list[str], answer: Answer | str) -> None:
        self._crawl = crawl
        self._settings = crawl.settings
        self._origin = origin
        self._domain = domain_of(origin)
        self._urls = urls
        self._answer = answer
        """What came of its robots.txt, or why it was not asked."""
        self._obeys = crawl.middleware is not None and crawl.politeness.obeys_robots(
            Request(urls[0])
        )

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield what is to be said, as names and texts."""
        if isinstance(self._answer, str):
            yield "robots.txt", self._answer
        else:
            yield from self._verdicts(self._answer)
        state = self._crawl.politeness.registry.get(self._domain)
        pace, asked = state.pace, state.crawl_delay
        yield "delay", self._delay(pace, asked)
        total = self._settings.getint("CONCURRENT_REQUESTS")
        most = min(pace.concurrency or total, total)
        source = "CONCURRENT_REQUESTS"
        if most == pace.concurrency:
            source = self._source("concurrency", "CONCURRENT_REQUESTS_PER_DOMAIN")
        yield "at once", f"{most} ({source})"
        latency = self._answer.seconds if isinstance(self._answer, Answer) else 0.0
        throttle = 0.0
        if self._settings.getbool("AUTOTHROTTLE_ENABLED"):
            throttle = self._settings.getfloat("AUTOTHROTTLE_TARGET_CONCURRENCY")
        yield "pages per hour", pages_per_hour(mean_gap(pace, asked), most, latency, throttle)

    # robots.txt ----------------------------------------------------------------------------------
    def _verdicts(self, answer: Answer) -> Iterator[tuple[str, str]]:
        yield "robots.txt", self._text(answer)
        if not self._obeys:
            name = deciding(self._settings, "ROBOTS_OBEY")
            yield "", f"not obeyed ({name}), so every URL is fetched; if it were:"
        robots = self._learn(answer)
        forbidden = [url for url in self._urls if not self._allows(robots, url)]
        allowed = [url for url in self._urls if url not in forbidden]
        for name, urls in ("forbidden", forbidden), ("allowed", allowed):
            for url in urls[:_MOST_URLS]:
                yield name, url
            if len(urls) > _MOST_URLS:
                yield "", f"and {len(urls) - _MOST_URLS} more"

    def _learn(self, answer: Answer) -> Robots:
        """Hand the answer to what judges by it; return that."""
        url = f"{self._origin}/robots.txt"
        politeness = self._crawl.politeness
        if self._obeys:
            if answer.error:
                politeness.learn_robots_error(self._origin, answer.error)
            else:
                response = Response(url, status=answer.status, body=answer.body)
                politeness.learn_robots(self._origin, response)
            assert politeness.robots is not None
            return politeness.robots
        stats = DummyStatsCollector(self._crawl.crawler)
        robots = Robots(self._crawl.robots, stats, time.monotonic)
        if answer.error:
            robots.learn_error(self._origin, answer.error)
        else:
            robots.learn(self._origin, Response(url, status=answer.status, body=answer.body))
        return robots

    def _allows(self, robots: Robots, url: str) -> bool:
        request = Request(url, headers=self._crawl.headers)
        if not self._obeys:
            return robots.allows(self._origin, request.url, self._crawl.agent)
        assert self._crawl.middleware is not None
        try:
            self._crawl.middleware.process_request(request)
        except RobotsDeniedError:
            return False
        return True

    def _text(self, answer: Answer) -> str:
        timed = f"{answer.status} in {answer.seconds:.3f} s"
        if 200 <= answer.status < 300:  # noqa: PLR2004
            return f"{timed}, {len(answer.body):,} bytes"
        if 400 <= answer.status < 500:  # noqa: PLR2004
            return f"{timed}: there is none, so every URL is allowed"
        text = answer.error or f"{timed}: it cannot be read"
        if self._obeys:
            held = "no URL is" if self._crawl.robots.on_error == "disallow" else "every URL is"
            text += f"; until it can, {held} allowed (NETSPY_ROBOTS_ON_ERROR)"
        return text

    # Speed ---------------------------------------------------------------------------------------
    def _delay(self, pace: Pace, asked: float) -> str:
        if asked and asked >= pace.delay:
            cut = ", cut to the longest" if asked >= CRAWL_DELAY_MAX else ""
            jitter = f", up to {100 * pace.jitter:g} % more" if pace.jitter else ""
            return f"{asked:g} s{jitter} (Crawl-delay of robots.txt{cut})"
        floor = f", never below its Crawl-delay of {asked:g} s" if asked else ""
        source = self._source("delay", "DOWNLOAD_DELAY")
        return f"{delay_text(pace.delay, pace.jitter)}{floor} ({source})"

    def _source(self, key: str, setting: str) -> str:
        """Return the setting that *key* of the domain's pace comes from."""
        if getattr(self._crawl.polite.policies.of(self._domain), key) is not None:
            return "NETSPY_DOMAIN_POLICIES"
        slots = self._crawl.polite.slots
        slot = slot_of(slots, self._domain)
        return "DOWNLOAD_SLOTS" if slot.get(key) is not None else setting


def mean_gap(pace: Pace, crawl_delay: float) -> float:
    """Return about how many seconds pass between two requests to a domain."""
    if crawl_delay and crawl_delay >= pace.delay:
        return crawl_delay * (1 + pace.jitter / 2)
    return pace.delay


def pages_per_hour(gap: float, most: int, latency: float, throttle: float) -> str:
    """Say how many pages an hour brings, as far as the site's pace decides.

    *gap* are the seconds between two requests, *most* those in flight at once, *latency* the
    seconds that one takes (0: not known), *throttle* what AutoThrottle aims at (0: it is off).
    """
    by_latency, how = latency / most, f"{most} at once"
    if throttle and latency / throttle > by_latency:
        by_latency, how = latency / throttle, "AutoThrottle"
    if gap and gap >= by_latency:
        return f"about {_number(_HOUR / gap)} (by the delay)"
    if not by_latency:
        return "unknown: no answer was timed"
    return (
        f"at most {_number(_HOUR / by_latency)} (estimate: {how}, robots.txt took {latency:.3f} s)"
    )


def delay_text(delay: float, jitter: float) -> str:
    """Return a delay for people."""
    if not delay:
        return "none"
    return f"{delay:g} s" + (f" +-{100 * jitter:g} %" if jitter else "")


def _number(value: float) -> str:
    """Return a number for people: three digits say enough."""
    return f"{float(f'{value:.3g}'):,g}" if value < _MILLION else f"{float(f'{value:.3g}'):,.0f}"
