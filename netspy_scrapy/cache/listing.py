"""What is in the cache's file, for people: per domain, one page, and deleting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from w3lib.url import canonicalize_url

from netspy_scrapy.cache.entries import Head, decode_head
from netspy_scrapy.domains import domain_of
from netspy_scrapy.logs import shown_url

if TYPE_CHECKING:
    from netspy_scrapy.cache.file import CacheFile


@dataclass(frozen=True)
class DomainUse:
    """What one domain takes."""

    domain: str
    entries: int
    size: int
    """Bytes of heads and bodies."""
    oldest: float
    """Unix time."""
    newest: float


@dataclass(frozen=True)
class Shown:
    """One entry."""

    url: str
    spider: str
    stored: float
    vary: str
    size: int
    """Bytes of the body, as it was received."""
    head: Head


def use_by_domain(
    file: CacheFile, domain: str | None = None, before: float | None = None
) -> list[DomainUse]:
    """Return what each domain takes, the largest first; raises :exc:`CacheError`."""
    condition, values = _condition(domain, before)
    with file.using("read") as db:
        rows = db.execute(
            "SELECT domain, count(*), sum(size), min(stored), max(stored) FROM entries "  # noqa: S608
            f"WHERE {condition} GROUP BY domain ORDER BY sum(size) DESC, domain", values,
        ).fetchall()  # fmt: skip
    return [DomainUse(*row) for row in rows]


def delete(file: CacheFile, domain: str | None = None, before: float | None = None) -> int:
    """Delete entries and return how many; the file becomes smaller by their size."""
    condition, values = _condition(domain, before)
    with file.using("written") as db:
        count = int(db.execute(f"DELETE FROM entries WHERE {condition}", values).rowcount)  # noqa: S608
        if domain is None and before is None:
            db.execute("DELETE FROM ambient")
        # A script, for each step frees one page, and execute() takes only one.
        db.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
    return count


def entries_of(file: CacheFile, url: str) -> list[Shown]:
    """Return the entries of a page, the newest first."""
    url = shown_url(url)
    columns = "e.url, e.scope, e.stored, e.vary, length(c.body), c.head"
    query = f"SELECT {columns} FROM entries e JOIN contents c USING (id) "  # noqa: S608
    with file.using("read") as db:
        rows = db.execute(query + "WHERE e.url = ? ORDER BY e.stored DESC", (url,)).fetchall()
        if not rows:  # the same page in another writing
            wanted = canonicalize_url(url)
            ids = [
                id_
                for id_, other in db.execute(
                    "SELECT id, url FROM entries WHERE domain = ?", (domain_of(url),)
                )
                if canonicalize_url(other) == wanted
            ]
            marks = ", ".join("?" * len(ids))
            rows = db.execute(
                query + f"WHERE e.id IN ({marks}) ORDER BY e.stored DESC", ids
            ).fetchall()
    return [
        Shown(one, scope.rpartition("/")[0], stored, vary, size, decode_head(head))
        for one, scope, stored, vary, size, head in rows
    ]


def _condition(domain: str | None, before: float | None) -> tuple[str, list[Any]]:
    conditions = ["1"]
    values: list[Any] = []
    if domain is not None:
        conditions.append("domain = ?")
        values.append(domain)
    if before is not None:
        conditions.append("stored < ?")
        values.append(before)
    return " AND ".join(conditions), values
