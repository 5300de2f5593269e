"""The official SDK's client reads workers, task queues and exported histories of the embedded server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import trio
from durable_workflow import history_bundle_verify as official

from proctor import workflow
from proctor.core.replay import Commands
from proctor.core.replay.offline import task_of_document, verify
from proctor.server import ServerOptions, serve

PROGRAM = Path(__file__).with_name("sdk_readouts.py")


@workflow.defn(name="short")
class Short:
    """The workflow of the program, as we write it."""

    async def run(self, ctx: Any, name: str) -> str:
        """Record one thing and end."""
        await ctx.side_effect(lambda: 1)
        return f"yes {name}"


async def test_its_client_reads_what_operators_read() -> None:
    seen = await _run()

    name, namespace, stats, pollers, leases = seen["waiting"]
    assert (name, namespace, pollers, leases) == ("read/outs", "default", [], [])
    assert stats["approximate_backlog_count"] == 1
    assert stats["oldest_ready_task"]["workflow_id"] == "short"
    assert (seen["idle"]["status"], seen["idle"]["ready_count"]) == ("no_active_workers", 1)
    assert seen["result"] == "yes Ada"
    listed, tasks, queries = seen["listed"]
    assert (listed, tasks["status"], tasks["active_worker_count"]) == ("read/outs", "accepting", 1)
    assert (tasks["configured_slot_count"], tasks["available_slot_count"]) == (7, 7)
    assert (queries["status"], queries["approximate_pending_count"]) == ("accepting", 0)
    assert seen["workers"] == ["default", 300, ["reader/one"]]
    assert seen["stale"] == 0
    assert seen["worker"] == ["read/outs", "active", 7]
    assert seen["removed"]["outcome"] == "deregistered"
    assert seen["after"] == 0
    report = official.verify_bundle(seen["bundle"])
    assert (report["status"], report["findings"]) == ("ok", [])
    # What the official worker did, exported, replays with code of our own.
    decision = verify(workflow.definition_of(Short), task_of_document(seen["bundle"], workflow_type="short"))
    assert isinstance(decision, Commands)
    assert [command["type"] for command in decision.commands] == ["complete_workflow"]


async def _run() -> dict[str, Any]:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve, ServerOptions(workflow_task_lease_seconds=90))
        with trio.fail_after(110):
            done = await trio.run_process(
                [sys.executable, str(PROGRAM), url], capture_stdout=True, capture_stderr=True, check=False
            )
        nursery.cancel_scope.cancel()
    assert done.returncode == 0, done.stderr.decode()
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen
