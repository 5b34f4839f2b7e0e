"""By how much a crawl's resident memory rose at its highest, as the crawling process sees it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


class Peak:
    """The peak of the resident memory over what it was when :meth:`begin` was called."""

    def begin(self):
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            self._start = _status("VmRSS:")
            self._peak = lambda: _status("VmHWM:")
        except OSError:
            unit = 1024 if sys.platform == "darwin" else 1
            self._peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
            self._start = self._peak()

    def growth_mb(self):
        return (self._peak() - self._start) / 1024


def _status(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise OSError(key)
