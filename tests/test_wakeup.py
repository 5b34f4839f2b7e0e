"""A loop that notices signals at once."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time

import pytest

from netspy_scrapy.wakeup import woken_by_signals


def send(delay):
    """Have a thread that is not the main one receive SIGUSR1, as it may happen to any signal."""

    def target():
        time.sleep(delay)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    thread = threading.Thread(target=target)
    thread.start()
    return thread


@pytest.fixture
def handled():
    came: list[float] = []
    former = signal.signal(signal.SIGUSR1, lambda *_: came.append(time.monotonic()))
    yield came
    signal.signal(signal.SIGUSR1, former)


async def wait_for_signal(handled):
    loop = asyncio.get_running_loop()
    start = time.monotonic()
    with woken_by_signals(loop):
        thread = send(0.1)
        await asyncio.sleep(2)
        thread.join()
    return handled[0] - start


@pytest.mark.timed
def test_signal_that_another_thread_received_is_handled_at_once(handled):
    """The loop does not sleep on: without help the handler runs when its timer has passed."""
    assert asyncio.run(wait_for_signal(handled)) < 1


def test_descriptors_are_given_back(handled):
    """After use, signals wake nothing, and the loop is as it was."""
    asyncio.run(wait_for_signal(handled))
    assert signal.set_wakeup_fd(-1) == -1


def test_wakeup_of_others_stays():
    """A descriptor that the loop (uvloop) or the program set is left alone."""

    async def use(number):
        with woken_by_signals(asyncio.get_running_loop()):
            seen = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(seen)
            return seen == number

    one, two = socket.socketpair()
    two.setblocking(False)
    try:
        signal.set_wakeup_fd(two.fileno())
        assert asyncio.run(use(two.fileno()))
        assert signal.set_wakeup_fd(-1) == two.fileno()
    finally:
        signal.set_wakeup_fd(-1)
        one.close()
        two.close()


def test_other_threads_may_use_it():
    """Where signals cannot be had, nothing is done."""

    def target():
        async def nothing():
            with woken_by_signals(asyncio.get_running_loop()):
                done.append(True)

        asyncio.run(nothing())

    done: list[bool] = []
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    assert done
