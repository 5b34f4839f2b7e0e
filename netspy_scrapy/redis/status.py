"""What is in a queue: for people. Nothing of a running crawl needs it."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from netspy_scrapy.redis.leases import NODE_TTL

if TYPE_CHECKING:
    from netspy_scrapy.redis.queue import QueueNames

_CHUNK: Final = 1000
#: Layers that a bloom filter may have.
_LAYERS: Final = 64
_PARTS: Final = (
    "tasks", "info", "domains", "rests", "widths", "delayed", "leases", "owners", "dead",
    "released", "sequence",
)  # fmt: skip


@dataclass(frozen=True)
class Domain:
    """What waits for one domain."""

    name: str
    ready: int
    in_flight: int
    rests: float
    """Seconds until it may be asked."""


@dataclass(frozen=True)
class Node:
    """A process that works on the queue."""

    name: str
    heard: float
    """Seconds since it was heard of."""
    held: int
    unacknowledged: int
    is_alive: bool


@dataclass(frozen=True)
class Status:
    """What is in a queue."""

    name: str
    ready: int
    in_flight: int
    delayed: int
    dead: int
    start: str
    """How far the first requests are; empty: nobody said."""
    domains: list[Domain]
    """The busiest first."""
    nodes: list[Node]


def queues(client: Any, pattern: str) -> list[str]:
    """Return the bases of the queues that there are; *pattern* has a star for their names."""
    end = ":epoch"
    found = {key.decode() for key in client.scan_iter(match=pattern + end, count=_CHUNK)}
    return sorted(key[: -len(end)] for key in found)


def status(client: Any, names: QueueNames) -> Status:
    """Look at a queue; reads, and changes nothing. May block for some round trips."""
    base = names.base
    now = _now(client)
    with client.pipeline(transaction=False) as pipe:
        pipe.hlen(f"{base}:tasks")
        pipe.zrange(f"{base}:leases", 0, -1)
        pipe.zcard(f"{base}:delayed")
        pipe.hlen(f"{base}:dead")
        pipe.zrange(f"{base}:domains", 0, -1, withscores=True)
        pipe.zrange(f"{base}:nodes", 0, -1, withscores=True)
        pipe.hgetall(f"{base}:about")
        pipe.get(names.start or f"{base}:start")
        total, leases, delayed, dead, waiting, nodes, about, start = pipe.execute()
    in_flight = _domains_of(client, base, leases)
    ready = _lines(client, base, [name for name, _ in waiting])
    scores = {name.decode(): score for name, score in waiting}
    domains = [
        Domain(
            name, ready.get(name, 0), in_flight.get(name, 0),
            max(0.0, (scores.get(name, now) - now) / 1000),
        )
        for name in {*ready, *in_flight}
    ]  # fmt: skip
    domains.sort(key=lambda one: (-one.ready - one.in_flight, one.name))
    return Status(
        name=base,
        ready=max(0, total - len(leases) - delayed),
        in_flight=len(leases),
        delayed=delayed,
        dead=dead,
        start=(start or b"").decode(),
        domains=domains,
        nodes=[_node(name.decode(), (now - at) / 1000, about.get(name)) for name, at in nodes],
    )


def purge(client: Any, names: QueueNames, filter_key: str = "") -> int:
    """Delete all tasks, dead ones too, and the request filter at *filter_key*; return how many.

    Nodes at work find their tasks gone, and go on with what comes.
    """
    base = names.base
    count = client.hlen(f"{base}:tasks") + client.hlen(f"{base}:dead")
    lines = [f"{base}:ready:".encode() + name for name in client.zrange(f"{base}:domains", 0, -1)]
    keys: list[Any] = [*lines, *(f"{base}:{part}" for part in _PARTS)]
    keys += [names.start or f"{base}:start"]
    if filter_key:
        keys += filter_keys(filter_key)
    for at in range(0, len(keys), _CHUNK):
        client.delete(*keys[at : at + _CHUNK])
    return int(count)


def filter_keys(key: str) -> list[str]:
    """Return the keys that a filter at *key* may have, whichever kind it is."""
    return [key, *(f"{key}:{layer}" for layer in range(_LAYERS))]


def _now(client: Any) -> float:
    seconds, micro = client.time()
    return float(seconds * 1000 + micro / 1000)


def _domains_of(client: Any, base: str, tasks: list[bytes]) -> Counter[str]:
    found: Counter[str] = Counter()
    for at in range(0, len(tasks), _CHUNK):
        for text in client.hmget(f"{base}:info", tasks[at : at + _CHUNK]):
            if text:
                found[text.split(b":", 3)[3].decode()] += 1
    return found


def _lines(client: Any, base: str, domains: list[bytes]) -> dict[str, int]:
    found: dict[str, int] = {}
    for at in range(0, len(domains), _CHUNK):
        part = domains[at : at + _CHUNK]
        with client.pipeline(transaction=False) as pipe:
            for name in part:
                pipe.zcard(f"{base}:ready:".encode() + name)
            counts = pipe.execute()
        found.update((name.decode(), count) for name, count in zip(part, counts, strict=True))
    return found


def _node(name: str, heard: float, about: bytes | None) -> Node:
    said: dict[str, Any] = {}
    with suppress(ValueError):
        said = json.loads(about or b"{}")
    return Node(
        name, max(0.0, heard), said.get("held", 0), said.get("unacknowledged", 0), heard < NODE_TTL
    )
