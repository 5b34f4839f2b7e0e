"""The response cache of one crawl."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from netspy_scrapy import meta as metakeys
from netspy_scrapy import stats as keys
from netspy_scrapy.cache.ambient import AmbientCookies
from netspy_scrapy.cache.answers import Draft, Found, draft_of, manner_of, response_of, sent_headers
from netspy_scrapy.cache.entries import Asked, Entry, decode_head, scope_of
from netspy_scrapy.cache.file import CacheFile
from netspy_scrapy.cache.index import Index
from netspy_scrapy.cache.policy import CachePolicy
from netspy_scrapy.domains import domain_of
from netspy_scrapy.exceptions import CacheError
from netspy_scrapy.logs import age_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.http import Response

    from netspy_scrapy.context import CrawlContext
    from netspy_scrapy.settings import CacheSettings

logger = logging.getLogger(__name__)

#: Seconds that an answer waits for others to be written with.
_WRITE_AFTER = 0.2
#: Bytes of waiting answers that are written at once.
_WRITE_BYTES = 4 * 1024 * 1024
#: Bytes of waiting answers from which on none is taken: the disk cannot follow.
_MAX_BYTES = 64 * 1024 * 1024
#: Answers that are read in one go.
_READ_AT_ONCE = 16


class _Queued(NamedTuple):
    """A request as it was when it was queued, before any middleware."""

    key: int
    url: str
    body: bytes


class ResponseCache:
    """Reads answers of earlier runs, and stores those of this one; never raises.

    What may be there is known from an index in memory. Reading and writing happen in two threads
    of their own, several answers at a time. What cannot be read is fetched, what cannot be
    written is not stored; each is a debug line and is counted.

    Stats: ``netspy/cache/...``.
    """

    def __init__(
        self,
        context: CrawlContext,
        settings: CacheSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        crawler = context.crawler
        self._context = context
        self.settings = settings
        self.policy = CachePolicy(crawler.settings, context.acceptance)
        self._clock = clock
        self._scope = scope_of(
            context.spider_name,
            {
                "headers": dict(crawler.settings.getdict("DEFAULT_REQUEST_HEADERS")),
                "agent": crawler.settings.get("USER_AGENT"),
            },
        )
        self._limits = context.limits
        self._reader = CacheFile(settings.path)
        self._writer = CacheFile(settings.path)
        self._index = Index()
        self._ambient = AmbientCookies()
        self._threads: ThreadPoolExecutor | None = None
        self._queued: WeakKeyDictionary[Request, _Queued] = WeakKeyDictionary()
        self._wanted: list[tuple[Asked, asyncio.Future[Found | None]]] = []
        self._unwritten: list[Draft] = []
        self._bytes = 0
        self._dropped: set[int] = set()
        self._undropped: set[int] = set()
        """Entries that could not be deleted; they go along with the next write."""
        self._discarded: WeakSet[Request] = WeakSet()
        self._reading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._oldest_hit: float | None = None

    # The scheduler -------------------------------------------------------------------------------
    def may_have(self, request: Request) -> bool:
        """Tell whether an entry may stand for *request*, which is about to be queued or sent."""
        if self._threads is None or not self.policy.should_cache_request(request):
            return False
        queued = self._queued.get(request)
        if queued is None:
            key = _number(self._fingerprint(request))
            queued = self._queued[request] = _Queued(key, request.url, request.body)
        return (
            self.policy.wants_entry(request)
            and request.meta.get(metakeys.CACHE_MISSED) != queued.key
            and self._is_fresh(self._index.stored(queued.key))
        )

    def is_missed(self, request: Request) -> bool:
        """Tell whether *request* went through the middlewares once, in vain."""
        missed = request.meta.get(metakeys.CACHE_MISSED)
        return missed is not None and missed == self._key_of(request)

    def mark_missed(self, request: Request) -> None:
        """Note that the site has to be asked after all."""
        request.meta[metakeys.CACHE_MISSED] = self._key_of(request)

    # The middleware ------------------------------------------------------------------------------
    async def read(self, request: Request) -> Response | None:
        """Return the answer that stands for *request*, or None: the site has to be asked."""
        try:
            asked = self._asked(request)
        except Exception as exc:  # noqa: BLE001 - a header or fingerprint of the user's
            self._trouble("read", exc)
            return None
        waiter: asyncio.Future[Found | None] = asyncio.get_running_loop().create_future()
        self._wanted.append((asked, waiter))
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read_wanted())
        found = await waiter
        if found is None or not self._is_usable(found, request):
            return None
        response = response_of(found, request)
        request.meta["cache_timestamp"] = found.stored
        if self._oldest_hit is None or found.stored < self._oldest_hit:
            self._oldest_hit = found.stored
        self._context.stats.inc_value(keys.CACHE_HITS)
        return response

    def sent(self, request: Request) -> None:
        """Note that *request* goes to the site."""
        request.meta.pop(metakeys.CACHE_MISSED, None)
        if request.method != "GET" or request.cookies:
            self._ambient.asked(request, domain_of(request.url))
        if self._threads is not None and self.policy.should_cache_request(request):
            self._context.stats.inc_value(keys.CACHE_MISSES)

    def answered(self, request: Request, response: Response) -> None:
        """Look at an answer, and store it if it may be kept."""
        try:
            if b"Set-Cookie" in response.headers:
                self._ambient.answered(request, response, domain_of(request.url))
            if "cached" in response.flags or self._threads is None:
                return
            if request in self._limits.broken:  # its body was not received
                return
            if self.policy.should_cache_request(request) and self.policy.should_cache_response(
                response, request
            ):
                self._store(request, response)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the answer goes on its way
            self._trouble("stored", exc)

    def discard(self, request: Request) -> None:
        """Take the answer to *request* out again: the spider says that it is not the page."""
        if self._threads is None or not self.policy.should_cache_request(request):
            return
        if request in self._discarded:  # validate and the errback both came here
            return
        self._discarded.add(request)
        key = self._key_of(request)
        left = [one for one in self._unwritten if one.asked.key != key]
        self._bytes -= sum(len(one.body) for one in self._unwritten if one.asked.key == key)
        if len(left) == len(self._unwritten) and self._index.stored(key) is None and (
            self._writing is None
        ):  # fmt: skip
            return
        self._unwritten = left
        self._index.discard(key)
        self._dropped.add(key)
        self._context.stats.inc_value(keys.CACHE_DISCARDED)
        self._write_soon()

    def oldest_age(self) -> str:
        """Return how old the oldest answer is that was used."""
        return age_text(self._clock() - (self._oldest_hit or self._clock()))

    # Opening and closing -------------------------------------------------------------------------
    async def open(self) -> None:
        """Read the index, and say that a cache is in use."""
        if self._threads is not None:
            return
        threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="netspy-cache")
        loop = asyncio.get_running_loop()
        try:
            self._index, self._ambient = await loop.run_in_executor(threads, self._load)
        except Exception as exc:  # noqa: BLE001 - a cache must not keep a crawl from running
            threads.shutdown(wait=False)
            logger.warning(
                "RESPONSE_CACHE_ENABLE is on, but the cache cannot be used, so every page is "
                "fetched: %s", exc, extra={"spider": self._context.crawler.spider},
            )  # fmt: skip
            self._context.stats.inc_value(keys.CACHE_ERRORS)
            return
        self._threads = threads
        self._say_so()

    def _load(self) -> tuple[Index, AmbientCookies]:
        self._writer.open()
        self._reader.open()
        try:
            return (
                Index(self._reader.keys(self._scope)),
                AmbientCookies(self._reader.ambient(self._scope)),
            )
        except CacheError:  # damaged: what the file is now is a new one
            return Index(self._reader.keys(self._scope)), AmbientCookies()

    def _say_so(self) -> None:
        fresh = [one for one in self._index.times() if self._is_fresh(one)]
        if fresh:
            state = (
                f"it has {len(fresh)} pages for this spider, up to "
                f"{age_text(self._clock() - min(fresh))} old, which are not fetched"
            )
        else:
            state = "it has no pages for this spider yet, and keeps what is fetched now"
        logger.warning(
            "RESPONSE_CACHE_ENABLE is on (for development): pages come from %s where it has them; "
            "%s%s", self.settings.path, state,
            " (it can only be read)" if self._writer.read_only else "",
            extra={"spider": self._context.crawler.spider},
        )  # fmt: skip

    async def close(self) -> None:
        """Write what is left; whoever asks second waits for the first one."""
        if self._threads is None:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._start_writing()
        while self._writing is not None:
            await self._writing
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.get_running_loop().run_in_executor(threads, self._close_files)
            threads.shutdown(wait=False)

    def _close_files(self) -> None:
        self._reader.close()
        self._writer.close()

    # Reading -------------------------------------------------------------------------------------
    async def _read_wanted(self) -> None:
        loop = asyncio.get_running_loop()
        while self._wanted:
            batch, self._wanted = self._wanted[:_READ_AT_ONCE], self._wanted[_READ_AT_ONCE:]
            results: list[Found | Exception | None]
            try:
                results = await loop.run_in_executor(
                    self._threads, self._find, [asked for asked, _ in batch]
                )
            except Exception as exc:  # noqa: BLE001 - e.g. no thread can be started
                results = [exc] * len(batch)
            for (_, waiter), result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    self._trouble("read", result)
                if not waiter.done():
                    waiter.set_result(None if isinstance(result, Exception) else result)
        self._reading = None

    def _find(self, batch: list[Asked]) -> list[Found | Exception | None]:
        """Look *batch* up; runs in a thread."""
        found: list[Found | Exception | None] = []
        for entry in self._reader.find(batch):
            try:
                found.append(
                    Found(decode_head(entry.head), entry.body, entry.stored)
                    if isinstance(entry, Entry) else entry
                )  # fmt: skip
            except CacheError as exc:
                found.append(exc)
        return found

    def _is_usable(self, found: Found, request: Request) -> bool:
        if not self._is_fresh(found.stored) or not self.policy.accepts(request, found.head.status):
            return False
        limit = self._limits.size_of(request)
        return not limit or len(found.body) <= limit

    def _is_fresh(self, stored: float | None) -> bool:
        """Tell whether an answer of that time is used.

        One of the future, for the clock went back, is as old as it would be in the other direction.
        """
        if stored is None:
            return False
        expire = self.settings.expire
        return expire <= 0 or abs(self._clock() - stored) < expire

    # Writing -------------------------------------------------------------------------------------
    def _store(self, request: Request, response: Response) -> None:
        if self._bytes > _MAX_BYTES:
            self._trouble("stored", CacheError("the disk cannot follow"))
            return
        asked = self._asked(request, stored=True)
        self._unwritten.append(draft_of(asked, request, response, self._clock()))
        self._bytes += len(response.body)
        self._write_soon()

    def _write_soon(self) -> None:
        if self._bytes > _WRITE_BYTES:
            self._start_writing()
        elif self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_AFTER, self._start_writing)

    def _start_writing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write_all())

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._unwritten or self._dropped or self._ambient.found:
            batch, self._unwritten, self._bytes = self._unwritten, [], 0
            dropped, self._dropped = self._dropped | self._undropped, set()
            found, self._ambient.found = self._ambient.found, []
            try:
                await loop.run_in_executor(self._threads, self._write, batch, dropped, found)
            except Exception as exc:  # noqa: BLE001 - a full disk, a lock, a damaged file
                self._trouble("written", exc, max(1, len(batch)))
                self._undropped = dropped
                continue
            self._undropped = set()
            if batch:
                self._context.stats.inc_value(keys.CACHE_STORED, len(batch))
            for one in batch:
                if one.asked.key not in self._dropped:
                    self._index.add(one.asked.key, one.stored)
        self._writing = None

    def _write(self, batch: list[Draft], dropped: set[int], found: list[tuple[str, str]]) -> None:
        """Write; runs in a thread. What is dropped was stored before what is stored now."""
        if dropped:
            self._writer.drop(self._scope, dropped)
        if found:
            self._writer.add_ambient(self._scope, found)
        if batch:
            self._writer.write([one.entry() for one in batch])

    # Requests ------------------------------------------------------------------------------------
    def _key_of(self, request: Request) -> int:
        queued = self._queued.get(request)
        return queued.key if queued is not None else _number(self._fingerprint(request))

    def _asked(self, request: Request, *, stored: bool = False) -> Asked:
        queued = self._queued.get(request)
        page = b""
        if queued is not None and (queued.url != request.url or queued.body != request.body):
            # Scrapy keeps the fingerprint of an object, which download_midware has changed since.
            page = self._fingerprint(request.copy())
        return Asked(
            scope=self._scope,
            key=self._key_of(request),
            page=page,
            manner=manner_of(request),
            headers=sent_headers(request),
            ignored=frozenset() if stored else self._ambient.names(request),
        )

    def _fingerprint(self, request: Request) -> bytes:
        fingerprinter = self._context.crawler.request_fingerprinter
        assert fingerprinter is not None
        return fingerprinter.fingerprint(request)

    def _trouble(self, what: str, exc: Exception, count: int = 1) -> None:
        self._context.stats.inc_value(keys.CACHE_ERRORS, count)
        logger.debug(
            "The response cache: %d answers cannot be %s: %s", count, what, exc,
            extra={"spider": self._context.crawler.spider},
        )  # fmt: skip


def _number(fingerprint: bytes) -> int:
    return int.from_bytes(fingerprint[:8], "big", signed=True)
