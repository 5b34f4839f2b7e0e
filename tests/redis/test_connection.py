"""The connection, with a real Redis that is killed, frozen and locked."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from subprocess import run as run_process
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from redis import Redis as Client
from redis.exceptions import ResponseError
from scrapy.settings import Settings

from netspy_scrapy.dedup.redis_store import RedisBloom
from netspy_scrapy.exceptions import ConfigError, RedisAwayError, RedisFailedError
from netspy_scrapy.redis.connection import Connection
from netspy_scrapy.redis.options import RedisSettings
from tests.servers.base import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers.redis import Redis

QUICK = {"socket_timeout": 0.3, "socket_connect_timeout": 0.3}


@contextmanager
def connected(**settings: Any) -> Iterator[Connection]:
    connection = Connection(RedisSettings.from_settings(Settings(settings)))
    try:
        yield connection
    finally:
        connection.close()


def ping(client: Client) -> bool:
    return bool(client.ping())


def until(condition: Any, seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_calls_run_beside_the_loop(redis_server: Redis) -> None:
    """A call of many round trips leaves the loop free, and several run at a time."""

    async def crawl(connection: Connection) -> int:
        turns = 0
        calls = [
            asyncio.create_task(connection.run(lambda client: client.blpop(["no-such"], 1)))
            for _ in range(3)
        ]
        while not all(call.done() for call in calls):
            await asyncio.sleep(0.01)
            turns += 1
        return turns

    with connected(REDIS_URL=redis_server.url) as connection:
        begun = time.monotonic()
        turns = asyncio.run(crawl(connection))

        assert turns > 20
        assert time.monotonic() - begun < 2.5


def test_one_connection_serves_several_loops(redis_server: Redis) -> None:
    """It outlives the event loop that it was first used in."""
    with connected(REDIS_URL=redis_server.url) as connection:
        assert [asyncio.run(connection.run(ping)) for _ in range(2)] == [True, True]


def test_keys_of_one_kind_share_a_slot() -> None:
    """Keys have the prefix, and a hash tag for Redis Cluster."""
    with connected(REDIS_KEY_PREFIX="shop") as connection:
        assert connection.key("books", "seen", "items") == "shop:{books}:seen:items"


def test_a_refused_command_is_no_outage(redis_server: Redis) -> None:
    """What Redis refuses is an error of that call only."""
    with connected(REDIS_URL=redis_server.url) as connection:
        with pytest.raises(RedisFailedError, match="unknown command") as caught:
            connection.call(lambda client: client.execute_command("NO-SUCH"))

        assert not isinstance(caught.value, RedisAwayError)
        assert isinstance(caught.value.__cause__, ResponseError)
        assert not connection.is_away


def test_a_restart_between_two_calls_is_not_noticed(own_redis: Callable[..., Redis]) -> None:
    """A connection that the server closed meanwhile is replaced, without an error."""
    server = own_redis()
    with connected(REDIS_URL=server.url) as connection:
        assert connection.call(ping)
        server.kill()
        server.start()

        assert connection.call(ping)


@pytest.mark.timed
def test_away_and_back(own_redis: Callable[..., Redis], caplog: pytest.LogCaptureFixture) -> None:
    """The first call notes the outage, others fail at once, and it is back without a call."""
    caplog.set_level(logging.INFO)
    server = own_redis()
    with connected(REDIS_URL=server.url) as connection:
        connection.call(ping)
        server.kill()
        with pytest.raises(RedisAwayError, match="is away: ConnectionError"):
            connection.call(ping)
        begun = time.monotonic()
        for _ in range(1000):
            with pytest.raises(RedisAwayError):
                connection.call(ping)
        took = time.monotonic() - begun
        server.start()
        until(lambda: not connection.is_away)

        assert took < 1
        assert connection.call(ping)
    said = [one.getMessage() for one in caplog.records if "netspy" in one.name]
    assert len(said) == 2
    assert f"Redis at {server.url} is away" in said[0]
    assert "is back after" in said[1]


@pytest.mark.timed
def test_it_comes_back_with_another_password(
    own_redis: Callable[..., Redis], caplog: pytest.LogCaptureFixture
) -> None:
    """That no waiting will help is said once, beside that it was away."""
    server = own_redis()
    with connected(REDIS_URL=server.url) as connection:
        assert connection.call(ping)
        server.kill()
        with pytest.raises(RedisAwayError):
            connection.call(ping)
        server.extra = ("--requirepass", "another")
        server.start()
        until(lambda: "refuses this process" in caplog.text)
        time.sleep(1)

        assert connection.is_away
        assert caplog.text.count("refuses this process") == 1
        assert caplog.text.count("is away:") == 1


@pytest.mark.timed
def test_no_storm_of_connections() -> None:
    """While nobody answers, a single thread tries, more and more seldom."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        listener.settimeout(0.1)
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        tried = 0
        with connected(REDIS_URL=url, REDIS_PARAMS=QUICK) as connection:
            end = time.monotonic() + 3
            while time.monotonic() < end:
                for _ in range(10):
                    with pytest.raises(RedisAwayError):
                        connection.call(ping)
                try:
                    listener.accept()[0].close()
                except TimeoutError:
                    continue
                tried += 1

        # At 0, 0.25, 0.75 and 1.75 s; some clients shake hands on a second connection.
        assert 2 <= tried <= 9


@pytest.mark.timed
def test_a_frozen_server_costs_one_time_out(own_redis: Callable[..., Redis]) -> None:
    """A server that hangs holds the first call for a time-out, and no further one."""
    server = own_redis()
    with connected(REDIS_URL=server.url, REDIS_PARAMS=QUICK) as connection:
        connection.call(ping)
        server.freeze()
        begun = time.monotonic()
        with pytest.raises(RedisAwayError, match="TimeoutError"):
            connection.call(ping)
        first = time.monotonic() - begun
        for _ in range(100):
            with pytest.raises(RedisAwayError):
                connection.call(ping)
        rest = time.monotonic() - begun - first
        server.thaw()
        until(lambda: not connection.is_away)

        assert 0.25 < first < 2
        assert rest < 0.25


def test_is_back_asks_at_once(own_redis: Callable[..., Redis]) -> None:
    """Who cannot wait for the watching thread asks by itself."""
    server = own_redis()
    with connected(REDIS_URL=server.url) as connection:
        server.kill()
        with pytest.raises(RedisAwayError):
            connection.call(ping)
        assert not asyncio.run(connection.is_back())
        time.sleep(1)  # the pauses have grown meanwhile
        server.start()

        assert asyncio.run(connection.is_back())
        assert connection.call(ping)


def own_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if "netspy-redis" in one.name]


def test_nothing_is_left_after_the_close(redis_server: Redis) -> None:
    """A closed connection is used no more, and its threads end, also during an outage."""
    before = own_threads()  # those that an earlier test of the process left
    with connected(REDIS_URL="redis://127.0.0.1:1") as connection:
        with pytest.raises(RedisAwayError):
            asyncio.run(connection.run(ping))
        connection.close()
        with pytest.raises(RedisAwayError):
            connection.call(ping)
    until(lambda: not [one for one in own_threads() if one not in before])


# Wrong from the start ----------------------------------------------------------------------------
def refused(**settings: Any) -> str:
    """Return the error of a check, as a traceback shows it."""
    with connected(**settings) as connection, pytest.raises(ConfigError) as caught:
        asyncio.run(connection.check())
    return "".join(traceback.format_exception(caught.value))


def test_a_good_server_passes(redis_server: Redis) -> None:
    """The check of a server that can be used says nothing."""
    with connected(REDIS_URL=redis_server.url) as connection:
        asyncio.run(connection.check())

        assert not connection.is_away


@pytest.mark.parametrize(
    "settings",
    [
        {"REDIS_URL": "redis://:geheim%21x@127.0.0.1:{port}/0"},
        {"REDIS_URL": "redis://127.0.0.1:{port}/0"},
        {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": "{port}", "REDIS_PASSWORD": "geheim!x"},
        {"REDIS_PARAMS": {"url": "redis://127.0.0.1:{port}/0", "password": "geheim!x"}},
    ],
)
def test_a_wrong_password_is_an_error_at_the_start(
    own_redis: Callable[..., Redis], settings: dict[str, Any]
) -> None:
    """The error names the setting and the server, and shows no password."""
    server = own_redis("--requirepass", "right")

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(one) for name, one in value.items()}
        return value.replace("{port}", str(server.port))

    error = refused(**filled(settings))

    last = error.strip().splitlines()[-1]
    assert f"ConfigError: {next(iter(settings))}" in last
    assert f"127.0.0.1:{server.port}" in last
    assert "a user and password that the server accepts" in last
    assert "geheim" not in error


def test_the_right_password_passes(own_redis: Callable[..., Redis]) -> None:
    """A password in the URL, or beside it, is used."""
    server = own_redis("--requirepass", "ri:ght@/")
    url = f"redis://127.0.0.1:{server.port}/0"
    for settings in (
        {"REDIS_URL": url.replace("//", "//:ri%3Aght%40%2F@")},
        {"REDIS_URL": url, "REDIS_PASSWORD": "ri:ght@/"},
        {"REDIS_URL": url, "REDIS_PARAMS": {"password": "ri:ght@/"}},
    ):
        with connected(**settings) as connection:
            asyncio.run(connection.check())


def test_a_database_that_is_not_there_is_an_error_at_the_start(redis_server: Redis) -> None:
    """The error says that it is the database."""
    url = redis_server.url.rpartition("/")[0] + "/99"

    assert f"REDIS_URL = '{url}' cannot be used: expected a database" in refused(REDIS_URL=url)


def test_an_argument_that_the_client_does_not_know(redis_server: Redis) -> None:
    """The error names REDIS_PARAMS, and none of its values."""
    params = {"no_such_argument": "geheim"}
    error = refused(REDIS_URL=redis_server.url, REDIS_PARAMS=params)

    assert "REDIS_PARAMS = " in error
    assert "no_such_argument" in error
    assert "geheim" not in error


def test_a_class_that_is_not_there() -> None:
    """A redis_cls that cannot be imported is named."""
    error = refused(REDIS_PARAMS={"redis_cls": "no_such.Client"})

    assert "REDIS_PARAMS['redis_cls'] = 'no_such.Client' cannot be used" in error


@pytest.mark.parametrize("chosen", ["redis.Redis", Client])
def test_a_class_of_the_projects_own(redis_server: Redis, chosen: Any) -> None:
    """REDIS_PARAMS may give the client's class, or its path, as for scrapy-redis."""
    params = {"redis_cls": chosen}
    with connected(REDIS_URL=redis_server.url, REDIS_PARAMS=params) as connection:
        assert type(connection.call(lambda client: client)) is Client


def test_a_server_that_is_too_old() -> None:
    """A Redis before 5 is refused by its version. (None is to be had: a stand-in says so.)"""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                while data := client.recv(4096):
                    info = b"redis_version:4.0.14\r\n"
                    answers = {b"PING": b"+PONG\r\n", b"INFO": b"$%d\r\n%b\r\n" % (len(info), info)}
                    for command in data.split(b"*")[1:]:
                        name = command.split(b"\r\n")[2].upper()
                        client.sendall(answers.get(name, b"-ERR unknown command\r\n"))

        threading.Thread(target=serve, daemon=True).start()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        error = refused(REDIS_URL=url, REDIS_PARAMS={"protocol": 2})

    assert f"REDIS_URL = '{url}' cannot be used: expected a server of Redis 5 or newer" in error
    assert "this is 4.0.14" in error


def test_a_certificate_that_nobody_trusts(own_redis: Callable[..., Redis], folder: Path) -> None:
    """The error names the argument by which a certificate is trusted, and with it TLS works."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    today = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = folder / "redis.pem"
    path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    port = free_port()
    own_redis(
        "--tls-port", str(port), "--tls-cert-file", str(path), "--tls-key-file", str(path),
        "--tls-ca-cert-file", str(path), "--tls-auth-clients", "no",
    )  # fmt: skip
    url = f"rediss://127.0.0.1:{port}/0"
    error = refused(REDIS_URL=url)
    with connected(REDIS_URL=url, REDIS_PARAMS={"ssl_ca_certs": str(path)}) as connection:
        asyncio.run(connection.check())

    assert "see REDIS_PARAMS: ssl_ca_certs" in error


@pytest.mark.timed
def test_a_cluster(own_redis: Callable[..., Redis]) -> None:
    """redis_cls may be the client of a Redis Cluster; one whose nodes are gone is away."""
    # Its own port for the other nodes would be 10,000 higher, which may be too high.
    server = own_redis("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with Client(port=server.port) as node:
        node.execute_command("CLUSTER ADDSLOTSRANGE 0 16383")
        until(lambda: node.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
    params = {"redis_cls": "redis.RedisCluster"}
    url = f"redis://127.0.0.1:{server.port}"
    with connected(REDIS_URL=url, REDIS_PARAMS=params) as connection:
        asyncio.run(connection.check())
        store = RedisBloom(
            connection, connection.key("s", "x"), capacity=10, error_rate=1e-6, max_layers=3
        )
        keys = [b"%d" % n for n in range(30)]
        assert asyncio.run(store.add(keys)).flags == [True] * 30
        assert asyncio.run(store.known(keys)).flags == [True] * 30
        server.kill()
        with pytest.raises(RedisAwayError):
            asyncio.run(store.known(keys))


def test_a_user_who_may_not_ask_for_the_version(own_redis: Callable[..., Redis]) -> None:
    """A user without the right to INFO is no error."""
    server = own_redis("--user", "bob", "on", ">pw", "~*", "+@all", "-info")
    with connected(REDIS_URL=f"redis://bob:pw@127.0.0.1:{server.port}/0") as connection:
        asyncio.run(connection.check())

        assert not connection.is_away


def test_a_server_that_is_not_there_is_no_wrong_setting() -> None:
    """Redis that cannot be reached at the start may come later, whatever its name."""
    url = "redis://127.0.0.1:1/0?client_name=auth-password"
    with connected(REDIS_URL=url) as connection, pytest.raises(RedisAwayError):
        asyncio.run(connection.check())


def test_nothing_of_redis_is_imported_unless_it_is_used() -> None:
    """Who does not use Redis needs no client, and does not wait for it to be imported."""
    code = (
        "import sys, netspy_scrapy, netspy_scrapy.addon, netspy_scrapy.dedup\n"
        "from netspy_scrapy.pipelines import sqlite\n"
        "assert not {'redis', 'scrapy_redis'} & set(sys.modules)\n"
    )
    run_process([sys.executable, "-c", code], check=True, timeout=60)


def test_a_client_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "redis", None)

    assert "pip install 'netspy-scrapy[redis]'" in refused(REDIS_URL="redis://db")
