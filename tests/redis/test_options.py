"""Where Redis is, by netspy's names and by scrapy-redis'."""

from __future__ import annotations

import pytest
from redis import Redis
from scrapy.settings import Settings

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.redis.options import RedisSettings, masked


def options(**settings) -> RedisSettings:
    return RedisSettings.from_settings(Settings(settings))


@pytest.mark.parametrize(
    ("settings", "shown", "source"),
    [
        ({}, "redis://localhost:6379/0", "REDIS_URL"),
        ({"REDIS_URL": "redis://db:1/2"}, "redis://db:1/2", "REDIS_URL"),
        ({"REDIS_HOST": "db"}, "redis://db:6379/0", "REDIS_HOST"),
        ({"REDIS_PORT": "7000", "REDIS_DB": "3"}, "redis://localhost:7000/3", "REDIS_PORT"),
        ({"REDIS_DB": 0}, "redis://localhost:6379/0", "REDIS_DB"),
        ({"REDIS_PARAMS": {"host": "db", "db": 4}}, "redis://db:6379/4", "REDIS_PARAMS"),
        ({"REDIS_PARAMS": {"url": "redis://db/1"}}, "redis://db/1", "REDIS_PARAMS['url']"),
        ({"REDIS_PARAMS": {"unix_socket_path": "/s"}}, "unix:///s", "REDIS_PARAMS"),
        ({"REDIS_URL": "unix:///tmp/r.sock?db=1"}, "unix:///tmp/r.sock?db=1", "REDIS_URL"),
        # what is more particular counts
        ({"REDIS_URL": "redis://a", "REDIS_HOST": "b"}, "redis://a", "REDIS_URL"),
        (
            {"REDIS_URL": "redis://a", "REDIS_PARAMS": {"url": "redis://b"}},
            "redis://a",
            "REDIS_URL",
        ),
        ({"REDIS_HOST": "a", "REDIS_PARAMS": {"host": "b"}}, "redis://a:6379/0", "REDIS_HOST"),
        ({"REDIS_PARAMS": '{"db": 5, "host": "h"}'}, "redis://h:6379/5", "REDIS_PARAMS"),
    ],
)
def test_where_the_server_is(settings, shown, source):
    """REDIS_URL counts before the single settings, and these before REDIS_PARAMS."""
    found = options(**settings)

    assert (found.shown, found.source) == (shown, source)


def test_a_password_beside_the_url():
    """A URL without a password may be completed by REDIS_PASSWORD and REDIS_USERNAME."""
    found = options(REDIS_URL="redis://db", REDIS_PASSWORD="p", REDIS_USERNAME="u")

    assert (found.arguments["password"], found.arguments["username"]) == ("p", "u")
    assert found.secrets == ["p"]


def test_everything_has_a_time_out():
    """Time-outs are there unasked, cannot be switched off, and may be longer."""
    assert options().arguments["socket_timeout"] == 5
    assert options(REDIS_PARAMS={"socket_timeout": None}).arguments["socket_timeout"] == 5
    assert options(REDIS_PARAMS={"socket_timeout": 30}).arguments["socket_timeout"] == 30
    assert options().arguments["socket_connect_timeout"] == 3


def test_what_scrapy_redis_has_and_our_client_does_not_want():
    """Retries that sleep, and answers that are decoded, do not reach the client."""
    params = {"retry_on_timeout": True, "decode_responses": True, "redis_cls": Redis, "x": 1}
    found = options(REDIS_PARAMS=params, REDIS_ENCODING="latin-1")

    assert found.client is Redis
    assert found.arguments == {
        "x": 1, "encoding": "latin-1", "socket_timeout": 5, "socket_connect_timeout": 3
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"REDIS_URL": "http://u:secret@db"}, r"REDIS_URL = 'http://\*\*\*@db' cannot be used"),
        ({"REDIS_URL": "redis://u:sec/ret@db:x"}, r"REDIS_URL = 'redis://\*\*\*@db:x' cannot"),
        ({"REDIS_URL": "redis://:secret@db/zero"}, "a database is a number"),
        ({"REDIS_URL": "redis://"}, "REDIS_URL = 'redis://' cannot be used"),
        ({"REDIS_PORT": "x", "REDIS_PASSWORD": "secret"}, "REDIS_PORT = 'x' cannot be used"),
        ({"REDIS_DB": -1}, "REDIS_DB = -1 cannot be used"),
        ({"REDIS_DB": True}, "REDIS_DB = True cannot be used"),
        ({"REDIS_PARAMS": "secret"}, r"REDIS_PARAMS = '\(str\)' cannot be used"),
        ({"REDIS_PARAMS": {"socket_timeout": 0}}, "'socket_timeout'.* = 0 cannot be used"),
        ({"REDIS_PARAMS": {"redis_cls": 3}}, "'redis_cls'.* = 3 cannot be used"),
        ({"REDIS_KEY_PREFIX": ""}, "REDIS_KEY_PREFIX = '' cannot be used"),
    ],
)
def test_a_wrong_value_is_named_without_the_password(settings, message):
    """The error names the setting and what is allowed, and shows no password."""
    with pytest.raises(ConfigError, match=message) as caught:
        options(**settings)

    assert "secret" not in str(caught.value)
    assert "ret@" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://db/0", "redis://db/0"),
        ("redis://:p@db", "redis://***@db"),
        ("rediss://u:p@x@db:1/2?password=q&db=1", "rediss://***@db:1/2?password=***&db=1"),
    ],
)
def test_masked(url, shown):
    """User and password of a URL are not shown, wherever they stand."""
    assert masked(url) == shown
