from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.http import JsonRequest
from scrapy.utils.reactor import is_reactor_installed

from netspy_scrapy.dedup import BloomFilter, ExactFilter, RequestFilter
from netspy_scrapy.dedup.request_filter import _read_scrapy
from netspy_scrapy.exceptions import ConfigError

FILTER = "netspy_scrapy.dedup.RequestFilter"


class PathFingerprinter:
    """A user's own: requests are the same if their path is, and fingerprints are short."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.split("/", 3)[3].encode()


class DefaultSpider(Spider):
    name = "default"


def make_crawler(**settings) -> Crawler:
    crawler = Crawler(
        DefaultSpider,
        {
            "TWISTED_REACTOR": None,
            "TWISTED_REACTOR_ENABLED": is_reactor_installed(),
            "TELNETCONSOLE_ENABLED": False,
            "DUPEFILTER_CLASS": FILTER,
            **settings,
        },
    )
    crawler._apply_settings()
    crawler.spider = crawler._create_spider()
    return crawler


@contextmanager
def opened(directory: Path | None = None, **settings):
    crawler = make_crawler(**settings, **({"JOBDIR": str(directory)} if directory else {}))
    requests = RequestFilter.from_crawler(crawler)
    requests.open()
    try:
        yield requests
    finally:
        requests.close("finished")


def page(number: int) -> Request:
    return Request(f"http://site.test/{number}")


def fingerprint(request: Request) -> bytes:
    return make_crawler().request_fingerprinter.fingerprint(request)


def seen(requests: RequestFilter, *numbers: int) -> list[bool]:
    return [requests.request_seen(page(number)) for number in numbers]


# What is the same request ----------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["memory", "lite"])
@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (Request("http://a.test/?a=1&b=2"), Request("http://a.test/?b=2&a=1#top"), True),
        (Request("http://a.test/"), Request("http://a.test/", headers={"X": "1"}), True),
        (Request("http://a.test/?a=1"), Request("http://a.test/?a=2"), False),
        (Request("http://a.test/"), Request("http://a.test/", method="POST"), False),
        (Request("http://a.test/", body=b"1"), Request("http://a.test/", body=b"2"), False),
        (JsonRequest("http://a.test/", data={"a": 1}), JsonRequest("http://a.test/", data={"a": 2}),
         False),
        (FormRequest("http://a.test/", formdata={"a": "1"}),
         FormRequest("http://a.test/", formdata={"a": "1"}), True),
    ],
)  # fmt: skip
def test_same_requests(kind, first, second, same):
    """Requests are the same if method, canonical URL and body are, whatever the filter's kind."""
    with opened(DEDUP_FILTER=kind) as requests:
        assert requests.request_seen(first) is False

        assert requests.request_seen(second) is same


@pytest.mark.parametrize("job", [False, True])
def test_own_fingerprinter(tmp_path, job):
    """REQUEST_FINGERPRINTER_CLASS decides which requests are the same, here and in later runs."""
    settings = {"REQUEST_FINGERPRINTER_CLASS": PathFingerprinter}
    directory = tmp_path if job else None
    with opened(directory, **settings) as requests:
        answers = [
            requests.request_seen(Request(url))
            for url in ("http://a.test/1", "http://b.test/1", "http://b.test/2")
        ]
    with opened(directory, **settings) as requests:
        later = requests.request_seen(Request("http://c.test/2"))

    assert answers == [False, True, False]
    assert later is job


@pytest.mark.parametrize(("kind", "expected"), [("memory", BloomFilter), ("lite", ExactFilter)])
def test_dedup_filter_chooses(kind, expected):
    """DEDUP_FILTER chooses the kind of filter."""
    with opened(DEDUP_FILTER=kind) as requests:
        assert type(requests._keys) is expected


def test_a_wrong_kind_is_named():
    """A DEDUP_FILTER that does not exist is an error naming it."""
    with pytest.raises(ConfigError, match="DEDUP_FILTER = 'bitmap'"):
        RequestFilter.from_crawler(make_crawler(DEDUP_FILTER="bitmap"))


def test_a_run_without_jobdir_starts_empty(tmp_path, monkeypatch):
    """Without JOBDIR nothing is remembered from run to run, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    with opened() as requests:
        seen(requests, 1)

    with opened() as requests:
        assert seen(requests, 1, 1) == [False, True]
    assert list(tmp_path.iterdir()) == []


# In Scrapy's scheduler -------------------------------------------------------------------------
@pytest.mark.filterwarnings("error::scrapy.exceptions.ScrapyDeprecationWarning")
def test_the_scheduler_uses_it():
    """As DUPEFILTER_CLASS it filters in Scrapy's scheduler, with Scrapy's own stat."""
    # The default queue asks the engine's downloader, and there is no engine here.
    crawler = make_crawler(SCHEDULER_PRIORITY_QUEUE="scrapy.pqueues.ScrapyPriorityQueue")
    scheduler = Scheduler.from_crawler(crawler)
    scheduler.open(crawler.spider)

    queued = [scheduler.enqueue_request(page(number)) for number in (1, 2, 1, 1)]
    repeated = scheduler.enqueue_request(Request("http://site.test/1", dont_filter=True))
    scheduler.close("finished")

    assert queued == [True, True, False, False]
    assert repeated
    assert crawler.stats.get_stats() == {
        "dupefilter/filtered": 2,
        "scheduler/enqueued": 3,
        "scheduler/enqueued/memory": 3,
    }


@pytest.mark.parametrize(
    ("debug", "expected"),
    [
        (False, ["<GET http://site.test/1> - no more duplicates will be shown"]),
        (
            True,
            [
                "<GET http://site.test/1> (referer: None)",
                "<GET http://site.test/2> (referer: http://a.test/)",
            ],
        ),
    ],
)
def test_log(caplog, debug, expected):
    """The first duplicate is logged, with DUPEFILTER_DEBUG each with its referer; all count.

    Without the user and password of either URL.
    """
    crawler = make_crawler(DUPEFILTER_DEBUG=debug)
    requests = RequestFilter.from_crawler(crawler)
    caplog.set_level(logging.DEBUG, "netspy_scrapy")
    caplog.clear()

    requests.log(page(1).replace(url="http://me:pw@site.test/1"), crawler.spider)
    headers = {"Referer": "http://me:pw@a.test/"}
    requests.log(page(2).replace(headers=headers), crawler.spider)

    messages = [one.getMessage() for one in caplog.records if one.name.startswith("netspy_scrapy")]
    assert len(messages) == len(expected)
    assert all(
        message.startswith(f"Filtered duplicate request: {text}")
        for message, text in zip(messages, expected, strict=True)
    )
    assert all(one.spider is crawler.spider for one in caplog.records)
    assert crawler.stats.get_stats() == {"dupefilter/filtered": 2}


# The job directory -----------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["memory", "lite"])
def test_a_job_goes_on(tmp_path, kind):
    """With JOBDIR a later run knows what the earlier ones saw."""
    directory = tmp_path / "new" / "job"
    with opened(directory, DEDUP_FILTER=kind) as requests:
        assert seen(requests, 1, 2, 1) == [False, False, True]
    with opened(directory, DEDUP_FILTER=kind) as requests:
        assert seen(requests, 2, 3) == [True, False]

    with opened(directory, DEDUP_FILTER=kind) as requests:
        assert seen(requests, 1, 2, 3, 4) == [True, True, True, False]
    assert [path.name for path in directory.iterdir()] == ["netspy_requests.seen"]
    assert (directory / "netspy_requests.seen").stat().st_size == 4 * 20


def test_the_kind_may_change_between_runs(tmp_path):
    """The file does not depend on DEDUP_FILTER."""
    with opened(tmp_path, DEDUP_FILTER="lite") as requests:
        seen(requests, 1)

    with opened(tmp_path, DEDUP_FILTER="memory") as requests:
        assert seen(requests, 1, 2) == [True, False]


def test_a_killed_process_loses_nothing(tmp_path):
    """After kill -9 every request that was seen is known."""
    script = f"""
import os, signal
from tests.dedup.test_request_filter import RequestFilter, make_crawler, seen
requests = RequestFilter.from_crawler(make_crawler(JOBDIR={str(tmp_path)!r}))
requests.open()
seen(requests, *range(100))
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", script], cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL

    with opened(tmp_path) as requests:
        assert all(seen(requests, *range(100)))


@pytest.mark.parametrize(
    ("left", "known"), [(0, []), (1, []), (19, []), (20, [1]), (21, [1]), (39, [1]), (40, [1, 2])]
)
def test_a_cut_record_is_dropped(tmp_path, left, known):
    """A record that was cut off costs its own request only, and the file is good again."""
    with opened(tmp_path) as requests:
        seen(requests, 1, 2)
    file = tmp_path / "netspy_requests.seen"
    os.truncate(file, left)

    with opened(tmp_path) as requests:
        assert [number for number in (1, 2, 3) if requests.request_seen(page(number))] == known
    with opened(tmp_path) as requests:
        assert seen(requests, 1, 2, 3) == [True, True, True]
    assert file.stat().st_size == 60


def test_a_large_file_is_read_whole(tmp_path):
    """A file larger than what is read at a time is read to its end."""
    count = 10_000
    digests = [hashlib.sha1(b"%d" % number).digest() for number in range(count)]
    last = fingerprint(page(1))
    (tmp_path / "netspy_requests.seen").write_bytes(b"".join([*digests, last]))

    with opened(tmp_path) as requests:
        assert len(requests._keys) == count + 1
        assert seen(requests, 1, 2) == [True, False]


def test_memory_while_resuming(tmp_path):
    """Resuming a job with the bloom filter needs about 4 bytes a request, not the whole file."""
    count = 20_000
    (tmp_path / "netspy_requests.seen").write_bytes(
        b"".join(number.to_bytes(20, "big") for number in range(count))
    )
    crawler = make_crawler(JOBDIR=str(tmp_path), DEDUP_INITIAL_CAPACITY=count)
    tracemalloc.start()
    try:
        requests = RequestFilter.from_crawler(crawler)
        requests.open()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    requests.close("finished")

    assert len(requests._keys) == count
    assert peak < 20 * count


def test_an_unusable_job_directory_stops_the_start(tmp_path):
    """A file that cannot be opened is an error at the start, not a crawl without memory."""
    (tmp_path / "netspy_requests.seen").mkdir()
    requests = RequestFilter.from_crawler(make_crawler(JOBDIR=str(tmp_path)))

    with pytest.raises(OSError, match=r"netspy_requests\.seen"):
        requests.open()
    requests.close("shutdown")


@contextmanager
def full_disk(size: int):
    """Let no file of this process grow past *size* bytes."""
    resource = pytest.importorskip("resource", reason="needs RLIMIT_FSIZE (not on Windows)")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [40, 50], ids=["between records", "inside a record"])
def test_a_full_disk_does_not_stop_the_crawl(tmp_path, caplog, size):
    """When the file cannot grow, the filter goes on in memory, says so once and counts."""
    crawler = make_crawler(JOBDIR=str(tmp_path))
    requests = RequestFilter.from_crawler(crawler)
    requests.open()
    caplog.clear()
    with full_disk(size):
        first = seen(requests, 1, 2, 3, 4)
    again = seen(requests, 1, 2, 3, 4, 5)
    requests.close("finished")

    assert first == [False] * 4
    assert again == [True] * 4 + [False]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "netspy_requests.seen cannot be written" in record.getMessage()
    assert crawler.stats.get_stats() == {"netspy/filter/degraded": 3}

    with opened(tmp_path) as requests:
        assert seen(requests, 1, 2, 3) == [True, True, False]


def test_closing_twice_and_asking_later(tmp_path):
    """A closed filter still answers, from memory, and counts nothing as lost."""
    crawler = make_crawler(JOBDIR=str(tmp_path))
    requests = RequestFilter.from_crawler(crawler)
    requests.open()
    seen(requests, 1)
    requests.close("finished")
    requests.close("finished")

    assert seen(requests, 1, 2, 2) == [True, False, True]
    assert crawler.stats.get_stats() == {}


# What Scrapy's own filter left -----------------------------------------------------------------
def as_lines(fingerprints) -> bytes:
    return b"".join(one.hex().encode() + b"\n" for one in fingerprints)


def as_binary(fingerprints) -> bytes:
    return b"".join(len(one).to_bytes(2, "big") + one for one in fingerprints)


def test_a_job_of_scrapys_filter_goes_on(tmp_path):
    """What the filter of the installed Scrapy saw in this job is known, and not fetched again."""
    scrapys = RFPDupeFilter.from_crawler(make_crawler(JOBDIR=str(tmp_path)))
    scrapys.open()
    for number in (1, 2, 3):
        scrapys.request_seen(page(number))
    scrapys.close("finished")
    before = (tmp_path / "requests.seen").read_bytes()

    with opened(tmp_path) as requests:
        assert seen(requests, 1, 2, 3, 4) == [True, True, True, False]
    assert (tmp_path / "requests.seen").read_bytes() == before
    assert (tmp_path / "netspy_requests.seen").stat().st_size == 4 * 20


def test_taking_over_is_repeatable(tmp_path):
    """Scrapy's file is read at each start, but its requests are written to ours once."""
    scrapys = tmp_path / "requests.seen"
    scrapys.write_bytes(as_binary([fingerprint(page(1))]))
    with opened(tmp_path):
        pass
    scrapys.write_bytes(as_binary([fingerprint(page(1)), fingerprint(page(2))]))
    with opened(tmp_path):
        pass
    scrapys.unlink()

    with opened(tmp_path) as requests:
        assert seen(requests, 1, 2, 3) == [True, True, False]
    assert (tmp_path / "netspy_requests.seen").stat().st_size == 3 * 20


def test_an_own_fingerprinter_in_scrapys_file(tmp_path):
    """Fingerprints of any length are taken over."""
    (tmp_path / "requests.seen").write_bytes(as_lines([b"1"]) + as_binary([b"2"]))

    with opened(tmp_path, REQUEST_FINGERPRINTER_CLASS=PathFingerprinter) as requests:
        assert seen(requests, 1, 2, 3) == [True, True, False]


A, B, C = (hashlib.sha1(letter).digest() for letter in (b"a", b"b", b"c"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (as_lines([A, B]), [A, B]),
        (as_lines([A, B]).replace(b"\n", b"\r\n"), [A, B]),
        (as_binary([A, B]), [A, B]),
        (as_lines([A, B]) + as_binary([C]), [A, B, C]),
        (as_binary([A]) + as_lines([B, C]), [A, B, C]),
        (as_binary([b"", A]), [b"", A]),
        # cut off
        (as_lines([A, B])[:-1], [A]),
        (as_lines([A, B])[:-7], [A]),
        (as_lines([A])[:1], []),
        (as_binary([A, B])[:-1], [A]),
        (as_binary([A, B])[:23], [A]),
        (as_binary([A])[:1], []),
        # a line that was cut off and followed by another is neither
        (as_lines([A])[:5] + as_lines([B, C]), [C]),
    ],
)
def test_scrapys_formats(data, expected):
    """Lines (Scrapy 2.14), records (2.19) and both in one file are read up to a cut end."""
    assert list(_read_scrapy(data)) == expected


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from([as_lines, as_binary]),
            st.lists(st.binary(min_size=1, max_size=64), max_size=5),
        ),
        max_size=5,
    ),
    cut=st.integers(0, 200),
)
def test_reading_a_cut_file_yields_a_beginning(parts, cut):
    """However the two formats follow each other and wherever a kill cut, nothing is invented."""
    data = b"".join(write(fingerprints) for write, fingerprints in parts)
    written = [one for _, fingerprints in parts for one in fingerprints]

    assert list(_read_scrapy(data)) == written
    read = list(_read_scrapy(data[: max(0, len(data) - cut)]))
    assert read == written[: len(read)]
