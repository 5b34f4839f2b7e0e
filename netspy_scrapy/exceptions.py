"""Every error that netspy_scrapy raises.

::

    NetspyError
    ├── ConfigError            a setting has a wrong value (also a ValueError)
    ├── RequestError           a request cannot be built or serialised (also a ValueError)
    ├── ItemError              an item cannot be stored as it is
    │   └── UpdateKeyError     an UpdateItem that has no key to update by
    ├── PipelineError          a sink cannot do what it was asked
    │   ├── UpdateNotSupportedError
    │   └── SinkUnavailableError    raised by sinks: the server is away, the rows wait
    ├── RedisFailedError       Redis did not carry out a command
    │   └── RedisAwayError     because it cannot be reached
    ├── DumpError              a dump file cannot be written or read
    ├── StoreError             what is known of pages cannot be read or written
    ├── CacheError             the response cache cannot be written or read
    ├── SinkFailedError        rows could neither be stored nor dumped
    ├── SpiderError            a spider cannot be run
    │   └── HookError          a spider's download_midware raised
    ├── EscapedError           user code raised what is no Exception (SystemExit, ...)
    ├── CutOffError            a download took too long after a stop (also an IgnoreRequest)
    ├── RobotsDeniedError      robots.txt forbids the page (also Scrapy's IgnoreRequest)
    ├── ResponseError
    │   ├── RenderError        a browser did not bring the page (also an OSError)
    │   ├── AntiBotError       the answer is a test for robots in place of the page
    │   ├── HttpStatusError    the status is not one that the spider wants (also Scrapy's HttpError)
    │   ├── ResponseTooLargeError     the body is over MAX_RESPONSE_SIZE (also an IgnoreRequest)
    │   └── ContentTypeRejectedError  not one of ALLOWED_CONTENT_TYPES (also an IgnoreRequest)
    ├── ValidationError        raised by users in ``validate``: fetch the page again
    └── NotRetryError          raised by users: give the page up, without counting a failure
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.exceptions import IgnoreRequest
from scrapy.spidermiddlewares.httperror import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


class RedisFailedError(NetspyError):
    """Redis did not carry out a command; the message says why, without a password."""


class RedisAwayError(RedisFailedError):
    """Redis cannot be reached, or cannot serve now."""


class SinkUnavailableError(PipelineError):
    """Raised by a sink whose server is away, so that no row is to blame.

    From ``save_items`` or ``update_items``: the batcher keeps the batch and calls again with the
    same rows, after 0.5 s, then twice as long each time, up to 15 s. The crawl goes on meanwhile.
    Once the sink is full (ITEM_MAX_CACHED_COUNT, NETSPY_BUFFER_MAX_BYTES) or the crawl closes,
    and the server has been away for NETSPY_SINK_WAIT seconds, the batch is dumped with the
    message as the reason, then the next one. One warning when it begins, one line when the server
    is back. A crawl that closes makes one more attempt first.

    From ``open``: the crawl starts all the same, and ``open`` is called again before the first
    batch, in the same manner.

    In ``netspy-retry`` the sink is not asked again, and its lines stay.

    The message must hold no password. Of a batch that is stored in part, tell by position
    (all are offered again of which nothing is told):

    *stored*
        rows that are stored for sure: they are not offered again.
    *refused*
        rows that are refused, with the reasons: dumped, and not offered again.
    *in_doubt*
        rows that may be stored (the connection broke before the server's answer came). They are
        offered again and counted, and the summary says that they may be stored twice.
    """

    def __init__(
        self,
        message: str,
        *,
        stored: Iterable[int] = (),
        refused: Mapping[int, str] | None = None,
        in_doubt: Iterable[int] = (),
    ) -> None:
        super().__init__(message)
        self.stored = frozenset(stored)
        self.refused = dict(refused or {})
        self.in_doubt = frozenset(in_doubt)


class DumpError(NetspyError):
    """A dump file cannot be written or read."""


class StoreError(NetspyError):
    """What is known of pages from earlier runs cannot be read or written; the crawl goes on."""


class CacheError(NetspyError):
    """The response cache, or an entry of it, cannot be written or read."""


class SinkFailedError(NetspyError):
    """Rows could neither be stored nor dumped."""


class SpiderError(NetspyError):
    """A spider cannot be run as asked."""


class HookError(SpiderError):
    """A spider's ``download_midware`` raised: the request is tried again."""


class EscapedError(NetspyError):
    """User code raised what is no Exception; ``raised`` is that."""

    def __init__(self, raised: BaseException) -> None:
        text = str(raised)
        super().__init__(type(raised).__name__ + (f": {text}" if text else ""))
        self.raised = raised


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


class RenderError(ResponseError, OSError):
    """A browser did not bring the page: a time-out, a refused connection, a browser that died.

    It is an OSError, and so retried like other failed downloads.
    """


class ResponseTooLargeError(ResponseError, IgnoreRequest):
    """The body is larger than allowed: a failure, without another attempt.

    ``setting`` is what sets the limit, ``limit`` its value in bytes.
    """

    def __init__(self, setting: str, limit: int, seen: str) -> None:
        super().__init__(f"the body is larger than {setting} = {limit} bytes: {seen}")
        self.setting = setting
        self.limit = limit


class ContentTypeRejectedError(ResponseError, IgnoreRequest):
    """The answer is not of an allowed type: it is dropped, and no failure.

    ``content_type`` is what the site said, ``setting`` is what allows types.
    """

    cause = "content_type"

    def __init__(self, setting: str, content_type: str) -> None:
        super().__init__(f"Content-Type {content_type!r} is not one of {setting}")
        self.setting = setting
        self.content_type = content_type


class AntiBotError(ResponseError):
    """The answer is a challenge page: a test for robots in place of the page (ANTIBOT_DETECT)."""


class ValidationError(NetspyError):
    """Raised by a spider: this answer is not the page, fetch it again."""


class NotRetryError(NetspyError):
    """Raised by a spider: give this page up; it is a drop, not a failure."""
