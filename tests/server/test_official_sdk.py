"""The official SDK's worker and client against a really listening server: the judge of what we send."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from machine import alone
from proctor.server import ServerOptions, serve

PROGRAM = Path(__file__).with_name("sdk_program.py")


async def run_sdk(*arguments: str, options: ServerOptions | None = None) -> dict[str, Any]:
    with alone():  # the SDK gives its own child processes 5 s to start
        return await _run_sdk(*arguments, options=options)


async def _run_sdk(*arguments: str, options: ServerOptions | None) -> dict[str, Any]:
    async with trio.open_nursery() as nursery:
        # The lease must outlive the start of the SDK's child process, on a busy machine too.
        url = await nursery.start(serve, options or ServerOptions(workflow_task_lease_seconds=90))
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


async def test_its_client_and_worker_keep_large_payloads_outside_of_history(tmp_path: Path) -> None:
    database = tmp_path / "p.db"
    # Where the SDK's child does not start in the time that the SDK gives it, the claim ends soon and another follows.
    options = ServerOptions(workflow_task_lease_seconds=20, external_threshold_bytes=1_000, database=database)
    seen = await run_sdk("large", "try_cancel", options=options)
    assert (seen["status"], seen["as_expected"]) == ("completed", True)
    with sqlite3.connect(database) as connection:
        payloads = b"".join(row[0] for row in connection.execute("SELECT payload FROM event"))
        (stored,) = connection.execute("SELECT count(*) FROM external_payload WHERE forget_at IS NULL").fetchone()
    connection.close()
    assert payloads.count(b'"external_payload"') >= 6
    assert len(payloads) < 50_000  # each of the texts alone is 20,000 bytes long, or twice that
    assert stored >= 5
