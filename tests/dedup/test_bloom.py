from __future__ import annotations

import logging
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import Settings

from netspy_scrapy.dedup import BloomFilter, ExactFilter, KeyFilter, key_filter
from netspy_scrapy.settings import DedupSettings


def keys(count: int, *, tag: str = "known") -> list[bytes]:
    return [f"{tag} {number}".encode() for number in range(count)]


def fill(seen: KeyFilter, count: int) -> int:
    """Add *count* keys; return how many counted as new."""
    return sum(seen.add(key) for key in keys(count))


BOTH = pytest.mark.parametrize(
    "make", [ExactFilter, lambda: BloomFilter(5, 1e-12, 3)], ids=["exact", "bloom"]
)


@BOTH
def test_a_key_is_new_once(make):
    """Adding tells whether the key was new, and only then does the filter grow."""
    seen = make()

    first = seen.add(b"page")
    second = seen.add(b"page")

    assert (first, second) == (True, False)
    assert b"page" in seen
    assert b"other" not in seen
    assert len(seen) == 1


@BOTH
@given(added=st.lists(st.binary(max_size=40), max_size=400))
def test_no_key_is_forgotten(make, added):
    """Whatever was added is known ever after, through the set, the layers and beyond them."""
    seen = make()

    for count, key in enumerate(added):
        seen.add(key)
        assert all(earlier in seen for earlier in added[: count + 1 : 50])

    assert all(key in seen for key in added)
    assert not any(seen.add(key) for key in added)
    assert len(seen) <= len(set(added))


@given(added=st.lists(st.binary(max_size=40), max_size=200))
def test_bloom_agrees_with_the_exact_filter(added):
    """With a strict error rate the bloom filter answers as the exact one does."""
    bloom, exact = BloomFilter(20, 1e-12, 4), ExactFilter()

    assert [bloom.add(key) for key in added] == [exact.add(key) for key in added]
    assert len(bloom) == len(exact)


@pytest.mark.parametrize("error_rate", [0.2, 0.05, 0.01])
def test_false_positives_stay_within_the_error_rate(error_rate):
    """With all layers full, a key never added is taken for known no more often than promised."""
    seen = BloomFilter(1_000, error_rate, 3)
    tag = 0
    while not seen.full:
        seen.add(b"%d" % tag)
        tag += 1

    wrong = sum(key in seen for key in keys(20_000, tag="unknown")) / 20_000

    # Far below would mean that the filter wastes memory, or is not a bloom filter at all.
    assert 0.5 * error_rate < wrong <= error_rate
    assert len(seen) == 1_000 + 2_000 + 4_000


@pytest.mark.parametrize("count", [99, 100, 101, 299, 300, 301, 700, 701, 900])
def test_a_key_of_any_layer_is_known(count):
    """A key is new once, whichever layer holds it, and however full the newest one is."""
    seen = BloomFilter(100, 1e-12, 3)
    fill(seen, count)

    again = fill(seen, count)

    assert again == 0
    assert len(seen) == count


def test_layers_are_added_without_a_word(caplog):
    """Growing within DEDUP_MAX_LAYERS is not worth a log line."""
    seen = BloomFilter(100, 1e-6, 3)

    assert fill(seen, 700) == 700

    assert caplog.records == []
    assert seen.full


def test_a_full_filter_goes_on_and_says_so_once(caplog):
    """Past its last layer the filter still accepts keys, with one warning naming the settings."""
    seen = BloomFilter(100, 1e-6, 2)
    fill(seen, 299)
    before = seen.full

    fill(seen, 400)

    assert not before
    assert seen.full
    assert all(key in seen for key in keys(400))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "DEDUP_INITIAL_CAPACITY (now 100)" in record.getMessage()
    assert "DEDUP_MAX_LAYERS (now 2)" in record.getMessage()


def test_the_exact_filter_is_never_full():
    """DEDUP_FILTER = "lite" has no capacity."""
    seen = ExactFilter()

    fill(seen, 1_000)

    assert not seen.full


def peak_memory(make, count: int) -> int:
    # Keys as long as fingerprints, made one by one so that only the filter keeps them.
    tracemalloc.start()
    try:
        seen = make()
        for number in range(count):
            seen.add(number.to_bytes(20, "big"))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("count", "limit"),
    [(10, 10_000), (1_000, 150_000), (20_000, 4_300_000)],
)
def test_memory_follows_the_size_of_the_crawl(count, limit):
    """With room for a million keys a small crawl pays for its own, a large one 4 MB."""
    assert peak_memory(lambda: BloomFilter(1_000_000, 1e-6, 4), count) < limit


def test_bloom_is_smaller_than_the_set():
    """Per key the bloom filter takes a tenth of what the exact one takes."""
    bloom = peak_memory(lambda: BloomFilter(20_000, 1e-6, 4), 20_000)
    exact = peak_memory(ExactFilter, 20_000)

    assert bloom < exact / 5  # the set that it starts with counts in its peak
    assert bloom < 20_000 * 20


@pytest.mark.parametrize(
    ("capacity", "error_rate", "max_layers"),
    [(0, 0.1, 1), (1, 0.0, 1), (1, 1.0, 1), (1, 0.1, 0)],
)
def test_impossible_shapes_are_refused(capacity, error_rate, max_layers):
    """A bloom filter without capacity, layers or a sane error rate is an error at once."""
    with pytest.raises(ValueError, match="no such bloom filter"):
        BloomFilter(capacity, error_rate, max_layers)


@pytest.mark.parametrize(
    ("capacity", "error_rate"), [(1, 0.9), (1, 1e-12), (3, 0.5), (1_000, 1e-9)]
)
def test_extreme_shapes_work(capacity, error_rate):
    """Tiny layers and extreme error rates still forget nothing."""
    seen = BloomFilter(capacity, error_rate, 4)

    fill(seen, 50)

    assert all(key in seen for key in keys(50))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, BloomFilter), ({"DEDUP_FILTER": "memory"}, BloomFilter),
     ({"DEDUP_FILTER": "lite"}, ExactFilter)],
)  # fmt: skip
def test_dedup_filter_chooses(settings, expected):
    """DEDUP_FILTER chooses the filter: "memory" is a bloom filter, "lite" a set."""
    assert type(key_filter(DedupSettings.from_settings(Settings(settings)))) is expected


def test_the_settings_shape_the_bloom_filter():
    """DEDUP_INITIAL_CAPACITY and DEDUP_MAX_LAYERS decide when the filter is full."""
    seen = key_filter(
        DedupSettings.from_settings(Settings({"DEDUP_INITIAL_CAPACITY": 10, "DEDUP_MAX_LAYERS": 1}))
    )

    fill(seen, 9)
    before = seen.full
    fill(seen, 10)

    assert (before, seen.full) == (False, True)
