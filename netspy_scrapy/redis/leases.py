"""The tasks that a node has, and the thread that keeps them its own."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from netspy_scrapy.exceptions import RedisFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from netspy_scrapy.redis.connection import Connection
    from netspy_scrapy.redis.queue import RedisQueue

logger = logging.getLogger(__name__)

#: Renewals in the time of one lease.
_RENEWALS = 3
#: Seconds between two signs of life at most: the queue forgets nodes that it does not hear of.
HEARTBEAT = 5.0
NODE_TTL = 3 * HEARTBEAT
#: The same for nodes without tasks, which ask for some every 0.25 s.
IDLE_TTL = 2.0


class Stage(Enum):
    """How far a task is."""

    FRESH = "fresh"
    """This node has it, and the engine has not."""
    STARTED = "started"
    """The engine has had it: another node that got it now would fetch its page again."""
    WAITING = "waiting"
    """It is here for another attempt."""


@dataclass(eq=False)
class Lease:
    """A task that this node has."""

    id: str
    delivery: int
    """How often the task was handed out; with the node's name it is the token of the lease."""
    domain: str
    score: float
    payload: bytes
    stage: Stage = Stage.FRESH
    is_settled: bool = False
    """Whether it is done, and Redis is about to be told."""


class Leases:
    """All leases of a node, by task. Used on the event loop; the thread takes copies."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self.started = 0
        """How many are with the engine, or done and not acknowledged."""
        self.fresh: Counter[str] = Counter()
        """How many of each domain the engine has not had; domains without any are left out."""
        self.fresh_total = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.all())

    def all(self) -> list[Lease]:
        """Return the leases, for any thread."""
        with self._lock:
            return list(self._leases.values())

    def get(self, task: str | None) -> Lease | None:
        """Return the lease of a task, or None."""
        return self._leases.get(task) if task is not None else None

    def add(self, lease: Lease) -> None:
        """Take in a task that was handed out."""
        with self._lock:
            self._leases[lease.id] = lease
        self._count(lease, 1)

    def start(self, lease: Lease) -> None:
        """Note that the engine gets the task."""
        self._move(lease, Stage.STARTED)

    def wait(self, lease: Lease) -> None:
        """Note that the task is here for another attempt."""
        self._move(lease, Stage.WAITING)

    def remove(self, lease: Lease) -> bool:
        """Forget a lease; False: it was not known."""
        with self._lock:
            if self._leases.get(lease.id) is not lease:
                return False
            del self._leases[lease.id]
        self._count(lease, -1)
        return True

    def _move(self, lease: Lease, stage: Stage) -> None:
        self._count(lease, -1)
        lease.stage = stage
        self._count(lease, 1)

    def _count(self, lease: Lease, change: int) -> None:
        if lease.stage is Stage.STARTED:
            self.started += change
        elif lease.stage is Stage.FRESH:
            self.fresh_total += change
            self.fresh[lease.domain] += change
            if self.fresh[lease.domain] <= 0:
                del self.fresh[lease.domain]


class Renewal(threading.Thread):
    """Renews the leases of a node from a thread of its own: a busy event loop loses none."""

    def __init__(
        self,
        connection: Connection,
        queue: RedisQueue,
        leases: Leases,
        seconds: float,
        on_lost: Callable[[list[Lease]], None],
        about: Callable[[], str],
    ) -> None:
        super().__init__(name="netspy-leases", daemon=True)
        self._connection = connection
        self._queue = queue
        self._leases = leases
        self._seconds = seconds
        self._on_lost = on_lost
        self._about = about
        self._ended = threading.Event()
        self.also: list[Callable[[], None]] = []
        """What else is to be renewed in time; may raise what a call of Redis raises."""

    def run(self) -> None:
        """Renew until :meth:`end`."""
        pause = min(self._seconds / _RENEWALS, HEARTBEAT) if self._seconds else HEARTBEAT
        while not self._ended.wait(0.1 if self._connection.is_away else pause):
            self.renew()

    def renew(self) -> None:
        """Renew now; an outage is waited for by whoever pushes and takes."""
        held = self._leases.all() if self._seconds else []
        try:
            lost = self._connection.call(
                lambda client: self._queue.renew(client, held, self._seconds, self._about())
            )
            for one in list(self.also):
                one()
        except RedisFailedError as exc:
            logger.debug("Leases are not renewed: %s", exc)
            return
        if lost and not self._ended.is_set():
            self._on_lost(lost)

    def end(self) -> None:
        """Renew no more."""
        self._ended.set()
