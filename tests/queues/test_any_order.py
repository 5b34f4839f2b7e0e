from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.python.failure import Failure

from netspy_scrapy import _scrapy
from netspy_scrapy import meta as metakeys
from tests.queues.world import A, B, C, World, answer, place

if TYPE_CHECKING:
    from scrapy import Request

POLICIES: dict[str, dict[str, Any]] = {
    A: {},
    B: {"concurrency": 1},
    C: {"delay": 2.0, "jitter": 0.5, "concurrency": 2},
    "ill.example:8080": {"circuit_threshold": 2, "circuit_cooldown": 10.0, "concurrency": 3},
    "robots.example": {"robots": True, "concurrency": 2},
    "slow.example": {"robots": True, "delay": 6.0},
}
#: Less than a delay, so that rules expire while pages wait.
TTL = 5.0
NONE = 0.0

domains = st.sampled_from(list(POLICIES))
names = st.sampled_from(["memory", "disk"])
answers = st.sampled_from(["rules", "delay", "error", "refused", "redirect", "lost"])
seconds = st.sampled_from([0.5, 1.0, 3.0, 10.0])


class Domain:
    """What is known of a domain from what happened to it, without asking the registry."""

    def __init__(self, name: str) -> None:
        policy = POLICIES[name]
        self.delay = policy.get("delay", NONE) * (1 - policy.get("jitter", NONE))
        self.limit = policy.get("concurrency", 0)
        self.threshold = policy.get("circuit_threshold", 0)
        self.cooldown = policy.get("circuit_cooldown", NONE)
        self.rest_until = self.open_until = self.next_start = self.crawl_delay = NONE
        self.failures = 0
        self.in_flight = 0
        self.probing = False
        self.held = False

    def start(self, now: float) -> None:
        limit = 1 if self.probing else self.limit
        assert now >= self.rest_until, "handed out while the domain rests"
        assert now >= self.next_start - 1e-6, "handed out before the delay has passed"
        assert not limit or self.in_flight < limit, "handed out to a full domain"
        self.in_flight += 1
        self.next_start = now + max(self.delay, self.crawl_delay)

    def fail(self, now: float) -> None:
        if now < self.open_until:
            return
        self.failures += 1
        if self.threshold and (self.failures >= self.threshold or self.probing):
            self.failures = 0
            self.probing = True
            self.open_until = now + self.cooldown
            self.rest_until = max(self.rest_until, self.open_until)

    def succeed(self, now: float) -> None:
        if now >= self.open_until:
            self.failures = 0
            self.probing = False


class Crawl(RuleBasedStateMachine):
    """Two queues of one crawl, and what must be true of them whatever happens."""

    order = "fifo"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(_scrapy, "wake", self.woken)
        self.here = World(
            Path(self.folder.name, "job"), order=self.order, NETSPY_DOMAIN_POLICIES=POLICIES,
            NETSPY_CIRCUIT_HALF_OPEN=True, ROBOTS_CACHE_TTL=TTL,
        )  # fmt: skip
        self.pushed = 0
        self.came: Counter[str] = Counter()
        self.waiting: dict[tuple[str, str], dict[int, list[str]]] = {}
        self.first: dict[tuple[str, str], str] = {}
        """What waits for its robots.txt, and so is next."""
        self.begin(None)

    def begin(self, state: Any) -> None:
        self.here.begin()
        self.queues = {"memory": self.here.memory(), "disk": self.here.disk(state)}
        self.domains = {name: Domain(name) for name in POLICIES}
        self.flying: list[Request] = []
        self.urgent: list[Request] = []
        self.passed: Counter[tuple[str, str]] = Counter()
        self.awake = True

    def woken(self, crawler: Any) -> None:
        self.awake = True

    def teardown(self) -> None:
        try:
            self.everything_comes_out()
        finally:
            self.patch.undo()
            self.folder.cleanup()

    # What the queues hold ------------------------------------------------------------------------
    def queued(self, name: str, domain: str) -> bool:
        return (name, domain) in self.first or any(self.waiting.get((name, domain), {}).values())

    def left(self, name: str) -> list[str]:
        return [
            *(one for (where, _), one in self.first.items() if where == name),
            *(
                one
                for (where, _), levels in self.waiting.items()
                if where == name
                for level in levels.values()
                for one in level
            ),
        ]

    def take(self, name: str, domain: str) -> str:
        """Take out what must be next of a domain."""
        if (name, domain) in self.first:
            return self.first.pop((name, domain))
        levels = self.waiting[name, domain]
        priority = max(level for level, ones in levels.items() if ones)
        return levels[priority].pop(0 if self.order == "fifo" else -1)

    # What happens --------------------------------------------------------------------------------
    @rule(domain=domains, name=names, priority=st.integers(-1, 1), count=st.integers(1, 4))
    def push(self, domain: str, name: str, priority: int, count: int) -> None:
        for _ in range(count):
            self.pushed += 1
            url = f"{domain}/{priority}/{self.pushed}"
            self.here.fill(self.queues[name], url, priority=priority)
            self.waiting.setdefault((name, domain), {}).setdefault(priority, []).append(url)
        self.awake = True

    @rule(name=names)
    def pop(self, name: str) -> None:
        self.comes_out(name)

    def comes_out(self, name: str) -> bool:
        here = self.here
        ready = [one for one in POLICIES if self.queued(name, one) and here.may_go(one)]
        urgent = [one for one in self.urgent if here.may_go(one.meta[metakeys.DOMAIN])]
        request = self.queues[name].pop()
        if request is None:
            assert not ready, f"nothing came although {ready} may go"
            assert not urgent or name == "disk"
            return False
        domain = request.meta[metakeys.DOMAIN]
        self.domains[domain].start(here.now)
        self.flying.append(request)
        if request in self.urgent:
            self.urgent.remove(request)
            return True
        assert domain in ready
        assert not self.domains[domain].held
        if metakeys.ROBOTS in request.meta:
            assert (name, domain) not in self.first
            self.domains[domain].held = True
            self.first[name, domain] = self.take(name, domain)
        else:
            expected = self.take(name, domain)
            assert place(request) == expected
            self.came[expected] += 1
        self.no_domain_starves(name, domain, ready)
        return True

    def no_domain_starves(self, name: str, went: str, ready: list[str]) -> None:
        for domain in POLICIES:
            if domain in ready and domain != went:
                self.passed[name, domain] += 1
                assert self.passed[name, domain] < len(POLICIES), f"{domain} starves"
            else:
                self.passed[name, domain] = 0

    @rule()
    def turn_of_the_engine(self) -> None:
        """Take out whatever may go, from memory first, as the scheduler does."""
        while self.comes_out("memory") or self.comes_out("disk"):
            pass
        self.awake = False

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), how=answers)
    def finish(self, data: Any, how: str) -> None:
        self.end(data.draw(st.integers(0, len(self.flying) - 1)), how)

    def end(self, number: int, how: str = "rules") -> None:
        here = self.here
        request = self.flying.pop(number)
        domain = request.meta[metakeys.DOMAIN]
        self.domains[domain].in_flight -= 1
        origin = request.meta.get(metakeys.ROBOTS)
        if origin is None:
            here.done(request)
            return
        if how == "redirect":
            self.urgent.append(here.moved(request, f"{B}/rules", self.queues["memory"]))
            self.awake = True
            return
        waits = self.domains[request.meta[metakeys.HOLDS]]
        waits.held = False
        if how == "refused":
            here.done(request, Failure(ValueError("refused")))
        elif how == "lost":
            here.moved(request, f"{B}/rules", None)
        else:
            body = b"User-agent: *\nCrawl-delay: 3\n" if how == "delay" else b""
            answer(here, request, body, status=503 if how == "error" else 200)
        waits.crawl_delay = 3.0 if how == "delay" else NONE

    @rule(domain=domains, seconds=seconds)
    def rest(self, domain: str, seconds: float) -> None:
        self.here.registry.rest(self.here.registry.get(domain), seconds, "cause")
        one = self.domains[domain]
        one.rest_until = max(one.rest_until, self.here.now + seconds)

    @rule(domain=domains, healthy=st.booleans())
    def outcome(self, domain: str, healthy: bool) -> None:
        state = self.here.registry.get(domain)
        if healthy:
            self.here.registry.succeeded(state)
            self.domains[domain].succeed(self.here.now)
        else:
            self.here.registry.failed(state)
            self.domains[domain].fail(self.here.now)

    @rule(seconds=seconds)
    def time_passes(self, seconds: float) -> None:
        self.here.now += seconds
        if self.here.due is not None and self.here.due <= self.here.now:
            self.here.due = None
            self.awake = True

    @rule()
    def stop_and_go_on(self) -> None:
        """End the crawl once nothing is in flight; the job directory goes on in another."""
        while self.flying:
            self.end(0)
        drained = sorted(place(one) for one in self.queues["memory"].drain())
        assert drained == sorted(self.left("memory"))
        self.came.update(drained)
        for (name, domain), url in self.first.items():
            if name == "disk":  # it is put back behind those of its priority
                priority = int(url.split("/")[1])
                self.waiting[name, domain].setdefault(priority, []).append(url)
        self.first.clear()
        self.waiting = {key: levels for key, levels in self.waiting.items() if key[0] == "disk"}
        state = json.loads(json.dumps(self.queues["disk"].close()))
        assert set(state) == {
            domain for (_, domain), levels in self.waiting.items() if any(levels.values())
        }
        self.begin(state)

    def everything_comes_out(self) -> None:
        """Run until all is done: nothing is lost, nothing comes twice, and it ends."""
        for _ in range(20 * (self.pushed + 10)):
            if not (self.flying or self.urgent or self.left("memory") or self.left("disk")):
                break
            self.turn_of_the_engine()
            self.nothing_is_slept_past()
            if self.flying:
                while self.flying:
                    self.end(0)
            elif self.here.due is not None:
                self.here.sleep()
        assert all(count == 1 for count in self.came.values())
        assert len(self.came) == self.pushed

    # What is always true -------------------------------------------------------------------------
    @invariant()
    def the_length_is_exact(self) -> None:
        urgent = len(self.urgent)
        assert len(self.queues["memory"]) == len(self.left("memory")) + urgent
        assert len(self.queues["disk"]) == len(self.left("disk"))
        for name, queue in self.queues.items():
            robots = {one.meta[metakeys.DOMAIN] for one in self.urgent if name == "memory"}
            for domain in POLICIES:
                assert (domain in queue) == (self.queued(name, domain) or domain in robots)

    @invariant()
    def nothing_is_slept_past(self) -> None:
        """While the engine sleeps nothing may go, and it is woken before anything may."""
        if self.awake:
            return
        here = self.here
        waiting = {
            domain for name in self.queues for domain in POLICIES if self.queued(name, domain)
        }
        waiting -= here.politeness.held
        for domain in waiting | {one.meta[metakeys.DOMAIN] for one in self.urgent}:
            state = here.registry.get(domain)
            if not state.is_full:
                assert state.ready_at > here.now, f"{domain} may go, and nobody asks"
                assert here.due is not None, f"nobody is woken for {domain}"
                assert here.due <= state.ready_at, f"woken too late for {domain}"


class LifoCrawl(Crawl):
    order = "lifo"


@pytest.mark.parametrize("crawl", [Crawl, LifoCrawl])
def test_any_order_of_events(crawl):
    """Nothing is lost, handed out twice or early, starved, out of order, or slept past."""
    run_state_machine_as_test(
        crawl,
        settings=hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None),
    )
