"""Makes the queues of a job directory readable again after a kill.

Scrapy's disk queues (queuelib's) keep some of their state in memory until they are closed: which
queues there are (``active.json``), how far a FIFO queue was read (``info.json``), how many records
a LIFO queue has (its first bytes). All of it is worked out here from the files themselves and from
the :mod:`journal <netspy_scrapy.scheduling.journal>`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from queuelib.queue import FifoSQLiteQueue

from netspy_scrapy import _scrapy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from netspy_scrapy.scheduling.journal import Left, Position

ACTIVE = "active.json"
_INFO = "info.json"

#: A queue's file or folder is named after its priority, negated; ``s``: start requests.
_QUEUE = re.compile(r"(-?\d+)s?")
_CHUNK = re.compile(r"q(\d{5,})")
_CHUNK_SIZE = 100_000
_SIZE = struct.Struct(">L")
_SQLITE = b"SQLite format 3\0"

#: How many bytes of a record that a kill cut short are looked for.
_MOST_CUT = 1 << 20


@dataclass
class Recovered:
    """What was found in a job directory."""

    queued: int = 0
    """Requests in the queues."""
    under_way: int = 0
    """Requests that were taken out and not done; they are in the queues again."""
    lost: list[str] = field(default_factory=list)
    """What could not be made readable, a sentence each."""


def recover(
    folder: Path,
    left: Left,
    *,
    put: Callable[[Path, bytes], None],
    domain_of: Callable[[Path, list[str]], str | None],
) -> Recovered:
    """Repair the queues in *folder* (``requests.queue``) and write its ``active.json``.

    *put* adds a record to the queue at a path. *domain_of* returns the domain of a folder from
    the requests in the queues of these names, or None.
    """
    found = Recovered()
    folder.mkdir(parents=True, exist_ok=True)
    for path in _queues(folder):
        name = path.relative_to(folder).as_posix()
        try:
            found.queued += _repair(path, left.positions.get(name))
        except (OSError, ValueError, struct.error) as exc:
            found.lost.append(f"the queue {name} cannot be read: {exc}")
            path.rename(_free_name(path))
    for queue, data in left.taken.values():
        put(folder / queue, data)
        found.under_way += 1
    _write_json(folder / ACTIVE, _state(folder, domain_of, found))
    return found


def is_unfinished(folder: Path) -> bool:
    """Tell whether *folder* holds queues that nobody has closed ever."""
    return not (folder / ACTIVE).exists() and next(_queues(folder), None) is not None


def _state(
    folder: Path, domain_of: Callable[[Path, list[str]], str | None], found: Recovered
) -> Any:
    """Return what the priority queue is to open: priorities, by domain if it has domains."""
    names: dict[str, list[str]] = {}
    for path in _queues(folder):
        names.setdefault(path.parent.relative_to(folder).as_posix(), []).append(path.name)
    flat = names.pop(".", [])
    if not names:
        return _priorities(flat)
    known = {_scrapy.queue_folder(domain): domain for domain in _known_domains(folder)}
    state = {}
    for one, queues in names.items():
        domain = known.get(one) or _domain_named(one) or domain_of(folder / one, queues)
        if domain is None:
            found.lost.append(f"which domain the queues in {one} are for cannot be told")
        else:
            state[domain] = _priorities(queues)
    if flat:
        found.lost.append(f"the queues {', '.join(flat)} are of no domain")
    return state


def _queues(folder: Path) -> Iterator[Path]:
    """Return the queues that have files: those of a domain in a folder of its own."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _QUEUE.fullmatch(path.name):
            yield path
        elif path.is_dir():
            yield from (one for one in sorted(path.iterdir()) if _QUEUE.fullmatch(one.name))


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.broken{n or ''}") for n in itertools.count())
    return next(one for one in names if not one.exists())


def _priorities(names: Iterable[str]) -> list[int]:
    return sorted({int(name.removesuffix("s")) for name in names})


# Domains ------------------------------------------------------------------------------------------
def _known_domains(folder: Path) -> list[str]:
    try:
        known = json.loads((folder / ACTIVE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return list(known) if isinstance(known, dict) else []


def _domain_named(folder: str) -> str | None:
    """Return the domain after which Scrapy named *folder*, if it is a host with or without port."""
    text = folder.rpartition("-")[0]
    host, _, port = text.rpartition("_")
    for domain in (text, f"{host}:{port}"):
        if _scrapy.queue_folder(domain) == folder:
            return domain
    return None


# Queues of queuelib -------------------------------------------------------------------------------
def _repair(path: Path, last: Position | None) -> int:
    """Make the queue at *path* readable; return how many requests it holds."""
    if path.is_dir():
        return _repair_fifo(path, last)
    with path.open("rb+") as file:
        if file.read(len(_SQLITE)) == _SQLITE:
            return _count_sqlite(path)
        count = _repair_lifo(file)
    if not count:
        path.unlink()
    return count


def _repair_fifo(path: Path, last: Position | None) -> int:
    """Find out how far a FIFO queue was read, and where its last record ends.

    *last* is where the record was that was read last; None: none since it was opened.
    """
    names = [one.name for one in path.iterdir()]
    chunks = sorted(int(one[1]) for name in names if (one := _CHUNK.fullmatch(name)))
    info: dict[str, Any] = {"chunksize": _CHUNK_SIZE}
    with suppress(FileNotFoundError, ValueError):  # a kill while it was written leaves it empty
        info |= json.loads((path / _INFO).read_text())
    if not chunks:
        if any(name != _INFO for name in names):
            raise ValueError("it is no queue of queuelib's")
        return _remove_fifo(path)
    tail = tuple(info.get("tail", (chunks[0], 0, 0)))
    if last is not None:
        tail = _behind(path, last)
    if tail[0] < chunks[0] or tail[1] >= info["chunksize"]:  # that chunk was read to its end
        tail = (max(chunks[0], tail[0] + 1), 0, 0)
    newest = chunks[-1]
    count, end = _scan(path, newest, *(tail[1:] if newest == tail[0] else (0, 0)))
    os.truncate(_chunk(path, newest), end)  # new records must not follow half a one
    head = (newest + 1, 0) if count >= info["chunksize"] else (newest, count)
    size = int(info["chunksize"] * (head[0] - tail[0]) + head[1] - tail[1])
    if size <= 0:
        return _remove_fifo(path)
    _write_json(path / _INFO, {**info, "size": size, "tail": tail, "head": head})
    return size


def _behind(path: Path, last: Position) -> Position:
    """Return the position behind the record at *last*."""
    number, place, offset = last
    try:
        with _chunk(path, number).open("rb") as file:
            file.seek(offset)
            (size,) = _SIZE.unpack(file.read(_SIZE.size))
    except FileNotFoundError:  # it was the last of its chunk
        return number + 1, 0, 0
    return number, place + 1, offset + _SIZE.size + size


def _scan(path: Path, number: int, count: int, offset: int) -> tuple[int, int]:
    """Return how many whole records a chunk has, and where they end; go on from *offset*."""
    with _chunk(path, number).open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        while offset + _SIZE.size <= length:
            file.seek(offset)
            (size,) = _SIZE.unpack(file.read(_SIZE.size))
            if offset + _SIZE.size + size > length:
                break
            offset += _SIZE.size + size
            count += 1
    return count, offset


def _chunk(path: Path, number: int) -> Path:
    return path / f"q{number:05d}"


def _remove_fifo(path: Path) -> int:
    for one in path.iterdir():
        one.unlink()
    path.rmdir()
    return 0


def _repair_lifo(file: BinaryIO) -> int:
    """Count the records of a LIFO queue from its end, and write the number in its place."""
    length = os.fstat(file.fileno()).st_size
    for end in range(length, max(_SIZE.size, length - _MOST_CUT) - 1, -1):
        count = _count_back(file, end)
        if count or (count == 0 and end == length):
            file.truncate(end)
            file.seek(0)
            file.write(_SIZE.pack(count))
            return count
    if length < _SIZE.size:
        return 0  # not even its beginning was written
    raise ValueError("its records do not join")


def _count_back(file: BinaryIO, position: int) -> int | None:
    """Count the records before *position*; None: no record ends there."""
    count = 0
    while position > _SIZE.size:
        file.seek(position - _SIZE.size)
        (size,) = _SIZE.unpack(file.read(_SIZE.size))
        position -= size + _SIZE.size
        count += 1
        if not size:
            return None
    return count if position == _SIZE.size else None


def _count_sqlite(path: Path) -> int:
    queue = FifoSQLiteQueue(path)
    count = len(queue)
    queue.close()
    return count


def _write_json(path: Path, value: Any) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(value), encoding="utf-8")
    fresh.replace(path)
