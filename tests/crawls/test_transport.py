"""What goes over the wire, and what comes of it, is the same with each of Scrapy's handlers."""

from __future__ import annotations

import time
from typing import Any

import pytest
import scrapy
import scrapy.exceptions
from scrapy.core.downloader.handlers import http11
from scrapy.utils.misc import load_object
from scrapy.utils.reactor import is_reactor_installed

import netspy_scrapy as mw
from netspy_scrapy.downloader import missing
from tests import crawling
from tests.crawling import MEMORY, PlainSpider, crawl, dumped, netspy_stats, rows
from tests.pipelines.elastic_stub import make_certificate
from tests.servers.wire import PAGE, Tunnel, Wire, head_of

#: Scrapy 2.19 or newer.
IS_LATE = hasattr(http11, "_LenientHTTP11ClientFactory")

each = pytest.mark.usefixtures("downloader")


class Keeps(PlainSpider):
    """Keeps the answers to ``requests``."""

    requests: Any = ()

    async def start(self) -> Any:
        for request in self.requests:
            yield request.replace(errback=self.failed, dont_filter=True)

    def parse(self, response: Any) -> None:
        self.pages.append(response)


def fetch(*requests: Any, **settings: Any) -> Any:
    """Fetch requests, or URLs, one after another, and return the spider."""
    made = [scrapy.Request(one) if isinstance(one, str) else one for one in requests]
    values = {"CONCURRENT_REQUESTS": 1, "RETRY_ENABLED": False, **settings}
    return crawl(Keeps, values, requests=made).spider


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that calls another with each handler in turn, and returns both results."""
    if lacking := missing():
        pytest.skip(f"needs {lacking}")

    def compare(function: Any) -> tuple[Any, Any]:
        results = []
        for name in ("http11", "aiohttp"):
            monkeypatch.setattr(crawling, "DOWNLOADER", name)
            results.append(function())
        return results[0], results[1]

    return compare


def test_the_chosen_handler_fetches(site: Any, downloader: str) -> None:
    """NETSPY_DOWNLOADER says what fetches, for http and for https."""
    spider = fetch(site.url("/page/1"))

    handlers = spider.crawler.engine.downloader.handlers
    names = {load_object(handlers._schemes[one]).__name__ for one in ("http", "https")}
    expected = {"http11": "HTTP11DownloadHandler", "aiohttp": "AiohttpDownloadHandler"}
    assert names == {expected[downloader]}
    assert [one.status for one in spider.pages] == [200]


# Failures --------------------------------------------------------------------------------------
def failures(site: Any) -> dict[str, Any]:
    """Return URLs that cannot be fetched, and what each is called in the stats."""
    return {
        "http://127.0.0.1:1/": "DownloadConnectionRefusedError",
        "http://no-such-host.invalid/": "CannotResolveHostError",
        site.url("/close"): "DownloadFailedError",
        site.url("/reset"): "DownloadFailedError",
        site.url("/hang"): "DownloadTimeoutError",
        site.url("/drip?kb=64&pieces=2&ms=10&end=hang"): "DownloadTimeoutError",
        site.url("/truncate?declared=2000&sent=1000"): "ResponseDataLossError",
        site.url("/garbage"): "DownloadFailedError",
    }


@each
def test_failures_have_one_name_and_are_fetched_again(site: Any) -> None:
    """Each is tried again as often as RETRY_TIMES says, counted by its name, and dumped."""
    site.set("/garbage", raw=b"\x16\x03\x01 this is not HTTP\r\n\r\n")
    expected = failures(site)
    spider = fetch(
        *expected, RETRY_ENABLED=True, RETRY_TIMES=1, DOWNLOAD_TIMEOUT=1, CONCURRENT_REQUESTS=16
    )

    assert len(spider.errors) == len(expected)
    assert {line["url"] for line in dumped()} == set(expected)
    assert {line["attempts"] for line in dumped()} == {2}
    for path in ("/close", "/reset", "/hang", "/drip", "/truncate"):
        assert site.hits(path) == 2
    assert site.hits("/garbage") <= 3  # what aiohttp cannot read, http11 is asked to
    if hasattr(scrapy.exceptions, "DownloadFailedError"):  # from Scrapy 2.15 on
        names = {line["url"]: line["reason"].partition(":")[0] for line in dumped()}
        assert names == expected


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"


@each
@pytest.mark.skipif(not IS_LATE, reason="this Scrapy fails at bad lines of a head")
@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"this is no header\r\nContent-Length: 4\r\n\r\npage",
        HEAD + b"Content-Length: 4\r\nConnection: close\r\n\r\npage and more of it",
        HEAD + b"\r\npage",
        HEAD.replace(b"\r", b"") + b"Content-Length: 4\n\npage",
        b"HTTP/1.0 200\r\n\r\npage",
    ],
    ids=["no colon", "more", "no length", "no returns", "old"],
)
def test_answers_in_bad_http(answer: bytes) -> None:
    """What browsers read is read, and the site is asked by what can read it from then on."""

    def bad(connection: Any, number: int) -> None:
        wire.heads.append(head_of(connection))
        connection.sendall(answer)

    with Wire(bad) as wire:
        spider = fetch(*(wire.url(f"/{n}") for n in range(3)))

    assert [page.body for page in spider.pages] == [b"page"] * 3
    assert len(wire.heads) <= 4
    assert netspy_stats(spider.crawler) == {}


@each
def test_a_time_out_is_kept(site: Any) -> None:
    """The download ends when its time is over, also if bytes go on dripping."""
    begun = time.monotonic()
    slow = scrapy.Request(
        site.url("/drip?kb=64&pieces=100&ms=100"), meta={"download_timeout": 0.5}
    )  # fmt: skip
    spider = fetch(slow)

    assert len(spider.errors) == 1
    assert time.monotonic() - begun < 5


@each
def test_data_loss_can_be_a_page(site: Any) -> None:
    """DOWNLOAD_FAIL_ON_DATALOSS = False brings what came, and says so."""
    spider = fetch(site.url("/truncate?declared=2000&sent=1000"), DOWNLOAD_FAIL_ON_DATALOSS=False)

    (page,) = spider.pages
    assert (len(page.body), page.flags) == (1000, ["dataloss"])


@each
def test_a_connection_that_was_closed_meanwhile_is_no_failure() -> None:
    """A site may close a connection that was kept: the next request goes over a new one."""

    def once(connection: Any, number: int) -> None:
        wire.heads.append(head_of(connection))
        connection.sendall(PAGE)
        if head := head_of(connection):  # it had not learnt yet that nobody listens
            wire.heads.append(head)

    with Wire(once) as wire:
        spider = fetch(wire.url("/1"), wire.url("/2"), wire.url("/3"), DOWNLOAD_DELAY=0.05)

    assert [page.body for page in spider.pages] == [b"page"] * 3
    assert spider.errors == []
    assert netspy_stats(spider.crawler) == {}


@each
def test_a_post_is_never_sent_twice_by_itself() -> None:
    """Where a connection breaks under a POST, the retry is one of ours, and counted."""

    def once(connection: Any, number: int) -> None:
        wire.heads.append(head_of(connection))
        if number == 1:
            connection.sendall(PAGE)
            wire.heads.append(head_of(connection))

    with Wire(once) as wire:
        post = scrapy.Request(wire.url("/post"), method="POST")
        spider = fetch(wire.url("/get"), post)

    assert [head.split()[0] for head in wire.heads] == [b"GET", b"POST"]
    assert len(spider.errors) == 1


# What is sent, and what is read ----------------------------------------------------------------
def sent(site: Any, *requests: Any) -> Any:
    """Fetch requests; return what arrived, and what came back."""

    def both() -> Any:
        site.reset()
        install(site)
        spider = fetch(*requests)
        arrived = [(one.method, one.path, one.host, one.headers, one.body) for one in site.log()]
        pages = [
            (one.url, one.status, dict(one.headers), content(one), one.protocol, one.ip_address)
            for one in spider.pages
        ]
        return arrived, pages, [type(one) for one in spider.errors]

    return both


def content(page: Any) -> Any:
    """Return a body; of an echo what it says, for the order of headers is the handler's own."""
    return page.json() if page.headers[b"Content-Type"] == b"application/json" else page.body


def install(site: Any) -> None:
    site.set(
        "/odd", body="page",
        headers=[
            ("X-Odd", b"\xff\xfe"), ("X-Two", "a"), ("x-two", "b"), ("Content-Language", "é"),
            ("Set-Cookie", "a=b"), ("Set-Cookie", "c=d"), ("Keep-Alive", "timeout=5"),
        ],
    )  # fmt: skip
    site.set("/long", body="page", headers={"X-Long": "x" * 15_000})
    site.set("/none", 204)


def test_requests_and_answers_are_the_same(site: Any, compared: Any) -> None:
    """Targets, methods, headers, bodies arrive alike; so do headers, statuses, URLs of answers."""
    url = site.url
    requests = [
        scrapy.Request(url("/echo/a%2fb/%7Euser/../x;p=1//y?q=%41+b%20c&e=&f#part")),
        scrapy.Request(url("/echo?")),
        scrapy.Request(url("")),
        scrapy.Request(url("/echo"), method="POST", body="é=1"),
        scrapy.Request(url("/echo"), method="POST"),
        scrapy.Request(url("/echo"), method="PUT", body=b"\x00\xff" * 100_000),
        scrapy.Request(url("/echo"), method="DELETE"),
        scrapy.Request(url("/echo"), method="GET", body="body"),
        scrapy.Request(url("/echo"), headers={"X-Utf": "é", "X-Empty": "", "Host": "shop.example"}),
        scrapy.Request(url("/echo"), headers={"X-Latin": b"caf\xe9", "X-Many": ["1", "2"]}),
        scrapy.Request(url("/echo"), headers={"User-Agent": None, "Accept": None}),
        scrapy.Request(url("/odd")),
        scrapy.Request(url("/long")),
        scrapy.Request(url("/none")),
        scrapy.Request(url("/chunked?kb=100")),
        scrapy.Request(url("/status/404"), meta={"handle_httpstatus_all": True}),
        scrapy.Request(url("/status/302"), meta={"dont_redirect": True}),
        scrapy.Request(url("/echo"), cookies={"a": "b"}),
    ]
    old, new = compared(sent(site, *requests))

    for one, other in zip(old[0], new[0], strict=True):
        assert other == one
    for one, other in zip(old[1], new[1], strict=True):
        if one[1] == 204:  # Twisted says of what is not there that it is 0 bytes long
            assert one[2].pop(b"Content-Length") == [b"0"]
        assert other == one
    assert new[2] == old[2]


def test_an_answer_to_head(site: Any, compared: Any) -> None:
    """It has no body, whatever length it tells of."""
    site.set("/large", headers={"Content-Length": "5000000"})

    def head() -> Any:
        request = scrapy.Request(site.url("/large"), method="HEAD")
        spider = fetch(request, MAX_RESPONSE_SIZE=1000, DOWNLOAD_MAXSIZE=1000)
        return [(page.status, page.body) for page in spider.pages], spider.errors

    old, new = compared(head)

    assert new == old == ([(200, b"")], [])


@each
def test_cookies_and_redirects(site: Any) -> None:
    """A cookie of a redirect is sent to where it leads."""
    spider = fetch(site.url(f"/redirect?to={site.url('/cookie/show')}&cookie=a%3Db"))

    (page,) = spider.pages
    assert (page.url, page.json()) == (site.url("/cookie/show"), {"a": "b"})


@each
def test_connections_are_kept(site: Any) -> None:
    """One connection serves one page after another."""
    fetch(*(site.url(f"/page/{n}") for n in range(20)))

    assert len({one.connection for one in site.log()}) == 1


@each
def test_concurrency_is_what_the_settings_say(site: Any) -> None:
    """DOWNLOAD_SLOTS may allow more at once than CONCURRENT_REQUESTS_PER_DOMAIN."""
    begun = time.monotonic()
    urls = [site.url(f"/slow?ms=500&n={n}") for n in range(12)]
    slots = {"DOWNLOAD_SLOTS": {"127.0.0.1": {"concurrency": 12}}}
    spider = fetch(*urls, CONCURRENT_REQUESTS=12, CONCURRENT_REQUESTS_PER_DOMAIN=1, **slots)

    assert len(spider.pages) == 12
    assert time.monotonic() - begun < 4
    assert len({one.connection for one in site.log()}) == 12


@each
@pytest.mark.skipif(not IS_LATE, reason="DOWNLOAD_BIND_ADDRESS came later")
def test_the_address_of_one_request() -> None:
    """``bindaddress`` in meta says from which address a request comes."""
    peers: list[str] = []

    def note(connection: Any, number: int) -> None:
        peers.append(connection.getpeername()[0])
        head_of(connection)
        connection.sendall(PAGE)

    with Wire(note) as wire:
        bound = scrapy.Request(wire.url("/2"), meta={"bindaddress": "127.0.0.3"})
        fetch(wire.url("/1"), bound, DOWNLOAD_BIND_ADDRESS="127.0.0.2")

    assert peers == ["127.0.0.2", "127.0.0.3"]


class Names:
    """A resolver of the reactor that knows one name."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def resolveHostName(  # noqa: N802
        self,
        receiver: Any,
        host: str,
        portNumber: int = 0,  # noqa: N803
        **_: Any,
    ) -> Any:
        from twisted.internet.address import IPv4Address

        self.asked.append(host)
        receiver.resolutionBegan(self)
        if host == "shop.example":
            receiver.addressResolved(IPv4Address("TCP", "127.0.0.1", portNumber))
        receiver.resolutionComplete()
        return self


@each
def test_names_are_looked_up_by_the_reactor(site: Any) -> None:
    """So DNS_RESOLVER, DNS_TIMEOUT and the DNS cache of Scrapy's settings count."""
    fetch(site.url("/page/1"))
    assert is_reactor_installed()
    from twisted.internet import reactor as installed

    reactor: Any = installed
    names = Names()
    former = reactor.installNameResolver(names)
    try:
        spider = fetch(site.url("/page/1", host="shop.example"), "http://other.example/")
    finally:
        reactor.installNameResolver(former)

    assert names.asked == ["shop.example", "other.example"]
    assert [page.url for page in spider.pages] == [site.url("/page/1", host="shop.example")]
    assert len(spider.errors) == 1


# Proxies and TLS -------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A key and a certificate that nobody signed."""
    path = tmp_path_factory.mktemp("tls") / "site.pem"
    make_certificate(path)
    return path


def serve(connection: Any, number: int) -> None:
    while head_of(connection):
        connection.sendall(PAGE)


@each
@pytest.mark.parametrize(
    ("user", "header"),
    [("", None), ("user:pw@", "Basic dXNlcjpwdw=="), ("us%C3%A9r:p@", "Basic dXPpcjpw")],
)
def test_a_proxy_for_http(site: Any, user: str, header: str | None) -> None:
    """It gets the whole URL, and user and password of the proxy's own."""
    proxied = scrapy.Request(
        "http://shop.example/page/1?q=%41", meta={"proxy": f"http://{user}127.0.0.1:{site.port}"}
    )
    spider = fetch(proxied)

    assert [page.url for page in spider.pages] == ["http://shop.example/page/1?q=%41"]
    (arrival,) = site.log()
    assert (arrival.host, arrival.headers.get("proxy-authorization")) == ("shop.example", header)


@each
@pytest.mark.parametrize("user", ["", "user:pw@"])
def test_a_proxy_for_https(certificate: Any, user: str) -> None:
    """A tunnel is asked for, with user and password, which the site never sees."""
    seen: list[bytes] = []

    def note(connection: Any, number: int) -> None:
        seen.append(head_of(connection))
        connection.sendall(PAGE)

    with Wire(note, certificate) as site, Tunnel(b"dXNlcjpwdw==" if user else b"") as proxy:
        meta = {"proxy": f"http://{user}127.0.0.1:{proxy.port}"}
        spider = fetch(scrapy.Request(site.url("/"), meta=meta))

    assert [page.body for page in spider.pages] == [b"page"]
    assert [head.split()[:2] for head in proxy.heads] == [
        [b"CONNECT", f"127.0.0.1:{site.port}".encode()]
    ]
    assert b"roxy-" not in seen[0]


@each
def test_a_proxy_that_refuses(certificate: Any) -> None:
    """A tunnel that is not opened, and a proxy that is not there, are failed downloads."""
    with Wire(serve, certificate) as site, Tunnel(b"Basic ") as proxy:
        urls = {
            site.url("/"): f"http://127.0.0.1:{proxy.port}",
            "http://shop.example/": "http://127.0.0.1:1",
        }
        requests = [scrapy.Request(url, meta={"proxy": urls[url]}) for url in urls]
        spider = fetch(*requests, RETRY_ENABLED=True, RETRY_TIMES=1)

    assert len(spider.errors) == 2
    assert [line["attempts"] for line in dumped()] == [2, 2]
    assert netspy_stats(spider.crawler)["netspy/retries"] == 2


@each
def test_certificates_are_checked_where_asked(certificate: Any) -> None:
    """DOWNLOAD_VERIFY_CERTIFICATES = False takes any certificate, True takes none of nobody's."""
    with Wire(serve, certificate) as site:
        taken = fetch(site.url("/"), DOWNLOAD_VERIFY_CERTIFICATES=False)
        refused = fetch(site.url("/"), DOWNLOAD_VERIFY_CERTIFICATES=True)

    assert [page.body for page in taken.pages] == [b"page"]
    assert taken.pages[0].certificate is not None
    if hasattr(scrapy.exceptions, "DownloadFailedError"):
        assert [type(one).__name__ for one in refused.errors] == ["DownloadFailedError"]


def test_versions_of_tls(certificate: Any, compared: Any) -> None:
    """DOWNLOAD_TLS_MAX_VERSION and _MIN_VERSION bound what is spoken."""

    def both() -> Any:
        spoken: list[str] = []

        def note(connection: Any, number: int) -> None:
            spoken.append(connection.version())
            serve(connection, number)

        with Wire(note, certificate) as site:
            fetch(site.url("/"), DOWNLOAD_TLS_MAX_VERSION="TLSv1.2")
            fetch(site.url("/"), DOWNLOAD_TLS_MIN_VERSION="TLSv1.3")
        return spoken

    old, new = compared(both)

    assert new == old == ["TLSv1.2", "TLSv1.3"]


# Netspy spiders --------------------------------------------------------------------------------
class Facade(mw.AirSpider):
    """Fetches ``seeds``."""

    seeds: Any = ()
    __custom_setting__ = MEMORY

    def start_requests(self) -> Any:
        yield from self.seeds

    def parse(self, request: Any, response: Any) -> Any:
        yield {"url": response.url, "status": response.status_code, "text": response.text[:9]}


@each
def test_a_netspy_spider(site: Any) -> None:
    """allow_redirects, timeout, cookies, proxies and data of mw.Request work alike."""
    url = site.url
    to = url(f"/redirect?to={url('/page/1')}")
    proxy = f"http://127.0.0.1:{site.port}"
    seeds = [
        mw.Request(to, allow_redirects=False),
        mw.Request(to, filter_repeat=False),
        mw.Request(url("/slow?ms=3000"), timeout=0.3, retry_times=3),
        mw.Request(url("/cookie/show"), cookies={"a": "b"}),
        mw.Request("http://shop.example/echo", proxies={"http": proxy}),
        mw.Request(url("/echo"), "POST", json={"a": 1}),
        mw.Request(url("/page/2"), verify=False),
    ]
    crawler = crawl(Facade, {"SPIDER_MAX_RETRY_TIMES": 3}, seeds=seeds)

    assert sorted((row[1]["url"], row[1]["status"]) for row in rows(crawler)) == sorted(
        [
            (to, 302), (url("/page/1"), 200), (url("/cookie/show"), 200),
            ("http://shop.example/echo", 200), (url("/echo"), 200), (url("/page/2"), 200),
        ]
    )  # fmt: skip
    assert [line["url"] for line in dumped()] == [url("/slow?ms=3000")]


@each
@pytest.mark.timed
def test_a_stop_cuts_what_hangs(site: Any) -> None:
    """SPIDER_MAX_RUNTIME and NETSPY_STOP_TIMEOUT end a crawl whose site is silent."""
    begun = time.monotonic()
    seeds = [mw.Request(site.url(f"/hang?{n}")) for n in range(8)]
    crawl(Facade, {"SPIDER_MAX_RUNTIME": 0.5, "NETSPY_STOP_TIMEOUT": 0.5}, seeds=seeds)

    assert time.monotonic() - begun < 8
    assert len(dumped()) == 8
