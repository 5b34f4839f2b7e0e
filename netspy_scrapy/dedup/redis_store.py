"""Sets of keys in Redis, which processes share: a bloom filter, and an exact set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from hashlib import shake_128
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from netspy_scrapy.dedup.bloom import MAX_HASHES, layer_shape
from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.redis.connection import script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netspy_scrapy.redis.connection import Connection
    from netspy_scrapy.settings import DedupSettings

#: Keys of one call of a script: a few milliseconds, in which the server does nothing else.
_CHUNK: Final = 200
#: Seconds that a run's keys outlive its last one: a week.
RUN_TTL: Final = 604_800
#: Bytes of a word that gives one bit position; Lua's numbers hold 53 bits.
_WORD: Final = 6
#: Bits of a bitmap at most: 512 MiB.
_MAX_BITS: Final = 2**32


class Answer(NamedTuple):
    """What the server says of keys."""

    flags: list[bool]
    """Of each key in turn: whether it is known, or, of ``add``, whether it was new."""
    total: int
    """Keys that were added to the store in all. If it falls, the store was emptied."""
    full: bool
    """Whether it errs more often than promised with more keys."""


class RedisStore(ABC):
    """A set of keys in Redis that only grows; one call costs one round trip for 200 keys.

    The calls are safe to repeat: where an answer got lost, the next call says the same, but that
    ``add`` then calls a key known that it added itself.
    """

    script_name: ClassVar[str]
    """The script that asks and adds; it takes one key."""
    kind: ClassVar[str]
    """What Redis calls the type of that key."""

    def __init__(self, connection: Connection, key: str, *, ttl: int = 0) -> None:
        """*key* is the whole key; *ttl* the seconds that it lives after each ``add``, 0: ever."""
        self.key = key
        self._connection = connection
        self._ttl = ttl
        self._text = script(self.script_name)
        self._script: Any = None

    async def known(self, keys: Sequence[bytes]) -> Answer:
        """Tell which of *keys* are in the set; raises RedisFailedError if Redis does not say."""
        return await self._connection.run(lambda client: self._call(client, "has", keys))

    async def add(self, keys: Sequence[bytes]) -> Answer:
        """Put *keys* into the set, and tell which were new; raises RedisFailedError."""
        return await self._connection.run(lambda client: self._call(client, "add", keys))

    def _call(self, client: Any, mode: str, keys: Sequence[bytes]) -> Answer:
        if self._script is None:
            self._script = client.register_script(self._text)
        head = [mode, *self.arguments]
        flags: list[bool] = []
        total = full = 0
        for start in range(0, max(len(keys), 1), _CHUNK):
            part = [self.encoded(one) for one in keys[start : start + _CHUNK]]
            text, total, full = self._script(keys=[self.key], args=[*head, *part], client=client)
            flags += [one == ord("1") for one in text]
        return Answer(flags, int(total), bool(full))

    @property
    def arguments(self) -> Sequence[int]:
        """What the script is given after ``has`` or ``add``, before the keys."""
        return (self._ttl, *self._shape())

    def _shape(self) -> Sequence[int]:
        return ()

    @abstractmethod
    def encoded(self, key: bytes) -> bytes:
        """Return *key* as the script takes it."""


class RedisSet(RedisStore):
    """A Redis set: never errs, and costs about 80 bytes a key."""

    script_name = "set"
    kind = "set"

    def encoded(self, key: bytes) -> bytes:
        """Return *key* itself."""
        return key


class RedisBloom(RedisStore):
    """A bloom filter on plain bitmaps: 4 bytes a key at an error rate of 1e-6; no Redis module.

    It has the layers of :class:`~netspy_scrapy.dedup.bloom.BloomFilter`: each holds twice the
    keys of the one before, the error rates of all add up to *error_rate*. A layer takes all of
    its memory at once, and keeps its shape: processes with other settings share it all the same.
    """

    script_name = "bloom"
    kind = "hash"

    def __init__(
        self,
        connection: Connection,
        key: str,
        *,
        capacity: int,
        error_rate: float,
        max_layers: int,
        ttl: int = 0,
    ) -> None:
        """Plan the layers; raise ValueError if the first is larger than a bitmap can be."""
        super().__init__(connection, key, ttl=ttl)
        shape = [max_layers]
        layers = 0
        for index in range(max_layers):
            hashes, size, keys = layer_shape(index, capacity, error_rate)
            if 8 * size >= _MAX_BITS:
                break
            shape += [8 * size, hashes, keys]
            layers += 1
        if not layers:
            raise ValueError(f"a layer of {capacity} keys is larger than 512 MiB")
        shape[0] = layers
        self._layers = shape

    def _shape(self) -> Sequence[int]:
        return self._layers

    def encoded(self, key: bytes) -> bytes:
        """Return the words that give the bits of *key*."""
        return shake_128(key).digest(MAX_HASHES * _WORD)


def redis_store(
    settings: DedupSettings, connection: Connection, spider: str, what: str
) -> RedisStore:
    """Return the store that DEDUP_FILTER asks for: "redis" (bloom) or "redis-set" (exact).

    *what* is filtered: ``items`` or ``requests``. DEDUP_SCOPE and RUN_ID decide on its key, and
    whether it is forgotten (a run's, a week after its last key).
    """
    scope = ["run", settings.run] if settings.run else []
    kind = "set" if settings.kind == "redis-set" else "bloom"
    key = connection.key(spider, *scope, "seen", what, kind)
    ttl = RUN_TTL if settings.run else 0
    if kind == "set":
        return RedisSet(connection, key, ttl=ttl)
    try:
        return RedisBloom(
            connection, key, capacity=settings.capacity, error_rate=settings.error_rate,
            max_layers=settings.max_layers, ttl=ttl,
        )  # fmt: skip
    except ValueError as exc:
        raise ConfigError(
            "DEDUP_INITIAL_CAPACITY", settings.capacity, f'less for DEDUP_FILTER = "redis": {exc}'
        ) from None
