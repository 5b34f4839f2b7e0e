"""What log lines show of a request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Request

_CREDENTIALS = re.compile(r"(?<=://)[^/?#@\s]*@")


def shown(request: Request) -> str:
    """Return *request* as a log line names it: method and URL, without user and password."""
    return f"<{request.method} {_CREDENTIALS.sub('', request.url)}>"


def without_credentials(text: str) -> str:
    """Return *text* with no user and password in the URLs that it holds."""
    return _CREDENTIALS.sub("", text)
