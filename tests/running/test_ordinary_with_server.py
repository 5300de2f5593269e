"""The ordinary profile with the real server, in all three versions of its protocol, and real children."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import WorkflowFailed
from running import ordinary_handlers, worker_handlers
from running.workflows import Chain
from running.worlds import World, is_alive, pid_from, world

RETRY = {"retry_policy": {"max_attempts": 2, "backoff_seconds": [0], "non_retryable_error_types": []}}


def begin(here: World, **options: Any) -> None:
    here.start_worker(profile="ordinary", activities=ordinary_handlers.ALL, **options)


async def kinds(handle: Any) -> list[str]:
    return [event["event_type"] for event in await handle.history()]


@pytest.mark.parametrize("protocol", ["1.18", "1.19", "1.20"])
async def test_attempts_heartbeats_and_results_are_recorded_with_the_completion(protocol: str, tmp_path: Path) -> None:
    async with world(protocol=protocol) as here:
        begin(here)
        handle = await here.client.start_workflow("one", ["flaky", [str(tmp_path / "mark")], RETRY], task_queue="q")

        assert await handle.result() == {"attempt": 2, "seen": {"attempt": 1}}

        recorded = await kinds(handle)
        assert [kind for kind in recorded if kind.startswith("Activity")] == [
            "ActivityScheduled", "ActivityStarted", "ActivityHeartbeatRecorded", "ActivityRetryScheduled",
            "ActivityStarted", "ActivityHeartbeatRecorded", "ActivityCompleted",
        ]  # fmt: skip
        (registered,) = [event for event in here.events if event["event"] == "registered"]
        assert "local_activities" in registered["capabilities"]
        assert "prepared_local_activities" not in registered["capabilities"]


async def test_async_handlers_run_in_the_worker_and_plain_ones_do_not() -> None:
    async with world(protocol="1.19") as here:
        begin(here)

        assert (await here.run("inline", [1, None]))["pid"] == os.getpid()


async def test_an_async_handler_is_cancelled_at_its_timeout_and_cleans_up(tmp_path: Path) -> None:
    async with world(protocol="1.19") as here:
        begin(here)
        mark = tmp_path / "mark"

        with pytest.raises(WorkflowFailed, match="start_to_close"):
            await here.run("inline_hang", str(mark), start_to_close_timeout=1)

        assert mark.read_text() == "cleaned up"
        assert here.attempts()[0]["timeout_kind"] == "start_to_close"


@pytest.mark.parametrize("name", ["inline_break"])
async def test_a_failing_async_handler_fails_the_run_with_its_reason(name: str) -> None:
    async with world(protocol="1.19") as here:
        begin(here)

        with pytest.raises(WorkflowFailed, match="no such page"):
            await here.run(name)


async def test_a_blocking_handler_is_killed_at_its_timeout_with_proof(pipe: Path) -> None:
    async with world(protocol="1.19") as here:
        begin(here)
        handle = await here.client.start_workflow(
            "one", ["hang", [str(pipe)], {"start_to_close_timeout": 1}], task_queue="q"
        )
        pid = await pid_from(pipe)

        with pytest.raises(WorkflowFailed):
            await handle.result()

        assert not is_alive(pid)
        assert here.attempts()[0]["stop"]["pid"] == pid
        assert "ActivityTimedOut" in await kinds(handle)


@pytest.mark.parametrize("protocol", ["1.18", "1.20"])
async def test_a_cancelled_run_stops_its_handler_and_records_nothing_of_it(protocol: str, pipe: Path) -> None:
    async with world(protocol=protocol) as here:
        begin(here)
        handle = await here.client.start_workflow("one", ["hang", [str(pipe)], {}], task_queue="q")
        pid = await pid_from(pipe)

        await here.client.cancel(handle.workflow_id)
        ended = await here.wait_for("attempt_ended")

        assert ended["stop"]["reason"] == "authority_lost"
        assert not is_alive(pid)
        assert not any(kind.startswith("Activity") for kind in await kinds(handle))
        assert (await kinds(handle))[-1] == "WorkflowCancelled"


async def test_side_effects_and_calls_are_one_batch_in_authored_order() -> None:
    async with world(protocol="1.19") as here:
        here.start_worker(profile="ordinary", activities=worker_handlers.ALL, workflows=[Chain])
        handle = await here.client.start_workflow("chain", [], task_queue="q")

        assert await handle.result() == ["seed", "two"]

        steps = [
            event
            for event in await handle.history()
            if event["event_type"] in ("SideEffectRecorded", "ActivityCompleted")
        ]
        assert [event["payload"]["sequence"] for event in steps] == [1, 2, 3]
        (turn,) = [event for event in here.events if event["event"] == "workflow_task"]
        assert turn["reason"] == ("record_side_effect, record_local_activity, record_local_activity, complete_workflow")


async def test_a_draining_worker_gives_the_whole_task_to_another(pipe: Path) -> None:
    async with world(protocol="1.19") as here:
        begin(here, drain_grace=0)
        handle = await here.client.start_workflow("one", ["hang", [str(pipe)], {}], task_queue="q")
        pid = await pid_from(pipe)

        assert here.worker is not None
        here.worker.drain()
        await here.stopped.wait()

        assert not is_alive(pid)
        assert not any(kind.startswith("Activity") for kind in await kinds(handle))
