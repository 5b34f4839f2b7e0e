"""What the processes of a run are given, from the settings of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.processes.share import Share
from netspy_scrapy.redis.connection import driver
from netspy_scrapy.redis.options import RedisSettings
from netspy_scrapy.redis.scheduler import RedisScheduler
from netspy_scrapy.settings import (
    IncrementalSettings,
    ReportSettings,
    WatchSettings,
    user_set,
    without_secrets,
)
from netspy_scrapy.spiders.setup import ADDON

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import Settings

_SCHEDULER = "netspy_scrapy.redis.scheduler.RedisScheduler"
_ADDON_ORDER = 500
#: What names the process in the URI of a feed.
_IN_FEED = "%(netspy_process)s"


@dataclass(frozen=True)
class Plan:
    """A spider, and how many processes crawl it."""

    spider: type[Spider]
    target: str
    """Its name in the project, or its file."""
    arguments: dict[str, str]
    given: dict[str, Any]
    """The settings of the command line."""
    settings: Settings
    """The settings that count for it in one process."""
    count: int
    has_server: bool
    """Whether the settings name a Redis server."""

    @classmethod
    def of(
        cls,
        spider: type[Spider],
        target: str,
        arguments: dict[str, str],
        settings: Settings,
        count: int,
    ) -> Plan:
        """Make a plan; raises ConfigError for what several processes cannot keep to."""
        given = {
            name: value.copy_to_dict() if isinstance(value, BaseSettings) else value
            for name, value in settings.items()
            if settings.getpriority(name) == SETTINGS_PRIORITIES["cmdline"]
        }
        effective = settings.copy()
        spider.update_settings(effective)
        redis = RedisSettings.from_settings(effective)
        has_server = user_set(effective, "REDIS_URL") or redis.source != "REDIS_URL"
        _refuse(effective, has_server=has_server)
        driver("REDIS_URL", redis.shown)
        return cls(spider, target, arguments, given, effective, count, has_server)

    def settings_of(self, number: int, run: str, server: str | None) -> dict[str, Any]:
        """Return what counts as given on the command line of one process.

        *server* is the URL of the run's own server; None: the settings name one.
        """
        mine: dict[str, Any] = {
            **self.given,
            "NETSPY_PROCESS": str(Share(number, self.count)),
            "NETSPY_PROCESS_RUN": run,
            "NETSPY_SHARED_START": True,
            # One log and one summary: the command's.
            "LOG_FILE": None,
            "LOG_LEVEL": self.settings["LOG_LEVEL"],
            "RUN_SUMMARY_ENABLE": False,
        }
        if not user_set(self.settings, "SCHEDULER"):
            mine["SCHEDULER"] = _SCHEDULER
        if not user_set(self.settings, "GLOBAL_THROTTLE"):
            mine["GLOBAL_THROTTLE"] = True
        addons = {_name(one): order for one, order in self.settings.getdict("ADDONS").items()}
        if not any("netspy_scrapy" in one for one in addons):
            mine["ADDONS"] = {**addons, ADDON: _ADDON_ORDER}
        if port := WatchSettings.from_settings(self.settings).prometheus_port:
            mine["NETSPY_PROMETHEUS_PORT"] = port + number - 1
        if server is not None:
            mine |= {"REDIS_URL": server, "REDIS_PARAMS": {}}
        return mine


def _refuse(settings: BaseSettings, *, has_server: bool) -> None:
    if settings.get("JOBDIR"):
        raise ConfigError(
            "JOBDIR", settings["JOBDIR"], "no value with --processes: the queue is in Redis. A "
            "server of your own (REDIS_URL) keeps it when you stop the run",
        )  # fmt: skip
    if user_set(settings, "SCHEDULER"):
        scheduler = settings["SCHEDULER"]
        # issubclass() would ask Scrapy's metaclass, which takes all that looks like a scheduler.
        if RedisScheduler not in getattr(load_object(scheduler), "__mro__", ()):
            raise ConfigError(
                "SCHEDULER", _name(scheduler), f"{_SCHEDULER} with --processes, or no value"
            )
    if ReportSettings.from_settings(settings).template:
        raise ConfigError(
            "NETSPY_REPORT", settings["NETSPY_REPORT"], "no value with --processes: each of them "
            "would write its own over the others'",
        )  # fmt: skip
    incremental = IncrementalSettings.from_settings(settings)
    if incremental.enabled and (incremental.store != "redis" or not has_server):
        raise ConfigError(
            "NETSPY_INCREMENTAL_STORE", incremental.store, '"redis" with --processes, and a server '
            "of your own (REDIS_URL), which keeps what is known of pages for the next run",
        )  # fmt: skip
    for uri in settings.getdict("FEEDS"):
        text = str(uri)
        if _IN_FEED not in text and not text.startswith("stdout:"):
            raise ConfigError(
                "FEEDS", without_secrets(text), "a URI for each process, such as "
                f"rows.{_IN_FEED}.jsonl, for several cannot write one feed (a sink such as "
                "CsvPipeline can take all rows, and loses none with a process that is killed)",
            )  # fmt: skip


def _name(one: Any) -> str:
    return one if isinstance(one, str) else str(global_object_name(one))
