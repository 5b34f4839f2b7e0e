"""Which backend the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netspy_scrapy.incremental.sqlite import SqliteBackend

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from netspy_scrapy.incremental.redis import RedisBackend
    from netspy_scrapy.settings import IncrementalSettings


def backend_of(
    settings: BaseSettings, incremental: IncrementalSettings, *, create: bool = True
) -> SqliteBackend | RedisBackend:
    """Return the backend of NETSPY_INCREMENTAL_STORE; *create*: a file that is not there yet."""
    if incremental.store == "sqlite":
        return SqliteBackend(incremental.path, create=create)
    # Imported here, as what nobody uses costs nothing.
    from netspy_scrapy.incremental.redis import RedisBackend  # noqa: PLC0415
    from netspy_scrapy.redis.connection import Connection  # noqa: PLC0415
    from netspy_scrapy.redis.options import RedisSettings  # noqa: PLC0415

    # Not the crawl's: this one is closed last, when the last rows are safe.
    return RedisBackend(Connection(RedisSettings.from_settings(settings)))
