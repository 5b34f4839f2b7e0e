"""The line of downloads past the queue, with a clock to set."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from tests.queues.world import A, World, in_a_loop


@pytest.mark.parametrize("late", range(1, 7))
def test_a_delay_that_passes_while_the_line_is_looked_at(late: int) -> None:
    """Whichever look at the clock is the first after the delay, the download goes."""
    here = World()
    here.memory()
    state = here.registry.get(A)
    state.next_start = 1000.5
    looks = count(1)
    here.registry.clock = lambda: 1000.6 if next(looks) >= late else 1000.499999

    async def run() -> None:
        waiting = here.politeness._direct.admit(here.request(f"{A}/1"))
        if waiting is not None:
            await asyncio.wait_for(waiting, 5)

    in_a_loop(run())
    assert state.in_flight == 1
