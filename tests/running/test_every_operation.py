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
from proctor.transport.retrying import TRIES
from running.scripted_children import Behaviour, beats, hangs, raises, returns
from running.situations import ENVELOPE, UNREAD
from running.test_groups import Both
from running.whole_world import (
    Fault,
    Late,
    answered_late,
    duplicated,
    lost_after_commit,
    lost_before_commit,
    malformed,
    story,
)

RETRY = {"max_attempts": 6, "backoff_seconds": [1, 0, 0, 0, 0], "non_retryable_error_types": []}
OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": 30, "schedule_to_close_timeout": 120, "heartbeat_timeout": 6, "retry_policy": RETRY,
}  # fmt: skip

FAULTS: dict[str, Fault | Late] = {
    "lost before commit": lost_before_commit,
    "lost after commit": lost_after_commit,
    "duplicated": duplicated,
    "slow request": Late(4.5),
    "slow answer": answered_late(4.5),
    "request beyond every lease": Late(25),
    "request beyond every deadline": Late(125),
    "answer beyond every lease": answered_late(25),
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


async def run_work(operation: str, faults: Iterable[Fault | Late], profile: str = "supervised") -> list[dict[str, Any]]:
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
async def test_an_attempt_is_recovered_once_whatever_becomes_of_that(autojump_clock: MockClock, fault: str) -> None:
    async with story(Work, *work()) as told:
        told.network.faults["outcome"] += [lost_before_commit] * TRIES
        told.network.faults["recover"].append(FAULTS[fault])
        assert (await told.run())["status"] == "completed"
        recovered = [event["payload"] for event in await told.check() if event["payload"].get("local_recovery")]

    assert told.network.faults["recover"] == []
    assert len({payload["activity_attempt_id"] for payload in recovered}) == len(recovered) >= 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_task_that_failed_is_done_again_whatever_becomes_of_the_report(
    autojump_clock: MockClock, fault: str
) -> None:
    tries: list[int] = []

    @workflow.defn(name="fragile")
    class Fragile:
        async def run(self, ctx: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                raise SystemExit("as code that is broken does, until it is repaired")
            return await ctx.local_activity("act", [], **OPTIONS)

    async with story(Fragile, *work()) as told:
        told.network.faults["fail"].append(FAULTS[fault])
        assert (await told.run())["status"] == "completed"
        await told.check()

    assert told.network.faults["fail"] == []


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_list_is_admitted_once_whatever_becomes_of_that(autojump_clock: MockClock, fault: str) -> None:
    async with story(Both, *[returns("done")] * 6, slots=2) as told:
        told.network.faults["checkpoint_group"].append(FAULTS[fault])
        assert (await told.run())["status"] == "completed"
        kinds = [event["event_type"] for event in await told.check()]

    assert told.network.faults["checkpoint_group"] == []
    assert (kinds.count("ActivityScheduled"), kinds.count("TimerScheduled")) == (2, 1)


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


def is_unread(operation: str, path: tuple[str, ...]) -> bool:
    answer = operation if len(path) == 1 else f"{path[0]} of {operation}"
    return path[-1] in UNREAD.get(answer, ENVELOPE) | ENVELOPE


@pytest.mark.parametrize("operation", DURING_WORK)
async def test_an_answer_that_is_malformed_in_any_one_field_does_no_harm(
    autojump_clock: MockClock, operation: str
) -> None:
    fields = await fields_of(operation)
    unread = [path for path in fields if is_unread(operation, path)]
    read = [path for path in fields if path not in unread]
    assert len(read) >= 3

    for paths in (*([path] for path in read), unread):
        async with story(Work, *work()) as told:
            told.network.faults[operation] += [malformed(paths, {"malformed": [True]})]
            described = await told.run()
            await told.check()
        assert described["status"] in ("completed", "failed"), (paths, described)
    assert described["status"] == "completed"
    assert len(told.children.jobs) == 3
