from __future__ import annotations

import json

import pytest
from scrapy.settings import Settings

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.policies import SETTING, DomainPolicies, DomainPolicy, slot_of
from netspy_scrapy.settings import PolitenessSettings


def policies(value) -> DomainPolicies:
    return DomainPolicies.from_settings(Settings({SETTING: value}))


# What counts -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "domain", "expected"),
    [
        ({}, "a.example", {}),
        ({"a.example": {"delay": 1}}, "a.example", {"delay": 1.0}),
        ({"a.example": {"delay": 1}}, "www.a.example", {}),
        ({"a.example": {"delay": 1}}, "a.example:8080", {}),
        ({"*.example": {"delay": 1}}, "www.a.example", {"delay": 1.0}),
        ({"*.a.example": {"delay": 1}}, "a.example", {}),
        ({"a.example:*": {"delay": 1}}, "a.example:8080", {"delay": 1.0}),
        ({"[ab].example": {"delay": 1}}, "b.example", {"delay": 1.0}),
        ({"?.example": {"delay": 1}}, "ab.example", {}),
        ({"[::1]:80": {"delay": 1}}, "[::1]:80", {"delay": 1.0}),
        # Patterns in their order, then the exact name, wherever it stands.
        (
            {"a.example": {"delay": 1}, "*": {"delay": 2, "jitter": 0}, "*.example": {"delay": 3}},
            "a.example",
            {"delay": 1.0, "jitter": 0.0},
        ),
        ({"*": {"delay": 2}, "*.example": {"delay": 3}}, "a.example", {"delay": 3.0}),
        ({"*.example": {"delay": 3}, "*": {"delay": 2}}, "a.example", {"delay": 2.0}),
        # What is 0, False or empty is given too.
        (
            {"*": {"delay": 2, "robots": True, "accept": [404]},
             "a.example": {"delay": 0, "robots": False, "accept": []}},
            "a.example",
            {"delay": 0.0, "robots": False, "accept": frozenset()},
        ),
    ],
)  # fmt: skip
def test_policies_that_match_are_merged(given, domain, expected):
    """All policies that match count, patterns in their order and the exact name last."""
    assert policies(given).of(domain) == DomainPolicy(**expected)


def test_case_does_not_matter_in_names():
    """Names and patterns match domains, which are lower case, however the user wrote them."""
    given = policies({"A.Example:8080": {"delay": 1}, "*.B.EXAMPLE": {"delay": 2}})

    assert given.of("a.example:8080").delay == 1.0
    assert given.of("www.b.example").delay == 2.0


def test_every_key():
    """Each key arrives as the type that its readers expect."""
    given = {
        "delay": 1, "jitter": 1, "concurrency": 0, "retry_times": 0, "accept": (404, 410),
        "retry": {500}, "retry_interval": 2, "backoff": 0.5, "retry_after_max": 60,
        "circuit_threshold": 3, "circuit_cooldown": 9, "robots": True,
    }  # fmt: skip

    assert policies({"a.example": given}).of("a.example") == DomainPolicy(
        delay=1.0, jitter=1.0, concurrency=0, retry_times=0, accept=frozenset({404, 410}),
        retry=frozenset({500}), retry_interval=2.0, backoff=0.5, retry_after_max=60.0,
        circuit_threshold=3, circuit_cooldown=9.0, robots=True,
    )  # fmt: skip


def test_policies_from_the_command_line():
    """The setting may be JSON, as the command line and the environment give it."""
    given = policies(json.dumps({"a.example": {"delay": 1.5, "accept": [404]}}))

    assert given.of("a.example") == DomainPolicy(delay=1.5, accept=frozenset({404}))


@pytest.mark.parametrize(
    ("given", "some", "robots"),
    [
        ({}, False, False),
        ({"a.example": {}}, True, False),
        ({"a.example": {"robots": False}}, True, False),
        ({"a.example": {"robots": False}, "*": {"robots": True}}, True, True),
    ],
)
def test_whether_there_is_any(given, some, robots):
    """No policies cost nothing, and robots.txt is asked for as soon as one policy wants it."""
    assert bool(policies(given)) is some
    assert policies(given).any_obeys_robots is robots


def test_policies_over_slots_over_the_crawls_settings():
    """A policy beats DOWNLOAD_SLOTS, which beats the crawl's settings; what none says stays."""
    settings = PolitenessSettings.from_settings(
        Settings(
            {
                "DOWNLOAD_DELAY": 3,
                "CONCURRENT_REQUESTS_PER_DOMAIN": 5,
                "DOWNLOAD_SLOTS": {"a.example": {"delay": 2, "concurrency": 7}},
                SETTING: {"a.example*": {"delay": 0, "circuit_threshold": 4}},
            }
        )
    )
    one, port, other = map(settings.pace_of, ("a.example", "a.example:8080", "b.example"))

    assert (one.delay, one.concurrency, one.failure_threshold) == (0, 7, 4)
    assert (port.delay, port.concurrency, port.failure_threshold) == (0, 7, 4)
    assert (other.delay, other.concurrency, other.failure_threshold) == (3, 5, 0)


# What cannot be used -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("delay", -1, "a number, 0 or more"),
        ("delay", "1", "a number, 0 or more"),
        ("delay", True, "a number, 0 or more"),
        ("delay", float("nan"), "a number, 0 or more"),
        ("delay", float("inf"), "a number, 0 or more"),
        ("delay", None, "a number, 0 or more"),
        ("jitter", 1.01, "a number, 0 to 1"),
        ("jitter", -0.5, "a number, 0 to 1"),
        ("concurrency", 1.0, "a whole number, 0 or more"),
        ("concurrency", -1, "a whole number, 0 or more"),
        ("concurrency", True, "a whole number, 0 or more"),
        ("retry_times", "3", "a whole number, 0 or more"),
        ("accept", 404, "a list of HTTP statuses (100 to 999)"),
        ("accept", "404", "a list of HTTP statuses (100 to 999)"),
        ("accept", [99], "a list of HTTP statuses (100 to 999)"),
        ("retry", ["500"], "a list of HTTP statuses (100 to 999)"),
        ("retry", [1000], "a list of HTTP statuses (100 to 999)"),
        ("retry_interval", -1, "a number, 0 or more"),
        ("backoff", [], "a number, 0 or more"),
        ("retry_after_max", "60s", "a number, 0 or more"),
        ("circuit_threshold", 0.5, "a whole number, 0 or more"),
        ("circuit_cooldown", -60, "a number, 0 or more"),
        ("robots", 1, "True or False"),
        ("robots", "False", "True or False"),
        ("incremental", 1, "True or False"),
        ("on_304", "parse", "one of skip, follow, reparse"),
        ("on_304", ["skip"], "one of skip, follow, reparse"),
        ("min_age", -1, "a number, 0 or more"),
    ],
)
def test_a_wrong_value_is_named(key, value, allowed):
    """A value that cannot be used is an error naming domain, key, value and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        policies({"*": {"delay": 1}, "a.example": {key: value}})

    assert str(caught.value) == (
        f"NETSPY_DOMAIN_POLICIES['a.example'][{key!r}] = {value!r} cannot be used: "
        f"expected {allowed}"
    )


NAMES = "a domain or a pattern as each name, without a scheme"
KEYS = (
    "keys among delay, jitter, concurrency, retry_times, accept, retry, retry_interval, backoff, "
    "retry_after_max, circuit_threshold, circuit_cooldown, robots, incremental, on_304, min_age"
)


@pytest.mark.parametrize(
    ("given", "where", "value", "allowed"),
    [
        ({"a.example": {"dealy": 1}}, "['a.example']", {"dealy": 1}, KEYS),
        ({"a.example": 2}, "['a.example']", 2, "a dict"),
        ({"http://a.example": {}}, "", "http://a.example", NAMES),
        ({"": {}}, "", "", NAMES),
        ({5: {}}, "", 5, NAMES),
        (["a.example"], "", ["a.example"], "a dict by domain"),
        ("a.example", "", "a.example", "a dict by domain"),
        (7, "", 7, "a dict by domain"),
    ],
)
def test_a_wrong_form_is_named(given, where, value, allowed):
    """A misspelt key, a name that is no domain and a value that is no dict are errors too."""
    with pytest.raises(ConfigError) as caught:
        policies(given)

    assert str(caught.value) == (
        f"NETSPY_DOMAIN_POLICIES{where} = {value!r} cannot be used: expected {allowed}"
    )


def test_many_domains_are_not_kept():
    """The merged policies of only so many domains are kept at hand."""
    given = policies({"*": {"delay": 1}})
    for n in range(12_000):
        given.of(f"{n}.example")

    assert given.of.cache_info().currsize == 10_000


def test_a_slot_of_a_host_counts_for_its_ports() -> None:
    """DOWNLOAD_SLOTS by netloc counts first, then by host; an IPv6 address is a host too."""
    slots = {"a.test": {"delay": 1}, "a.test:81": {"delay": 2}, "[::1]": {"delay": 3}}

    found = [slot_of(slots, name).get("delay") for name in ("a.test", "a.test:80", "a.test:81")]
    assert found == [1, 1, 2]
    assert slot_of(slots, "[::1]:80") == slot_of(slots, "[::1]") == {"delay": 3}
    assert slot_of(slots, "[::2]:80") == {}
