"""Sinks in processes of their own."""

from __future__ import annotations

import subprocess
import sys

_PRELUDE = """
import sys
from types import SimpleNamespace
from scrapy.settings import Settings
from {module} import {name}
sink = {name}()
sink.bind(SimpleNamespace(settings=Settings({settings!r})))
sink.open()
"""


def start(
    sink: type, settings: dict[str, str], script: str, *args: object
) -> subprocess.Popen[str]:
    """Run *script*, in which ``sink`` is an open *sink*, with *args* as ``sys.argv[1:]``."""
    prelude = _PRELUDE.format(module=sink.__module__, name=sink.__name__, settings=settings)
    return subprocess.Popen(
        [sys.executable, "-c", prelude + script, *map(str, args)],
        stdout=subprocess.PIPE,
        text=True,
    )
