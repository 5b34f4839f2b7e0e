"""The budget of all bodies: nothing is lost, nothing waits for ever, nothing is over it but one."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from netspy_scrapy.budget import Body, Budget


class Noted(Body):
    """Counts how often it was told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.resumed = 0
        self.resume = self._resume

    def _resume(self) -> None:
        self.resumed += 1


def body() -> Noted:
    return Noted()


def test_what_fits_is_granted() -> None:
    """Bodies that fit do not wait, and give back what they had."""
    budget = Budget(100, 5)
    one, other = body(), body()

    assert budget.reserve(one, 40)
    assert budget.reserve(other, 35)
    assert budget.held == 75
    assert budget.first is None

    budget.close(one)
    budget.close(other)
    assert budget.held == 0


def test_one_need_not_fit() -> None:
    """A body larger than the budget goes on; a second one waits until it is done."""
    budget = Budget(100, 5)
    one, other = body(), body()

    assert budget.reserve(one, 1000)
    assert not budget.reserve(other, 1000)
    assert not budget.reserve(other, 2000)
    assert budget.reserve(one, 5000)
    assert (other.resumed, other.was_held) == (0, True)

    budget.close(one)
    assert (other.resumed, other.reserved, budget.first) == (1, 2000, other)


def test_small_bodies_do_not_wait_for_large_ones() -> None:
    """Up to its share a body is received, whatever larger ones hold."""
    budget = Budget(400, 10)  # a share is 10
    large = [body() for _ in range(5)]
    granted = [budget.reserve(one, 150) for one in large]

    assert granted == [True, True, True, False, False]  # 300 of 400, and the one that need not fit
    assert all(budget.reserve(body(), 10) for _ in range(10))
    assert not budget.reserve(body(), 11)


def test_they_go_on_in_their_order() -> None:
    """Who began to wait first goes on first."""
    budget = Budget(100, 5)
    first, second, third = body(), body(), body()
    budget.reserve(first, 500)
    budget.reserve(second, 70)
    assert not budget.reserve(third, 60)

    budget.close(second)
    assert (third.reserved, budget.first) == (60, first)


def test_a_silent_first_makes_way() -> None:
    """The one that need not fit makes way if what it holds fits, and only then."""
    budget = Budget(100, 5)
    silent, large, other = body(), body(), body()
    assert budget.reserve(large, 70)
    assert budget.reserve(silent, 20)  # does not fit beside 70: it is the first
    assert not budget.reserve(other, 90)

    assert budget.pass_on()
    assert (budget.first, other.reserved) == (other, 90)

    assert not budget.reserve(silent, 30)
    assert not budget.pass_on()  # 180 are held


def test_room() -> None:
    """What a body may have right now is what reserve() grants without a wait."""
    budget = Budget(400, 10)
    one, other, third = body(), body(), body()
    assert budget.room(one) is None

    budget.reserve(one, 1000)
    assert budget.room(one) is None
    budget.reserve(other, 200)
    assert budget.room(other) == 300
    assert budget.room(third) == 100
    assert budget.reserve(third, 100)
    assert budget.room(body()) == 10


def test_the_end() -> None:
    """Once it is dissolved nobody waits any more."""
    budget = Budget(10, 5)
    waiting = [body() for _ in range(4)]
    for one in waiting:
        budget.reserve(one, 100)

    budget.dissolve()

    assert [one.resumed for one in waiting] == [0, 1, 1, 1]
    assert not budget.waiting


class Crawl(RuleBasedStateMachine):
    """Bodies that grow, end and fall silent in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(100, 4)
        self.bodies: list[Any] = []

    def moving(self) -> list[Any]:
        return [one for one in self.bodies if not one.wanted]

    @rule(size=st.integers(1, 300))
    def begin(self, size: int) -> None:
        one = body()
        self.bodies.append(one)
        self.budget.reserve(one, size)

    @precondition(lambda self: self.moving())
    @rule(data=st.data(), more=st.integers(0, 80))
    def grow(self, data: Any, more: int) -> None:
        one = data.draw(st.sampled_from(self.moving()))
        room = self.budget.room(one)
        size = one.reserved + more
        granted = self.budget.reserve(one, size)

        assert granted == (room is None or size <= room)
        assert size in {one.reserved, one.wanted}

    @precondition(lambda self: self.bodies)
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.bodies))
        self.bodies.remove(one)
        self.budget.close(one)

    @precondition(lambda self: self.moving())
    @rule(data=st.data(), size=st.integers(0, 50))
    def shrink(self, data: Any, size: int) -> None:
        self.budget.shrink(data.draw(st.sampled_from(self.moving())), size)

    @rule()
    def fall_silent(self) -> None:
        self.budget.pass_on()

    @invariant()
    def all_is_counted(self) -> None:
        assert self.budget.held == sum(one.reserved for one in self.bodies)
        assert set(self.budget.waiting) == {one for one in self.bodies if one.wanted}

    @invariant()
    def only_one_is_over_it(self) -> None:
        first = self.budget.first
        assert first is None or first in self.bodies
        assert self.budget.held - (first.reserved if first else 0) <= self.budget.limit

    @invariant()
    def something_moves(self) -> None:
        waiting = self.budget.waiting
        assert not waiting or (self.budget.first is not None and self.budget.first not in waiting)

    def teardown(self) -> None:
        """Whatever happened, all that move end, and so do those that wait for them."""
        while self.bodies:
            moving = self.moving()
            assert moving
            self.bodies.remove(moving[0])
            self.budget.close(moving[0])
        assert (self.budget.held, len(self.budget.waiting)) == (0, 0)


TestAnyOrder = Crawl.TestCase
TestAnyOrder.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@given(st.integers(0, 10**9), st.integers(0, 1000))
def test_shares_fit_in_a_quarter(limit: int, sharers: int) -> None:
    """All the shares together are at most a quarter of the budget."""
    assert Budget(limit, sharers).share * max(1, sharers) <= limit / 4
