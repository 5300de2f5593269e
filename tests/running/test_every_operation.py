"""Each operation of the protocol under each trouble of a network: the run ends as it should, once.

Handlers may run more than once; history gets exactly one end of each call and of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import workflow
from running.scripted_children import Behaviour, beats, hangs, raises, returns
from running.whole_world import Fault, delayed, duplicated, lost_after_commit, lost_before_commit, malformed, story

RETRY = {"max_attempts": 6, "backoff_seconds": [1, 0, 0, 0, 0], "non_retryable_error_types": []}
OPTIONS: dict[str, Any] = {"start_to_close_timeout": 30, "heartbeat_timeout": 6, "retry_policy": RETRY}

FAULTS: dict[str, Fault] = {
    "lost before commit": lost_before_commit,
    "lost after commit": lost_after_commit,
    "duplicated": duplicated,
    "slow request": delayed(4.5, before=True),
    "slow answer": delayed(4.5, before=False),
    "request beyond every lease": delayed(25, before=True),
    "answer beyond every lease": delayed(25, before=False),
}
DURING_WORK = ("poll", "history", "checkpoint", "prepare", "control", "heartbeat", "outcome", "complete")


@workflow.defn(name="work")
class Work:
    """A checkpointed value, a call that fails once, a slow call with heartbeats."""

    async def run(self, ctx: Any) -> Any:
        seed = await ctx.side_effect(lambda: "seed")
        first = await ctx.local_activity("act", [seed], **OPTIONS)
        second = await ctx.local_activity("act", [first], **OPTIONS)
        return [seed, first, second]


@workflow.defn(name="endless")
class Endless:
    async def run(self, ctx: Any) -> Any:
        return await ctx.local_activity("act", [], start_to_close_timeout=300, heartbeat_timeout=None)


def work() -> list[Behaviour]:
    """More attempts than the honest three, for those that must be done again."""
    slow = beats({"n": 1}, {"n": 2}, every=2, then=returns("done", after=1))
    return [raises("OSError", after=0.5), *[slow] * 12]


async def run_work(operation: str, faults: Iterable[Fault], profile: str = "supervised") -> list[dict[str, Any]]:
    async with story(Work, *work(), profile=profile) as told:
        told.network.faults[operation] += list(faults)
        described = await told.run()
        assert described["status"] == "completed", described
        left = told.network.faults[operation]
        assert left == [], f"{operation} was called too seldom for this test"
        return await told.check()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", DURING_WORK)
async def test_one_spoilt_exchange_costs_at_most_another_attempt(
    autojump_clock: MockClock, operation: str, fault: str
) -> None:
    await run_work(operation, [FAULTS[fault]])


@pytest.mark.parametrize("operation", ["checkpoint", "prepare", "control", "heartbeat", "outcome", "complete"])
async def test_answers_that_are_lost_again_and_again_cost_at_most_another_attempt(
    autojump_clock: MockClock, operation: str
) -> None:
    await run_work(operation, [lost_after_commit] * 3)  # every try of one call


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", ["poll", "claim_heartbeat", "complete"])
async def test_the_ordinary_profile_stands_the_same_troubles(
    autojump_clock: MockClock, operation: str, fault: str
) -> None:
    await run_work(operation, [FAULTS[fault]], profile="ordinary")


@pytest.mark.parametrize("fault", [name for name in FAULTS if "beyond" not in name])
@pytest.mark.parametrize("operation", ["control", "acknowledge", "claim_heartbeat", "history", "deliver", "complete"])
async def test_a_cancellation_ends_the_run_once_whatever_is_lost_on_its_way(
    autojump_clock: MockClock, operation: str, fault: str
) -> None:
    async with story(Endless, hangs(), hangs(), hangs()) as told:

        async def cancel() -> None:
            await told.children.started.wait()
            await trio.sleep(1)
            told.network.faults[operation].append(FAULTS[fault])
            await told.wire.cancel_cooperatively(cleanup_timeout_seconds=60)

        described = await told.run(meanwhile=cancel)
        history = await told.check()

    assert described["status"] == "cancelled"
    receipts = [event for event in history if event["event_type"] == "ActivityCancellationAcknowledged"]
    assert len(receipts) <= 1


async def fields_of(operation: str) -> list[tuple[str, ...]]:
    async with story(Work, *work()) as told:
        await told.run()
        bodies = [body for name, status, body in told.network.seen if name == operation and status == 200]
    found: set[tuple[str, ...]] = set()
    for body in bodies:
        found.update((key,) for key in body)
        task = body.get("task")
        found.update(("task", key) for key in task or {})
    return sorted(found)


@pytest.mark.parametrize("operation", DURING_WORK)
async def test_an_answer_that_is_malformed_in_any_one_field_does_no_harm(
    autojump_clock: MockClock, operation: str
) -> None:
    fields = await fields_of(operation)
    assert len(fields) >= 5

    for path in fields:
        async with story(Work, *work()) as told:
            told.network.faults[operation] += [malformed(path, {"malformed": [True]})]
            described = await told.run()
            await told.check()
        assert described["status"] in ("completed", "failed"), (path, described)
