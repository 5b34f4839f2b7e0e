"""A loop that notices signals at once."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator


@contextmanager
def woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have every signal wake *loop*, so that the handler set by ``signal.signal`` is run at once.

    Python runs such a handler in the main thread, between two of its steps. A signal that another
    thread received, or that came when the main thread was about to wait for events, would be
    handled at the loop's next event only; its handler then seems not to be there for seconds
    (``signal.set_wakeup_fd`` is the remedy that Python's documentation names).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    former = -1
    try:
        loop.add_reader(reading, _drain, reading)
    except NotImplementedError:  # Windows' ProactorEventLoop has a remedy of its own
        reading.close()
        writing.close()
        yield
        return
    try:
        former = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        if former != -1:  # the loop, or the reactor, has seen to it
            signal.set_wakeup_fd(former)
        yield
    finally:
        if former == -1:
            signal.set_wakeup_fd(-1)
        if not loop.is_closed():
            loop.remove_reader(reading)
        reading.close()
        writing.close()


def _drain(reading: socket.socket) -> None:
    with suppress(BlockingIOError):
        while reading.recv(4096):
            pass
