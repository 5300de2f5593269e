"""Queued activities, real worker against real embedded server: the same stops as local ones, the same fences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proctor.errors import WorkflowFailed
from running.worlds import World, is_alive, pid_from, world


async def _run(here: World, name: str, *arguments: Any, **options: Any) -> Any:
    handle = await here.client.start_workflow(
        "queued", [name, list(arguments), options], task_queue="q", workflow_id="wf"
    )
    return await handle.result()


async def _kinds(here: World) -> list[str]:
    return [event["event_type"] for event in await here.client.history("wf")]


@pytest.mark.parametrize("profile", ["supervised", "ordinary"])
async def test_a_queued_activity_runs_in_a_child_and_its_result_reaches_the_workflow(profile: str) -> None:
    async with world() as here:
        here.start_worker(queued_activities=1, profile=profile)

        assert await _run(here, "echo", "x") == "x"
        assert (await _kinds(here))[2:] == [
            "ActivityScheduled",
            "ActivityStarted",
            "ActivityCompleted",
            "WorkflowCompleted",
        ]


async def test_a_stuck_handler_is_killed_at_its_timeout_and_another_attempt_follows(tmp_path: Path) -> None:
    async with world() as here:
        here.start_worker(queued_activities=1)
        policy = {"max_attempts": 2, "backoff_seconds": [0]}

        told = await _run(here, "stuck_at_first", f"{tmp_path}/mark", start_to_close_timeout=3, retry_policy=policy)

        assert told["attempt"] == 2
        assert not is_alive(int((tmp_path / "mark").read_text()))
        kinds = await _kinds(here)
        assert kinds.count("ActivityRetryScheduled") == 1
        assert kinds.count("ActivityCompleted") == 1


async def test_a_failing_handler_fails_the_run_with_its_reason() -> None:
    async with world() as here:
        here.start_worker(queued_activities=1)

        with pytest.raises(WorkflowFailed, match="no such page"):
            await _run(here, "break")

        assert (await _kinds(here))[-2:] == ["ActivityFailed", "WorkflowFailed"]


async def test_a_run_closed_by_force_stops_its_handler_and_nothing_is_published(pipe: Path) -> None:
    async with world() as here:
        here.start_worker(queued_activities=1)
        handle = await here.client.start_workflow(
            "queued", ["block", [str(pipe)], {}], task_queue="q", workflow_id="wf"
        )
        pid = await pid_from(pipe)

        await here.client.cancel("wf", "enough")
        await here.wait_for("attempt_ended")

        assert not is_alive(pid)
        with pytest.raises(WorkflowFailed):
            await handle.result()
        assert "ActivityCompleted" not in await _kinds(here)


@pytest.mark.parametrize("policy", ["try_cancel", "wait_cancellation_completed"])
async def test_a_cancelled_run_stops_its_blocking_handler_with_a_receipt(pipe: Path, policy: str) -> None:
    async with world() as here:
        here.start_worker(queued_activities=1)
        handle = await here.client.start_workflow(
            "queued", ["block", [str(pipe)], {"cancellation_policy": policy}], task_queue="q", workflow_id="wf"
        )
        pid = await pid_from(pipe)

        await here.client.request_cancellation("wf")
        with pytest.raises(WorkflowFailed) as caught:
            await handle.result()

        await here.wait_for("attempt_ended")
        assert caught.value.status == "cancelled"
        assert not is_alive(pid)
        assert (await _kinds(here)).count("ActivityCancelled") == 1
        if policy == "wait_cancellation_completed":
            kinds = await _kinds(here)
            acknowledged = kinds.index("ActivityCancellationAcknowledged")
            assert acknowledged < kinds.index("CooperativeCancellationDelivered")
