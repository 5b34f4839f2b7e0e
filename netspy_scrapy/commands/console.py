"""What a person sees of a command, and how Ctrl-C ends it."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, TextIO

from netspy_scrapy.wakeup import woken_by_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from scrapy.settings import BaseSettings

#: Seconds that the first Ctrl-C gives the batch that is being written.
GRACE = 10.0

_MAX_MESSAGE = 500
_CREDENTIALS = re.compile(r"://[^/@\s]+@")
_SECRET_NAME = re.compile(r"PASS(WORD|WD|PHRASE)?$|SECRET|TOKEN|(API|ACCESS)_?KEY")


class Console:
    """Messages on stderr, with a bar if it is a terminal; the outcome on stdout.

    No text shows a password that the settings hold, whoever wrote it.
    """

    def __init__(self, settings: BaseSettings, name: str) -> None:
        self._name = name
        self._out = sys.stdout  # kept, for LOG_STDOUT replaces it
        self._secrets = _secrets(settings)
        self._bar: _Bar | None = None

    def begin(self, total: int, unit: str) -> None:
        """Show a bar from now on, if there is a terminal."""
        if sys.stderr.isatty():
            self._bar = _Bar(total, unit, sys.stderr)

    def advance(self, count: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.advance(count)

    def end(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def say(self, text: str) -> None:
        """Print a message for the person who runs the command."""
        if self._bar is not None:
            self._bar.hide()
        print(f"{self._name}: {self._safe(brief(text, _MAX_MESSAGE))}", file=sys.stderr, flush=True)
        if self._bar is not None:
            self._bar.show()

    def conclude(self, text: str) -> None:
        """Print the outcome."""
        self.end()
        print(self._safe(text), file=self._out, flush=True)

    def _safe(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _CREDENTIALS.sub("://***@", text)


def brief(text: str, length: int = 200) -> str:
    """Return the first line of *text*, not too much of it.

    Databases quote the row from the second line on.
    """
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= length else line[: length - 3] + "..."


def _secrets(settings: BaseSettings) -> list[str]:
    found = {
        value
        for name, value in settings.items()
        if isinstance(name, str) and _SECRET_NAME.search(name) and isinstance(value, str) and value
    }
    return sorted(found, key=len, reverse=True)


class _Bar:
    """tqdm's bar, or a line that is written anew."""

    def __init__(self, total: int, unit: str, stream: TextIO) -> None:
        self._total = total
        self._unit = unit
        self._stream = stream
        self._done = 0
        self._tqdm: Any = None
        try:
            from tqdm import tqdm  # noqa: PLC0415 - an extra
        except ImportError:
            self.show()
        else:
            self._tqdm = tqdm(total=total, unit=f" {unit}", file=stream, leave=False)

    def advance(self, count: int) -> None:
        self._done += count
        if self._tqdm is not None:
            self._tqdm.update(count)
        else:
            self.show()

    def show(self) -> None:
        if self._tqdm is not None:
            self._tqdm.refresh()
            return
        share = 100 * self._done // max(1, self._total)
        self._stream.write(f"\r{self._done} of {self._total} {self._unit} ({share} %)")
        self._stream.flush()

    def hide(self) -> None:
        if self._tqdm is not None:
            self._tqdm.clear()
            return
        self._stream.write("\r\x1b[K")
        self._stream.flush()

    def close(self) -> None:
        if self._tqdm is not None:
            self._tqdm.close()  # removes it, for its leave is False
        else:
            self.hide()


class Interrupted:
    """Runs work that Ctrl-C (or SIGTERM) ends: the first time gently, the second at once."""

    def __init__(self, stop: Callable[[], None], say: Callable[[str], None]) -> None:
        self.signal = 0
        """The signal that came; 0: none."""
        self.abandoned = False
        """Whether a thread may still be at work, for which the process must not wait."""
        self._stop = stop
        self._say = say

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* to its end; raises what it raises."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)

        def on_signal(number: int, _frame: Any) -> None:
            # Nothing else here: a handler may interrupt a write that holds a lock.
            loop.call_soon_threadsafe(self._received, number, task)

        restore = _handle(on_signal)
        try:
            with woken_by_signals(loop):
                await asyncio.wait({task})
        finally:
            restore()
        if task.cancelled():
            self.abandoned = True
        else:
            task.result()

    def _received(self, number: int, task: asyncio.Task[None]) -> None:
        if self.signal:
            task.cancel()
            return
        self.signal = number
        self._stop()
        self._say(
            f"{signal.Signals(number).name}: stopping after the batch that is being written, in "
            f"{GRACE:g} s at the latest; again: at once"
        )
        asyncio.get_running_loop().call_later(GRACE, task.cancel)


def _handle(handler: Callable[[int, Any], None]) -> Callable[[], None]:
    """Install *handler* for SIGINT and SIGTERM; return what restores the former ones."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    saved = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, former in saved.items():
            signal.signal(number, former)

    return restore
