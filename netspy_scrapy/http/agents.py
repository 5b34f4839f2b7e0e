"""Browsers, as RANDOM_USER_AGENT names them."""

from __future__ import annotations

#: Desktop browsers, as RANDOM_USER_AGENT sends them.
_CHROME = "AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36"
USER_AGENTS = (
    f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {_CHROME}",
    f"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) {_CHROME}",
    f"Mozilla/5.0 (X11; Linux x86_64) {_CHROME}",
    f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {_CHROME} Edg/131.0.0.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:133.0) Gecko/20100101 Firefox/133.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:133.0) Gecko/20100101 Firefox/133.0",
)
