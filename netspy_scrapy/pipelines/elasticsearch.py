"""A sink that writes to Elasticsearch."""

from __future__ import annotations

import logging
import re
import secrets
import time
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.pipelines.documents import (
    Destinations,
    Outcome,
    RowIds,
    encode_rows,
    has_key,
    key_text,
    missing_keys,
    quiet,
)
from netspy_scrapy.settings import read_bool, read_mapping, read_names, read_number, without_secrets

try:
    import elastic_transport
    from elasticsearch import Elasticsearch, UnsupportedProductError, helpers
except ImportError as exc:
    raise ImportError(
        'ElasticsearchPipeline needs its client: pip install "netspy-scrapy[elasticsearch]"'
    ) from exc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from netspy_scrapy.pipelines.sql import Refused

#: A line of a bulk request that says what to do, and the one with the document.
_Action = tuple[dict[str, dict[str, Any]], bytes]

_CONFLICT = 409
# The node has too much to do, a shard is not there yet, or a proxy has no node behind it.
_LATER = frozenset({429, 502, 503, 504})
# Said of a whole request of which one row may be the cause: malformed, or too large.
_DIVISIBLE = frozenset({400, 413})
_MAX_ID_BYTES = 512
_MAX_NAME_BYTES = 255
_NOT_IN_NAMES = re.compile(r'[\\/*?"<>|\s,#:\x00-\x1f\ud800-\udfff]')


class ElasticsearchPipeline(BasePipeline):
    r"""Writes the rows of each table to the index of that name, by the client's bulk helpers.

    Indexes and mappings are yours: nothing is created here (whether a missing index comes into
    being with its first document is a setting of the server's). Names that no index can have are
    cleaned (lower case, ``_`` for what is forbidden), with one warning.

    New rows get an ``_id`` from here, under which they are sent once more if the connection broke
    before the answer came: what was stored then is not stored twice. An UpdateItem changes the
    document whose ``_id`` is made of the values of its key, or is inserted (``doc_as_upsert``);
    see :func:`~netspy_scrapy.pipelines.documents.key_text`. With NETSPY_ELASTICSEARCH_UPSERT an
    Item that has a value for each field of its ``__unique_key__`` gets such an ``_id`` too, and
    replaces the document that has it.

    A document that the server refuses costs itself and no other. Those that it is too busy for
    (429), or whose shard is not there (503), are sent again, and wait at last
    (:exc:`~netspy_scrapy.exceptions.SinkUnavailableError`), as all do while no node answers. A
    request that is too large (413) is halved.

    Values: as in JSON. Dates and times are ISO 8601, Decimals, UUIDs and paths text (a mapping to a
    number takes a Decimal's text), bytes their text or base64, sets sorted lists, an Enum its
    value, items objects, NaN null. Lone surrogates are written out (``\udc80``).

    Settings: ELASTICSEARCH_HOSTS, NETSPY_ELASTICSEARCH_OPTIONS, NETSPY_ELASTICSEARCH_UPSERT,
    NETSPY_SINK_TIMEOUT, and those of every sink.
    """

    wants_unique_keys: ClassVar[bool] = True
    chunk_size: ClassVar[int] = 1000
    """Documents in a request."""
    chunk_bytes: ClassVar[int] = 10 * 1024 * 1024
    """Bytes of a request, unless one document is larger."""
    retry_delays: ClassVar[tuple[float, ...]] = (0.5, 1.0, 2.0)
    """Seconds before each further attempt with what the server was too busy for."""

    _client: Elasticsearch | None = None

    def open(self) -> None:
        """Read the settings; the connection is made by the first batch."""
        self._upserts = read_bool(self.settings, "NETSPY_ELASTICSEARCH_UPSERT")
        self._destinations = Destinations("an index", index_name_of, self.logger)
        base, number = secrets.token_hex(8), count()
        self._ids = RowIds(lambda: f"{base}{next(number):08x}")
        self._client = self._connect()

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def save_items(self, table: str, items: list[dict[str, Any]]) -> Refused:
        """Add rows, or replace those that have their unique key, if so set."""
        index = self._destinations.of(table)
        keys = tuple(self.unique_keys) if self._upserts else ()
        outcome = Outcome()
        ids, _ = self._ids.of(items)
        actions: dict[int, _Action] = {}
        for position, body in encode_rows(items, outcome):
            item = items[position]
            if has_key(item, keys):
                target = {"_index": index, "_id": document_id(item, keys)}
                actions[position] = {"index": target}, body
            else:
                actions[position] = {"create": {"_index": index, "_id": ids[position]}}, body
        try:
            self._send(actions, outcome)
        except Exception:
            self._ids.keep(items, ids)
            raise
        return outcome.refused

    def update_items(
        self, table: str, items: list[dict[str, Any]], update_keys: list[str]
    ) -> Refused:
        """Change the documents that *update_keys* find, or insert them."""
        index = self._destinations.of(table)
        outcome = Outcome()
        for position, item in enumerate(items):
            why = missing_keys(item, update_keys)
            if why:
                outcome.refuse([position], why)
        actions: dict[int, _Action] = {}
        for position, body in encode_rows(items, outcome, skip=set(outcome.refused)):
            target = {
                "_index": index,
                "_id": document_id(items[position], update_keys),
                "retry_on_conflict": 3,
            }
            actions[position] = {"update": target}, b'{"doc":%b,"doc_as_upsert":true}' % body
        self._send(actions, outcome)
        return outcome.refused

    # Connection ---------------------------------------------------------------------------------
    def _connect(self) -> Elasticsearch:
        hosts = read_names(self.settings, "ELASTICSEARCH_HOSTS", what="URLs")
        options = read_mapping(self.settings, "NETSPY_ELASTICSEARCH_OPTIONS")
        given: dict[str, Any] = {
            "request_timeout": read_number(
                self.settings, "NETSPY_SINK_TIMEOUT", unit="seconds", minimum=0.1
            ),
            # At once, so for other nodes only. Retries with pauses are made here.
            "max_retries": min(3, len(hosts) - 1), "retry_on_status": (), **options,
        }  # fmt: skip
        if "cloud_id" not in options:
            try:
                Elasticsearch(hosts).close()
            except (TypeError, ValueError):
                raise ConfigError(
                    "ELASTICSEARCH_HOSTS",
                    without_secrets(hosts),
                    "URLs with scheme, host and port, such as http://localhost:9200",
                ) from None
            given["hosts"] = hosts
        # It logs each request at INFO, and each failed one at WARNING with three tracebacks.
        quiet("elastic_transport", logging.ERROR)
        try:
            return Elasticsearch(**given)
        except Exception as exc:  # noqa: BLE001 - each option has errors of its own
            # A value may be a password.
            why = "" if any(str(one) in str(exc) for one in _texts(options)) else f" ({exc})"
            raise ConfigError(
                "NETSPY_ELASTICSEARCH_OPTIONS",
                dict.fromkeys(options, "***"),
                f"arguments of elasticsearch.Elasticsearch{why}",
            ) from None

    # Writing ------------------------------------------------------------------------------------
    def _send(self, actions: dict[int, _Action], outcome: Outcome) -> None:
        """Have *actions* done, and what the server is too busy for after a while."""
        reasons: dict[int, tuple[int, str]] = {}
        for delay in (0.0, *self.retry_delays):
            time.sleep(delay)
            reasons = self._offer(actions, outcome, self.chunk_size)
            if not reasons:
                return
            actions = {position: actions[position] for position in reasons}
        for position, (status, reason) in reasons.items():
            if status == _CONFLICT:
                outcome.refuse([position], reason)
        waiting = [reason for status, reason in reasons.values() if status != _CONFLICT]
        if waiting:
            raise outcome.unavailable(waiting[0])

    def _offer(
        self, actions: dict[int, _Action], outcome: Outcome, size: int
    ) -> dict[int, tuple[int, str]]:
        """Send *actions*; return status and reason of those that may be done later."""
        later: dict[int, tuple[int, str]] = {}
        too_much: dict[int, str] = {}
        positions = iter(actions)
        try:
            # The answers come first: what they do not reach is left in *positions*.
            for (ok, answer), position in zip(
                self._bulk(actions.values(), size), positions, strict=False
            ):
                ((kind, result),) = answer.items()
                if ok or (kind == "create" and result["status"] == _CONFLICT):
                    # The _id was made here: an earlier attempt stored the document.
                    outcome.stored.add(position)
                elif "exception" in result and result["status"] in _DIVISIBLE:
                    too_much[position] = _reason(result)
                elif result["status"] in _LATER or result["status"] == _CONFLICT:
                    later[position] = result["status"], _reason(result)
                else:
                    outcome.refuse([position], _reason(result))
        except (elastic_transport.TlsError, UnsupportedProductError) as exc:
            # Neither comes right by itself.
            done = outcome.stored | outcome.refused.keys()
            outcome.refuse([one for one in actions if one not in done], _describe(exc))
            return {}
        except elastic_transport.TransportError as exc:
            raise outcome.unavailable(_describe(exc)) from exc
        for position in positions:
            later[position] = 0, "the server's answer does not mention the document"
        return later | self._divide(actions, too_much, outcome, size)

    def _divide(
        self,
        actions: dict[int, _Action],
        too_much: dict[int, str],
        outcome: Outcome,
        size: int,
    ) -> dict[int, tuple[int, str]]:
        """Send what was too much for one request in smaller ones."""
        if not too_much:
            return {}
        if size == 1 or outcome.is_hopeless(-(-len(too_much) // size)):
            for position, reason in too_much.items():
                outcome.refuse([position], reason)
            return {}
        smaller = max(1, min(size, len(too_much)) // 2)
        return self._offer({one: actions[one] for one in too_much}, outcome, smaller)

    def _bulk(self, actions: Iterable[Any], size: int) -> Iterable[tuple[bool, dict[str, Any]]]:
        assert self._client is not None
        # What helpers.bulk is made of: it tells what came of each document, in order.
        return helpers.streaming_bulk(
            self._client,
            actions,
            chunk_size=size,
            max_chunk_bytes=self.chunk_bytes,
            expand_action_callback=_unchanged,
            raise_on_error=False,
            raise_on_exception=False,
        )


def index_name_of(table: str) -> str:
    """Return *table* as the name of an index.

    https://www.elastic.co/docs/api/doc/elasticsearch/operation/operation-indices-create

    >>> index_name_of("news"), index_name_of("News: 2026")
    ('news', 'news__2026')
    """
    name = _NOT_IN_NAMES.sub("_", table.lower()).lstrip("-_+")
    name = name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
    return "" if name in {".", ".."} else name


def document_id(row: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return the ``_id`` that only rows with these values of *keys* have."""
    return key_text([row[key] for key in keys], _MAX_ID_BYTES)


def _unchanged(action: Any) -> Any:
    return action


def _reason(result: Mapping[str, Any]) -> str:
    error = result["error"]
    if not isinstance(error, dict):
        return str(error)
    reason = f"{result['status']} {error.get('type')}: {error.get('reason')}"
    cause = (error.get("caused_by") or {}).get("reason")
    return f"{reason} ({cause})" if cause else reason


def _describe(exc: Exception) -> str:
    return f"{type(exc).__name__}: {getattr(exc, 'message', None) or exc}"


def _texts(value: Any) -> Iterator[str]:
    """Yield every text within *value*."""
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _texts(member)
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from _texts(member)
