"""Scrapy's duplicate filter with bounded memory."""

from __future__ import annotations

import errno
import logging
import os
import re
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.job import job_dir
from scrapy.utils.request import referer_str

from netspy_scrapy.dedup.bloom import KeyFilter, key_filter
from netspy_scrapy.logs import shown, without_credentials
from netspy_scrapy.settings import DedupSettings
from netspy_scrapy.stats import FILTER_DEGRADED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector
    from scrapy.utils.request import RequestFingerprinterProtocol
    from typing_extensions import Self

logger = logging.getLogger(__name__)

#: Scrapy's own count of filtered requests.
FILTERED: Final = "dupefilter/filtered"

SEEN_FILE: Final = "netspy_requests.seen"
SCRAPY_SEEN_FILE: Final = "requests.seen"

_RECORD_SIZE: Final = 20  # SHA-1, as Scrapy's fingerprinter
_SCRAPY_PREFIX_SIZE: Final = 2
_HEX_LINE = re.compile(rb"([0-9a-f]+)[\r\n]+")


class RequestFilter(BaseDupeFilter):
    """Filter the requests that were seen before: same method, canonical URL and body.

    Set it as ``DUPEFILTER_CLASS``. What makes two requests the same is up to
    REQUEST_FINGERPRINTER_CLASS. DEDUP_FILTER chooses between a bloom filter ("memory", shaped by
    DEDUP_INITIAL_CAPACITY, DEDUP_ERROR_RATE and DEDUP_MAX_LAYERS) and an exact set ("lite"); it
    is the same with "redis" and "redis-set", which put the item filter into Redis.
    DUPEFILTER_DEBUG logs each filtered request, not only the first.

    Without JOBDIR it is new in each run. With it, each new fingerprint is appended to
    ``netspy_requests.seen`` in the job directory, a record of 20 bytes, without a buffer of our
    own: a killed process loses none of them, a power cut what the system had not yet written.
    A record that was cut is dropped at the next start. What Scrapy's filter left in
    ``requests.seen`` (formats of Scrapy 2.14 to 2.19) is taken over at each start, and the file
    stays as it is.

    If the file cannot be written any more (disk full), one error is logged and the crawl goes on
    in memory. If it cannot be opened or read, the crawl does not start.

    Stats: ``dupefilter/filtered``; ``netspy/filter/degraded`` counts fingerprints that are
    missing in the file.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter that the crawler's settings ask for."""
        # Scrapy 2.14 types both as optional; an empty stats collector is falsy.
        assert crawler.request_fingerprinter is not None
        assert crawler.stats is not None
        dedup = DedupSettings.from_settings(crawler.settings)
        if dedup.shared:
            logger.info(
                "DEDUP_FILTER = %r: the requests of this process are filtered in its memory",
                dedup.kind,
            )
        return cls(
            key_filter(dedup),
            crawler.request_fingerprinter,
            crawler.stats,
            directory=job_dir(crawler.settings),
            debug=crawler.settings.getbool("DUPEFILTER_DEBUG"),
        )

    def __init__(
        self,
        keys: KeyFilter,
        fingerprinter: RequestFingerprinterProtocol,
        stats: StatsCollector,
        *,
        directory: str | None = None,
        debug: bool = False,
    ) -> None:
        self._keys = keys
        self._fingerprinter = fingerprinter
        self._stats = stats
        self._directory = Path(directory) if directory else None
        self._debug = debug
        self._file: FileIO | None = None
        self._lost = False  # the file failed, what is seen from then on is in memory only
        self._logged = False

    def open(self) -> None:
        """Read what earlier runs of the job directory saw, and open its file."""
        if self._directory is None:
            return
        path = self._directory / SEEN_FILE
        self._file = path.open("ab", buffering=0)
        size = self._file.tell()
        self._file.truncate(size - size % _RECORD_SIZE)
        for key in _read_records(path):
            self._keys.add(key)
        imported = self._import(self._directory / SCRAPY_SEEN_FILE)
        if self._keys:
            logger.info(
                "The request filter knows %d requests of earlier runs, %d of them from %s",
                len(self._keys),
                imported,
                SCRAPY_SEEN_FILE,
            )

    def request_seen(self, request: Request) -> bool:
        """Tell whether *request* was seen before; if not, remember it."""
        key = _record(self._fingerprinter.fingerprint(request))
        if not self._keys.add(key):
            return True
        self._write(key)
        return False

    def close(self, reason: str) -> None:  # noqa: ARG002
        """Close the file in the job directory."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                logger.exception("%s could not be closed properly", SEEN_FILE)

    def log(self, request: Request, spider: Spider) -> None:
        """Count a filtered request, and log it: the first one only, without DUPEFILTER_DEBUG."""
        self._stats.inc_value(FILTERED)
        if self._debug:
            logger.debug(
                "Filtered duplicate request: %s (referer: %s)",
                shown(request),
                without_credentials(referer_str(request) or "None", request),
                extra={"spider": spider},
            )
        elif not self._logged:
            self._logged = True
            logger.debug(
                "Filtered duplicate request: %s - no more duplicates will be shown "
                "(see DUPEFILTER_DEBUG to show all duplicates)",
                shown(request),
                extra={"spider": spider},
            )

    def _import(self, path: Path) -> int:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return 0
        records = map(_record, _read_scrapy(data))
        new = [key for key in records if self._keys.add(key)]
        if new:
            self._write(b"".join(new))
        return len(new)

    def _write(self, records: bytes) -> None:
        if self._file is not None:
            try:
                if self._file.write(records) == len(records):
                    return
                # Cut short by a full disk; there is an errno only if nothing at all fits.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)
            except OSError:
                self._lost = True
                logger.exception(
                    "%s cannot be written. The crawl goes on and still filters duplicates, but a "
                    "later run of this job directory fetches again what is seen from here on",
                    SEEN_FILE,
                )
                self.close("disk error")
        if self._lost:
            self._stats.inc_value(FILTER_DEGRADED, len(records) // _RECORD_SIZE)


def forget_last(directory: Path) -> None:
    """Take what was seen last out of the files of a job that was killed.

    A filter remembers a request before the request is queued, so that one may be in no queue; if
    it is, it may be fetched twice.
    """
    with suppress(FileNotFoundError):
        ours = directory / SEEN_FILE
        size = ours.stat().st_size
        os.truncate(ours, max(0, size - (size % _RECORD_SIZE or _RECORD_SIZE)))
    with suppress(FileNotFoundError):
        theirs = directory / SCRAPY_SEEN_FILE
        begins = [begin for begin, _, _ in _scrapy_records(theirs.read_bytes())]
        os.truncate(theirs, begins[-1] if begins else 0)


def _record(fingerprint: bytes) -> bytes:
    if len(fingerprint) == _RECORD_SIZE:
        return fingerprint
    return blake2b(fingerprint, digest_size=_RECORD_SIZE).digest()


def _read_records(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_RECORD_SIZE * 4096):
            for start in range(0, len(chunk), _RECORD_SIZE):
                yield chunk[start : start + _RECORD_SIZE]


def _read_scrapy(data: bytes) -> Iterator[bytes]:
    """Yield the fingerprints of Scrapy's ``requests.seen``.

    Scrapy 2.14 writes lines of hex digits, Scrapy 2.19 a big-endian length of 2 bytes and the
    fingerprint. A file that both wrote holds both; no fingerprint is so long that its length
    would read as hex digits (``b"00"`` is 12,336). What a kill cut off is left out.
    """
    for _, end, fingerprint in _scrapy_records(data):
        if end <= len(data) and fingerprint is not None:
            yield fingerprint


def _scrapy_records(data: bytes) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield where each record of ``requests.seen`` begins and ends, and its fingerprint.

    None: a line that is none.
    """
    position = 0
    while position + _SCRAPY_PREFIX_SIZE <= len(data):
        begin = position
        if line := _HEX_LINE.match(data, position):
            position = line.end()
            even = len(line[1]) % 2 == 0
            yield begin, position, bytes.fromhex(line[1].decode("ascii")) if even else None
            continue
        start = position + _SCRAPY_PREFIX_SIZE
        position = start + int.from_bytes(data[position:start], "big")
        yield begin, position, data[start:position]
