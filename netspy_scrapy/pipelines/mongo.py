"""A sink that writes to MongoDB."""

from __future__ import annotations

import logging
import re
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from itemadapter import ItemAdapter

from netspy_scrapy.exceptions import ConfigError, PipelineError
from netspy_scrapy.items import fields_of
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.pipelines.documents import Outcome, RowIds, has_key, missing_keys, quiet
from netspy_scrapy.pipelines.sql import Adapter, escape_surrogates
from netspy_scrapy.settings import read_bool, read_number, read_text, without_secrets

try:
    import bson
    from bson.codec_options import CodecOptions, TypeRegistry
    from bson.decimal128 import Decimal128
    from bson.raw_bson import RawBSONDocument
    from pymongo import MongoClient, UpdateOne
    from pymongo import errors as faults
except ImportError as exc:
    raise ImportError('MongoPipeline needs pymongo: pip install "netspy-scrapy[mongo]"') from exc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pymongo.collection import Collection

    from netspy_scrapy.pipelines.sql import Refused

# https://github.com/mongodb/specifications/blob/master/source/retryable-writes/retryable-writes.md
# "NotPrimary", shutting down, network trouble behind a mongos; and a write concern timing out.
_AWAY = frozenset({6, 7, 64, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})
# Faults of no single row: no right, not logged in, no such name, a view, an Atlas quota.
_OF_ALL = frozenset({13, 18, 73, 166, 8000})
_DUPLICATE = 11000
# https://www.mongodb.com/docs/manual/reference/limits/
_MAX_SIZE = 16 * 1024 * 1024
# What is wrong with a value, as the driver says it before anything is sent.
_UNENCODABLE = (
    bson.errors.BSONError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class MongoPipeline(BasePipeline):
    r"""Writes the rows of each table to the collection of that name in the database MONGO_DB.

    New rows are inserted (``insert_many``). A row without ``_id`` gets one, and under it a batch is
    sent once more if the connection broke before the answer came: what was stored then is not
    stored twice. A row that the server refuses (a unique index, a validator, its size) costs
    itself and no other.

    An UpdateItem sets its fields (``$set``) on the first document that its key finds, and is
    inserted if there is none. A dot in a field's name is a path then; in a new row it is part of
    the name. With NETSPY_MONGO_UPSERT the same is done with an Item that has a value for each
    field of its ``__unique_key__``. Collections and indexes are yours: a key without an index is
    named in a warning, for each update reads the whole collection then.

    Values: datetimes are dates (milliseconds, UTC), Decimals Decimal128, UUIDs and bytes binary,
    dates, times and paths text, sets sorted lists, an Enum its value, items documents. Integers
    over 64 bits and Decimals of more than 34 digits are text, which keeps their digits. Lone
    surrogates are written out (``\udc80``).

    While the server is away the batch waits
    (:exc:`~netspy_scrapy.exceptions.SinkUnavailableError`). The connections are pymongo's pool.

    Settings: MONGO_URI (its time-outs go before ours), MONGO_DB, NETSPY_MONGO_UPSERT,
    NETSPY_SINK_TIMEOUT, and those of every sink.
    """

    wants_unique_keys: ClassVar[bool] = True
    select_timeout: ClassVar[float] = 5.0
    """Seconds to look for a server, unless MONGO_URI says ``serverSelectionTimeoutMS``."""

    _client: MongoClient[dict[str, Any]] | None = None

    def open(self) -> None:
        """Read the settings; the connection is made by the first batch."""
        uri = read_text(self.settings, "MONGO_URI")
        self._upserts = read_bool(self.settings, "NETSPY_MONGO_UPSERT")
        self._ids = RowIds(bson.ObjectId)
        self._looked_at: set[tuple[str, ...]] = set()
        quiet("pymongo", logging.INFO)  # at DEBUG it writes out each command with its documents
        try:
            self._client = MongoClient(uri, connect=False, **self._timeouts(uri))
        except Exception as exc:  # noqa: BLE001 - each option has errors of its own
            # What pymongo says may quote a part of the password.
            why = "" if "@" in uri else f" ({exc})"
            raise ConfigError("MONGO_URI", without_secrets(uri), f"a mongodb:// URI{why}") from None
        name = read_text(self.settings, "MONGO_DB")
        try:
            self._database = self._client.get_database(name, codec_options=_OPTIONS)
        except faults.InvalidName as exc:
            self.close()
            raise ConfigError("MONGO_DB", name, f"the name of a database ({exc})") from exc

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def save_items(self, table: str, items: list[dict[str, Any]]) -> Refused:
        """Insert rows, or upsert those that have their unique key, if so set."""
        collection = self._collection(table)
        keys = tuple(self.unique_keys) if self._upserts else ()
        batch = _Batch(collection)
        rows = dict(enumerate(items))
        if keys:
            keyed = {n: item for n, item in rows.items() if has_key(item, keys)}
            self._look_at_indexes(collection, keys)
            batch.upsert(keyed, keys)
            rows = {n: item for n, item in rows.items() if n not in keyed}
        self._insert(batch, rows)
        return batch.outcome.refused

    def update_items(
        self, table: str, items: list[dict[str, Any]], update_keys: list[str]
    ) -> Refused:
        """Set fields of the documents that *update_keys* find, or insert them."""
        collection = self._collection(table)
        batch = _Batch(collection)
        rows = {}
        for position, item in enumerate(items):
            why = missing_keys(item, update_keys)
            if why:
                batch.outcome.refuse([position], why)
            else:
                rows[position] = item
        self._look_at_indexes(collection, update_keys)
        batch.upsert(rows, update_keys)
        return batch.outcome.refused

    def _insert(self, batch: _Batch, rows: dict[int, dict[str, Any]]) -> None:
        items = list(rows.values())
        ids, again = self._ids.of(items)
        positions = list(rows)
        try:
            batch.insert(
                # An _id of the row's own takes the place of ours.
                {n: {"_id": one, **row} for (n, row), one in zip(rows.items(), ids, strict=True)},
                ids=dict(zip(positions, ids, strict=True)),
                again={positions[n] for n in again},
            )
        except PipelineError:
            self._ids.keep(items, ids)
            raise

    def _timeouts(self, uri: str) -> dict[str, Any]:
        timeouts = {
            "serverSelectionTimeoutMS": self.select_timeout,
            "socketTimeoutMS": read_number(
                self.settings, "NETSPY_SINK_TIMEOUT", unit="seconds", minimum=0.1
            ),
        }
        named = uri.lower()
        return {
            name: int(seconds * 1000)
            for name, seconds in timeouts.items()
            if f"{name.lower()}=" not in named
        }

    def _collection(self, table: str) -> Collection[dict[str, Any]]:
        try:
            return self._database[table]
        except (faults.InvalidName, TypeError) as exc:
            raise PipelineError(f"the table {table!r} cannot be a collection: {exc}") from exc

    def _look_at_indexes(self, collection: Collection[dict[str, Any]], keys: Sequence[str]) -> None:
        """Warn once of a key that has no index."""
        known = (collection.name, *keys)
        if known in self._looked_at:
            return
        try:
            indexes = collection.index_information().values()
        except faults.PyMongoError as exc:
            self.logger.debug("%s: its indexes cannot be read: %s", collection.name, exc)
            return
        self._looked_at.add(known)
        if not any(index["key"][0][0] in {*keys, "_id"} & set(keys) for index in indexes):
            fields = ", ".join(f"{key}: 1" for key in keys)
            self.logger.warning(
                "%r has no index on %s, so each update reads the whole collection: "
                "db.%s.createIndex({%s}, {unique: true}) makes one",
                collection.name, ", ".join(keys), collection.name, fields,
            )  # fmt: skip


class _Batch:
    """One call's rows on their way, and what came of them."""

    def __init__(self, collection: Collection[dict[str, Any]]) -> None:
        self.outcome = Outcome()
        self._collection = collection
        self._upserts = False
        self._ids: dict[int, Any] = {}
        """What this process made for rows that have no ``_id`` of their own."""
        self._again: set[int] = set()
        """Rows that an earlier attempt may have stored."""

    def insert(
        self, rows: dict[int, dict[str, Any]], *, ids: dict[int, Any], again: set[int]
    ) -> None:
        """Insert *rows*, all of which have an ``_id``."""
        self._upserts, self._ids, self._again = False, ids, again

        def write(documents: list[dict[str, Any]]) -> None:
            self._collection.insert_many(documents, ordered=False)

        self._write(write, rows)

    def upsert(self, rows: dict[int, dict[str, Any]], keys: Sequence[str]) -> None:
        """Set the fields of *rows* on the documents that *keys* find, or insert them."""
        self._upserts = True

        def write(documents: list[dict[str, Any]]) -> None:
            self._collection.bulk_write(
                [
                    # $eq: a value that is a dict is compared, and is no operator.
                    UpdateOne({key: {"$eq": row[key]} for key in keys}, {"$set": row}, upsert=True)
                    for row in documents
                ],
                ordered=False,
            )

        for part in _rounds(rows, keys):
            twice = self._write(write, part)
            if twice:
                # Somebody else inserted the key meanwhile; now it is found.
                for position in self._write(write, {n: part[n] for n in twice}):
                    self.outcome.refuse([position], twice[position])

    def _write(
        self,
        write: Callable[[list[dict[str, Any]]], None],
        rows: dict[int, dict[str, Any]],
        *,
        sound: bool = False,
    ) -> dict[int, str]:
        """Write *rows*; return those that met a duplicate, which is not decided yet.

        *sound*: each of them can be encoded.
        """
        if not rows:
            return {}
        try:
            write(list(rows.values()))
        except faults.BulkWriteError as exc:
            return self._judge(exc.details, rows)
        except (faults.PyMongoError, *_UNENCODABLE) as exc:
            if _is_away(exc):
                raise self.outcome.unavailable(_message(exc)) from exc
            # One row may be meant, and the error does not say which.
            if isinstance(exc, _UNENCODABLE) and not sound:
                parts = [self._sound(rows)]
                sound = True
            elif len(rows) == 1 or _concerns_all(exc) or self.outcome.is_hopeless():
                self.outcome.refuse(rows, _message(exc))
                return {}
            else:
                parts = _halves(rows)
        else:
            self.outcome.stored.update(rows)
            return {}
        twice: dict[int, str] = {}
        for part in parts:
            twice |= self._write(write, part, sound=sound)
        return twice

    def _sound(self, rows: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Return the rows as they can be encoded; those that cannot be are refused."""
        sound = {}
        for position, row in rows.items():
            try:
                try:
                    size = len(bson.encode(row, codec_options=_OPTIONS))
                except _UNENCODABLE:
                    mended = {str.__str__(name): _mended(value) for name, value in row.items()}
                    size = len(bson.encode(mended, codec_options=_OPTIONS))
                    sound[position] = mended
                else:
                    sound[position] = row
                if size > _MAX_SIZE:
                    raise faults.DocumentTooLarge(f"{size} bytes, and the server takes {_MAX_SIZE}")
            except _UNENCODABLE as exc:
                sound.pop(position, None)
                self.outcome.refuse([position], f"{type(exc).__name__}: {exc}")
        return sound

    def _judge(self, details: Mapping[str, Any], rows: dict[int, dict[str, Any]]) -> dict[int, str]:
        positions = list(rows)
        twice: dict[int, str] = {}
        away = ""
        failed = set()
        for error in details["writeErrors"]:
            position = positions[error["index"]]
            reason = str(error["errmsg"])
            if error["code"] == _DUPLICATE and self._is_stored(error, position, rows[position]):
                continue
            failed.add(position)
            if error["code"] in _AWAY:
                away = reason
            elif error["code"] == _DUPLICATE and self._upserts:
                twice[position] = reason
            else:
                self.outcome.refuse([position], reason)
        if details["writeConcernErrors"]:
            # Not as durable as MONGO_URI asks for. Asked again, the server waits for it again.
            raise self.outcome.unavailable(str(details["writeConcernErrors"][0]["errmsg"]))
        self.outcome.stored.update(rows.keys() - failed)
        if away:
            raise self.outcome.unavailable(away)
        return twice

    def _is_stored(self, error: Mapping[str, Any], position: int, row: dict[str, Any]) -> bool:
        """Tell whether a duplicate is the row itself, which an earlier attempt stored."""
        key = error.get("keyPattern") or {}
        if list(key) != ["_id"] and "index: _id_ " not in error["errmsg"]:
            return False
        if row["_id"] is self._ids.get(position):
            return True
        if position not in self._again:
            return False
        raw = self._collection.with_options(_OPTIONS.with_options(document_class=RawBSONDocument))
        try:
            found = raw.find_one({"_id": {"$eq": row["_id"]}})
        except faults.PyMongoError:
            return False
        return found is not None and found.raw == bson.encode(row, codec_options=_OPTIONS)


def _rounds(
    rows: dict[int, dict[str, Any]], keys: Sequence[str]
) -> Iterator[dict[int, dict[str, Any]]]:
    """Yield parts of *rows* in which no key is twice, for the server may take any order."""
    rounds: list[dict[int, dict[str, Any]]] = []
    counts: dict[Any, int] = {}
    for position, row in rows.items():
        key: Any = tuple(row[name] for name in keys)
        try:
            number = counts.get(key, 0)
        except TypeError:
            key = repr(key)
            number = counts.get(key, 0)
        counts[key] = number + 1
        if number == len(rounds):
            rounds.append({})
        rounds[number][position] = row
    yield from rounds


def _halves(rows: dict[int, dict[str, Any]]) -> list[dict[int, dict[str, Any]]]:
    pairs = list(rows.items())
    half = len(pairs) // 2
    return [dict(pairs[:half]), dict(pairs[half:])]


def _is_away(exc: Exception) -> bool:
    """Tell whether the server is to blame, and may answer later."""
    if isinstance(exc, faults.OperationFailure) and exc.code in _AWAY:
        return True
    # Options are checked at the start; here a name in the DNS was not found (mongodb+srv).
    kinds = (faults.ConnectionFailure, faults.ExecutionTimeout, faults.ConfigurationError)
    return isinstance(exc, kinds) or (
        isinstance(exc, faults.PyMongoError) and exc.has_error_label("RetryableWriteError")
    )


def _concerns_all(exc: Exception) -> bool:
    return isinstance(exc, faults.OperationFailure) and exc.code in _OF_ALL


def _message(exc: Exception) -> str:
    # Without "full error" and "Topology Description", which repeat it at length.
    text = re.split(r", full error: |, Timeout: |, Topology Description", str(exc))[0]
    return f"{type(exc).__name__}: {text}"


# Values ----------------------------------------------------------------------------------------
def _decimal(value: Decimal) -> Any:
    try:
        return Decimal128(value)
    except ArithmeticError:
        return str(value)


def _container(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    return list(value) if isinstance(value, (list, tuple)) else fields_of(value)


_ADAPTER = Adapter(
    {type(None), bool, float, str, bytes, bson.ObjectId},
    # pymongo hands over what it cannot encode itself; an int only if it has over 64 bits.
    {Decimal: _decimal, int: str, memoryview: bytes, bytearray: bytes},
    nested=_container,
)
_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(
    uuid_representation=bson.binary.UuidRepresentation.STANDARD,
    type_registry=TypeRegistry(fallback_encoder=_ADAPTER),
)


def _mended(value: Any) -> Any:
    """Return *value* without what BSON cannot hold: lone surrogates, keys that are no text."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return escape_surrogates(value)
    if isinstance(value, dict):
        return {_key(key): _mended(member) for key, member in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) or ItemAdapter.is_item(value):
        return _mended_container(value)
    return value


def _mended_container(value: Any) -> Any:
    plain = _container(value)
    if isinstance(plain, dict):
        return _mended(plain)
    return [_mended(member) for member in plain]


def _key(key: Any) -> str:
    return escape_surrogates(key if isinstance(key, str) else str(_ADAPTER(key)))
