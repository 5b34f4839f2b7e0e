"""What the sinks of SQL servers share: settings, transactions, and whose fault an error is."""

from __future__ import annotations

import logging
import random
import time
from abc import abstractmethod
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from netspy_scrapy.exceptions import ConfigError, PipelineError, SinkUnavailableError
from netspy_scrapy.pipelines.base import BasePipeline
from netspy_scrapy.settings import SETTINGS, read_int, read_number, read_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from scrapy.settings import BaseSettings

    from netspy_scrapy.pipelines.sql import Refused

logger = logging.getLogger(__name__)

_MAX_PORT = 65535
#: How often a transaction is tried that the server gave up in favour of another one.
_ATTEMPTS = 5
_FIRST_PAUSE = 0.05
_CONNECT_TIMEOUT = 10.0


class Blame(Enum):
    """Whose fault an error is."""

    ROW = auto()
    """A row's: it is refused, the others of its batch are stored."""
    BATCH = auto()
    """That of the table or of a right: the rows of the batch are refused."""
    SETUP = auto()
    """A setting's: the crawl does not start."""
    AWAY = auto()
    """The server's: rows wait."""
    AGAIN = auto()
    """Another transaction's (deadlock): the same once more."""


class Fault(NamedTuple):
    """What an error of a driver means."""

    blame: Blame
    reason: str
    row: int | None = None
    """The row of the statement that is bad, from 0; None: it is not known."""

    @property
    def is_of_a_row(self) -> bool:
        """Whether rows are to blame."""
        return self.blame is Blame.ROW


@dataclass(frozen=True)
class ServerSettings:
    """Where a server is, and who asks."""

    prefix: str
    """``MYSQL`` or ``POSTGRES``."""
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    pool_size: int
    timeout: float
    """Seconds that an answer may take."""

    @classmethod
    def from_settings(cls, settings: BaseSettings, prefix: str) -> ServerSettings:
        """Read the settings of that *prefix*."""
        password = settings.get(f"{prefix}_PASSWORD")
        if password is not None and not isinstance(password, str):
            raise ConfigError(f"{prefix}_PASSWORD", "(not shown)", "a text")
        port = read_int(settings, f"{prefix}_PORT", minimum=1)
        if port > _MAX_PORT:
            raise ConfigError(f"{prefix}_PORT", port, f"a port, 1 to {_MAX_PORT}")
        return cls(
            prefix=prefix,
            host=read_text(settings, f"{prefix}_HOST"),
            port=port,
            user=read_text(settings, f"{prefix}_USER"),
            password=password or "",
            database=read_text(settings, f"{prefix}_DB"),
            pool_size=read_int(settings, f"{prefix}_POOL_SIZE", minimum=1),
            timeout=read_number(settings, "NETSPY_SINK_TIMEOUT", unit="seconds", minimum=0.1),
        )

    @property
    def connect_timeout(self) -> float:
        """Seconds that connecting may take."""
        return min(_CONNECT_TIMEOUT, self.timeout)

    def __str__(self) -> str:
        return (
            f"{self.prefix}_HOST = {self.host!r}, {self.prefix}_PORT = {self.port}, "
            f"{self.prefix}_DB = {self.database!r}"
        )


#: Table, rows, update keys.
_Batch: TypeAlias = "tuple[str, list[dict[str, Any]], list[str] | None]"


class _Doubt(NamedTuple):
    """A batch whose commit is not confirmed."""

    transaction: Any
    batch: _Batch
    refused: Refused


def choice(settings: BaseSettings, name: str, allowed: tuple[str, ...]) -> str:
    """Read *name* as one of some words."""
    value = settings.get(name, SETTINGS[name].default)
    if value not in allowed:
        raise ConfigError(name, value, " or ".join(f'"{one}"' for one in allowed))
    return str(value)


class SqlServerPipeline(BasePipeline):
    """A sink that writes each batch in one transaction of a server.

    A subclass says how to connect, what an error means, and how rows are written.
    """

    prefix: ClassVar[str]
    """Of the settings: ``MYSQL``, ``POSTGRES``."""
    errors: tuple[type[Exception], ...] = ()
    """What the driver raises."""
    wants_unique_keys: ClassVar[bool] = True

    server: ServerSettings
    _doubt: _Doubt | None = None
    """A batch that may be stored: its commit was not confirmed."""
    _is_known_good = False
    """Whether the last use of a connection ended well."""

    # What a server is --------------------------------------------------------------------------
    @abstractmethod
    def start(self) -> None:
        """Read further settings and make the pool, without connecting."""

    @abstractmethod
    def greet(self) -> None:
        """Connect once outside the pool, so that what prevents it is raised as it is."""

    @abstractmethod
    def connection(self) -> AbstractContextManager[Any]:
        """Lend a connection of the pool, with a transaction that ends with the loan.

        What is not committed is rolled back; a connection that is broken or hangs is closed.
        """

    @abstractmethod
    def fault(self, exc: Exception) -> Fault:
        """Tell whose fault one of :attr:`errors` is."""

    @abstractmethod
    def insert_rows(self, db: Any, table: str, items: list[dict[str, Any]]) -> Refused:
        """Write new rows, without committing."""

    @abstractmethod
    def update_rows(
        self, db: Any, table: str, items: list[dict[str, Any]], keys: list[str]
    ) -> Refused:
        """Change rows, without committing."""

    def transaction_id(self, db: Any) -> Any:
        """Return what :meth:`was_committed` needs; None: the server cannot be asked."""
        del db

    def was_committed(self, db: Any, transaction: Any) -> bool | None:
        """Ask what became of a transaction; None: it is not known."""
        del db, transaction
        return None

    # What the batcher calls --------------------------------------------------------------------
    def open(self) -> None:
        """Read the settings, and connect.

        Raises :exc:`~netspy_scrapy.exceptions.PipelineError`, naming the setting, if the server
        refuses; :exc:`~netspy_scrapy.exceptions.SinkUnavailableError` if it is away.
        """
        self.server = ServerSettings.from_settings(self.settings, self.prefix)
        self.start()
        try:
            self.greet()
        except self.errors as exc:
            self.close()
            raise self._error(self.fault(exc)) from exc
        self._is_known_good = True

    def save_items(self, table: str, items: list[dict[str, Any]]) -> Refused:
        """Store new rows."""
        batch = (table, items, None)
        return self._run(batch, lambda db: self.insert_rows(db, table, items))

    def update_items(
        self, table: str, items: list[dict[str, Any]], update_keys: list[str]
    ) -> Refused:
        """Change the rows that *update_keys* find."""
        batch = (table, items, update_keys)
        return self._run(batch, lambda db: self.update_rows(db, table, items, update_keys))

    # Own methods -------------------------------------------------------------------------------
    def _run(self, batch: _Batch, work: Callable[[Any], Refused]) -> Refused:
        """Do *work* in a transaction; raises what the batcher has to know."""
        pause = _FIRST_PAUSE
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if not self._is_known_good:
                    self.greet()
                refused = self._transaction(batch, work)
            except self.errors as exc:
                self._is_known_good = False
                fault = self.fault(exc)
                if fault.blame is not Blame.AGAIN or attempt == _ATTEMPTS:
                    raise self._error(fault, self._rows_in_doubt(fault)) from exc
                logger.debug("%s: once more: %s", self.name, fault.reason)
                time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - no secret
                pause *= 2
            else:
                self._is_known_good = True
                return refused
        raise AssertionError  # the last attempt returned or raised

    def _transaction(self, batch: _Batch, work: Callable[[Any], Refused]) -> Refused:
        with self.connection() as db:
            refused = self._stored_before(db, batch)
            if refused is None:
                refused = work(db)
                self._doubt = _Doubt(self.transaction_id(db), batch, refused)
                db.commit()
        self._doubt = None
        return refused

    def _stored_before(self, db: Any, batch: _Batch) -> Refused | None:
        """Return what an earlier attempt refused, if it stored the batch after all."""
        doubt, self._doubt = self._doubt, None
        if doubt is None or doubt.batch != batch:
            return None  # the batch in doubt was dumped meanwhile
        committed = self.was_committed(db, doubt.transaction)
        if committed is None:
            raise SinkUnavailableError(
                f"{self.server}: the server does not know any more whether it committed a batch",
                in_doubt=range(len(batch[1])),
            )
        return doubt.refused if committed else None

    def _rows_in_doubt(self, fault: Fault) -> int:
        """Return how many rows may be stored, now that an attempt has failed."""
        doubt = self._doubt
        if doubt is None:
            return 0
        if fault.blame is Blame.AWAY and doubt.transaction is not None:
            return 0  # the server is asked before they are written again
        self._doubt = None
        return len(doubt.batch[1]) if fault.blame is Blame.AWAY else 0

    def _error(self, fault: Fault, in_doubt: int = 0) -> PipelineError:
        if fault.blame is Blame.AWAY or fault.blame is Blame.AGAIN:
            when = "" if self._doubt is None and not in_doubt else ", while a batch was committed"
            return SinkUnavailableError(
                f"{self.server}: {fault.reason}{when}", in_doubt=range(in_doubt)
            )
        return PipelineError(fault.reason)
