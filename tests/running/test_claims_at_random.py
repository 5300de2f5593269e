"""Claims of groups and of queued activities in a world where anything happens: never two publications, never one after
lost authority, never an acknowledgement before the proof. Over ten thousand drawn steps, counted.

Unlike `core_worker.test_claim_model`, which holds the pure cores alone against a model, this drives the real shells.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from proctor.core.attempt import Abandon
from proctor.running.claim import ClaimCalls
from proctor.running.local_call import LocalCallRun
from running.claims_truth import Truth
from running.claims_world import Child, World, task_of

STEPS = 120
EXAMPLES = 140
KINDS = {
    "goes on": 16, "well": 10, "slowly": 8, "time": 2, "beat": 5, "finish": 8, "raise": 3, "prove": 8,
    "fail to prove": 2, "lease": 10, "lease queued": 5, "lost before": 1, "lost after": 2, "duplicate": 2, "late": 2,
    "lie": 2, "overload": 2, "cancel": 2, "replace": 1, "drain": 1, "stop now": 1,
}  # fmt: skip
"""What can happen, and how often."""

Step = tuple[str, int, float]
PLAY = st.tuples(
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["try_cancel", "wait_cancellation_completed"]),
    st.sampled_from([-3600.0, 0.0, 86400.0]),
    st.integers(0, 2**32 - 1),
)


def steps_of(seed: int) -> Iterator[Step]:
    """Draw steps. Not one by one by Hypothesis, whose long lists repeat themselves: then next to nothing happens."""
    draw = random.Random(seed)
    kinds, weights = list(KINDS), list(KINDS.values())
    for _ in range(STEPS):
        kind = draw.choices(kinds, weights)[0]
        yield kind, draw.randrange(24), draw.choice([0.01, 0.2, 0.75, 2.5, 6.0, 11.0])


REACHED = (
    "ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityRetryScheduled", "Acknowledged", "Fenced",
    "KeepCapacity", "several members on one claim", "recovered", "lies", "delivered try_cancel",
    "delivered wait_cancellation_completed", "ended authority_spent", "ended protocol_breach",
    "ended sibling_abandoned", "ended shutdown", "ended claim_released", "told stale_worker_registration",
    "queued completed complete", "queued completed fail", "queued released cancellation_acknowledged",
    "queued abandoned stop_unconfirmed", "queued abandoned authority_spent",
)  # fmt: skip
"""Ends that a walk must come to, else it proves nothing about them."""


CHILDS = ("beat", "finish", "raise", "prove", "fail to prove")
NETWORKS = ("lost before", "lost after", "duplicate", "late", "lie", "overload")


async def happen(world: World, step: Step) -> None:
    kind, number, seconds = step
    worker = world.workers[number % len(world.workers)]
    # What is to happen to something waits until there is something; else most steps would be none.
    if kind in CHILDS and not world.alive:
        world.lease(worker)
        for _ in range(3):
            await world.all_goes_well()
    if kind in NETWORKS and not world.flights:
        await world.time_passes(0.8)
    child = world.alive[number % len(world.alive)] if world.alive else None
    flight = world.flights[number % len(world.flights)] if world.flights else None
    if kind == "goes on":
        for _ in range(1 + number % 5):
            await world.all_goes_well()
            await world.time_passes(min(seconds, 0.75))
    elif kind == "well":
        await world.all_goes_well()
    elif kind == "slowly":
        await world.time_passes(min(seconds, 2.5))
        await world.all_goes_well()
    elif kind == "time":
        await world.time_passes(seconds)
    elif kind == "lease":
        world.lease(worker)
    elif kind == "lease queued":
        world.lease_queued(worker, renewable=number % 3 > 0, cooperative=number % 4 > 0)
    elif kind == "cancel" and number % 2 == 0:
        world.truth.cancelled = True
    elif kind == "replace":
        world.replace_registration(worker)
    elif kind == "drain":
        world.drain(worker)
    elif kind == "stop now":
        world.stop_now(worker)
    elif child is not None and kind in CHILDS:
        _happen_to(child, kind, for_good=number % 2 > 0)
    elif flight is not None and kind in NETWORKS:
        if kind in ("lost before", "lost after"):
            world.lose(flight, served=kind == "lost after")
        elif kind == "lie":
            world.lie(flight, number)
        elif kind == "overload":
            world.overload(flight)
        else:
            world.serve(flight)
            if kind == "duplicate":
                world.serve(flight)
            else:
                await world.time_passes(seconds)
            flight.over.set()
    await world.settle()
    world.referee.look()


def _happen_to(child: Child, kind: str, *, for_good: bool) -> None:
    if kind == "beat":
        child.beat()
    elif kind == "prove":
        child.prove()
    elif kind == "fail to prove":
        child.fail_to_prove()
    else:
        child.finish(raises=kind == "raise", for_good=for_good)


async def play(drawn: tuple[int, int, str, float, int], clock: MockClock, seen: Counter[str]) -> None:
    """Play the steps, in another world whenever everything has ended in one."""
    members, slots, policy, wall, seed = drawn
    left = list(steps_of(seed))
    while left:
        async with trio.open_nursery() as nursery:
            world = World(Truth(members, policy, wall), slots, nursery, clock)
            world.lease(world.workers[0])
            try:
                while left and not world.over and not world.referee.broken:
                    seen["steps"] += 1
                    await happen(world, left.pop())
            finally:
                with trio.CancelScope(shield=True):
                    await world.end()
            world.referee.promise(not nursery.child_tasks, "a worker that was stopped does not end")
            nursery.cancel_scope.cancel()
        assert not world.referee.broken, world.referee.broken
        seen.update(world.referee.seen)
        seen["worlds"] += 1


def test_ten_thousand_steps_keep_every_promise_and_reach_every_end() -> None:
    seen: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(PLAY)
    def plays(drawn: Any) -> None:
        clock = MockClock()
        trio.run(play, drawn, clock, seen, clock=clock)

    plays()

    assert seen["steps"] >= 10_000
    missing = [end for end in REACHED if not seen[end]]
    assert not missing, f"these steps prove nothing about {missing}: {seen}"


async def test_a_call_that_is_given_up_before_it_begins_asks_for_nothing(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        world = World(Truth(1, "try_cancel"), 1, nursery, autojump_clock)
        worker = world.workers[0]
        claim = world.truth.lease(worker.name)
        calls = ClaimCalls(worker.wire, claim)
        (call,) = await world.open_calls(calls, claim)
        run = LocalCallRun(worker.around, calls, task_of(claim), call, await worker.around.place())
        run.give_up("sibling_abandoned")

        with trio.fail_after(1):
            assert await run.run() == Abandon("sibling_abandoned")
        assert not world.referee.seen["prepare"]
        assert worker.around.places.borrowed_tokens == 0
