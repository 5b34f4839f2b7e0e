"""The connection to Redis that all parts of a crawl share, and the one that knows if it is away."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scrapy.utils.misc import load_object

from netspy_scrapy.exceptions import ConfigError, RedisAwayError, RedisFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from netspy_scrapy.redis.options import RedisSettings

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Scripts write after they asked for the time, which older servers refuse.
_OLDEST: Final = (5, 0)
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 5.0
#: Commands at a time; a hung server holds each for a time-out, and no more threads than these.
_THREADS: Final = 4

#: What a client of a Redis Cluster says where no node answers.
_NO_NODE = re.compile(r"(?i)cluster cannot be connected|slot .* not covered")
_DATABASE = re.compile(r"(?i)db index|invalid database|select is not allowed")


class Connection:
    """A client of Redis for the parts of one crawl.

    The client is the synchronous one, called in threads of its own: it outlives event loops (a
    process may run several crawls), is what scrapy-redis' ``redis_cls`` makes, and a lease can be
    renewed from a thread while the loop is busy.

    ``await run(function)`` calls ``function(client)`` in such a thread, ``call(function)`` in the
    caller's own, which must not be the event loop's. Both raise
    :class:`~netspy_scrapy.exceptions.RedisAwayError` if Redis cannot be reached, and its parent
    RedisFailedError if it refuses the command.

    Nothing is tried again here. The first call that does not reach the server notes that it is
    *away* and says so in one warning; all further calls fail at once, and a single thread asks
    every 0.25 to 5 s whether it is back. So an outage costs nobody a time-out per call, and the
    server no storm of connections.
    """

    def __init__(
        self, settings: RedisSettings, patience: Callable[[], float] = lambda: math.inf
    ) -> None:
        """*patience* tells how many seconds the event loop may wait for a call now."""
        self.settings = settings
        self._patience = patience
        self._lock = threading.Lock()
        self._making = threading.Lock()
        """Held for longer than the other: a client of a cluster connects when it is made."""
        self._client: Any = None
        self._executor: ThreadPoolExecutor | None = None
        self._away_since: float | None = None
        self._is_told_of_refusal = False
        self._closed = threading.Event()
        self._back = threading.Event()
        """Set when the present outage is over."""

    @property
    def is_away(self) -> bool:
        """Whether the server could not be reached when it was last asked."""
        return self._away_since is not None

    def key(self, *parts: str) -> str:
        """Return the key of *parts* under REDIS_KEY_PREFIX.

        The first part is a Redis Cluster hash tag: keys that share it live on one node, as the
        keys of one script must.
        """
        first, *others = parts
        return ":".join([self.settings.prefix, f"{{{first}}}", *others])

    # Calls ---------------------------------------------------------------------------------------
    async def run(self, function: Callable[[Any], T]) -> T:
        """Call *function* with the client in a thread."""
        if self.is_away:
            raise self._away()
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads(), self.call, function)
        seconds = self._patience()
        if math.isinf(seconds):
            return await answer
        answer.add_done_callback(_forget)
        try:
            return await asyncio.wait_for(asyncio.shield(answer), seconds)
        except asyncio.TimeoutError:
            raise self._gone(f"no answer within {seconds:.1f} s of the crawl's end") from None

    def call(self, function: Callable[[Any], T]) -> T:
        """Call *function* with the client here; it may block for the time-outs."""
        if self.is_away:
            raise self._away()
        return self._try(function)

    async def check(self) -> None:
        """Ask whether the server can be used.

        Raises ConfigError naming the setting if it never will be (wrong password, wrong database,
        too old), and closes; RedisAwayError if it cannot be reached now.
        """
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads(), self._check)
        except ConfigError:
            self.close()
            raise

    def check_here(self) -> None:
        """Ask the same in the caller's own thread, which must not be the event loop's."""
        self._check()

    async def is_back(self) -> bool:
        """Ask once more, in place of waiting for the thread that does; tell if it is there."""
        if not self.is_away:
            return True
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads(), self._probe)

    def close(self) -> None:
        """Close all connections; does not wait for calls that are under way."""
        self._closed.set()
        self._back.set()
        with self._lock:
            executor, self._executor = self._executor, None
            client, self._client = self._client, None
        if executor is not None:
            executor.shutdown(wait=False)
        if client is not None:
            client.close()

    # The client ----------------------------------------------------------------------------------
    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed.is_set():
                raise RedisAwayError("the connection to Redis is closed")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="netspy-redis")
            return self._executor

    def _connected(self) -> Any:
        with self._making:
            if self._closed.is_set():
                raise RedisAwayError("the connection to Redis is closed")
            if self._client is None:
                self._client = self._build()
            return self._client

    def _build(self) -> Any:
        redis = driver(self.settings.source, self.settings.shown)
        chosen = self.settings.client
        try:
            cls: Any = load_object(chosen) if isinstance(chosen, str) else chosen or redis.Redis
        except (ImportError, NameError, ValueError) as exc:
            raise ConfigError("REDIS_PARAMS['redis_cls']", chosen, f"a class ({exc})") from exc
        # Without this the client sleeps between retries of its own.
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        arguments = {**self.settings.arguments, "retry": retry, "decode_responses": False}
        try:
            if self.settings.url is not None:
                return cls.from_url(self.settings.url, **arguments)
            return cls(**arguments)
        except (TypeError, ValueError) as exc:
            raise ConfigError(
                self.settings.source, self.settings.shown,
                f"what {cls.__name__} can be made of ({self._safe(exc)})",
            ) from None  # fmt: skip

    def _check(self) -> None:
        redis = driver(self.settings.source, self.settings.shown)
        try:
            info = self._try(server_info)
        except TypeError as exc:  # the client makes connections late, of whatever it was given
            names = sorted(self.settings.arguments)
            allowed = f"arguments of the Redis client ({self._safe(exc)})"
            raise ConfigError("REDIS_PARAMS", names, allowed) from None
        except RedisFailedError as exc:
            wrong = self._wrong_setting(exc.__cause__, redis)
            if wrong is None:
                raise
            raise wrong from None
        version = str(info.get("redis_version", ""))
        numbers = tuple(int(one) for one in re.findall(r"\d+", version)[:2])
        if numbers and numbers < _OLDEST:
            raise ConfigError(
                self.settings.source, self.settings.shown,
                f"a server of Redis 5 or newer, and this is {version}",
            )  # fmt: skip

    def _wrong_setting(self, cause: BaseException | None, redis: Any) -> ConfigError | None:
        """Return the error for what no waiting mends, or None."""
        if cause is None:
            return None
        errors = redis.exceptions
        if isinstance(cause, (errors.AuthenticationError, errors.AuthorizationError,
                              errors.NoPermissionError,
                              errors.AuthenticationWrongNumberOfArgsError)):  # fmt: skip
            allowed = "a user and password that the server accepts"
        elif _DATABASE.search(str(cause)):
            allowed = "a database that the server has"
        elif "CERTIFICATE_VERIFY_FAILED" in str(cause):
            allowed = "a server with a certificate that is trusted, see REDIS_PARAMS: ssl_ca_certs"
        else:
            return None
        shown = f"{allowed} ({self._safe(cause)})"
        return ConfigError(self.settings.source, self.settings.shown, shown)

    def _safe(self, exc: BaseException) -> str:
        text = next(iter(str(exc).splitlines()), "")
        for secret in self.settings.secrets:
            text = text.replace(secret, "***")
        return f"{type(exc).__name__}: {text}"

    # Away and back -------------------------------------------------------------------------------
    def _try(self, function: Callable[[Any], T]) -> T:
        redis = driver(self.settings.source, self.settings.shown)
        errors = redis.exceptions
        try:
            result = function(self._connected())
        except (
            errors.ConnectionError,
            errors.TimeoutError,
            errors.ClusterDownError,
            OSError,
        ) as exc:
            raise self._gone(
                self._safe(exc), is_refusal=isinstance(exc, errors.AuthenticationError)
            ) from exc
        except (errors.RedisError, errors.RedisClusterException) as exc:
            if _NO_NODE.search(str(exc)):
                raise self._gone(self._safe(exc)) from exc
            raise RedisFailedError(self._safe(exc)) from exc
        except ValueError as exc:
            if self._closed.is_set():  # under the call, whose socket is no file any more
                raise RedisAwayError("the connection to Redis is closed") from exc
            raise
        if self.is_away:
            self._returned()
        return result

    def _away(self) -> RedisAwayError:
        return RedisAwayError(f"Redis at {self.settings.shown} is away")

    def _gone(self, reason: str, *, is_refusal: bool = False) -> RedisAwayError:
        """Note that the server is away, and see to it that somebody asks whether it is back.

        *is_refusal*: it is there, and wants another password; it may have been away before.
        """
        with self._lock:
            first = self._away_since is None and not self._closed.is_set()
            if first:
                self._away_since = time.monotonic()
                self._back = threading.Event()
                self._is_told_of_refusal = is_refusal
            elif is_refusal and not self._is_told_of_refusal:
                self._is_told_of_refusal = True
                logger.error("Redis at %s is there, and refuses this process until its password "
                             "is mended: %s", self.settings.shown, reason)  # fmt: skip
        if first:
            logger.warning("Redis at %s is away: %s", self.settings.shown, reason)
            threading.Thread(
                target=self._watch, args=[self._back], name="netspy-redis-watch", daemon=True
            ).start()
        return RedisAwayError(f"Redis at {self.settings.shown} is away: {reason}")

    def _watch(self, back: threading.Event) -> None:
        pause = _FIRST_PAUSE
        while not back.wait(pause):
            self._probe()
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _probe(self) -> bool:
        try:
            self._try(lambda client: client.ping())
        except RedisFailedError:
            return False
        return True

    def _returned(self) -> None:
        with self._lock:
            since, self._away_since = self._away_since, None
            self._back.set()
        if since is not None:
            seconds = time.monotonic() - since
            logger.info("Redis at %s is back after %.1f s", self.settings.shown, seconds)


def _forget(answer: asyncio.Future[Any]) -> None:
    """Take note of what nobody waits for any more, so that nothing complains of it."""
    if not answer.cancelled():
        answer.exception()


def driver(setting: str, value: object) -> Any:
    """Return the module ``redis``; raises ConfigError, naming *setting*, if it is not installed."""
    try:
        import redis  # noqa: PLC0415 - an extra
        import redis.backoff  # noqa: PLC0415
        import redis.retry  # noqa: PLC0415
    except ImportError as exc:
        raise ConfigError(
            setting, value, "the Redis client to be installed: pip install 'netspy-scrapy[redis]'"
        ) from exc
    return redis


def script(name: str) -> str:
    """Return the text of a Lua script of ours."""
    folder = resources.files("netspy_scrapy.redis") / "scripts"
    return (folder / f"{name}.lua").read_text(encoding="utf-8")


def server_info(client: Any) -> dict[str, Any]:
    """Return what the server says of itself; nothing, if this user may not ask."""
    redis = driver("REDIS_URL", "")
    client.ping()
    try:
        info = client.info("server")
    except redis.exceptions.NoPermissionError:
        return {}
    # A cluster answers for each node.
    first = next(iter(info.values()), None)
    return dict(first) if isinstance(first, dict) else dict(info)
