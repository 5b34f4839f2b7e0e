"""ElasticsearchPipeline against a server of Elasticsearch's API, and a stub for its bad days."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import pytest

pytest.importorskip("elasticsearch", reason="elasticsearch is not installed")

from elasticsearch import Elasticsearch as Client

from netspy_scrapy.exceptions import (
    ConfigError,
    PipelineError,
    SinkUnavailableError,
)
from netspy_scrapy.pipelines.elasticsearch import ElasticsearchPipeline
from tests.pipelines.elastic_stub import (
    ElasticStub,
    failure,
    make_certificate,
    whole,
)
from tests.pipelines.offering import away, offer, offer_until_taken, opened
from tests.pipelines.values import odd_values
from tests.servers.elasticsearch import Elasticsearch

QUICK = {"retry_delays": (0.01, 0.02)}
_numbers = count()


@pytest.fixture
def client(elasticsearch_server):
    with Client(elasticsearch_server.url) as made:
        yield made


@pytest.fixture
def index(client):
    """An index of the test's own, in which n is an integer."""
    name = f"test-{next(_numbers)}"
    client.indices.create(index=name, mappings={"properties": {"n": {"type": "integer"}}})
    yield name
    client.indices.delete(index=name)


@pytest.fixture
def sink(elasticsearch_server):
    made = opened(ElasticsearchPipeline, {"ELASTICSEARCH_HOSTS": elasticsearch_server.url})
    yield made
    made.close()


def stubbed(stub: ElasticStub, **options: Any) -> Any:
    settings = {"ELASTICSEARCH_HOSTS": [stub.url], "NETSPY_ELASTICSEARCH_OPTIONS": options}
    return opened(ElasticsearchPipeline, settings, **QUICK)


def contents(client: Client, index: str) -> dict[str, Any]:
    client.indices.refresh(index=index)
    hits = client.search(index=index, size=2000)["hits"]["hits"]
    return {hit["_id"]: hit["_source"] for hit in hits}


def field(client: Client, index: str, name: str) -> list[Any]:
    return sorted((one.get(name) for one in contents(client, index).values()), key=repr)


def each(told: dict[int, tuple[int, str]], stub: ElasticStub) -> Any:
    """Return an answer that refuses some documents, by position, and stores the others."""

    def answer(operations: list[Any]) -> tuple[int, Any]:
        _, data = stub.store([one for n, one in enumerate(operations) if n not in told])
        items = iter(data["items"])
        return 200, {
            "errors": True,
            "items": [
                failure(kind, target, *told[n]) if n in told else next(items)
                for n, (kind, target, _) in enumerate(operations)
            ],
        }

    return answer


def test_1000_rows_one_poisoned(sink, client, index) -> None:
    """A mapping conflict in the first request costs one row, and later requests go on."""
    sink.chunk_size = 300
    rows = [{"n": n} for n in range(1000)]
    rows[7]["n"] = "seven"

    refused = offer(sink, index, rows)

    assert list(refused) == [7]
    assert refused[7].startswith("400 document_parsing_exception: ")
    assert field(client, index, "n") == sorted((n for n in range(1000) if n != 7), key=repr)


def test_values_that_json_does_not_know(sink, client, index) -> None:
    """Each kind of value is stored as something sensible."""
    values = odd_values()
    # There, a dot makes an object of the field, and a list holds values of one kind.
    values["nested"] = {"list": values["nested"]["list"][:1]}
    assert offer(sink, index, [{**values, "nan": float("nan"), "bad": "x\udc80"}]) == {}

    (stored,) = contents(client, index).values()
    assert stored == {
        "decimal": "1.50", "moment": "2026-01-02T03:04:05.678000+00:00", "date": "2026-01-02",
        "time": "03:04:00", "span": "1 day, 1:00:00",
        "uuid": "00000000-0000-0000-0000-000000000005", "bytes": "/wA=", "text_bytes": "abc",
        "set": [1, 2], "enum": "red", "int_enum": 3, "name": "x", "huge": 2**70, "path": "/a/b",
        "nested": {"list": [{"value": "2.50", "tags": ["a", "b"]}]},
        "emoji": "新闻 😀", "none": None, "nan": None, "bad": "x\\udc80",
    }  # fmt: skip


def test_a_value_without_json_costs_its_row(sink, client, index) -> None:
    """It never reaches the server."""
    refused = offer(sink, index, [{"n": 1}, {"n": 2, "v": object()}, {"n": 3}])

    assert refused == {1: "TypeError: cannot store a value of type object"}
    assert field(client, index, "n") == [1, 3]


def test_an_update_changes_or_inserts(sink, client, index) -> None:
    """The _id is the key; other fields stay; the last of several values wins."""
    rows = [{"sku": "a", "n": 1, "x": 1}, {"sku": "b", "n": 2}, {"sku": "a", "n": 3}]

    assert sink.update_items(index, rows, ["sku"]) == {}
    assert contents(client, index) == {
        "a": {"sku": "a", "n": 3, "x": 1}, "b": {"sku": "b", "n": 2},
    }  # fmt: skip


def test_keys_that_look_alike_are_two_documents(sink, client, index) -> None:
    """("a", "bc") and ("ab", "c") do not share an _id, nor do 1 and "1"."""
    rows = [{"a": "a", "b": "bc"}, {"a": "ab", "b": "c"}, {"a": 1, "b": 1}, {"a": "1", "b": 1}]

    assert sink.update_items(index, rows, ["a", "b"]) == {}
    assert len(contents(client, index)) == 4


def test_bad_updates_cost_themselves(sink, client, index) -> None:
    """An update without its key, or with a value that the mapping refuses, is refused alone."""
    rows = [{"n": 1}, {"sku": 1, "n": "one"}, {"sku": 2, "n": 2}]

    refused = sink.update_items(index, rows, ["sku"])

    assert sorted(refused) == [0, 1]
    assert refused[0] == "no value for the update key 'sku'"
    assert field(client, index, "n") == [2]


def test_items_are_added_as_in_netspy(sink, client, index) -> None:
    """Unless asked for, an Item with a unique key is one more document."""
    for n in (1, 2):
        assert offer(sink, index, [{"url": "a", "n": n}], unique=("url",)) == {}
    assert field(client, index, "n") == [1, 2]


def test_upsert_by_the_unique_key(elasticsearch_server, client, index) -> None:
    """NETSPY_ELASTICSEARCH_UPSERT: the same key is the same document, which is replaced."""
    settings = {
        "ELASTICSEARCH_HOSTS": elasticsearch_server.url, "NETSPY_ELASTICSEARCH_UPSERT": True,
    }  # fmt: skip
    sink = opened(ElasticsearchPipeline, settings)
    for n in (1, 2):
        assert offer(sink, index, [{"url": "a", "n": n}, {"n": 9}], unique=("url",)) == {}

    assert contents(client, index)["a"] == {"url": "a", "n": 2}
    assert field(client, index, "n") == [2, 9, 9]
    sink.close()


def test_names_are_cleaned(sink, client, caplog) -> None:
    """A table that cannot be an index goes to one of a similar name, and a warning says so."""
    assert offer(sink, "Test Cleaned", [{"n": 1}]) == {}

    assert field(client, "test_cleaned", "n") == [1]
    assert "'Test Cleaned' cannot be an index: its rows go to 'test_cleaned'" in caplog.messages
    client.indices.delete(index="test_cleaned")
    with pytest.raises(PipelineError, match="cannot be an index"):
        offer(sink, "--", [{"n": 1}])


@pytest.mark.timed
def test_kill_and_restart() -> None:
    """While the server is killed the batch is away; back, it has every row once."""
    with Elasticsearch() as server:
        if server.given:
            pytest.skip("a server that was given is not killed")
        sink = opened(
            ElasticsearchPipeline,
            {"ELASTICSEARCH_HOSTS": server.url, "NETSPY_SINK_TIMEOUT": 1},
            **QUICK,
        )
        rows = [{"n": n} for n in range(100)]
        assert offer(sink, "news", rows[:50]) == {}
        time.sleep(server.settling)
        server.kill()
        assert "refused" in str(away(sink, "news", rows[50:]))
        server.start()

        assert offer_until_taken(sink, "news", rows[50:]) == {}
        with Client(server.url) as client:
            assert field(client, "news", "n") == sorted(range(100), key=repr)
        sink.close()


@pytest.mark.timed
def test_frozen_server() -> None:
    """A server that hangs is away after the time-out, and has each row once when it goes on."""
    with Elasticsearch() as server:
        if server.given:
            pytest.skip("a server that was given is not stopped")
        sink = opened(
            ElasticsearchPipeline,
            {"ELASTICSEARCH_HOSTS": server.url, "NETSPY_SINK_TIMEOUT": 1},
            **QUICK,
        )
        assert offer_until_taken(sink, "news", [{"n": 0}]) == {}
        rows = [{"n": 1}, {"n": 1}, {"n": 2}]
        server.freeze()
        away(sink, "news", rows)
        server.thaw()

        assert offer_until_taken(sink, "news", rows) == {}
        with Client(server.url) as client:
            assert field(client, "news", "n") == [0, 1, 1, 2]
        sink.close()


def test_server_away_at_the_start() -> None:
    """Opening does not need the server."""
    sink = opened(ElasticsearchPipeline, {"ELASTICSEARCH_HOSTS": "http://127.0.0.1:9"})

    with pytest.raises(SinkUnavailableError, match="refused"):
        offer(sink, "news", [{"n": 1}])
    sink.close()


def test_busy_documents_are_sent_again() -> None:
    """What the server is too busy for (429) is sent again, and only that."""
    with ElasticStub() as stub:
        told = {1: (429, "es_rejected_execution_exception"), 3: (503, "unavailable_shards")}
        stub.answers = [each(told, stub), each({0: (429, "again")}, stub)]
        sink = stubbed(stub)

        assert offer(sink, "news", [{"n": n} for n in range(5)]) == {}
        assert stub.requests == [5, 2, 1]
        assert sorted(one["n"] for one in stub.stored.values()) == [0, 1, 2, 3, 4]
        sink.close()


def test_documents_that_stay_too_much_wait() -> None:
    """After some attempts the rest is away; what is stored is told, and not offered again."""
    with ElasticStub() as stub:
        busy = {1: (429, "es_rejected_execution_exception")}
        stub.answers = [each({**busy, 2: (400, "parsing")}, stub), *[whole(429)] * 2]
        sink = stubbed(stub)
        error = away(sink, "news", [{"n": n} for n in range(4)])

        assert error.stored == {0, 3}
        assert list(error.refused) == [2]
        assert "429" in str(error)
        assert offer(sink, "news", [{"n": 1}]) == {}
        sink.close()


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_requests_that_nobody_takes_wait(status) -> None:
    """A node, or a proxy before it, that cannot answer is away: no row is to blame."""
    with ElasticStub(*[whole(status)] * 3) as stub:
        sink = stubbed(stub)
        error = away(sink, "news", [{"n": 1}, {"n": 2}])

        assert str(status) in str(error)
        assert not error.refused
        assert stub.requests == [2, 2, 2]
        sink.close()


def test_a_version_conflict_of_updates_is_tried_again() -> None:
    """Another process changed the document at the same time."""
    with ElasticStub() as stub:
        stub.answers = [each({0: (409, "version_conflict_engine_exception")}, stub)]
        sink = stubbed(stub)
        assert sink.update_items("news", [{"k": 1, "n": 1}], ["k"]) == {}

        stub.answers = [each({0: (409, "version_conflict_engine_exception")}, stub)] * 3
        refused = sink.update_items("news", [{"k": 1, "n": 2}, {"k": 2}], ["k"])
        assert refused == {0: "409 version_conflict_engine_exception: as told"}
        sink.close()


def test_a_request_that_is_too_large_is_divided() -> None:
    """413 halves the request until one document is left, which is refused."""

    def limited(operations: list[Any]) -> tuple[int, Any]:
        if sum(len(document.get("t", "")) for _, _, document in operations) > 100:
            return whole(413)(operations)
        return stub.store(operations)

    with ElasticStub() as stub:
        stub.answers = [limited] * 50
        rows: list[dict[str, Any]] = [{"n": n, "t": "x" * 30} for n in range(20)]
        rows[11]["t"] = "x" * 200
        sink = stubbed(stub)
        refused = offer(sink, "news", rows)

        assert list(refused) == [11]
        assert "413" in refused[11]
        assert len(stub.stored) == 19
        sink.close()


def test_a_request_that_is_refused_for_one_row_is_divided() -> None:
    """400 for the whole request costs the row that caused it."""

    def strict(operations: list[Any]) -> tuple[int, Any]:
        if any("bad" in document for _, _, document in operations):
            return whole(400)(operations)
        return stub.store(operations)

    with ElasticStub() as stub:
        stub.answers = [strict] * 50
        sink = stubbed(stub)
        refused = offer(sink, "news", [{"n": n} | ({"bad": 1} if n == 3 else {}) for n in range(9)])

        assert list(refused) == [3]
        assert len(stub.stored) == 8
        sink.close()


def test_a_server_that_refuses_every_request() -> None:
    """A client of another version, say: the rows are refused after a bounded number of requests."""
    with ElasticStub(*[whole(400, "media_type_header_exception")] * 9999) as stub:
        sink = stubbed(stub)
        refused = offer(sink, "news", [{"n": n} for n in range(2000)])

        assert len(refused) == 2000
        assert "media_type_header_exception" in refused[0]
        assert len(stub.requests) < 300
        sink.close()


@pytest.mark.parametrize("status", [401, 403])
def test_no_right_to_write(status) -> None:
    """Every row is refused with the server's reason, which holds no password."""
    with ElasticStub(whole(status, "security_exception")) as stub:
        url = stub.url.replace("//", "//user:geheim@")
        sink = opened(ElasticsearchPipeline, {"ELASTICSEARCH_HOSTS": [url]}, **QUICK)
        refused = offer(sink, "news", [{"n": 1}, {"n": 2}])

        assert sorted(refused) == [0, 1]
        assert "security_exception" in refused[0]
        assert "geheim" not in str(refused)
        assert stub.requests == [2]
        assert stub.headers[0]["authorization"].startswith("Basic ")
        sink.close()


def test_api_key() -> None:
    """NETSPY_ELASTICSEARCH_OPTIONS go to the client."""
    with ElasticStub() as stub:
        sink = stubbed(stub, api_key="abc", http_compress=False)
        assert offer(sink, "news", [{"n": 1}]) == {}

        assert stub.headers[0]["authorization"] == "ApiKey abc"
        sink.close()


def test_tls(tmp_path) -> None:
    """A certificate that is not trusted refuses the rows, and one that is named is trusted."""
    make_certificate(tmp_path / "pem")
    with ElasticStub(certificate=tmp_path / "pem") as stub:
        sink = stubbed(stub)
        refused = offer(sink, "news", [{"n": 1}])
        assert "certificate verify failed" in refused[0].lower()
        sink.close()

        sink = stubbed(stub, ca_certs=str(tmp_path / "pem"))
        assert offer(sink, "news", [{"n": 1}]) == {}
        assert len(stub.stored) == 1
        sink.close()


def test_a_server_that_is_not_elasticsearch(site) -> None:
    """Rows are refused, and the reason says what was found there."""
    sink = opened(ElasticsearchPipeline, {"ELASTICSEARCH_HOSTS": site.url("").rstrip("/")})
    refused = offer(sink, "news", [{"n": 1}])

    assert "UnsupportedProduct" in refused[0] or "404" in refused[0] or "405" in refused[0]
    sink.close()


@pytest.mark.parametrize("hosts", ["localhost:9200", "http://user:geheim@h", [], 5, [5]])
def test_bad_hosts(hosts) -> None:
    """The error names the setting and what is allowed, and holds no password."""
    with pytest.raises(ConfigError, match="ELASTICSEARCH_HOSTS = ") as info:
        opened(ElasticsearchPipeline, {"ELASTICSEARCH_HOSTS": hosts})

    assert "geheim" not in str(info.value)


@pytest.mark.parametrize(
    "options",
    [{"nope": "geheim"}, {"basic_auth": ["u", "geheim"], "api_key": "x"}, "x", {"ca_certs": "/no"}],
)
def test_bad_options(options) -> None:
    """The error names the setting and the options, and holds no value."""
    with pytest.raises(ConfigError, match="NETSPY_ELASTICSEARCH_OPTIONS = ") as info:
        opened(ElasticsearchPipeline, {"NETSPY_ELASTICSEARCH_OPTIONS": options})

    assert "geheim" not in str(info.value)
