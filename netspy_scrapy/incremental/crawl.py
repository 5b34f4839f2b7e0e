"""What one crawl knows of pages from earlier runs, and what it learns."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.http.request import NO_CALLBACK

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from netspy_scrapy import stats as keys
from netspy_scrapy.exceptions import ConfigError, DumpError, RequestError, StoreError
from netspy_scrapy.incremental.backends import backend_of
from netspy_scrapy.incremental.entry import Entry, digest_of, key_headers, key_of
from netspy_scrapy.incremental.pages import (
    pack_requests,
    pack_response,
    unpack_requests,
    unpack_response,
)
from netspy_scrapy.incremental.policy import FOLLOW, MODES, REPARSE, Answer, Meaning
from netspy_scrapy.incremental.sqlite import SqliteBackend
from netspy_scrapy.incremental.store import Store
from netspy_scrapy.incremental.validator import clear_validator, hide_validator, set_validator
from netspy_scrapy.logs import shown
from netspy_scrapy.receipts import Verdict
from netspy_scrapy.settings import IncrementalSettings

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy import Request
    from scrapy.http import Response
    from typing_extensions import Self

    from netspy_scrapy.context import CrawlContext

logger = logging.getLogger(__name__)

#: With these a request has conditions of its own, or asks for a part of a page.
_OWN_CONDITIONS = frozenset(
    {
        b"If-None-Match", b"If-Modified-Since", b"If-Match", b"If-Unmodified-Since", b"If-Range",
        b"Range",
    }
)  # fmt: skip


#: scrapy-playwright's own key for a page that a browser fetches.
_PLAYWRIGHT = "playwright"


@dataclass(eq=False)
class Attempt:
    """One request for a page, until its answer is judged."""

    key: bytes
    mode: str
    known: Entry | None
    asked: bool = False
    """Whether the site was asked if the page changed."""
    is_fresh: bool = False
    """Whether the site is not asked at all, as the page is not old enough."""
    children: tuple[int, bytes] | None = None
    """How many requests the callback yielded, and these as they are kept."""


class Incremental:
    """Ties the store and the policy to one crawl.

    :meth:`begin` looks a page up before its request goes out, :meth:`end` hands out what is known
    when its answer is there, and :meth:`learn` remembers an answer once its rows are safe.
    """

    def __init__(self, context: CrawlContext, settings: IncrementalSettings, store: Store) -> None:
        self.settings = settings
        self.policy = settings.policy
        self.store = store
        self._context = context
        self._crawler = context.crawler
        self._receipts = context.receipts
        self._attempts: WeakKeyDictionary[Request, Attempt] = WeakKeyDictionary()
        self._headers = key_headers(self._crawler.settings, settings)
        self._told: set[str] = set()
        context.on_queued = self.look_ahead
        connect = self._crawler.signals.connect
        connect(self._spider_opened, signals.spider_opened)
        connect(self._spider_closed, signals.spider_closed)
        connect(self._response_downloaded, signals.response_downloaded)
        # After spider_closed, when feeds and the last batches are durable.
        connect(self._engine_stopped, signals.engine_stopped)

    @classmethod
    def from_context(cls, context: CrawlContext) -> Self:
        """Build it from the settings of a crawl."""
        settings = IncrementalSettings.from_settings(context.crawler.settings)
        backend = backend_of(context.crawler.settings, settings)
        if isinstance(backend, SqliteBackend):
            with suppress(StoreError):  # it is tried again, and then said
                backend.check()
        return cls(context, settings, Store(backend, context.stats))

    # An attempt ----------------------------------------------------------------------------------
    def mode_of(self, request: Request) -> str | None:
        """Return what is done with the page if it did not change; None: that is not asked."""
        if not _may_ask(request) or request not in self._context.from_scheduler:
            return None
        wanted = request.meta.get(metakeys.INCREMENTAL)
        if wanted is not None:
            if wanted is not False and wanted not in MODES:
                raise RequestError(
                    f"meta[{metakeys.INCREMENTAL!r}] = {wanted!r} is not allowed: "
                    f"False or one of {', '.join(MODES)}"
                )
            return wanted or None
        policy = self._policy_of(request)
        if policy is not None:
            if policy.incremental is False:
                return None
            if policy.on_304 is not None:
                return str(policy.on_304)
        return self.settings.on_304

    def look_ahead(self, request: Request) -> None:
        """Look up the page of a request that was queued; never raises."""
        with suppress(Exception):  # what is wrong with it shows when its turn comes
            if _may_ask(request):
                self.store.look_ahead(self._key_of(request))

    def begin(self, request: Request, mode: str) -> Attempt | Coroutine[None, None, Attempt]:
        """Look up the page of *request*, and let the request ask whether it changed."""
        key = self._key_of(request)
        if self.store.has(key):
            return self._begin(request, Attempt(key, mode, self.store.known(key)))
        return self._look_up(request, key, mode)

    async def _look_up(self, request: Request, key: bytes, mode: str) -> Attempt:
        return self._begin(request, Attempt(key, mode, await self.store.get(key)))

    def _begin(self, request: Request, attempt: Attempt) -> Attempt:
        self._attempts[request] = attempt
        known, mode = attempt.known, attempt.mode
        validator = self.policy.validator(known, mode)
        if validator is not None:
            set_validator(request, *validator)
            attempt.asked = True
        elif self.policy.is_fresh(known, mode, time.time(), self._min_age(request)):
            attempt.is_fresh = True
        return attempt

    def end(self, request: Request) -> Attempt | None:
        """Return what :meth:`begin` found, for the answer to *request*."""
        clear_validator(request)
        return self._attempts.get(request)

    def judge(self, attempt: Attempt, response: Response) -> tuple[Meaning, Answer, bytes | None]:
        """Return what a response means, what of it counts, and the digest of its body if needed."""
        answer = _answer(response)
        digest = None
        if self.policy.needs_digest(attempt.known, answer):
            digest = digest_of(response.body)
        asked = attempt.asked or attempt.is_fresh
        meaning = self.policy.meaning(attempt.known, answer, digest, attempt.mode, asked=asked)
        return meaning, answer, digest

    # What is kept --------------------------------------------------------------------------------
    async def children(self, attempt: Attempt) -> list[Request]:
        """Return the requests that the page yielded last time; raises DumpError if it cannot."""
        data = await self.store.children(attempt.key)
        spider = self._crawler.spider
        assert spider is not None
        if data is None:
            raise DumpError("the requests that the page yielded last time are not in the store")
        return unpack_requests(data, spider)

    async def body(self, attempt: Attempt, request: Request) -> Response:
        """Return the page as it was last time; raises DumpError if it cannot."""
        assert attempt.known is not None
        digest = attempt.known.body
        data = None if digest is None else await self.store.body(attempt.key, digest)
        if data is None:
            raise DumpError("the body of last time is not in the store")
        return unpack_response(data, request.url, flags=["not-modified"])

    def keeps_children(self, request: Request) -> bool:
        """Tell whether what the callback of *request* yields is to be kept."""
        attempt = self._attempts.get(request)
        return attempt is not None and attempt.mode == FOLLOW

    def keep_children(self, request: Request, children: list[str]) -> None:
        """Keep the lines of what the callback of *request* yielded, with its entry."""
        self._attempts[request].children = len(children), pack_requests(children)

    def cannot_keep(self, request: Request, why: str) -> None:
        """Note that a page yields what cannot be kept, so that it is fetched in full each time."""
        if "children" not in self._told:
            self._told.add("children")
            logger.warning(
                "%s is fetched in full in each run, for a request that it yields cannot be kept: "
                "%s (further ones are not named)", shown(request), why,
                extra={"spider": self._crawler.spider},
            )  # fmt: skip

    # Learning ------------------------------------------------------------------------------------
    def confirm(self, attempt: Attempt) -> None:
        """Remember that a page did not change."""
        known = attempt.known
        assert known is not None
        if attempt.is_fresh:
            self.store.put(replace(known, run=self.store.run))
        else:
            self.store.put(self.policy.confirm(known, time.time(), self.store.run))

    def learn(
        self, request: Request, attempt: Attempt, answer: Answer, digest: bytes | None,
        response: Response | None,
    ) -> None:  # fmt: skip
        """Remember a page that was sent, once what came of it is safe.

        *response* is None where the body is that of last time, and so is what was kept of it.
        """
        now = time.time()
        new = Entry(
            attempt.key, self._context.spider_name, request.url,
            fetched=now, checked=now, run=self.store.run,
        )  # fmt: skip
        entry = self.policy.learn(attempt.known, answer, digest, new)
        self._count(entry)
        if attempt.known is not None and response is not None:
            # Rows of this page may be stored and it not be remembered; should the site then go
            # back to what it was, a 304 would leave them as they are.
            self.store.forget(attempt.key)
        if response is None:
            assert attempt.known is not None
            entry = replace(entry, children=attempt.known.children, body=attempt.known.body)
        elif attempt.mode == REPARSE:
            entry = replace(entry, body=digest or digest_of(response.body))
            assert entry.body is not None
            self.store.put_body(attempt.key, entry.body, pack_response(response))

        def safe(verdict: Verdict) -> None:
            if verdict is not Verdict.DONE:
                return
            if attempt.children is None:
                self.store.put(entry)
            else:
                count, kept = attempt.children
                self.store.put(replace(entry, children=count), kept)

        self._receipts.on_safe(request, safe)

    def forget(self, request: Request, attempt: Attempt) -> None:
        """Forget a page that is gone, once that is final."""
        if attempt.known is not None:
            self._context.stats.inc_value(keys.INCREMENTAL_GONE)
            self._receipts.on_safe(request, lambda _: self.store.forget(attempt.key))

    def fetch_anew(self, request: Request, attempt: Attempt, why: str) -> Request:
        """Return a request that fetches a page in full, as what was kept of it is no use."""
        logger.warning(
            "%s did not change, but is fetched again: %s", shown(request), why,
            extra={"spider": self._crawler.spider},
        )  # fmt: skip
        self.store.forget(attempt.key)
        again = request.copy()
        again.dont_filter = True
        return again

    def _count(self, entry: Entry) -> None:
        stats = self._context.stats
        if entry.dynamic:
            stats.inc_value(keys.INCREMENTAL_DYNAMIC)
        elif not entry.has_validator:
            stats.inc_value(keys.INCREMENTAL_PLAIN)

    # Own methods ---------------------------------------------------------------------------------
    def _key_of(self, request: Request) -> bytes:
        fingerprinter = self._crawler.request_fingerprinter
        assert fingerprinter is not None
        return key_of(
            request, fingerprinter, spider=self._context.spider_name, headers=self._headers
        )

    def _policy_of(self, request: Request) -> Any:
        politeness = self._context.politeness
        policies = politeness.settings.policies
        return policies.of(politeness.state_of(request).name) if policies else None

    def _min_age(self, request: Request) -> float:
        policy = self._policy_of(request)
        if policy is not None and policy.min_age is not None:
            return float(policy.min_age)
        return self.settings.min_age

    async def _spider_opened(self) -> None:
        if not self._context.has_scheduler:
            logger.warning(
                "NETSPY_INCREMENTAL does nothing: SCHEDULER is none of netspy_scrapy, so nothing "
                "tells when what a page yielded is safe", extra={"spider": self._crawler.spider},
            )  # fmt: skip
        try:
            await self.store.open(self._context.spider_name)
        except ConfigError as exc:
            logger.error("%s", exc, extra={"spider": self._crawler.spider})  # noqa: TRY400
            _scrapy.fail_exit(self._crawler)
            _scrapy.close_spider(self._crawler, "incremental_store")
        except StoreError as exc:
            logger.warning(
                "%s: pages are fetched as if they were not known", exc,
                extra={"spider": self._crawler.spider},
            )  # fmt: skip

    def _spider_closed(self) -> None:
        stats = self._context.stats
        asked = stats.get_value(keys.INCREMENTAL_ASKED, 0)
        if asked and not stats.get_value(keys.INCREMENTAL_NOT_MODIFIED, 0):
            logger.warning(
                "Sites answered none of %d conditional requests with 304: either all of these "
                "pages changed, or the sites (or a proxy) do not heed If-None-Match and "
                "If-Modified-Since", asked, extra={"spider": self._crawler.spider},
            )  # fmt: skip

    def _response_downloaded(self, request: Request) -> None:
        # Before a redirect copies the headers.
        hide_validator(request)

    async def _engine_stopped(self) -> None:
        await self.store.close(self._context.stop.left(math.inf))


def _may_ask(request: Request) -> bool:
    return (
        request.method == "GET"
        and request.callback is not NO_CALLBACK
        and metakeys.ROBOTS not in request.meta
        # What a browser shows is made of more than the page that has the validator.
        and not request.meta.get(metakeys.RENDER)
        and not request.meta.get(_PLAYWRIGHT)
        and _OWN_CONDITIONS.isdisjoint(request.headers)
    )


def _answer(response: Response) -> Answer:
    headers = response.headers
    length = headers.get(b"Content-Length") or b""
    return Answer(
        status=response.status,
        etag=headers.get(b"ETag") or None,
        modified=headers.get(b"Last-Modified") or None,
        date=headers.get(b"Date"),
        size=int(length) if length.isdigit() else len(response.body),
    )
