"""Pages in Redis, which the nodes of a crawl share."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeVar

from netspy_scrapy.exceptions import DumpError, RedisFailedError, StoreError
from netspy_scrapy.incremental.entry import Entry, entry_from_json, entry_to_json
from netspy_scrapy.redis.connection import script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

    from netspy_scrapy.incremental.store import Changes
    from netspy_scrapy.redis.connection import Connection

T = TypeVar("T")

#: Seconds after which a node that was not heard of is not in the run any more.
_SILENT: Final = 300
#: Entries of one round trip.
_AT_ONCE: Final = 1000
_DIGEST: Final = 16
_KINDS: Final = ("pages", "children", "bodies")


class RedisBackend:
    """A :class:`~netspy_scrapy.incremental.store.Backend` in Redis.

    Of each spider there are three hashes by page: ``pages`` (JSON), ``children``, ``bodies``.
    Nodes that crawl at the same time are in the same run. Persistence is Redis' own affair: what
    it forgets is fetched in full again.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._node = uuid.uuid4().hex
        self._spider: str | None = None
        self._named: set[str] = set()
        """Spiders that are in the list of them."""

    # Backend -------------------------------------------------------------------------------------
    def open(self, spider: str) -> int:
        """Join the spider's run, or begin one; raises ConfigError for wrong settings of Redis."""
        self._spider = spider
        self.check()
        text = script("run")
        nodes, run = self._key(spider, "nodes"), self._key(spider, "run")

        def join(client: Any) -> int:
            return int(client.eval(text, 2, nodes, run, self._node, _SILENT))

        return self._call(join)

    def read(self, wanted: list[bytes]) -> dict[bytes, Entry]:
        """Return the entries of these keys; one that cannot be read is not known."""
        found: dict[bytes, Entry] = {}
        for spider in self._spiders():
            name = self._key(spider, "pages")
            for start in range(0, len(wanted), _AT_ONCE):
                some = wanted[start : start + _AT_ONCE]
                texts = self._call(lambda client, some=some, name=name: client.hmget(name, some))
                for key, text in zip(some, texts, strict=True):
                    entry = _entry(key, text)
                    if entry is not None:
                        found[key] = entry
        return found

    def read_children(self, key: bytes) -> bytes | None:
        """Return the requests kept for a page."""
        return self._read_one("children", key)

    def read_body(self, key: bytes, digest: bytes) -> bytes | None:
        """Return the body kept for a page, if it is that of *digest*."""
        data = self._read_one("bodies", key)
        return data[_DIGEST:] if data is not None and data[:_DIGEST] == digest else None

    def write(self, changes: Changes) -> None:
        """Write a batch as one transaction."""
        spiders = self._spiders()
        pages: dict[str, dict[bytes, str]] = {}
        gone = []
        for key, entry in changes.entries.items():
            if entry is None:
                gone.append(key)
            else:
                pages.setdefault(entry.spider, {})[key] = entry_to_json(entry)
        kept = {
            "children": changes.children,
            "bodies": {key: digest + body for (key, digest), body in changes.bodies.items()},
        }

        def write(client: Any) -> None:
            self._name_spiders(client, pages.keys())
            with client.pipeline(transaction=True) as pipeline:
                for spider, texts in pages.items():
                    pipeline.hset(self._key(spider, "pages"), mapping=texts)
                if gone:
                    for spider in spiders:
                        for kind in _KINDS:
                            pipeline.hdel(self._key(spider, kind), *gone)
                self._write_own(pipeline, kept)
                pipeline.execute()

        self._call(write)

    def _write_own(self, pipeline: Any, kept: dict[str, dict[bytes, bytes]]) -> None:
        """Write what is kept of pages of this crawl, and that this node is there."""
        if self._spider is None:
            return
        for kind, values in kept.items():
            if values:
                pipeline.hset(self._key(self._spider, kind), mapping=values)
        pipeline.zadd(self._key(self._spider, "nodes"), {self._node: int(time.time())})

    def _name_spiders(self, client: Any, spiders: AbstractSet[str]) -> None:
        if new := spiders - self._named:
            client.sadd(self._spiders_key, *new)
            self._named |= new

    def close(self) -> None:
        """Leave the run, and close the connection."""
        spider = self._spider
        try:
            if spider is not None:
                self._call(lambda client: client.zrem(self._key(spider, "nodes"), self._node))
        finally:
            self._connection.close()

    def abandon(self) -> None:
        """Close the connection under a call that waits for an answer."""
        self._connection.close()

    def check(self) -> None:
        """Ask whether Redis can be used; raises ConfigError if it never can."""
        try:
            self._connection.check_here()
        except RedisFailedError as exc:
            raise StoreError(str(exc)) from exc

    # For the command -----------------------------------------------------------------------------
    def entries(self) -> Iterator[Entry]:
        """Yield all entries, by spider."""
        for spider in self._spiders():
            name, cursor = self._key(spider, "pages"), 0
            while True:
                cursor, some = self._call(
                    lambda client, name=name, cursor=cursor: client.hscan(
                        name, cursor, count=_AT_ONCE
                    )
                )
                for key, text in some.items():
                    entry = _entry(key, text)
                    if entry is not None:
                        yield entry
                if cursor == 0:
                    break

    def runs(self) -> dict[str, int]:
        """Return the number of the last run of each spider."""
        spiders = self._spiders()
        return {
            spider: int(
                self._call(lambda client, spider=spider: client.get(self._key(spider, "run"))) or 0
            )
            for spider in spiders
        }

    # Own methods ---------------------------------------------------------------------------------
    @property
    def _spiders_key(self) -> str:
        return self._connection.key("incremental", "spiders")

    def _key(self, spider: str, kind: str) -> str:
        return self._connection.key(f"incremental:{spider}", kind)

    def _spiders(self) -> list[str]:
        """Return the spider of this crawl; for a command: all that have pages."""
        if self._spider is not None:
            return [self._spider]
        names = self._call(lambda client: client.smembers(self._spiders_key))
        return sorted(name.decode() for name in names)

    def _read_one(self, kind: str, key: bytes) -> bytes | None:
        for spider in self._spiders():
            name = self._key(spider, kind)
            data: bytes | None = self._call(lambda client, name=name: client.hget(name, key))
            if data is not None:
                return data
        return None

    def _call(self, function: Callable[..., T]) -> T:
        try:
            return self._connection.call(function)
        except RedisFailedError as exc:
            raise StoreError(str(exc)) from exc


def _entry(key: bytes, text: bytes | None) -> Entry | None:
    if text is None:
        return None
    try:
        return entry_from_json(key, text)
    except DumpError:
        return None
