"""What is sent for a page, and what an answer means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.incremental.entry import (
    Entry,
    digest_of,
    entry_from_json,
    entry_to_json,
    key_of,
)
from netspy_scrapy.incremental.policy import Answer, Meaning, Policy, usable_date

OLD = b"Wed, 21 Oct 2015 07:28:00 GMT"
LATER = b"Wed, 21 Oct 2015 07:28:01 GMT"
BASE = Entry(b"k", "s", "http://a.test/")


def entry(**values: Any) -> Entry:
    return replace(BASE, **values)


@pytest.mark.parametrize(
    ("known", "mode", "sent"),
    [
        (None, "skip", None),
        (entry(), "skip", None),
        (entry(etag=b'W/"1"'), "skip", (b"If-None-Match", b'W/"1"')),
        (entry(modified=OLD), "skip", (b"If-Modified-Since", OLD)),
        (entry(etag=b'"1"', modified=OLD), "skip", (b"If-None-Match", b'"1"')),
        (entry(etag=b'"1"', dynamic=True), "skip", None),
        (entry(etag=b'"1"', modified=OLD, dynamic=True), "skip", None),
        (entry(etag=b'"1"'), "follow", None),
        (entry(etag=b'"1"', children=0), "follow", (b"If-None-Match", b'"1"')),
        (entry(etag=b'"1"', children=2), "reparse", None),
        (entry(etag=b'"1"', body=b"d"), "reparse", (b"If-None-Match", b'"1"')),
    ],
)
def test_validator(known: Entry | None, mode: str, sent: Any) -> None:
    """The ETag goes before the date, and neither is sent where a 304 could not be used."""
    assert Policy().validator(known, mode) == sent


@pytest.mark.parametrize(
    ("known", "age", "fresh"),
    [
        (None, 100, False),
        (entry(fetched=1000), 100, True),
        (entry(fetched=1000), 50, False),
        (entry(fetched=1000), 0, False),
        (entry(fetched=9999), 100, False),  # the clock was set back
        (entry(fetched=1000, etag=b'"1"'), 100, False),
        (entry(fetched=1000, modified=OLD), 100, False),
        (entry(fetched=1000, etag=b'"1"', dynamic=True), 100, False),
    ],
)
def test_freshness(known: Entry | None, age: float, fresh: bool) -> None:
    """Only pages without any validator wait for their age."""
    assert Policy().is_fresh(known, "skip", 1060, age) is fresh


def test_a_fresh_page_needs_what_the_mode_needs() -> None:
    """A page whose requests are not kept is fetched."""
    assert not Policy().is_fresh(entry(fetched=1000), "follow", 1001, 100)
    assert Policy().is_fresh(entry(fetched=1000, children=1), "follow", 1001, 100)


@pytest.mark.parametrize(
    ("status", "asked", "meaning"),
    [
        (304, True, Meaning.NOT_MODIFIED),
        (304, False, Meaning.NOTHING),
        (200, True, Meaning.CONTENT),
        (200, False, Meaning.CONTENT),
        (404, True, Meaning.GONE),
        (410, False, Meaning.GONE),
        (206, True, Meaning.NOTHING),
        (204, True, Meaning.NOTHING),
        (301, True, Meaning.NOTHING),
        (403, True, Meaning.NOTHING),
        (412, True, Meaning.NOTHING),
        (429, True, Meaning.NOTHING),
        (500, True, Meaning.NOTHING),
    ],
)
def test_meaning(status: int, asked: bool, meaning: Meaning) -> None:
    """Errors say nothing of a page, and a 304 only to those who asked."""
    known = entry(etag=b'"1"')

    assert Policy().meaning(known, Answer(status), None, "skip", asked=asked) is meaning


@pytest.mark.parametrize(
    ("compare", "known", "mode", "meaning"),
    [
        (True, entry(digest=b"d"), "skip", Meaning.SAME_BODY),
        (False, entry(digest=b"d"), "skip", Meaning.CONTENT),
        (True, entry(digest=b"other"), "skip", Meaning.CONTENT),
        (True, entry(), "skip", Meaning.CONTENT),
        (True, None, "skip", Meaning.CONTENT),
        (True, entry(digest=b"d"), "follow", Meaning.CONTENT),
        (True, entry(digest=b"d", children=3), "follow", Meaning.SAME_BODY),
        (True, entry(digest=b"d", body=b"d"), "reparse", Meaning.CONTENT),
    ],
)
def test_same_body(compare: bool, known: Entry | None, mode: str, meaning: Meaning) -> None:
    """A body of last time counts on request, and where the page can be done without it."""
    policy = Policy(compare_body=compare)

    assert policy.meaning(known, Answer(200), b"d", mode, asked=True) is meaning


@pytest.mark.parametrize(
    ("known", "etag", "digest", "changes", "dynamic"),
    [
        (None, b'"1"', None, 0, False),
        (entry(etag=b'"1"'), b'"1"', None, 0, False),
        (entry(etag=b'"1"'), b'"2"', b"d", 0, False),  # nothing to compare with yet
        (entry(etag=b'"1"', digest=b"d"), b'"2"', b"d", 1, False),
        (entry(etag=b'"1"', digest=b"d", changes=2), b'"2"', b"d", 3, True),
        (entry(etag=b'"1"', digest=b"d", changes=2), b'"2"', b"new", 0, False),
        (entry(etag=b'"1"', digest=b"d", changes=2), b'"1"', b"d", 0, False),
        (entry(etag=b'"1"', digest=b"d", changes=2), None, b"d", 0, False),
        # Once dynamic, it stays so until the ETag stays or goes.
        (entry(etag=b'"1"', digest=b"d", changes=3, dynamic=True), b'"2"', b"new", 0, True),
        (entry(etag=b'"1"', digest=b"d", changes=3, dynamic=True), b'"1"', b"d", 0, False),
        (entry(etag=b'"1"', digest=b"d", changes=3, dynamic=True), None, b"d", 0, False),
    ],
)
def test_dynamic_pages(
    known: Entry | None, etag: bytes | None, digest: bytes | None, changes: int, dynamic: bool
) -> None:
    """An ETag that changes alone, three times in a row, is given up."""
    learned = Policy().learn(known, Answer(200, etag=etag), digest, BASE)

    assert (learned.etag, learned.changes, learned.dynamic) == (etag, changes, dynamic)


def test_zero_means_never_dynamic() -> None:
    """NETSPY_INCREMENTAL_DYNAMIC_AFTER = 0 switches the mark off."""
    known = entry(etag=b'"1"', digest=b"d", changes=99)
    learned = Policy(dynamic_after=0).learn(known, Answer(200, etag=b'"2"'), b"d", BASE)

    assert not learned.dynamic


def test_a_304_keeps_all_but_the_times() -> None:
    """Also the row of changes ends: the ETag did say something."""
    known = entry(etag=b'"1"', modified=OLD, digest=b"d", changes=2, children=3, fetched=5.0)
    confirmed = Policy().confirm(known, 9.0, 7)

    assert confirmed == replace(known, status=304, checked=9.0, run=7, changes=0)


@pytest.mark.parametrize(
    ("modified", "date", "usable"),
    [
        (None, LATER, None),
        (OLD, None, OLD),
        (OLD, LATER, OLD),
        (OLD, OLD, None),
        (LATER, OLD, None),
        (b"yesterday", LATER, b"yesterday"),
        (OLD, b"\xff", OLD),
        (b"Wed, 21 Oct 2015 07:28:00 -0000", LATER, b"Wed, 21 Oct 2015 07:28:00 -0000"),
    ],
)
def test_a_date_of_the_same_second_is_not_used(
    modified: bytes | None, date: bytes | None, usable: bytes | None
) -> None:
    """The page may change again within it (RFC 9110, section 8.8.2.2)."""
    assert usable_date(modified, date) == usable


@pytest.mark.parametrize(
    ("compare", "known", "answer", "needed"),
    [
        (False, None, Answer(200, etag=b'"1"'), False),
        (False, entry(etag=b'"1"'), Answer(200, etag=b'"1"'), False),
        (False, entry(etag=b'"1"'), Answer(200, etag=b'"2"'), True),
        (True, None, Answer(200), True),
        (True, None, Answer(404), False),
        (False, entry(etag=b'"1"'), Answer(304), False),
    ],
)
def test_bodies_are_hashed_only_where_needed(
    compare: bool, known: Entry | None, answer: Answer, needed: bool
) -> None:
    """Hashing every page would cost time that nobody asked for."""
    assert Policy(compare_body=compare).needs_digest(known, answer) is needed


# Keys and entries --------------------------------------------------------------------------------
def key(request: Request, spider: str = "s") -> bytes:
    headers = ((b"Accept-Language", b"en"),)
    return key_of(request, RequestFingerprinter(), spider=spider, headers=headers)


def test_keys() -> None:
    """Spider and some headers tell pages apart; others and the order of a query not."""
    url = "http://a.test/?a=1&b=2"
    plain = key(Request(url))

    assert key(Request("http://a.test/?b=2&a=1")) == plain
    assert key(Request(url, headers={"User-Agent": "x"})) == plain
    assert key(Request(url, headers={"Accept-Language": "en"})) == plain  # as the project sends
    others = [
        key(Request(url), "other"),
        key(Request(url, headers={"Accept-Language": "de"})),
        key(Request(url + "3")),
    ]
    assert len({plain, *others}) == 4


BYTES = st.none() | st.binary(max_size=40)


@given(
    st.builds(
        Entry, key=st.binary(min_size=16, max_size=16), spider=st.text(), url=st.text(),
        etag=BYTES, modified=BYTES, status=st.integers(100, 999), fetched=st.floats(0, 1e11),
        digest=BYTES, changes=st.integers(0), dynamic=st.booleans(),
        children=st.none() | st.integers(0), body=BYTES,
    )
)  # fmt: skip
def test_entries_survive_json(one: Entry) -> None:
    """Validators come back byte for byte."""
    assert entry_from_json(one.key, entry_to_json(one)) == one


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"etag": 5}', b"\xff"])
def test_what_is_no_entry_is_refused(text: str | bytes) -> None:
    """A store that somebody else wrote into is not believed."""
    with pytest.raises(DumpError):
        entry_from_json(b"k", text)


def test_digests_tell_bodies_apart() -> None:
    """One changed byte is a change."""
    assert digest_of(b"a" * 10_000) != digest_of(b"a" * 9_999 + b"b")
