"""Ending leases on request: of one task, or of all that a worker holds (``proctor server --faults`` only)."""

from __future__ import annotations

from typing import Any

from proctor.server.operations.calls import Call, keep
from proctor.server.rules.fields import Fields
from proctor.server.rules.induced import end_activity_lease, end_task_lease
from proctor.server.rules.refusal import Answer, invalid, not_found
from proctor.server.transaction import Transaction


def expire_lease(tx: Transaction, call: Call) -> Answer:
    """End the lease of `task_id`, or of every workflow and activity task that `worker_id` holds.

    The answer lists them. Refuses with 404 `nothing_leased` when there is none.
    """
    fields = Fields(call.body)
    task_id, worker_id = fields.optional_text("task_id"), fields.optional_text("worker_id")
    fields.check()
    if (task_id is None) == (worker_id is None):
        raise invalid({"task_id": ["give either task_id or worker_id"]})
    tasks, activities = [], []
    if task_id is not None:
        activity = tx.activity_task(call.namespace, task_id)
        if activity is None:
            tasks.append(task_id)
        else:
            activities.append(activity[:2])
    else:
        assert worker_id is not None
        tasks += [task.task_id for task in tx.leased_by(call.namespace, worker_id)]
        activities += tx.activities_of(call.namespace, worker_id)
    ended: list[dict[str, Any]] = []
    for name in tasks:
        book = tx.book_of_task(call.namespace, name)
        if book is not None and end_task_lease(book, name):
            keep(tx, book)
            ended.append({"kind": "workflow_task", "task_id": name})
    for run_id, sequence in activities:
        run = tx.run(run_id)
        book = None if run is None else tx.book(run, sequence=sequence)
        if book is not None and end_activity_lease(book, sequence):
            keep(tx, book)
            ended.append({"kind": "activity_task", "run_id": run_id, "sequence": sequence})
    if not ended:
        raise not_found("nothing_leased", f"no lease of {task_id or worker_id!r} is running")
    return Answer({"ended": ended})
