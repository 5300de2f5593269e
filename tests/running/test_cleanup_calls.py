"""Local calls inside cancellation cleanup, against the real server rules: admitted with their proof, bounded by it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from proctor import workflow
from running.scripted_children import hangs, raises, returns
from running.whole_world import Story, lost_after_commit, story

RETRY = {"max_attempts": 3, "backoff_seconds": [1, 1], "non_retryable_error_types": []}


@workflow.defn(name="cleaning")
class Cleaning:
    async def run(self, ctx: Any) -> Any:
        try:
            return await ctx.local_activity("act", ["work"], start_to_close_timeout=300)
        except workflow.WorkflowCancelled:
            with ctx.cancellation_shield():
                await ctx.local_activity("act", ["clean"], start_to_close_timeout=30, retry_policy=RETRY)
            raise


@workflow.defn(name="unshielded")
class Unshielded:
    async def run(self, ctx: Any) -> Any:
        try:
            return await ctx.local_activity("act", ["work"], start_to_close_timeout=300)
        except workflow.WorkflowCancelled:
            return await ctx.local_activity("act", ["clean"], start_to_close_timeout=30)


async def run_cancelled(told: Story, *, cleanup_seconds: int = 60) -> list[dict[str, Any]]:
    async def cancel() -> None:
        await told.children.started.wait()
        await trio.sleep(1)
        await told.wire.cancel_cooperatively(cleanup_timeout_seconds=cleanup_seconds)

    described = await told.run(meanwhile=cancel)
    assert described["status"] == "cancelled"
    return await told.check()


def events(history: list[dict[str, Any]], kind: str, sequence: int) -> list[dict[str, Any]]:
    return [one for one in history if one["event_type"] == kind and one["payload"].get("sequence") == sequence]


async def test_a_cleanup_call_runs_after_the_delivery_and_carries_its_proof(autojump_clock: MockClock) -> None:
    async with story(Cleaning, hangs(), returns("clean")) as told:
        history = await run_cancelled(told)

    (started,) = events(history, "ActivityStarted", 2)
    (delivered,) = [one for one in history if one["event_type"] == "CooperativeCancellationDelivered"]
    recorded = started["payload"]["local_preparation"]["cancellation_cleanup"]
    assert recorded["delivery_history_event_id"] == delivered["id"]
    assert events(history, "ActivityCompleted", 2)
    kinds = [one["event_type"] for one in history]
    assert kinds.index("ActivityCancellationAcknowledged") < kinds.index("CooperativeCancellationDelivered")


async def test_a_cleanup_call_is_retried_on_a_new_claim_with_the_same_proof(autojump_clock: MockClock) -> None:
    async with story(Cleaning, hangs(), raises("OSError"), returns("clean")) as told:
        history = await run_cancelled(told)

    assert len(events(history, "ActivityStarted", 2)) == 2
    assert events(history, "ActivityCompleted", 2)


async def test_a_cleanup_call_is_stopped_at_the_cleanup_deadline_and_publishes_nothing(
    autojump_clock: MockClock,
) -> None:
    async with story(Cleaning, hangs(), hangs()) as told:
        history = await run_cancelled(told, cleanup_seconds=8)

    assert told.children.jobs[1].limits.authority <= told.children.ended_at[1] + 0.1
    assert told.children.ended_at[1] - told.children.ended_at[0] < 9
    assert events(history, "ActivityCompleted", 2) == []


@pytest.mark.parametrize("operation", ["prepare", "control", "outcome", "deliver", "acknowledge"])
async def test_what_is_lost_on_the_way_through_cleanup_is_made_good(autojump_clock: MockClock, operation: str) -> None:
    async with story(Cleaning, hangs(), returns("clean"), returns("clean")) as told:
        told.network.faults[operation] += [lost_after_commit]
        history = await run_cancelled(told)

    assert events(history, "ActivityCompleted", 2)


async def test_without_a_shield_nothing_runs_after_the_delivery(autojump_clock: MockClock) -> None:
    async with story(Unshielded, hangs(), returns("clean")) as told:
        history = await run_cancelled(told, cleanup_seconds=20)

    assert len(told.children.jobs) == 1
    assert [name for name, _, _ in told.network.seen].count("prepare") == 1, "the worker does not even ask"
    assert events(history, "ActivityScheduled", 2) == []
