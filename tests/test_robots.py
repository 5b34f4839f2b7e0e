from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protego import Protego
from scrapy import Request
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.statscollectors import MemoryStatsCollector

from netspy_scrapy import meta as metakeys
from netspy_scrapy import robots as module
from netspy_scrapy.robots import (
    CRAWL_DELAY_MAX,
    ERROR_TTL,
    MAX_PARSED,
    MAX_PATTERNS,
    MAX_RULES,
    Robots,
    decode,
    origin_of,
    readable,
)
from netspy_scrapy.settings import RobotsSettings

A = "http://a.example"
RULES = b"User-agent: *\nDisallow: /no\n"
DAY = 86_400.0


class World:
    """The robots.txt of a crawl, with a clock to set."""

    def __init__(self, *, agent="*", default=None, ttl=3600.0, on_error="allow") -> None:
        self.now = 1000.0
        self.stats = MemoryStatsCollector(SimpleNamespace(settings=Settings()))
        settings = Settings(
            {
                "ROBOTSTXT_USER_AGENT": agent,
                "USER_AGENT": default,
                "ROBOTS_CACHE_TTL": ttl,
                "NETSPY_ROBOTS_ON_ERROR": on_error,
            }
        )
        self.robots = Robots(RobotsSettings.from_settings(settings), self.stats, lambda: self.now)

    def learn(self, body=b"", *, status=200, origin=A) -> None:
        response = Response(f"{origin}/robots.txt", status=status, body=body)
        self.robots.learn(origin, response)

    def allows(self, path, *, origin=A, agent=None) -> bool:
        return self.robots.allows(origin, origin + path, agent)

    def is_known(self, origin=A) -> bool:
        return self.robots.rules_of(origin) is not None

    def delay(self, origin=A) -> float:
        return self.robots.crawl_delay(origin)


# Reading -----------------------------------------------------------------------------------------
TEXT = "User-agent: *\nDisallow: /é\n"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", ""),
        (TEXT.encode(), TEXT),
        (b"\xef\xbb\xbf" + TEXT.encode(), TEXT),
        (b"\xff\xfe" + TEXT.encode("utf-16-le"), TEXT),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), TEXT),
        (TEXT.encode("latin-1"), TEXT),
        (TEXT.replace("\n", "\r\n").encode(), TEXT.replace("\n", "\r\n")),
        (b"a\x00b\n", "a\x00b\n"),
        (b"\xef\xbb\xbf\xff", "\ufffd"),
        (b"\xff\xfea\x00b", "a\ufffd"),
        (b"\x00\xff\xfe garbage", "\x00ÿþ garbage"),
    ],
)
def test_the_text_of_a_body(body, text):
    """A BOM says the encoding; without one it is UTF-8, or else Latin-1, never an error."""
    assert decode(body) == text


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode(),
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("latin-1"),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r").encode(),
    ],
)
def test_rules_count_in_every_encoding(encode):
    """The first group counts behind a BOM too, and whatever ends the lines."""
    here = World()
    here.learn(encode(f"# caf\xe9\n{RULES.decode()}"))

    assert (here.allows("/no"), here.allows("/yes")) == (False, True)


def test_the_first_500_kib_count():
    """Rules that stand 500 KiB into the file are read (RFC 9309 2.5)."""
    here = World()
    filler = b"# " + b"x" * 98 + b"\n"
    here.learn(filler * (500 * 1024 // len(filler)) + RULES)

    assert not here.allows("/no")


@pytest.mark.parametrize(
    ("bom", "encoding"),
    [(b"", "utf-8"), (b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"", "latin-1")],
)
def test_a_line_cut_in_two_does_not_count(bom, encoding):
    """Where the file is cut, half a line forbids nothing, and the lines before it stay."""
    head = bom + "User-agent: *\nDisallow: /é\n".encode(encoding)
    half = "\nDisallow: /".encode(encoding)
    filler = "#".encode(encoding)
    room = MAX_PARSED - len(head) - len(half)
    body = head + filler * (room // len(filler)) + half + "private\n".encode(encoding) * 2
    here = World()
    here.learn(body)

    assert decode(body).rstrip("#\n") == "User-agent: *\nDisallow: /é"
    assert (here.allows("/é"), here.allows("/page")) == (False, True)


def test_a_cut_inside_a_character():
    """A file that is cut in the middle of a character is still read as UTF-8."""
    body = "Disallow: /é\n".encode()
    body += b"#" * (MAX_PARSED - len(body) - 1) + "é".encode()

    assert decode(body) == "Disallow: /é\n"


@given(st.binary(max_size=300), st.text(max_size=30))
def test_any_body_is_read(body, path):
    """No body and no path of a page is an error."""
    here = World()
    here.learn(b"User-agent: *\n" + body)
    url = Request(f"{A}/{path}").url

    assert here.robots.allows(A, url, "bot") in (True, False)
    assert 0 <= here.delay() <= CRAWL_DELAY_MAX


LINES = st.sampled_from(
    [
        "User-agent: *", "user-agent: bot", "useragent bot", "User-agent: other # x", "",
        "Disallow: /a", "Disallow: /a*c$", "Allow: /a/b", "Disallow:", "Allow: /*", "# words here",
        "Sitemap: http://a.example/s.xml", "Host: a.example", "Crawl-delay: 5", "Crawl-delay 7",
        "Noindex: /a", "nonsense", "  Disallow : /a/b/c", "Crawl-delay:", "User-agent:",
        "Crawl-delay: 10s", "Crawl delay: -1",
    ]
)  # fmt: skip
URLS = [f"{A}{path}" for path in ("/", "/a", "/a/b", "/a/b/c", "/abc", "/b")]


@given(st.lists(LINES, max_size=25), st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\u2028"]))
def test_leaving_lines_out_changes_no_verdict(lines, end):
    """What is left out beforehand (comments, Crawl-delays that do not count) decides nothing."""
    text = end.join(lines)
    whole, kept = Protego.parse(text), Protego.parse(readable(text)[0])

    for agent in ("bot", "somebody", "other"):
        verdicts = [kept.can_fetch(url, agent) for url in URLS]
        assert verdicts == [whole.can_fetch(url, agent) for url in URLS]
        assert kept.crawl_delay(agent) == whole.crawl_delay(agent)


def test_a_crawl_delay_that_does_not_count_ends_its_group():
    """What is forbidden to another agent is not forbidden to all because a line is left out."""
    here = World()
    here.learn(b"User-agent: *\nCrawl-delay: 10s\nUser-agent: bad\nDisallow: /\n")

    assert here.allows("/yes")


# Crawl-delay -------------------------------------------------------------------------------------
@pytest.mark.parametrize("line", ["Crawl-delay: {}", "crawl-DELAY:{}  # why", "Crawl delay {}"])
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("10", 10), ("0.5", 0.5), ("007", 7), ("300", 300), ("0", 0), ("0.0", 0),
        ("-1", 0), ("nan", 0), ("inf", 0), ("Infinity", 0), ("1,5", 0), ("10s", 0), ("", 0),
        ("\u0661\u0660", 0), ("1e3", 0), ("1_0", 0), ("+5", 0), ("5 6", 0), ("9" * 40, 0),
        ("1.5.2", 0), ("²", 0), ("0x10", 0),
    ],
)  # fmt: skip
def test_crawl_delays(line, value, seconds):
    """A plain number of seconds counts; anything else is as good as not there."""
    here = World()
    here.learn(f"User-agent: *\n{line.format(value)}\nDisallow: /no\n".encode())

    assert here.delay() == seconds
    # The lines around it stay.
    assert (here.allows("/no"), here.allows("/yes")) == (False, True)


def test_a_day_long_crawl_delay_is_capped(caplog):
    """A Crawl-delay of a day is cut to CRAWL_DELAY_MAX, with a warning that says so."""
    here = World()
    here.learn(b"User-agent: *\nCrawl-delay: 86400\n")

    assert here.delay() == CRAWL_DELAY_MAX
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", f"{A} asks for a Crawl-delay of 86400 s: 300 s are kept to")
    ]


@pytest.mark.parametrize(
    ("configured", "default", "asked_as", "seconds"),
    [
        ("*", "bot", "bot/1.0", 3),
        ("bot", None, "other/1.0", 9),
        ("bot/2.0 (+http://x)", None, None, 9),
        (None, "other", "bot/1.0", 9),
        (None, "other", b"Mozilla/5.0 (compatible; bot/1.0)", 9),
        (None, "bot", "other/1.0", 3),
        (None, "bot", None, 9),
        (None, None, None, 3),
    ],
)
def test_the_crawl_delay_is_that_of_the_crawls_group(configured, default, asked_as, seconds):
    """ROBOTS_USER_AGENT decides the group, or else the User-Agent that fetched robots.txt."""
    here = World(agent=configured, default=default)
    request = here.robots.request(A)
    if asked_as is not None:
        request.headers["User-Agent"] = asked_as
    here.learn(b"User-agent: *\nCrawl-delay: 3\nUser-agent: bot\nCrawl-delay: 9\n")

    assert here.delay() == seconds


def test_no_rules_no_crawl_delay():
    """An origin that is not known, and one without a robots.txt, ask for no delay."""
    here = World()
    before = here.delay()
    here.learn(status=404)

    assert (before, here.delay()) == (0.0, 0.0)


# What an answer means ----------------------------------------------------------------------------
UNTIL = "until it can (NETSPY_ROBOTS_ON_ERROR)"
ERRORS = [500, 503, 599, 301, 304]


@pytest.mark.parametrize("status", [200, 203, 299])
def test_2xx_are_rules(status):
    """A body counts with any 2xx."""
    here = World()
    here.learn(RULES, status=status)

    assert not here.allows("/no")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 429, 451])
@pytest.mark.parametrize("on_error", ["allow", "disallow", "last_good"])
def test_4xx_allow_all(status, on_error, caplog):
    """4xx is no robots.txt: all is allowed for the whole TTL, without a warning."""
    here = World(on_error=on_error)
    here.learn(RULES, status=status)
    here.now += 3599

    assert here.allows("/no")
    assert here.is_known()
    assert caplog.records == []
    assert "netspy/robots/errors" not in here.stats.get_stats()


@pytest.mark.parametrize("status", ERRORS)
@pytest.mark.parametrize(
    ("on_error", "allowed", "word"),
    [("allow", True, "allowed"), ("disallow", False, "disallowed"), ("last_good", True, "allowed")],
)
def test_errors(status, on_error, allowed, word, caplog):
    """An error page is never read as rules: NETSPY_ROBOTS_ON_ERROR decides, said once an origin."""
    here = World(on_error=on_error)
    for _ in range(3):
        here.learn(b"User-agent: *\nDisallow: /\nCrawl-delay: 5\n", status=status)

    assert here.allows("/yes") is allowed
    assert here.delay() == 0
    assert here.stats.get_value("netspy/robots/errors") == 3
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", f"robots.txt of {A} cannot be read (HTTP status {status}): {word} {UNTIL}")
    ]


@pytest.mark.parametrize(
    ("on_error", "no", "yes", "delay"),
    [("allow", True, True, 0), ("disallow", False, False, 0), ("last_good", False, True, 5)],
)
def test_errors_after_rules_were_known(on_error, no, yes, delay):
    """With last_good the rules of before hold on, error after error; the others forget them."""
    here = World(on_error=on_error)
    here.learn(RULES + b"Crawl-delay: 5\n")
    here.now += 2 * DAY
    here.robots.learn_error(A, "TimeoutError")
    here.now += 2 * ERROR_TTL
    here.learn(status=503)

    assert (here.allows("/no"), here.allows("/yes"), here.delay()) == (no, yes, delay)


def test_last_good_keeps_the_agent():
    """With last_good the Crawl-delay stays that of the same group."""
    here = World(agent=None, on_error="last_good")
    here.robots.request(A).headers["User-Agent"] = "bot"
    here.learn(b"User-agent: *\nCrawl-delay: 3\nUser-agent: bot\nCrawl-delay: 9\n")
    here.robots.learn_error(A, "TimeoutError")

    assert here.delay() == 9


# For how long ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ttl", "status", "lasts"),
    [
        (3600, 200, 3600), (3600, 404, 3600), (3600, 503, ERROR_TTL),
        (10, 200, 10), (10, 503, ERROR_TTL), (0, 503, ERROR_TTL),
        (0, 200, None), (0, 404, None),
    ],
)  # fmt: skip
def test_how_long_an_answer_holds(ttl, status, lasts):
    """Answers hold for ROBOTS_CACHE_TTL, 0 for the whole run, and errors for a short time only."""
    here = World(ttl=ttl)
    here.learn(RULES, status=status)
    here.now += 1000 * DAY if lasts is None else lasts - 1
    held = here.is_known()
    here.now += 1

    assert held
    assert here.is_known() is (lasts is None)


def test_rules_that_expired_judge_until_new_ones_come():
    """A page that was handed out in time is judged by the rules of then."""
    here = World(ttl=10)
    here.learn(RULES)
    here.now += 11

    assert not here.is_known()
    assert not here.allows("/no")


@pytest.mark.parametrize(
    ("on_error", "most"), [("allow", 2500), ("disallow", 2500), ("last_good", 60_000)]
)
def test_old_rules_are_forgotten(on_error, most):
    """Memory holds the rules of the last TTL, and with last_good those of the last day."""
    here = World(ttl=3600, on_error=on_error)
    kept = []
    for n in range(40_000 if on_error == "last_good" else 8_000):
        here.now += 4
        here.learn(status=404, origin=f"http://{n}.example")
        kept.append(len(here.robots._rules))

    assert 1000 <= max(kept) <= most
    assert kept[-1] < 40_000
    assert here.is_known(f"http://{n - 800}.example")
    assert here.robots.knows(f"http://{n - 800}.example")
    assert not here.robots.knows("http://0.example")


def test_many_long_files_do_not_fill_the_memory(monkeypatch):
    """Only so many lines of robots.txt are kept; the oldest file is fetched again when needed."""
    monkeypatch.setattr("netspy_scrapy.robots.MAX_LINES", 1000)
    here = World(ttl=3600)
    text = b"User-agent: *\n" + b"".join(b"Disallow: /%d\n" % n for n in range(99))
    for n in range(25):
        here.learn(text, origin=f"http://{n}.example")
        here.learn(text, origin="http://again.example")

    known = [n for n in range(25) if here.is_known(f"http://{n}.example")]
    assert known == list(range(16, 25))
    assert here.is_known("http://again.example")
    here.now += 7200
    for n in range(3000):
        here.learn(b"User-agent: *\n", origin=f"http://{n}.example")
    assert sum(here.is_known(f"http://{n}.example") for n in range(3000)) == 1000


def test_last_good_survives_many_other_origins():
    """However many origins come by, last_good knows the rules of yesterday evening."""
    here = World(ttl=10, on_error="last_good")
    here.learn(RULES)
    for n in range(5000):
        here.now += 10
        here.learn(status=404, origin=f"http://{n}.example")
    here.robots.learn_error(A, "TimeoutError")

    assert not here.allows("/no")


# Origins and agents ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://a.example/x?y#z", "http://a.example"),
        ("https://A.Example/x", "https://a.example"),
        ("http://a.example:8080/", "http://a.example:8080"),
        ("http://user:pw@a.example/", "http://a.example"),
        ("http://[::1]:80/", "http://[::1]:80"),
    ],
)
def test_origins(url, origin):
    """An origin is scheme, host and port, without user info."""
    assert origin_of(Request(url)) == origin


def test_each_origin_has_its_own():
    """http, https and each port of a host have their own rules, delay and warning."""
    here = World()
    bodies = {
        "http://a.example": b"User-agent: *\nDisallow: /a\nCrawl-delay: 1\n",
        "https://a.example": b"User-agent: *\nDisallow: /b\n",
        "http://a.example:8080": b"User-agent: *\nDisallow: /c\nCrawl-delay: 3\n",
    }
    for origin, body in bodies.items():
        here.learn(body, origin=origin)

    verdicts = {
        origin: "".join(path for path in "abc" if not here.allows(f"/{path}", origin=origin))
        for origin in bodies
    }
    assert list(verdicts.values()) == ["a", "b", "c"]
    assert [here.delay(origin) for origin in bodies] == [1, 0, 3]
    assert not here.is_known("https://a.example:8080")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", True), ("/shop", False), ("/shop/open", True), ("/shop/open/not", False),
        ("/same", True), ("/x.php", False), ("/x.php5", True), ("/a%2fb", True),
        ("/robots.txt", True), ("/caf%C3%A9", False), ("/café", False), ("/shop?x=open", False),
    ],
)  # fmt: skip
def test_the_longest_match_decides(path, allowed):
    """The longest rule that matches decides, and of two as long the one that allows."""
    here = World()
    here.learn(
        "User-agent: *\nDisallow: /shop\nAllow: /shop/open\nDisallow: /shop/open/not\n"
        "Disallow: /same\nAllow: /same\nDisallow: /*.php$\nDisallow: /café\n".encode()
    )

    assert here.robots.allows(A, Request(A + path).url, None) is allowed


@pytest.mark.parametrize(
    ("configured", "default", "agent", "allowed"),
    [
        ("*", "bot", "bot/1.0", "all"),
        ("bot", None, "other/1.0", "bot"),
        ("BOT", None, None, "bot"),
        (None, "other", "bot/1.0", "bot"),
        (None, None, b"Mozilla/5.0 (compatible; Bot/1.0)", "bot"),
        (None, "bot", "robot/1.0", "all"),
        (None, "bot", b"\xff\xfe", "all"),
        (None, "bot", "", "bot"),
        (None, "bot", None, "bot"),
        (None, None, None, "all"),
    ],
)
def test_the_group_that_counts(configured, default, agent, allowed):
    """ROBOTS_USER_AGENT decides the group, else the page's own User-Agent, else the project's."""
    here = World(agent=configured, default=default)
    here.learn(b"User-agent: *\nDisallow: /bot\n\nUser-agent: bot\nDisallow: /all\n")

    verdicts = {path for path in ("all", "bot") if here.allows(f"/{path}", agent=agent)}
    assert verdicts == {allowed}


# The request -------------------------------------------------------------------------------------
def test_the_request_for_robots_txt():
    """robots.txt is asked for past filter and retries, with a limit of its own, and counted."""
    here = World()
    request = here.robots.request("https://a.example:8080")

    assert request.url == "https://a.example:8080/robots.txt"
    assert request.dont_filter
    assert request.meta == {
        metakeys.ROBOTS: "https://a.example:8080",
        "dont_retry": True,
        "dont_obey_robotstxt": True,
        "download_maxsize": 10 * 1024 * 1024,
        "redirect_ttl": 5,
    }
    assert here.stats.get_stats() == {"netspy/robots/fetched": 1}
    assert set(here.robots.pending) == {"https://a.example:8080"}


@pytest.mark.parametrize("how", ["rules", "error", "4xx"])
def test_it_is_pending_until_answered(how):
    """An origin is pending until its robots.txt is known, or cannot be."""
    here = World()
    here.robots.request(A)
    here.robots.request("http://b.example")
    if how == "error":
        here.robots.learn_error(A, "TimeoutError")
    else:
        here.learn(RULES, status=200 if how == "rules" else 404)

    assert set(here.robots.pending) == {"http://b.example"}


def test_what_is_not_known_is_allowed():
    """Pages of an origin that was never asked are not forbidden."""
    assert World().allows("/no")


# Hostile files: before they were bounded, most of these took minutes, or all memory --------------
def rules_held(parser: Protego) -> int:
    return sum(len(one._rules) for one in parser._user_agents.values())


def hostile(name: str) -> bytes:
    count = 50_000
    lines = {
        "newlines": [b""] * 2_000_000,
        "crawl-delays": [b"crawl-delay" + b" " * 200_000] * 10,
        "patterns": [b"User-agent: *"] + [b"Disallow: /*a*a*a*a*$"] * count,
        "other patterns": [b"User-agent: *"] + [b"Disallow: /*a*a%d*$" % n for n in range(count)],
        "one long pattern": [b"User-agent: *", b"Disallow: /" + b"*a" * 500_000 + b"$"],
        "paths": [b"User-agent: *"] + [b"Disallow: /p%d" % n for n in range(count)],
        "groups": [b"user-agent:%d\nallow:/" % n for n in range(100_000)],
        "agents": [b"user-agent:%d" % (n % 20_000) for n in range(count)],
        "agents by rules": [b"user-agent:%d" % n for n in range(30_000)]
        + [b"allow:/%d" % n for n in range(30_000)],
        "few agents by rules": [b"user-agent:%d" % n for n in range(1000)]
        + [b"allow:/%d" % n for n in range(50_000)],
        "agents by rules, apart": [b"user-agent:%d\n#\nhost:x\nword" % n for n in range(20_000)]
        + [b"allow:/%d" % n for n in range(30_000)],
    }[name]
    return b"\n".join(lines)[: 2 * MAX_PARSED]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("newlines", False), ("crawl-delays", False), ("patterns", True), ("other patterns", True),
        ("one long pattern", False), ("paths", False), ("groups", False), ("agents", True),
        ("agents by rules", True), ("few agents by rules", True), ("agents by rules, apart", True),
    ],
)  # fmt: skip
def test_a_hostile_file_costs_little(name, warned, caplog):
    """No file of any size makes reading or judging long; what is left out is said."""
    here = World(agent=None)
    body = RULES + hostile(name)
    here.learn(body)
    for n in range(3):
        here.allows("/" + "a" * 2000 + str(n), agent=f"bot{n}")
    text, left_out = readable(decode(body))

    assert not here.allows("/no", agent="bot")
    assert bool(left_out) is warned
    assert [r.getMessage() for r in caplog.records] == (
        [f"robots.txt of {A} has too many rules: the last {left_out} lines do not count"] * warned
    )
    assert rules_held(here.robots.rules_of(A).parser) <= MAX_RULES
    assert sum("*a" in line for line in text.splitlines()) <= MAX_PATTERNS


MIXED = st.sampled_from(
    ["user-agent: {}", "User Agent {}", "useragent:{} #", "user-agent:", "allow: /{}",
     "disallow /{}", "disallow:", "#", "words", "host: x", "sitemap: y", "other: z",
     "crawl-delay: 5", "crawl-delay: x", ""]
)  # fmt: skip


@given(st.lists(st.tuples(MIXED, st.integers(1, 8)), max_size=20))
def test_rules_are_counted_as_the_parser_multiplies_them(runs):
    """However agents, rules and other lines are mixed, no more rules are held than the limit."""
    lines = [line for line, count in runs for _ in range(count)]
    text = "\n".join(line.format(number) for number, line in enumerate(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_RULES", 20)
        kept, left_out = readable(text)

    assert rules_held(Protego.parse(kept)) <= 20
    if rules_held(Protego.parse(text)) > 20:
        assert left_out
