"""A sink that sends to Kafka."""

from __future__ import annotations

import json
import logging
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.pipelines.documents import (
    Destinations,
    Outcome,
    encode_rows,
    has_key,
    json_bytes,
    quiet,
)
from netspy_scrapy.settings import read_mapping, read_names

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ImportError as exc:
    raise ImportError(
        'KafkaPipeline needs confluent-kafka: pip install "netspy-scrapy[kafka]"'
    ) from exc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from netspy_scrapy.pipelines.sql import Refused

#: Value and key.
_Message: TypeAlias = "tuple[bytes, bytes | None]"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")
_MAX_NAME = 249
_ADDRESS = re.compile(r"(\w+://)?\S+:\d+")
_UNIQUE = "__unique_key__"
# Said of a message by itself, its topic, or the right to write there. Whatever else keeps a
# message from its broker may pass.
_FINAL = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's own errors are called so
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_ARG,  # noqa: SLF001
    }
)
# A broker says this of all messages that came in one request.
_TOO_LARGE = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
    }
)


class KafkaPipeline(BasePipeline):
    r"""Sends each row as one JSON message to the topic that is called like its table.

    It delivers, and does not store: a row counts as stored once the broker has reported its
    message as written (``acks=all``). Each report is looked at. A message that the broker refuses
    (too large, no such topic) costs its row and no other. There are no updates: a message that was
    sent cannot be changed, so an UpdateItem is dumped, once, with that reason. To store rows too,
    name a second sink.

    The producer is idempotent: its own retries write no message twice. While no broker answers
    the batch waits (:exc:`~netspy_scrapy.exceptions.SinkUnavailableError`), and what was not
    reported is sent again then. A message whose report never came may be written twice; the
    summary counts those.

    The message's key is NETSPY_KAFKA_KEY: one field's text, else JSON; a row that lacks
    one has no key. Names that no topic can have are cleaned (``_`` for what is forbidden), with one
    warning. Values: as :class:`~netspy_scrapy.pipelines.elasticsearch.ElasticsearchPipeline`.

    Settings: KAFKA_BOOTSTRAP_SERVERS, NETSPY_KAFKA_KEY, NETSPY_KAFKA_OPTIONS, and those of every
    sink.
    """

    supports_update: ClassVar[bool] = False
    wants_unique_keys: ClassVar[bool] = True
    delivery_timeout: ClassVar[float] = 20.0
    """Seconds until a message that was not reported counts as not delivered, unless the options
    say ``message.timeout.ms``."""

    look_timeout: ClassVar[float] = 5.0
    """Seconds to look for a broker at the start and during an outage."""

    _producer: Producer | None = None

    def open(self) -> None:
        """Read the settings; the connection is made by the first batch."""
        self._keys = read_names(self.settings, "NETSPY_KAFKA_KEY", what="fields")
        self._destinations = Destinations("a topic", topic_name_of, self.logger)
        self._is_up = False
        """Whether the last batch found its broker."""
        self._trouble = ""
        """The last error of a connection."""
        self._producer = self._new_producer()

    def close(self) -> None:
        """Let the producer go; nothing is left in it between two batches."""
        self._producer = None

    def save_items(self, table: str, items: list[dict[str, Any]]) -> Refused:
        """Send rows, and wait for the report on each."""
        topic = self._destinations.of(table)
        keys = self.unique_keys if self._keys == [_UNIQUE] else self._keys
        outcome = Outcome()
        self._look_for_broker(topic, outcome)
        messages: dict[int, _Message] = {}

        def encoded() -> Iterator[tuple[int, _Message]]:
            # One by one, so that the producer sends while the next ones are written.
            for position, value in encode_rows(items, outcome):
                messages[position] = value, _key_of(items[position], keys) if keys else None
                yield position, messages[position]

        self._settle(topic, messages, self._deliver(topic, encoded()), outcome)
        return outcome.refused

    # Connection ---------------------------------------------------------------------------------
    def _new_producer(self) -> Producer:
        servers = read_names(self.settings, "KAFKA_BOOTSTRAP_SERVERS", what="host:port")
        if not servers or not all(map(_ADDRESS.fullmatch, servers)):
            raise ConfigError("KAFKA_BOOTSTRAP_SERVERS", servers, "a list of host:port")
        options = read_mapping(self.settings, "NETSPY_KAFKA_OPTIONS")
        # The same property has two names.
        given = options.get("delivery.timeout.ms", self.delivery_timeout * 1000)
        properties = {
            "bootstrap.servers": ",".join(servers),
            "client.id": "netspy-scrapy",
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": int(given) if isinstance(given, float) else given,
            # Below the time-out, or a topic that does not exist would look like a broker's absence.
            "topic.metadata.propagation.max.ms": int(self.delivery_timeout * 1000) // 2,
            "log.connection.close": False,
            **options,
        }
        try:
            # While a broker is away it repeats itself; what it says is kept by the callback.
            log = quiet(f"{__name__}.librdkafka", logging.CRITICAL)
            producer = Producer(properties, logger=log, error_cb=self._note_trouble)
        except (KafkaException, TypeError, ValueError) as exc:
            raise ConfigError(
                "NETSPY_KAFKA_OPTIONS",
                dict.fromkeys(options, "***"),  # a value may be a password
                f"properties of librdkafka ({_text_of(exc)})",
            ) from None
        self._timeout = float(properties["message.timeout.ms"]) / 1000
        return producer

    def _note_trouble(self, error: KafkaError) -> None:
        # "All brokers are down" follows what says why.
        if not self._trouble or error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._trouble = f"{error.name()}: {error.str()}"

    def _look_for_broker(self, topic: str, outcome: Outcome) -> None:
        """Ask for a broker, unless the last batch went well.

        What was never sent is in no doubt, and a question needs not wait for the time-out.
        """
        if self._is_up:
            self._trouble = ""
            return
        if self._producer is None:
            self._producer = self._new_producer()
        try:
            self._producer.list_topics(topic, timeout=self.look_timeout)
        except KafkaException as exc:
            self._producer.poll(0)  # hands over what the connection said
            raise outcome.unavailable(self._trouble or _text_of(exc)) from exc

    # Writing ------------------------------------------------------------------------------------
    def _settle(
        self,
        topic: str,
        messages: dict[int, _Message],
        errors: dict[int, KafkaError],
        outcome: Outcome,
    ) -> None:
        """Sort out what came of *messages*, and divide those that were too large together."""
        outcome.stored.update(messages.keys() - errors.keys())
        late: dict[int, KafkaError] = {}
        together: dict[int, _Message] = {}
        for position, error in errors.items():
            if error.code() in _TOO_LARGE and len(messages) > 1:
                together[position] = messages[position]
            elif error.code() in _FINAL:
                outcome.refuse([position], _text_of(error))
            else:
                late[position] = error
        # A fatal error leaves no producer, whatever it says of its messages.
        self._is_up = not late and self._producer is not None
        if late:
            first = next(iter(late.values()))
            # The error of the connection says more than "timed out", which follows from it.
            raise outcome.unavailable(self._trouble or _text_of(first), in_doubt=late)
        pairs = list(together.items())
        half = len(pairs) // 2 or 1
        for part in (dict(pairs[:half]), dict(pairs[half:])):
            if part:
                self._settle(topic, part, self._deliver(topic, part.items()), outcome)

    def _deliver(
        self, topic: str, messages: Iterable[tuple[int, _Message]]
    ) -> dict[int, KafkaError]:
        """Send *messages*; return the error of each that is not reported as written."""
        producer = self._producer
        assert producer is not None
        unknown = KafkaError(KafkaError._MSG_TIMED_OUT)  # noqa: SLF001
        errors: dict[int, KafkaError] = {}

        def report(position: int, error: KafkaError | None, _: Any) -> None:
            if error is None:
                del errors[position]
            else:
                errors[position] = error

        produce = producer.produce
        for position, (value, key) in messages:
            errors[position] = unknown
            reported = partial(report, position)
            try:
                try:
                    produce(topic, value, key, on_delivery=reported)
                except BufferError:
                    self._make_room(producer)
                    produce(topic, value, key, on_delivery=reported)
            except (BufferError, KafkaException) as exc:
                errors[position] = exc.args[0] if isinstance(exc, KafkaException) else unknown
        if producer.flush(self._timeout + 5):
            # Reports that are still owed come now, and say that the messages were given up.
            producer.purge()
            producer.flush(5)
        if any(error.fatal() for error in errors.values()):
            self._producer = None  # it can do nothing more; the next attempt makes another
        return errors

    def _make_room(self, producer: Producer) -> None:
        """Wait until reports have made room in librdkafka's queue."""
        until = time.monotonic() + self._timeout + 5
        held = len(producer)
        while len(producer) > held // 2 and time.monotonic() < until:
            producer.poll(0.1)


def topic_name_of(table: str) -> str:
    """Return *table* as the name of a topic.

    >>> topic_name_of("news"), topic_name_of("news: 2026")
    ('news', 'news__2026')
    """
    return _NOT_IN_NAMES.sub("_", table)[:_MAX_NAME]


def _key_of(row: Mapping[str, Any], keys: Sequence[str]) -> bytes | None:
    if not has_key(row, keys):
        return None
    data = json_bytes(row[keys[0]] if len(keys) == 1 else [row[key] for key in keys])
    plain = json.loads(data)
    return plain.encode() if isinstance(plain, str) else data


def _text_of(error: KafkaError | Exception) -> str:
    if isinstance(error, KafkaException):
        error = error.args[0]
    return f"{error.name()}: {error.str()}" if isinstance(error, KafkaError) else str(error)
