"""What log lines show of a request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Request

_CREDENTIALS = re.compile(r"(?<=://)[^/?#@\s]*@")


def shown(request: Request) -> str:
    """Return *request* as a log line names it: method and URL, without user and password."""
    return f"<{request.method} {shown_url(request.url)}>"


def shown_url(url: str) -> str:
    """Return *url* without user and password."""
    return _CREDENTIALS.sub("", url)


def without_credentials(text: str, request: Request) -> str:
    """Return *text* without the user and password of URLs, those of *request* above all."""
    for secret in set(_CREDENTIALS.findall(request.url)):
        text = text.replace(secret, "")
    return _CREDENTIALS.sub("", text)


def age_text(seconds: float) -> str:
    """Return an age as a person says it."""
    seconds = max(0.0, seconds)
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size or (unit == "minute" and seconds >= size):
            number = int(seconds // size)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{int(seconds)} s"


def counted(number: int, one: str, more: str | None = None) -> str:
    """Return *number* with its noun in the right form.

    >>> counted(1, "row"), counted(2, "row"), counted(0, "batch", "batches")
    ('1 row', '2 rows', '0 batches')
    """
    return f"{number} {one}" if number == 1 else f"{number} {more or one + 's'}"


def bytes_text(count: int) -> str:
    """Return a number of bytes as a person says it."""
    number = float(count)
    for unit in ("bytes", "KB", "MB"):
        if number < 1000:  # noqa: PLR2004
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def seconds_text(seconds: float) -> str:
    """Return a time in seconds, with three digits or all before the point."""
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"  # noqa: PLR2004
