"""The settings of this package: read once, validated, frozen.

Each feature has one dataclass with a ``from_settings`` that reads what it needs and raises
:class:`~netspy_scrapy.exceptions.ConfigError` for a value that cannot be used.

Many settings have a counterpart of Scrapy's (``SPIDER_MAX_RETRY_TIMES`` and ``RETRY_TIMES``).
Of such a pair ours counts if the user set it, else Scrapy's if the user set that, else the
default: netspy's for netspy spiders (which write it at a low priority), Scrapy's otherwise.
"""

from netspy_scrapy.settings.fetching import (
    WEBDRIVER_KEYS,
    LimitsSettings,
    PaceSettings,
    PolitenessSettings,
    RenderSettings,
    RetrySettings,
    RobotsSettings,
    RuntimeSettings,
    StatusSettings,
    is_success,
)
from netspy_scrapy.settings.reading import (
    deciding,
    is_kind_of,
    read_bool,
    read_choice,
    read_codes,
    read_int,
    read_mapping,
    read_names,
    read_number,
    read_prefixes,
    read_text,
    user_set,
    without_secrets,
)
from netspy_scrapy.settings.storing import (
    CacheSettings,
    DedupSettings,
    DumpSettings,
    IncrementalSettings,
    SinkSettings,
)
from netspy_scrapy.settings.table import (
    SETTINGS,
    UNSUPPORTED,
    Setting,
)
from netspy_scrapy.settings.watching import ReportSettings, WatchSettings

__all__ = [
    "SETTINGS",
    "UNSUPPORTED",
    "WEBDRIVER_KEYS",
    "CacheSettings",
    "DedupSettings",
    "DumpSettings",
    "IncrementalSettings",
    "LimitsSettings",
    "PaceSettings",
    "PolitenessSettings",
    "RenderSettings",
    "ReportSettings",
    "RetrySettings",
    "RobotsSettings",
    "RuntimeSettings",
    "Setting",
    "SinkSettings",
    "StatusSettings",
    "WatchSettings",
    "deciding",
    "is_kind_of",
    "is_success",
    "read_bool",
    "read_choice",
    "read_codes",
    "read_int",
    "read_mapping",
    "read_names",
    "read_number",
    "read_prefixes",
    "read_text",
    "user_set",
    "without_secrets",
]
