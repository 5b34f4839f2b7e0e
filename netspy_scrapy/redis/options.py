"""The settings of the connection to Redis: netspy's and scrapy-redis' names for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.settings import SETTINGS, read_text, user_set

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

#: Settings that are arguments of the client, beside REDIS_URL. They do not mix with it: the URL
#: says all of it.
_ARGUMENTS: Final = {
    "REDIS_HOST": "host",
    "REDIS_PORT": "port",
    "REDIS_DB": "db",
    "REDIS_USERNAME": "username",
    "REDIS_PASSWORD": "password",
}
_SCHEMES: Final = ("redis", "rediss", "unix")
#: Up to the last @: a password that was not encoded may hold anything.
_USER_INFO = re.compile(r"(?<=://)\S*@")
_SECRET_OPTION = re.compile(r"(?i)([?&][^=&#]*(?:pass|secret|token)[^=&#]*=)[^&#]*")

#: Seconds. Commands take milliseconds: what does not answer in this time is away.
_CONNECT_TIMEOUT: Final = 3.0
_TIMEOUT: Final = 5.0
_TIMEOUTS: Final = {
    "socket_connect_timeout": _CONNECT_TIMEOUT,
    "socket_timeout": _TIMEOUT,
}

#: What REDIS_PARAMS may hold for scrapy-redis and must not reach our client: it retries by its
#: own rules, and needs bytes as they are.
_OURS: Final = ("retry", "retry_on_timeout", "retry_on_error", "decode_responses")


@dataclass(frozen=True)
class RedisSettings:
    """How Redis is reached.

    REDIS_URL counts before REDIS_HOST, REDIS_PORT, REDIS_DB, REDIS_USERNAME and REDIS_PASSWORD,
    and these before the same in REDIS_PARAMS, as in scrapy-redis.
    """

    url: str | None = field(repr=False)
    """None: *arguments* say where the server is."""
    client: str | type | None
    """The class of the client (``redis_cls``); None: ``redis.Redis``."""
    arguments: dict[str, Any] = field(repr=False)
    """Further arguments of the client."""
    prefix: str
    """What every key begins with (REDIS_KEY_PREFIX)."""
    source: str
    """The setting that says where the server is."""

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> RedisSettings:
        """Read the connection of a crawl; raises ConfigError, never with a password in it."""
        params = _params(settings)
        encoding = settings.get("REDIS_ENCODING") or params.get("encoding") or "utf-8"
        client = params.pop("redis_cls", None)
        if client is not None and not isinstance(client, (str, type)):
            raise ConfigError("REDIS_PARAMS['redis_cls']", client, "a class, or its import path")
        url = params.pop("url", None)
        source = "REDIS_PARAMS['url']"
        given = [name for name in _ARGUMENTS if settings.get(name) not in (None, "")]
        if user_set(settings, "REDIS_URL") and settings.get("REDIS_URL"):
            url, source = read_text(settings, "REDIS_URL"), "REDIS_URL"
        elif url is None and (given or {"host", "unix_socket_path", "connection_pool"} & {*params}):
            source = given[0] if given else "REDIS_PARAMS"
        elif url is None:
            url, source = SETTINGS["REDIS_URL"].default, "REDIS_URL"
        for name in given:
            params[_ARGUMENTS[name]] = _argument(settings, name)
        if url is not None:
            _check_url(source, url)
        arguments = {**params, "encoding": encoding}
        for name in _OURS:
            arguments.pop(name, None)
        for name, seconds in _TIMEOUTS.items():
            arguments[name] = _timeout(name, arguments.get(name), seconds)
        return cls(
            url=url,
            client=client,
            arguments=arguments,
            prefix=read_text(settings, "REDIS_KEY_PREFIX"),
            source=source,
        )

    @property
    def shown(self) -> str:
        """The server as messages name it: a URL without the password."""
        if self.url is not None:
            return masked(self.url)
        path = self.arguments.get("unix_socket_path")
        if path:
            return f"unix://{path}"
        host, port = self.arguments.get("host", "localhost"), self.arguments.get("port", 6379)
        return f"redis://{host}:{port}/{self.arguments.get('db', 0)}"

    @property
    def secrets(self) -> list[str]:
        """The texts that no message may hold."""
        found = [self.arguments.get("password")]
        if self.url is not None:
            password = urlsplit(self.url).password
            found += [password, unquote(password)] if password else []
        return [str(one) for one in found if one]


def masked(url: str) -> str:
    """Return *url* with user and password replaced.

    >>> masked("redis://user:p@ss@db:6379/0?password=x")
    'redis://***@db:6379/0?password=***'
    """
    return _SECRET_OPTION.sub(r"\1***", _USER_INFO.sub("***@", url))


def _params(settings: BaseSettings) -> dict[str, Any]:
    try:
        return dict(settings.getdict("REDIS_PARAMS"))
    except (TypeError, ValueError):
        # The value may hold a password.
        kind = type(settings.get("REDIS_PARAMS")).__name__
        allowed = "a dict of arguments of the Redis client"
        raise ConfigError("REDIS_PARAMS", f"({kind})", allowed) from None


def _argument(settings: BaseSettings, name: str) -> Any:
    value = settings.get(name)
    if name not in ("REDIS_PORT", "REDIS_DB"):
        return str(value)
    try:
        number = -1 if isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ConfigError(name, value, "a whole number, 0 or more")
    return number


def _check_url(name: str, url: Any) -> None:
    allowed = "redis://[[user]:password@]host[:port][/database], rediss://... or unix://path"
    text = str(url)
    try:
        parts = urlsplit(text)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        raise ConfigError(name, masked(text), allowed) from None
    if parts.scheme not in _SCHEMES or not port_is_good or not (parts.netloc or parts.path):
        raise ConfigError(name, masked(text), allowed)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not (database.isascii() and database.isdigit()):
        # The client would silently take database 0.
        raise ConfigError(name, masked(text), f"{allowed}; a database is a number")


def _timeout(name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    try:
        seconds = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"REDIS_PARAMS[{name!r}]", value, "a number of seconds over 0")
    return seconds
