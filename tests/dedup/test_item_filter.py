from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Spider
from scrapy.crawler import Crawler

from netspy_scrapy.dedup import BloomFilter, ExactFilter, ItemFilter
from netspy_scrapy.exceptions import ConfigError

FP = "0123abcd"


def from_settings(**settings) -> ItemFilter:
    return ItemFilter.from_crawler(Crawler(Spider, settings))


@pytest.fixture(params=["memory", "lite"])
def items(request) -> ItemFilter:
    return from_settings(DEDUP_FILTER=request.param)


@pytest.mark.parametrize(
    ("calls", "seen"),
    [
        ("", False),
        ("reserve", True),
        ("reserve record", True),
        ("reserve release", False),
        ("reserve release reserve", True),
        ("reserve release reserve release", False),
        ("reserve release reserve record", True),
        # several rows of one fingerprint at a time
        ("reserve reserve release", True),
        ("reserve reserve release release", False),
        ("reserve reserve record", True),
        ("reserve reserve record release", True),
        ("reserve reserve release record", True),
        ("reserve reserve record record", True),
        ("record reserve release", True),
        # calls without a reservation
        ("release", False),
        ("release reserve", True),
        ("reserve release release reserve", True),
        ("reserve release release reserve release", False),
        ("record", True),
        ("record release", True),
    ],
)
def test_what_is_seen(items, calls, seen):
    """An item is a duplicate while a twin is on its way or stored, and not after it was dumped."""
    for call in calls.split():
        getattr(items, call)(FP)

    assert items.seen(FP) is seen


def test_asking_leaves_no_trace(items):
    """Asking for an item does not remember it."""
    items.seen(FP)

    assert not items.seen(FP)
    assert (len(items), items.pending) == (0, 0)


def test_text_and_bytes_are_one_fingerprint(items):
    """A fingerprint may be given as text or as bytes."""
    items.reserve(FP)
    items.record(FP.encode())

    assert items.seen(FP)
    assert items.seen(FP.encode())
    assert (len(items), items.pending) == (1, 0)


def test_fingerprints_do_not_mix(items):
    """Each fingerprint goes its own way."""
    for fingerprint in ("stored", "dumped", "waiting"):
        items.reserve(fingerprint)
    items.record("stored")
    items.release("dumped")

    assert [items.seen(one) for one in ("stored", "dumped", "waiting")] == [True, False, True]
    assert (len(items), items.pending) == (1, 1)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["reserve", "record", "release"])),
        max_size=30,
    )
)
def test_it_counts_reservations(steps):
    """After any order of calls, seen means stored once or reserved more often than ended."""
    items = ItemFilter(ExactFilter())
    stored, reserved = set(), dict.fromkeys("ab", 0)

    for fingerprint, call in steps:
        getattr(items, call)(fingerprint)
        if call == "reserve":
            reserved[fingerprint] += 1
        else:
            reserved[fingerprint] = max(0, reserved[fingerprint] - 1)
        if call == "record":
            stored.add(fingerprint)

        for one in "ab":
            assert items.seen(one) == (one in stored or reserved[one] > 0)
    assert len(items) == len(stored)
    assert items.pending == sum(count > 0 for count in reserved.values())


def test_pending_does_not_grow_with_the_run(items):
    """What is stored or dumped is no longer held as pending."""
    for number in range(1_000):
        items.reserve(str(number))
        (items.record if number % 2 else items.release)(str(number))

    assert (len(items), items.pending) == (500, 0)


@pytest.mark.parametrize(("kind", "expected"), [("memory", BloomFilter), ("lite", ExactFilter)])
def test_dedup_filter_chooses(kind, expected):
    """The item filter is of the kind that DEDUP_FILTER names."""
    assert type(from_settings(DEDUP_FILTER=kind)._stored) is expected


def test_a_wrong_kind_is_named():
    """A DEDUP_FILTER that does not exist is an error naming it."""
    with pytest.raises(ConfigError, match="DEDUP_FILTER = 'bitmap'"):
        from_settings(DEDUP_FILTER="bitmap")
