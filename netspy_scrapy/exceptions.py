"""Every error that netspy_scrapy raises.

::

    NetspyError
    ├── ConfigError            a setting has a wrong value (also a ValueError)
    ├── RequestError           a request cannot be built or serialised (also a ValueError)
    ├── ItemError              an item cannot be stored as it is
    │   └── UpdateKeyError     an UpdateItem that has no key to update by
    ├── PipelineError          a sink cannot do what it was asked
    │   └── UpdateNotSupportedError
    ├── DumpError              a dump file cannot be written or read
    ├── StoreError             what is known of pages cannot be read or written
    ├── SinkFailedError        rows could neither be stored nor dumped
    ├── SpiderError            a spider cannot be run
    │   └── HookError          a spider's download_midware raised
    ├── CutOffError            a download took too long after a stop (also an IgnoreRequest)
    ├── RobotsDeniedError      robots.txt forbids the page (also Scrapy's IgnoreRequest)
    ├── ResponseError
    │   └── HttpStatusError    the status is not one that the spider wants (also Scrapy's HttpError)
    ├── ValidationError        raised by users in ``validate``: fetch the page again
    └── NotRetryError          raised by users: give the page up, without counting a failure
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.exceptions import IgnoreRequest
from scrapy.spidermiddlewares.httperror import HttpError

if TYPE_CHECKING:
    from scrapy.http import Response


class NetspyError(Exception):
    """The root of every error of this package."""


class ConfigError(NetspyError, ValueError):
    """A setting has a value that cannot be used.

    The message names the setting, the value and what is allowed.
    """

    def __init__(self, setting: str, value: object, allowed: str) -> None:
        super().__init__(f"{setting} = {value!r} cannot be used: expected {allowed}")
        self.setting = setting
        self.value = value
        self.allowed = allowed


class RequestError(NetspyError, ValueError):
    """A request cannot be built, or cannot be written to disk."""


class ItemError(NetspyError):
    """An item cannot be stored as it is."""


class UpdateKeyError(ItemError):
    """An UpdateItem names no key, so an update would touch every row."""


class PipelineError(NetspyError):
    """A sink cannot do what it was asked to do."""


class UpdateNotSupportedError(PipelineError):
    """The sink stores new rows only (CSV, Kafka)."""


class DumpError(NetspyError):
    """A dump file cannot be written or read."""


class StoreError(NetspyError):
    """What is known of pages from earlier runs cannot be read or written; the crawl goes on."""


class SinkFailedError(NetspyError):
    """Rows could neither be stored nor dumped."""


class SpiderError(NetspyError):
    """A spider cannot be run as asked."""


class HookError(SpiderError):
    """A spider's ``download_midware`` raised: the request is tried again."""


class CutOffError(NetspyError, IgnoreRequest):
    """The crawl was being stopped, and the download took too long; the request is kept."""


class RobotsDeniedError(NetspyError, IgnoreRequest):
    """robots.txt forbids the page: it is dropped, and no failure."""

    cause = "robots"


class ResponseError(NetspyError):
    """A response cannot be used."""


class HttpStatusError(HttpError, ResponseError):
    """The answer has a status that the spider does not accept.

    It is a Scrapy ``HttpError`` (and so an ``IgnoreRequest``): errbacks written for
    ``HttpErrorMiddleware`` keep working. ``response`` is the answer, ``reason`` says why no
    further attempt was made.
    """

    def __init__(self, response: Response, reason: str, *args: Any) -> None:
        super().__init__(response, f"HTTP status {response.status}: {reason}", *args)
        self.reason = reason


class ValidationError(NetspyError):
    """Raised by a spider: this answer is not the page, fetch it again."""


class NotRetryError(NetspyError):
    """Raised by a spider: give this page up; it is a drop, not a failure."""
