"""The official SDK's worker and client against a really listening server: the judge of what we send."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from proctor.server import ServerOptions, serve

PROGRAM = Path(__file__).with_name("sdk_program.py")


@pytest.fixture(autouse=True)
def _one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run these tests one after the other, across test processes too: each starts several Python interpreters."""
    lock = tmp_path_factory.getbasetemp().parent / "official-sdk.lock"
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


async def run_sdk(*arguments: str) -> dict[str, Any]:
    async with trio.open_nursery() as nursery:
        # The lease must outlive the start of the SDK's child process, on a busy machine too.
        url = await nursery.start(serve, ServerOptions(workflow_task_lease_seconds=90))
        with trio.fail_after(110):
            done = await trio.run_process(
                [sys.executable, str(PROGRAM), url, *arguments],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        nursery.cancel_scope.cancel()
    assert done.returncode == 0, done.stderr.decode()
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


async def test_its_prepared_worker_checkpoints_retries_and_completes() -> None:
    seen = await run_sdk("result", "try_cancel")
    assert seen["result"] == [7, "hello Ada"]
    assert seen["status"] == "completed"
    assert seen["events"] == [
        "StartAccepted",
        "WorkflowStarted",
        "SideEffectRecorded",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityRetryScheduled",
        "ActivityStarted",
        "ActivityCompleted",
        "WorkflowCompleted",
    ]


@pytest.mark.parametrize("policy", ["try_cancel", "wait_cancellation_completed"])
async def test_its_worker_stops_acknowledges_and_delivers_a_cancellation(policy: str) -> None:
    seen = await run_sdk("cancel", policy)
    assert seen["status"] == "cancelled"
    assert seen["events"] == [
        "StartAccepted",
        "WorkflowStarted",
        "ActivityScheduled",
        "ActivityStarted",
        "CooperativeCancellationRequested",
        "ActivityCancelled",
        "ActivityCancellationAcknowledged",
        "CooperativeCancellationDelivered",
        "WorkflowCancelled",
    ]
