"""A real Chromium, as the settings of a crawl that uses it."""

from __future__ import annotations

from typing import Any

from tests.servers.base import program


def browser_settings() -> dict[str, Any]:
    """Return the settings with which scrapy-playwright starts Debian's Chromium, offline."""
    return {
        "PLAYWRIGHT_LAUNCH_OPTIONS": {
            "executable_path": program("chromium", "chromium-browser"),
            "args": [
                "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE 127.0.0.2",
            ],
        }
    }  # fmt: skip
