"""Remote activity tasks: none are scheduled here, but workers poll for them and must be answered (worker.md §3.1)."""

from __future__ import annotations

from proctor.core.instants import format_instant
from proctor.server.operations.calls import Call
from proctor.server.operations.workflow_tasks import polling_worker
from proctor.server.rules.refusal import Answer
from proctor.server.transaction import Transaction


def poll(tx: Transaction, call: Call) -> Answer:
    """Check who polls and say that there is nothing to do."""
    registration = polling_worker(tx, call, str(call.body["worker_id"]), str(call.body["task_queue"]))
    status = "empty" if registration.activity_types else "no_activity_capability"
    return Answer({"task": None, "poll_status": status, "server_time": format_instant(tx.now)})
