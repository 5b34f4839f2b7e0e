"""Sets of keys that only grow: a bloom filter that costs bytes per key, and an exact set."""

from __future__ import annotations

import logging
import math
from hashlib import shake_128
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from netspy_scrapy.settings import DedupSettings

logger = logging.getLogger(__name__)

#: Bit positions of a key at most. 16 instead of the 21 that are best for 1e-6 cost 2.5 %
#: more memory and save a fifth of the time.
MAX_HASHES: Final = 16
# Positions come from independent 64-bit words. Double hashing (h1 + i * h2) is slower in Python,
# and in a small layer its few distinct sequences collide more often than an error rate of 1e-6.
_words = Struct(f"<{MAX_HASHES}Q").unpack
_DIGEST_SIZE: Final = MAX_HASHES * 8
_BITS: Final = (1, 2, 4, 8, 16, 32, 64, 128)

#: Keys that a bloom filter holds in a set first, at most: moving them takes a few milliseconds.
_MAX_EXACT: Final = 2_000
#: What a short key costs in a set, in bytes.
_EXACT_KEY_SIZE: Final = 128

_GROWTH: Final = 2
_TIGHTENING: Final = 0.5


class KeyFilter(Protocol):
    """A set of keys that only grows."""

    @property
    def full(self) -> bool:
        """Whether more keys would make it err more often than promised."""

    def add(self, key: bytes) -> bool:
        """Remember *key*; return whether it was new."""

    def __contains__(self, key: bytes, /) -> bool: ...

    def __len__(self) -> int: ...


class ExactFilter:
    """A set: never errs, and costs about 100 bytes a key."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def __contains__(self, key: bytes, /) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def full(self) -> bool:
        """Never: a set grows as long as there is memory."""
        return False

    def add(self, key: bytes) -> bool:
        """Remember *key*; return whether it was new."""
        if key in self._keys:
            return False
        self._keys.add(key)
        return True


class BloomFilter:
    """A scalable bloom filter: 4 bytes a key at an error rate of 1e-6.

    It never forgets a key. A key that was never added is taken for a known one with a
    probability of at most *error_rate*, all layers together.

    The first layer holds *capacity* keys. When it has them, a layer of twice the size and half
    the error rate is put on top, and so on up to *max_layers* layers (with 4, 15 times
    *capacity*). Then the last one takes all further keys, erring more and more often; one
    warning says so.

    A layer takes all of its memory at once. So that a small crawl does not pay for it, the first
    keys are held in a set, as long as that is the smaller of the two, and at most 2,000.

    Not for use from several threads at a time.
    """

    __slots__ = ("_capacity", "_error_rate", "_exact", "_exact_limit", "_layers", "_max_layers",
                 "_warned")  # fmt: skip

    def __init__(self, capacity: int, error_rate: float, max_layers: int) -> None:
        if capacity < 1 or max_layers < 1 or not 0 < error_rate < 1:
            msg = f"no such bloom filter: {capacity=}, {error_rate=}, {max_layers=}"
            raise ValueError(msg)
        self._capacity = capacity
        self._error_rate = error_rate
        self._max_layers = max_layers
        self._layers: list[_Layer] = []  # all but the last are full
        self._exact: set[bytes] = set()  # empty once there are layers
        _, size = _shape(*self._plan(0))
        self._exact_limit = min(size // _EXACT_KEY_SIZE, _MAX_EXACT)
        self._warned = False

    def __contains__(self, key: bytes, /) -> bool:
        if not self._layers:
            return key in self._exact
        words = _words(shake_128(key).digest(_DIGEST_SIZE))
        return any(layer.has(words) for layer in self._layers)

    def __len__(self) -> int:
        return len(self._exact) + sum(layer.count for layer in self._layers)

    @property
    def full(self) -> bool:
        """Whether every layer is full and no further one is allowed."""
        layers = self._layers
        return len(layers) == self._max_layers and layers[-1].count >= layers[-1].capacity

    def add(self, key: bytes) -> bool:
        """Remember *key*; return whether it was new."""
        if not self._layers:
            if key in self._exact:
                return False
            if len(self._exact) < self._exact_limit:
                self._exact.add(key)
                return True
            self._leave_exact()
        words = _words(shake_128(key).digest(_DIGEST_SIZE))
        last = self._layers[-1]
        for layer in self._layers:
            if layer is not last and layer.has(words):
                return False
        if last.count >= last.capacity:
            if last.has(words):
                return False
            last = self._grow()
        return last.put(words)

    def _plan(self, index: int) -> tuple[int, float]:
        return _plan(index, self._capacity, self._error_rate)

    def _leave_exact(self) -> None:
        layer = _Layer(*self._plan(0))
        for key in self._exact:
            layer.put(_words(shake_128(key).digest(_DIGEST_SIZE)))
        self._layers.append(layer)
        self._exact = set()

    def _grow(self) -> _Layer:
        if len(self._layers) < self._max_layers:
            self._layers.append(_Layer(*self._plan(len(self._layers))))
        elif not self._warned:
            self._warned = True
            logger.warning(
                "The duplicate filter is full: %d keys in %d layers. From here on it takes more "
                "and more new requests or items for duplicates. Raise DEDUP_INITIAL_CAPACITY "
                '(now %d) or DEDUP_MAX_LAYERS (now %d), or set DEDUP_FILTER = "lite"',
                len(self),
                len(self._layers),
                self._capacity,
                self._max_layers,
            )
        return self._layers[-1]


class _Layer:
    """A bloom filter of fixed size."""

    __slots__ = ("bits", "capacity", "count", "hashes")

    def __init__(self, capacity: int, error_rate: float) -> None:
        self.capacity = capacity
        self.count = 0
        self.hashes, size = _shape(capacity, error_rate)
        self.bits = bytearray(size)

    def has(self, words: tuple[int, ...]) -> bool:
        bits, size = self.bits, len(self.bits)
        for word in words[: self.hashes]:  # noqa: SIM110 - all() takes twice as long
            if not bits[word % size] & _BITS[word & 7]:
                return False
        return True

    def put(self, words: tuple[int, ...]) -> bool:
        bits, size = self.bits, len(self.bits)
        new = False
        for word in words[: self.hashes]:
            index = word % size
            byte, bit = bits[index], _BITS[word & 7]
            if not byte & bit:
                bits[index] = byte | bit
                new = True
        self.count += new
        return new


def layer_shape(index: int, capacity: int, error_rate: float) -> tuple[int, int, int]:
    """Return bit positions a key, size in bytes and capacity of layer *index* (from 0).

    *capacity* is that of the first layer, *error_rate* that of all layers together.
    """
    keys, rate = _plan(index, capacity, error_rate)
    return *_shape(keys, rate), keys


def _plan(index: int, capacity: int, error_rate: float) -> tuple[int, float]:
    # The error rates add up to less than the whole: 1/2 + 1/4 + 1/8 ...
    return capacity * _GROWTH**index, error_rate * _TIGHTENING ** (index + 1)


def _shape(capacity: int, error_rate: float) -> tuple[int, int]:
    """Return bit positions a key and size in bytes of a layer."""
    hashes = min(math.ceil(-math.log2(error_rate)), MAX_HASHES)
    bits = -hashes * capacity / math.log1p(-(error_rate ** (1 / hashes)))
    # An odd number of bytes has no factor in common with 8, so one word gives byte (word % size)
    # and bit (word & 7) independently.
    return hashes, math.ceil(bits / 8) | 1


def key_filter(settings: DedupSettings) -> KeyFilter:
    """Return the filter that DEDUP_FILTER asks for, in memory: a bloom filter or an exact set.

    Of "redis" and "redis-set" it is the kind that stands for them within one process.
    """
    if settings.kind in ("lite", "redis-set"):
        return ExactFilter()
    return BloomFilter(settings.capacity, settings.error_rate, settings.max_layers)
