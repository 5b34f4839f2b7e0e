"""What the keywords of a request may be, and what Scrapy takes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from scrapy.http import Headers

from netspy_scrapy.exceptions import RequestError
from netspy_scrapy.http.body import basic_auth

#: Not a URL that is ever fetched: it stands in for one that Scrapy refuses.
_NO_URL = "about:blank"


def user_info_auth(url: str) -> bytes | None:
    """Return the Authorization header that ``user:password@`` in *url* stands for, or None."""
    if "@" not in url:
        return None
    try:
        user_info, at, _ = urlsplit(url).netloc.rpartition("@")
    except ValueError:
        return None
    user, _, password = user_info.partition(":")
    return basic_auth((unquote(user), unquote(password))).encode() if at else None


def usable_url(url: Any) -> tuple[str, str | None]:
    """Return a URL that Scrapy takes, and why *url* is none."""
    if isinstance(url, str) and ("://" in url or url.startswith(("data:", "about:"))):
        try:
            urlsplit(url).port  # noqa: B018 - it raises for what is none
        except ValueError as exc:
            return _NO_URL, f"{url!r} is not a URL: {exc}"
        return url, None
    return _NO_URL, f"{url!r} is not a URL with a scheme"


def usable_headers(headers: Any, encoding: str) -> tuple[Any, str | None]:
    """Return headers that Scrapy takes, and why *headers* are none."""
    try:
        return Headers(headers, encoding=encoding), None
    except (TypeError, ValueError) as exc:
        return None, f"headers cannot be sent: {exc}"


def usable_dict(name: str, value: Any) -> dict[str, Any] | None:
    """Return *value* as a dict, or None; raises :exc:`ValueError` that names the keyword."""
    if value is None or isinstance(value, Mapping):
        return dict(value) if value is not None else None
    raise ValueError(f"{name} {value!r:.80} is not a dict")


def as_dict(headers: Any) -> dict[Any, Any]:
    """Return headers as a dict; empty if they are none."""
    try:
        return dict(headers or {})
    except (TypeError, ValueError):
        return {}


def seconds(timeout: Any) -> float:
    """Return one number of seconds: Scrapy has one time-out, netspy takes (connect, read) too."""
    if timeout is None:
        return 0.0  # no limit
    try:
        if isinstance(timeout, (tuple, list)):
            return float(sum(value for value in timeout if value is not None))
        return float(timeout)
    except (TypeError, ValueError):
        raise RequestError(f"timeout {timeout!r} is not a number of seconds") from None


def usable_cookies(cookies: Any) -> Any:
    """Return cookies as Scrapy takes them: a dict, or dicts with ``name`` and ``value``.

    Raises :exc:`ValueError` for what is neither, nor a list of pairs.
    """
    if not isinstance(cookies, (list, tuple)):
        if cookies is None or hasattr(cookies, "items"):
            return cookies
        raise ValueError(f"cookies of the type {type(cookies).__name__} cannot be sent")
    if all(isinstance(one, dict) for one in cookies):
        return list(cookies)
    try:
        return dict(cookies)
    except (TypeError, ValueError):
        raise ValueError("cookies are a dict, or a list of pairs of name and value") from None
