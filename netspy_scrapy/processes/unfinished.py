"""What is left in a queue that ends with the run: it goes to FAILED_REQUEST_PATH."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from netspy_scrapy.dumps.classes import ClassResolver
from netspy_scrapy.dumps.codec import encode_line_lossy
from netspy_scrapy.dumps.files import DumpFile
from netspy_scrapy.dumps.requests import request_record
from netspy_scrapy.exceptions import DumpError, RedisFailedError
from netspy_scrapy.redis import payload
from netspy_scrapy.redis.connection import Connection
from netspy_scrapy.redis.leases import NODE_TTL
from netspy_scrapy.redis.options import RedisSettings
from netspy_scrapy.settings import DumpSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

#: Seconds between two looks whether other processes are still at work.
_LOOK: Final = 0.5


def take(client: Any, base: str) -> list[bytes]:
    """Take all tasks out of the queue, for whoever asks first; return their payloads."""
    if not client.exists(f"{base}:tasks") or not client.renamenx(f"{base}:tasks", f"{base}:taken"):
        return []
    found: dict[bytes, bytes] = client.hgetall(f"{base}:taken")
    return list(found.values())


def rescue(crawler: Crawler, base: str) -> None:
    """Dump what is left if this process is the last one: the command, which would, is gone."""
    dump_settings = DumpSettings.from_settings(crawler.settings)
    if not dump_settings.unfinished:
        return
    connection = Connection(RedisSettings.from_settings(crawler.settings))
    deadline = time.monotonic() + NODE_TTL + _LOOK
    try:
        while connection.call(lambda client: client.zcard(f"{base}:nodes")):
            if time.monotonic() > deadline:  # one was killed, and is not heard of
                break
            time.sleep(_LOOK)
        left = connection.call(lambda client: take(client, base))
        name = crawler.spider.name if crawler.spider is not None else crawler.spidercls.name
        dump(left, crawler.spidercls, name, dump_settings.request_path, "the command was killed")
    except RedisFailedError:
        logger.exception("LOST: what was left in the queue")
    finally:
        connection.close()


def dump(
    payloads: Iterable[bytes], spider: type[Spider], name: str, path: str, reason: str
) -> tuple[int, int]:
    """Write tasks to the dump at *path*; return how many, and how many could not be written.

    ``netspy-retry --requests`` fetches them.
    """
    # Callbacks are kept by name, so nothing but the class is asked of it: it is not set up.
    stand_in = spider.__new__(spider)
    stand_in.name = name
    classes = ClassResolver()
    lines = []
    lost = 0
    for data in payloads:
        try:
            request = payload.decode(data, stand_in, classes)
            record = request_record(request, stand_in, reason=f"unfinished: {reason}")
            line, _ = encode_line_lossy(record)
        except Exception:
            lost += 1
            # Not what it holds: a URL may have a password in it.
            logger.exception("LOST: a task of %d bytes cannot be dumped", len(data))
        else:
            lines.append(line)
    try:
        DumpFile(path).append(lines)
    except DumpError as exc:
        logger.error("LOST: %d requests of the queue: %s", len(lines), exc)  # noqa: TRY400
        return 0, lost + len(lines)
    return len(lines), lost
