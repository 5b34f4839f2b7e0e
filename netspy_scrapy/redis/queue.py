"""The queue that nodes share: one call of a Lua script for each batch of what a node asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from netspy_scrapy.redis.connection import script
from netspy_scrapy.redis.leases import Lease

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from netspy_scrapy.dedup.redis_store import RedisStore
    from netspy_scrapy.processes.share import Share

#: Tasks of one call of a script: a few milliseconds, in which the server does nothing else.
_CHUNK: Final = 200
_SCRIPTS: Final = (
    "begin", "first", "push", "pop", "settle", "renew", "rest", "restore", "leave",
    "requeue", "abandon",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Push:
    """A request on its way into the queue."""

    id: str
    domain: str
    score: float
    """What goes first in its domain: minus the priority."""
    fingerprint: bytes = b""
    """Empty: it passes the request filter."""
    delay: float = 0.0
    """Seconds before it may go."""
    payload: bytes = b""
    """Empty: only the fingerprint is recorded, and it is told whether it was new."""


@dataclass(frozen=True, eq=False)
class Settle:
    """A task that a node is through with."""

    what: str
    """``done``, ``back`` (another delivery) or ``dead`` (nobody can read it)."""
    lease: Lease
    text: bytes = b""
    """Done: the fingerprint to forget. Back: the payload in the place of the old one."""
    delay: float = 0.0
    """Back: seconds before it may go."""


class Task(NamedTuple):
    """A task that was handed out."""

    id: str
    delivery: int
    payload: bytes


@dataclass(frozen=True)
class Handed:
    """What came of asking for tasks."""

    epoch: str
    is_emptied: bool = False
    """The server lost what it had: it knows another epoch, or none."""
    total: int = 0
    """Tasks that are not acknowledged, in all."""
    leased: int = 0
    delayed: int = 0
    wake: float | None = None
    """Seconds until the next of those that wait may go; None: none waits."""
    start: str = ""
    tasks: list[Task] = field(default_factory=list)
    dead: list[tuple[str, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class QueueNames:
    """The keys of a queue in Redis."""

    base: str
    """What the keys of the queue begin with."""
    seeds: str = ""
    """Where start URLs are pushed by others; empty: nowhere."""
    start: str = ""
    """What tells how far the first requests are; empty: nodes do not share that."""


class RedisQueue:
    """The queue in Redis, for one node; see ``scripts/queue.lua`` for its keys.

    Every method takes a client, and is called in a thread (``Connection.run``, ``.call``): it
    blocks for a round trip. All may be called again after an answer got lost.
    """

    def __init__(self, names: QueueNames, store: RedisStore | None, node: str) -> None:
        self.names = names
        self.node = node
        self.store = store
        """The request filter; None: nothing is filtered."""
        self.epoch = ""
        """The server's epoch as this node knows it; empty: it has not asked yet."""
        shared = script("queue")
        taking = "local filter = nil\n"
        if store is not None:
            # A script of the filter sees the keys and arguments that it is given here.
            taking = f"local filter = function(KEYS, ARGV)\n{script(store.script_name)}\nend\n"
        self._texts = {
            name: (taking if name == "push" else "") + shared + script(name) for name in _SCRIPTS
        }
        self._scripts: dict[str, Any] = {}

    def _call(self, client: Any, name: str, arguments: Sequence[Any]) -> Any:
        known = self._scripts.get(name)
        if known is None:
            known = self._scripts[name] = client.register_script(self._texts[name])
        base = self.names.base
        second = self.names.seeds if name == "pop" else self._filter_key
        keys = [base, second or base, self.names.start or base]
        return known(keys=keys, args=arguments, client=client)

    @property
    def _filter_key(self) -> str:
        return self.store.key if self.store is not None else ""

    def begin(self, client: Any, *, forget: bool, node_ttl: float) -> tuple[int, int]:
        """Come to the queue; return how many other nodes there are, and how many tasks.

        *forget*: the request filter of a run that is over is of no use any more.
        """
        others, left = self._call(
            client, "begin", [self.node, int(forget), _milliseconds(node_ttl)]
        )
        return int(others), int(left)

    def first(self, client: Any, what: str, seconds: float) -> str:
        """Claim the first requests for *seconds*, or be ``done`` with them, or set them ``free``.

        Returns what is said of them from then on: ``running:<node>``, ``done``, ``over`` or "".
        """
        answer = self._call(client, "first", [self.node, what, _milliseconds(seconds)])
        return str(answer.decode())

    def push(self, client: Any, pushes: Sequence[Push]) -> list[bool]:
        """Put requests into the queue; return of each whether the filter did not know it."""
        head: Sequence[Any] = self.store.arguments if self.store is not None else ()
        taken: list[bool] = []
        for start in range(0, len(pushes), _CHUNK):
            arguments: list[Any] = [len(head), *head]
            for one in pushes[start : start + _CHUNK]:
                known = one.fingerprint if self.store is not None else b""
                asked = self.store.encoded(known) if self.store is not None and known else b""
                arguments += (
                    one.id, known, b"" if asked == known else asked, one.domain, _number(one.score),
                    _milliseconds(one.delay), one.payload,
                )  # fmt: skip
            flags, _, _ = self._call(client, "push", arguments)
            taken += [flag == ord("1") for flag in flags]
        return taken

    def pop(
        self,
        client: Any,
        *,
        lease: float,
        wanted: int,
        width: int,
        allowed: int,
        next_epoch: str,
        unwanted: Iterable[str],
        share: Share | None = None,
        places: int = 0,
    ) -> Handed:
        """Take up to *wanted* tasks for *lease* seconds (0: for good), none of *unwanted* domains.

        *width*: of one domain at most. *allowed*: deliveries after which a task is dead. *share*,
        *places*: none either of domains that are left to other processes, where each has so many.
        """
        seeds = wanted if self.names.seeds else 0
        number, count = (share.number, share.count) if share is not None else (1, 1)
        answer = self._call(
            client, "pop",
            [self.node, _milliseconds(lease), wanted, width, allowed, self.epoch, next_epoch,
             seeds, number, count, places, *unwanted],
        )  # fmt: skip
        known = answer[0].decode()
        if len(answer) == 1:
            return Handed(known, is_emptied=True)
        _, total, leased, delayed, wake, start, given, dead = answer
        return Handed(
            epoch=known,
            total=total,
            leased=leased,
            delayed=delayed,
            wake=None if wake < 0 else wake / 1000,
            start=start.decode(),
            tasks=[
                Task(given[at].decode(), given[at + 1], given[at + 2])
                for at in range(0, len(given), 3)
            ],
            dead=[(dead[at].decode(), dead[at + 1]) for at in range(0, len(dead), 2)],
        )

    def settle(self, client: Any, settles: Sequence[Settle]) -> list[bool] | None:
        """Take tasks back; return of each whether it was still this node's.

        None: the server was emptied, and knows nothing of them.
        """
        way = self.store.script_name if self.store is not None else ""
        still: list[bool] = []
        for start in range(0, len(settles), _CHUNK):
            arguments: list[Any] = [way, self.epoch]
            for one in settles[start : start + _CHUNK]:
                token = f"{self.node}:{one.lease.delivery}"
                arguments += (one.what, one.lease.id, token, one.text, _milliseconds(one.delay))
            flags = self._call(client, "settle", arguments)
            if not flags:
                return None
            still += [flag == ord("1") for flag in flags]
        return still

    def renew(
        self, client: Any, leases: Sequence[Lease], seconds: float, about: str
    ) -> list[Lease]:
        """Renew leases, and say that this node lives; return the leases that it has lost.

        None of them, if the server was emptied: then nobody else has them.
        """
        lost = []
        for start in range(0, max(len(leases), 1), _CHUNK):
            part = leases[start : start + _CHUNK]
            arguments: list[Any] = [self.node, _milliseconds(seconds), about, self.epoch]
            for lease in part:
                arguments += (lease.id, f"{self.node}:{lease.delivery}")
            flags = self._call(client, "renew", arguments)
            lost += [one for one, flag in zip(part, flags, strict=False) if flag != ord("1")]
        return lost

    def orphans(self, client: Any, held: Iterable[str]) -> list[Settle]:
        """Return what gives back the tasks that this node was handed and does not know of.

        The answer that brought them got lost.
        """
        known = set(held)
        found = []
        for task, token in client.hgetall(f"{self.names.base}:owners").items():
            node, _, delivery = token.decode().rpartition(":")
            if node == self.node and task.decode() not in known:
                lost = Lease(task.decode(), int(delivery), "", 0.0, b"")
                found.append(Settle("back", lost))
        return found

    def abandon(self, client: Any, node: str) -> int:
        """Let others have at once what *node* held, which is known to be dead; return how much."""
        return int(self._call(client, "abandon", [node]))

    def requeue_dead(self, client: Any) -> int:
        """Put the dead tasks into the queue again; return how many."""
        return int(self._call(client, "requeue", ()))

    def rest(self, client: Any, rests: Sequence[tuple[str, str, float]]) -> None:
        """Let domains rest: ``("rest", domain, seconds)``; or ``("width", domain, count)``."""
        arguments: list[Any] = []
        for what, domain, number in rests:
            arguments += (what, domain, _milliseconds(number) if what == "rest" else int(number))
        self._call(client, "rest", arguments)

    def restore(
        self, client: Any, leases: Sequence[Lease], seconds: float, next_epoch: str
    ) -> tuple[str, int]:
        """Put back what this node holds into an emptied server; return its epoch, and how many."""
        epoch, count = next_epoch, 0
        for start in range(0, max(len(leases), 1), _CHUNK):
            arguments: list[Any] = [next_epoch, self.node, _milliseconds(seconds)]
            for one in leases[start : start + _CHUNK]:
                arguments += (one.id, one.delivery, _number(one.score), one.domain, one.payload)
            known, restored = self._call(client, "restore", arguments)
            epoch, count = known.decode(), count + restored
        return epoch, count

    def leave(
        self, client: Any, *, is_done: bool, forget: bool, node_ttl: float, told: float
    ) -> tuple[bool, int]:
        """Leave the queue; return whether the run is over, and how many nodes are left.

        *is_done*: this node found all done. *forget*: the request filter goes with the run.
        """
        over, left = self._call(
            client, "leave",
            [self.node, int(is_done), int(forget), _milliseconds(node_ttl), _milliseconds(told)],
        )  # fmt: skip
        return bool(over), left


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _number(score: float) -> str:
    return f"{score:.0f}" if score == int(score) else repr(score)
