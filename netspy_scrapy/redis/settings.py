"""The settings of a queue that nodes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.settings import read_bool, read_int, read_number

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from netspy_scrapy.redis.connection import Connection

#: Keys of scrapy-redis where a project sets no others.
LEGACY_QUEUE: Final = "%(spider)s:requests"
_SEEDS: Final = "%(name)s:start_urls"

#: Pages beyond the downloads in flight that may wait for their rows.
_SPARE: Final = 8


@dataclass(frozen=True)
class QueueSettings:
    """How a node takes part in a queue."""

    lease: float
    """Seconds (SPIDER_TASK_LEASE); 0: tasks are taken for good."""
    batch: int
    """Tasks taken at once (COLLECTOR_TASK_COUNT)."""
    unacknowledged: int
    """Pages that may be under way, or done and not yet stored."""
    deliveries: int
    """How often a task is handed out before it is dead."""
    queue_key: str | None
    """scrapy-redis' template of the queue's key, if the project sets it."""
    filter_key: str | None
    """The same of the request filter's."""
    persist: bool
    """Whether the request filter outlives the run (SCHEDULER_PERSIST)."""
    flush: bool
    """Whether the first node to start empties the queue (SCHEDULER_FLUSH_ON_START)."""

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> QueueSettings:
        """Read the queue of a crawl."""
        lease = read_number(settings, "SPIDER_TASK_LEASE", unit="seconds")
        if 0 < lease < 1:
            raise ConfigError("SPIDER_TASK_LEASE", lease, "0 (off), or 1 second or more")
        concurrency = settings.getint("CONCURRENT_REQUESTS")
        return cls(
            lease=lease,
            batch=read_int(settings, "COLLECTOR_TASK_COUNT", minimum=1),
            unacknowledged=max(
                read_int(settings, "NETSPY_MAX_UNACKNOWLEDGED", minimum=1), concurrency + _SPARE
            ),
            deliveries=read_int(settings, "NETSPY_MAX_DELIVERIES", minimum=1),
            queue_key=settings.get("SCHEDULER_QUEUE_KEY"),
            filter_key=settings.get("SCHEDULER_DUPEFILTER_KEY"),
            persist=settings.getbool("SCHEDULER_PERSIST"),
            flush=settings.getbool("SCHEDULER_FLUSH_ON_START"),
        )


def rendered(setting: str, template: Any, spider: str) -> str:
    """Return a key of scrapy-redis' kind: ``%(spider)s`` and ``%(name)s`` are the spider."""
    try:
        return str(template) % {"spider": spider, "name": spider}
    except (KeyError, TypeError, ValueError) as exc:
        allowed = "a key, in which %(spider)s stands for the spider's name"
        raise ConfigError(setting, template, f"{allowed} ({exc!r})") from None


def queue_base(connection: Connection, template: str | None, name: str) -> str:
    """Return what the keys of a queue begin with; *template* is SCHEDULER_QUEUE_KEY."""
    if not template:
        return connection.key(name, "queue")
    base = rendered("SCHEDULER_QUEUE_KEY", template, name)
    return base if "{" in base else f"{{{base}}}"


def seeds_key(settings: BaseSettings, spider: Any) -> str:
    """Return the key from which *spider* takes start URLs; empty: it takes none."""
    if not hasattr(spider, "make_request_from_data"):
        return ""
    template = getattr(spider, "redis_key", None)
    if template is None:
        template = settings.get("REDIS_START_URLS_KEY") or _SEEDS
    return rendered("redis_key", template, spider.name) if template else ""


def queue_name(spider: Any) -> str:
    """Return the name under which the work of *spider* is shared."""
    return str(getattr(spider, "netspy_queue", None) or spider.name)


def keeps_alive(settings: BaseSettings) -> bool:
    """Tell whether nodes stay when all is done (SPIDER_KEEP_ALIVE)."""
    return read_bool(settings, "SPIDER_KEEP_ALIVE")
