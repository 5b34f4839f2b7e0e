"""The test site does what its tests believe it does, seen through clients that are not Scrapy."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.site import ENCODING_TEXTS, Site

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND_HOST = "127.0.0.2" if sys.platform.startswith("linux") else "127.0.0.1"


@pytest.fixture(scope="module")
def running() -> Iterator[Site]:
    """One process for this file."""
    hosts = dict.fromkeys(("127.0.0.1", SECOND_HOST))
    with Site(*hosts) as site:
        yield site


@pytest.fixture
def site(running: Site) -> Site:
    """The site without anything that another test set or fetched."""
    running.reset()
    return running


class Reply:
    """An answer read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        """Read it."""
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


def fetch(
    site: Site,
    path: str,
    method: str = "GET",
    *,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> Reply:
    """Fetch one path over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=10)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        return Reply(connection.getresponse())
    finally:
        connection.close()


def converse(site: Site, sent: bytes) -> bytes:
    """Send bytes, then read until the site closes."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as sock:
        sock.sendall(sent)
        received = b""
        while piece := sock.recv(65536):
            received += piece
    return received


def test_page_has_a_fixed_size_a_title_and_five_links(site: Site) -> None:
    """A page is 1 KB of HTML that links to the five pages after it."""
    reply = fetch(site, "/page/41")

    assert (reply.status, len(reply.body)) == (200, 1024)
    assert b"<title>Page 41</title>" in reply.body
    assert [b'href="/page/%d"' % n in reply.body for n in range(41, 48)] == [
        False,
        *[True] * 5,
        False,
    ]


@pytest.mark.parametrize("code", [200, 204, 299, 302, 304, 404, 418, 429, 520, 599, 999])
def test_status_answers_with_any_code(site: Site, code: int) -> None:
    """Any status code from 200 up arrives as it was asked for, and the log shows it."""
    assert fetch(site, f"/status/{code}").status == code
    assert [arrival.status for arrival in site.log()] == [code]


def test_interim_status_ends_with_a_close(site: Site) -> None:
    """A 1xx status is one bare head and a close, so that no client waits for ever."""
    received = converse(site, b"GET /status/199 HTTP/1.1\r\nHost: a\r\n\r\n")

    assert received.startswith(b"HTTP/1.1 199 ")
    assert received.endswith(b"\r\n\r\n")


def test_log_tells_what_arrived(site: Site) -> None:
    """The log has all of a request, whatever bytes it was made of, and its moment and answer."""
    body = bytes(range(256))
    before = time.monotonic()
    fetch(
        site,
        "/echo?a=1&b=%FF",
        "POST",
        headers={"X-Odd": "caf\xe9", "Host": "Shop.Example:80"},
        body=body,
    )
    after = time.monotonic()

    (arrival,) = site.log()
    assert before <= arrival.t <= after
    assert (arrival.host, arrival.method, arrival.path) == (
        "shop.example",
        "POST",
        "/echo?a=1&b=%FF",
    )
    assert (arrival.headers["x-odd"], arrival.body, arrival.status) == ("caf\xe9", body, 200)


def test_control_requests_stay_out_of_the_log(site: Site) -> None:
    """Nothing that a Site object asks of its process is counted as traffic."""
    site.set("/a", body="x")
    site.hits("/a")
    site.log()

    assert site.log() == []


def test_hits_ignore_the_query_unless_one_is_given(site: Site) -> None:
    """A path counts with all its queries, a path with a query counts alone."""
    for path in ("/echo", "/echo?a=1", "/echo?a=1", "/echo?a=2", "/echoes"):
        fetch(site, path)

    assert [site.hits("/echo"), site.hits("/echo?a=1"), site.hits("/nothing")] == [4, 2, 0]


def test_connections_are_kept_alive_and_told_apart(site: Site) -> None:
    """Requests of one connection share its number, and another connection has another one."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=10)
    for path in ("/page/1", "/status/404", "/status/304", "/chunked?kb=300", "/page/2"):
        connection.request("GET", path)
        connection.getresponse().read()
    connection.request("HEAD", "/big?mb=200")
    head = connection.getresponse()
    empty = head.read()
    connection.close()
    fetch(site, "/page/3")

    numbers = [arrival.connection for arrival in site.log()]
    assert len(numbers) == 7
    assert len(set(numbers[:6])) == 1
    assert numbers[6] != numbers[0]
    assert (head.getheader("Content-Length"), empty) == (str(200 * 1024 * 1024), b"")


def test_pipelined_requests_are_answered_in_order(site: Site) -> None:
    """Requests sent at one go are answered in turn, also when the first answer takes its time."""
    received = converse(
        site,
        b"GET /slow?ms=100 HTTP/1.1\r\nHost: a\r\n\r\n"
        b"GET /page/7 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    )

    assert 0 < received.find(b"<title>Slow") < received.find(b"<title>Page 7")


def test_echo_tells_what_was_sent(site: Site) -> None:
    """The echo has the query in order with repeats, the cookies and the body in two forms."""
    echo = fetch(
        site, "/echo?a=1&a=2&b=x%20y", "PUT", headers={"Cookie": "k=v; l=m"}, body="\u7ea2".encode()
    ).json()

    assert (echo["method"], echo["path"]) == ("PUT", "/echo")
    assert echo["query"] == [["a", "1"], ["a", "2"], ["b", "x y"]]
    assert echo["cookies"] == {"k": "v", "l": "m"}
    assert (echo["text"], echo["base64"]) == ("\u7ea2", "57qi")


def test_sequence_takes_its_codes_and_waits_in_turn(site: Site) -> None:
    """Each name has its own place in the codes, and only a failure has a Retry-After."""
    path = "/seq/{}?codes=503,429,200&retry_after=2&retry_after=%C3%A9%20x"
    seen = []
    for _ in range(4):
        reply = fetch(site, path.format("one"))
        seen.append((reply.status, reply.headers["Retry-After"]))

    assert seen == [(503, "2"), (429, "\xc3\xa9 x"), (200, None), (200, None)]
    assert fetch(site, path.format("two")).status == 503


def test_header_bytes_are_sent_as_given(site: Site) -> None:
    """No byte of a wanted header is cleaned, encoded or folded."""
    value = b' W/"a,b*\xff\xe9\x01" \t'
    sent = f"GET /headers?h=ETag:{quote(value)}&h=X:1&h=X:2&h=Content-Type:TEXT/html HTTP/1.1\r\n"
    received = converse(site, sent.encode() + b"Connection: close\r\n\r\n")

    assert b"\r\nETag: " + value + b"\r\n" in received
    assert b"\r\nX: 1\r\nX: 2\r\n" in received
    assert received.lower().count(b"content-type") == 1


def test_redirect_leads_on_and_sets_its_cookies(site: Site) -> None:
    """A redirect has the code, the place and the cookies that its query names."""
    reply = fetch(site, "/redirect?to=http://b.example/%3Fq%3D1&code=307&cookie=a%3Db&cookie=c%3Dd")

    assert (reply.status, reply.headers["Location"]) == (307, "http://b.example/?q=1")
    assert reply.headers.get_all("Set-Cookie") == ["a=b", "c=d"]


def test_cookies_are_set_and_shown(site: Site) -> None:
    """A cookie that was set can be shown again."""
    assert fetch(site, "/cookie/set?a=b").headers["Set-Cookie"] == "a=b; Path=/"
    assert fetch(site, "/cookie/show", headers={"Cookie": "a=b"}).json() == {"a": "b"}


def test_close_and_reset_give_no_answer(site: Site) -> None:
    """A close ends the connection in order, a reset does not, and neither has a status."""
    assert converse(site, b"GET /close HTTP/1.1\r\nHost: a\r\n\r\n") == b""
    with pytest.raises(ConnectionResetError):
        converse(site, b"GET /reset HTTP/1.1\r\nHost: a\r\n\r\n")
    assert [arrival.status for arrival in site.log()] == [0, 0]


def test_truncated_body_is_shorter_than_declared(site: Site) -> None:
    """A truncated answer ends before its Content-Length."""
    with pytest.raises(http.client.IncompleteRead) as caught:
        fetch(site, "/truncate?declared=500&sent=120")

    assert (len(caught.value.partial), caught.value.expected) == (120, 380)


def test_hanging_request_is_seen_before_it_is_answered(site: Site) -> None:
    """A request that hangs stands in the log at once, without a status, and disturbs nobody."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=0.2) as sock:
        sock.sendall(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
        with pytest.raises(TimeoutError):
            sock.recv(1)

        assert [(arrival.path, arrival.status) for arrival in site.log()] == [("/hang", 0)]
        assert fetch(site, "/page/1").status == 200


def test_slow_answer_takes_its_time(site: Site) -> None:
    """A slow page comes after its delay and not before."""
    before = time.monotonic()
    fetch(site, "/slow?ms=200")

    assert time.monotonic() - before >= 0.2


@pytest.mark.parametrize("mode", ["len", "chunked", "gzip"])
def test_big_body_has_its_size_in_every_mode(site: Site, mode: str) -> None:
    """A big body opens to its size; the packed one is a thousandth of it on the wire."""
    reply = fetch(site, f"/big?mode={mode}&mb=20")
    size = 20 * 1024 * 1024

    if mode == "gzip":
        assert len(reply.body) < size / 900
        assert len(gzip.decompress(reply.body)) == size
    else:
        assert len(reply.body) == size


def test_big_body_is_not_prepared_for_a_client_that_leaves(site: Site) -> None:
    """A client may leave in the middle of a huge body, and the site goes on."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as sock:
        sock.sendall(b"GET /big?mode=chunked&mb=20000 HTTP/1.1\r\nHost: a\r\n\r\n")
        sock.recv(100_000)

    assert fetch(site, "/page/1").status == 200


@pytest.mark.parametrize("where", ["header", "meta", "none"])
@pytest.mark.parametrize("name", list(ENCODING_TEXTS))
def test_encoded_page_names_its_charset_where_asked(site: Site, name: str, where: str) -> None:
    """A page is in the encoding of its path, and says so in the header, in itself, or nowhere."""
    reply = fetch(site, f"/encoding/{name}?where={where}")
    found = {
        "header": "charset=" in reply.headers["Content-Type"],
        "meta": b"<meta charset=" in reply.body,
        "none": False,
    }

    assert ENCODING_TEXTS[name] in reply.body.decode(name)
    assert [place for place, named in found.items() if named] == [where] * (where != "none")


def test_robots_txt_is_missing_until_it_is_set(site: Site) -> None:
    """There is no robots.txt of its own; one can be set for all hosts or for one."""
    site.set(
        "/robots.txt", body=b"\xef\xbb\xbfUser-agent: *\r\n", headers={"Content-Type": "text/plain"}
    )
    site.set("/robots.txt", 503, host="b.example")
    common = fetch(site, "/robots.txt")
    own = fetch(site, "/robots.txt", headers={"Host": "b.example"})
    site.reset()

    assert (common.status, common.body) == (200, b"\xef\xbb\xbfUser-agent: *\r\n")
    assert common.headers.get_all("Content-Type") == ["text/plain"]
    assert own.status == 503
    assert fetch(site, "/robots.txt").status == 404


def test_set_answer_gives_way_when_it_is_used_up(site: Site) -> None:
    """The newest answer wins while it lasts, then the one before it, then the site's own."""
    site.set("/page/5", 500, times=2)
    site.set("/page/5", 429, times=1)

    assert [fetch(site, "/page/5").status for _ in range(4)] == [429, 500, 500, 200]


def test_set_answer_for_a_query_beats_the_one_for_the_path(site: Site) -> None:
    """A path that was set with a query answers that query only."""
    site.set("/list", body="any")
    site.set("/list?p=2", body="two")

    assert [fetch(site, path).body for path in ("/list?p=1", "/list?p=2")] == [b"any", b"two"]


def test_set_headers_replace_defaults_and_may_lie(site: Site) -> None:
    """A Content-Length that was set is sent as it is; None takes a default header away."""
    site.set("/lie", body="12345", headers=[("Content-Length", "3"), ("content-length", b"9")])
    site.set("/bare", body="12345", headers={"Content-Type": None, "Content-Length": None})
    lie = converse(site, b"GET /lie HTTP/1.1\r\n\r\n")
    bare = converse(site, b"GET /bare HTTP/1.1\r\n\r\n")

    assert lie.lower().count(b"content-length") == 2
    assert lie.endswith(b"\r\n\r\n12345")
    assert bare == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n12345"


def test_raw_answer_is_sent_as_it_is(site: Site) -> None:
    """A raw answer need not be HTTP at all; an empty one is a close without an answer."""
    site.set("/raw", raw=b"ICY 200\n\n")
    site.set("/raw", raw=b"", times=1)

    assert [converse(site, b"GET /raw HTTP/1.1\r\n\r\n") for _ in range(2)] == [b"", b"ICY 200\n\n"]


def test_conditional_answer_is_not_modified_for_its_exact_validator(site: Site) -> None:
    """A conditional answer is a 304 for its own ETag or date and for nothing like it."""
    site.set(
        "/a",
        body="x",
        headers={"ETag": b'W/"\xe9"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"},
        conditional=True,
    )
    asked = [
        {},
        {"If-None-Match": 'W/"\xe9"'},
        {"If-None-Match": '"\xe9"', "If-Modified-Since": "Mon, 01 Jan 2024 00:00:00 GMT"},
        {"If-Modified-Since": "Mon, 01 Jan 2024 00:00:00 GMT"},
    ]

    assert [fetch(site, "/a", headers=headers).status for headers in asked] == [200, 304, 200, 304]


def test_site_serves_as_a_plain_proxy(site: Site) -> None:
    """A request with an absolute target, as a proxy gets it, is one for that target's host."""
    reply = converse(site, b"GET http://shop.invalid:81/page/3?x=1 HTTP/1.0\r\nHost: other\r\n\r\n")

    assert b"Page 3" in reply
    assert [(arrival.host, arrival.path) for arrival in site.log()] == [
        ("shop.invalid", "/page/3?x=1")
    ]


@pytest.mark.parametrize(
    "line", [b"GET", b"GET / HTTP/1.1\r\nno colon", b"GET / HTTP/1.1\r\nContent-Length: x"]
)
def test_malformed_request_is_refused(site: Site, line: bytes) -> None:
    """What is no HTTP request gets a 400 and a close."""
    assert converse(site, line + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "path", ["/status/x", "/status/20", "/page/", "/encoding/klingon", "/big?mode=up"]
)
def test_unreadable_parameter_is_refused(site: Site, path: str) -> None:
    """A typing error in a test shows as a 400 and never as a page."""
    assert fetch(site, path).status == 400


@pytest.mark.skipif(
    SECOND_HOST == "127.0.0.1", reason="needs Linux, where the whole of 127.0.0.0/8 is local"
)
def test_hosts_share_the_port(site: Site) -> None:
    """A second address is served on the port of the first."""
    with socket.create_connection((SECOND_HOST, site.port), timeout=10) as sock:
        sock.sendall(f"GET /page/1 HTTP/1.0\r\nHost: {SECOND_HOST}:{site.port}\r\n\r\n".encode())
        assert sock.recv(12) == b"HTTP/1.1 200"

    assert site.url("/x", SECOND_HOST) == f"http://{SECOND_HOST}:{site.port}/x"
    assert [arrival.host for arrival in site.log()] == [SECOND_HOST]


def test_process_ends_with_its_input() -> None:
    """The process ends as its standard input closes, even amid a request."""
    path = Path(__file__).with_name("site.py")
    with subprocess.Popen(
        [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[1])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.sendall(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
            process.stdin.close()

            assert process.wait(10) == 0


def test_site_that_cannot_bind_says_so() -> None:
    """An address of another machine is an error at once."""
    with pytest.raises(RuntimeError, match=r"did not start on 192\.0\.2\.1"), Site("192.0.2.1"):
        pass


def test_stopped_site_refuses_to_be_asked() -> None:
    """A Site that is not running says so."""
    with pytest.raises(RuntimeError, match="not running"):
        Site().log()
