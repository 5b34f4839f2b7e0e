"""What to send for a page that is known, and what an answer means. Pure: no clock, no Scrapy.

Sources: RFC 9110, sections 8.8 (validators) and 13 (conditional requests).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netspy_scrapy.incremental.entry import Entry

SKIP, FOLLOW, REPARSE = MODES = ("skip", "follow", "reparse")

_OK = 200
_NOT_MODIFIED = 304
#: 404 Not Found, 410 Gone.
_GONE = frozenset({404, 410})

#: A page that changes twice within this time may have the same Last-Modified both times
#: (RFC 9110, section 8.8.2.2).
_CLOCK_SECONDS = 1


class Meaning(Enum):
    """What an answer says of a page."""

    NOT_MODIFIED = "not modified"
    """It is as it was: 304."""
    SAME_BODY = "same body"
    """It was sent again, and is as it was."""
    CONTENT = "content"
    """Here it is; what is known of it is replaced once its rows are safe."""
    GONE = "gone"
    """It is not there any more."""
    NOTHING = "nothing"
    """An error, say: what is known stays."""


@dataclass(frozen=True)
class Answer:
    """What counts of a response."""

    status: int
    etag: bytes | None = None
    modified: bytes | None = None
    date: bytes | None = None
    size: int = 0
    """Bytes of the body as they were sent."""


@dataclass(frozen=True)
class Policy:
    """The rules of a crawl."""

    compare_body: bool = False
    """Whether an answer with the body of last time counts as not modified."""
    dynamic_after: int = 3
    """Changes of the ETag in a row, without one of the body, that make a page dynamic; 0: never."""

    def validator(self, entry: Entry | None, mode: str) -> tuple[bytes, bytes] | None:
        """Return name and value of the header that asks whether the page changed.

        None: it has to be fetched, as there is nothing to ask by, or as what *mode* needs of an
        unchanged page is not kept.
        """
        if entry is None or entry.dynamic or not is_kept(entry, mode):
            return None
        if entry.etag is not None:
            return b"If-None-Match", entry.etag
        if entry.modified is not None:
            return b"If-Modified-Since", entry.modified
        return None

    def is_fresh(self, entry: Entry | None, mode: str, now: float, min_age: float) -> bool:
        """Tell whether a page that has no validator was fetched less than *min_age* seconds ago."""
        if entry is None or entry.has_validator or not is_kept(entry, mode):
            return False
        return 0 <= now - entry.fetched < min_age

    def needs_digest(self, entry: Entry | None, answer: Answer) -> bool:
        """Tell whether the body has to be compared: hashing every page costs time."""
        if answer.status != _OK:
            return False
        return self.compare_body or _etag_changed(entry, answer)

    def meaning(
        self, entry: Entry | None, answer: Answer, digest: bytes | None, mode: str, *, asked: bool
    ) -> Meaning:
        """Return what *answer* means; *asked*: the request had a validator of ours."""
        if answer.status == _NOT_MODIFIED:
            return Meaning.NOT_MODIFIED if asked else Meaning.NOTHING
        if answer.status in _GONE:
            return Meaning.GONE
        if answer.status != _OK:
            return Meaning.NOTHING
        if (
            self.compare_body
            and mode != REPARSE  # its callback wants the body, and here it is
            and entry is not None
            and digest is not None
            and digest == entry.digest
            and is_kept(entry, mode)
        ):
            return Meaning.SAME_BODY
        return Meaning.CONTENT

    def learn(self, known: Entry | None, answer: Answer, digest: bytes | None, new: Entry) -> Entry:
        """Return what is to be remembered of a page that was sent.

        *new* has key, spider, URL, times and what was kept of the page. A validator that the
        answer does not have any more is dropped.
        """
        changes, dynamic = 0, False
        if known is not None and answer.etag is not None and known.etag is not None:
            changed = _etag_changed(known, answer)
            if changed and digest is not None and digest == known.digest:
                changes = known.changes + 1
            reached = 0 < self.dynamic_after <= changes
            # Once dynamic, only an ETag that stays makes the page an ordinary one again.
            dynamic = changed and (known.dynamic or reached)
        return replace(
            new,
            status=_OK,
            etag=answer.etag,
            modified=usable_date(answer.modified, answer.date),
            size=answer.size,
            digest=digest,
            changes=changes,
            dynamic=dynamic,
        )

    def confirm(self, known: Entry, now: float, run: int, status: int = _NOT_MODIFIED) -> Entry:
        """Return what is to be remembered of a page that did not change.

        Its validators are kept: a 304 need not repeat them, and one that names others is not
        relied on.
        """
        return replace(known, status=status, checked=now, run=run, changes=0)


def is_kept(entry: Entry, mode: str) -> bool:
    """Tell whether what *mode* needs of an unchanged page is there."""
    if mode == FOLLOW:
        return entry.children is not None
    return mode != REPARSE or entry.body is not None


def usable_date(modified: bytes | None, date: bytes | None) -> bytes | None:
    """Return *modified* if a page that changes later cannot have the same.

    A page with the Last-Modified of the very second in which it was sent may change once more in
    it, and would be taken for unchanged from then on.
    """
    if modified is None or date is None:
        return modified
    try:
        age = parsedate_to_datetime(date.decode("ascii")) - parsedate_to_datetime(
            modified.decode("ascii")
        )
    except (TypeError, ValueError):  # the site will make something of it, or send the page
        return modified
    return modified if age.total_seconds() >= _CLOCK_SECONDS else None


def _etag_changed(entry: Entry | None, answer: Answer) -> bool:
    return (
        entry is not None
        and entry.etag is not None
        and answer.etag is not None
        and entry.etag != answer.etag
    )
