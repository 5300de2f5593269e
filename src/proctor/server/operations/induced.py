"""Ending leases on request: of a task, a session, or all tasks of a worker (``proctor server --faults`` only)."""

from __future__ import annotations

from typing import Any

from proctor.server.operations.calls import Call, keep
from proctor.server.operations.session_leases import refreshed
from proctor.server.rules.fields import Fields
from proctor.server.rules.induced import end_activity_lease, end_task_lease, with_lease_ended
from proctor.server.rules.refusal import Answer, invalid, not_found
from proctor.server.transaction import Transaction


def expire_lease(tx: Transaction, call: Call) -> Answer:
    """End the lease of `task_id`, of `session_id`, or of every workflow and activity task that `worker_id` holds.

    The answer lists them. Refuses with 404 `nothing_leased` when there is none.
    """
    fields = Fields(call.body)
    named = {name: fields.optional_text(name) for name in ("task_id", "worker_id", "session_id")}
    given = {name: value for name, value in named.items() if value is not None}
    fields.check()
    if len(given) != 1:
        raise invalid({"task_id": ["give one of task_id, worker_id and session_id"]})
    ((kind, name),) = given.items()
    ended = _end_session(tx, call, name) if kind == "session_id" else _end_tasks(tx, call, kind, name)
    if not ended:
        raise not_found("nothing_leased", f"no lease of {name!r} is running")
    return Answer({"ended": ended})


def _end_session(tx: Transaction, call: Call, session_id: str) -> list[dict[str, Any]]:
    known = tx.worker_session(call.namespace, session_id)
    ended = None if known is None else with_lease_ended(refreshed(tx, known), tx.now)
    if ended is None:
        return []
    # Looking at it makes it expired, which is noticed by whoever waits for it.
    refreshed(tx, ended)
    return [{"kind": "worker_session", "session_id": session_id, "lease_owner": ended.lease_owner}]


def _end_tasks(tx: Transaction, call: Call, kind: str, name: str) -> list[dict[str, Any]]:
    tasks, activities = [], []
    if kind == "worker_id":
        tasks += [task.task_id for task in tx.leased_by(call.namespace, name)]
        activities += tx.activities_of(call.namespace, name)
    elif (activity := tx.activity_task(call.namespace, name)) is not None:
        activities.append(activity[:2])
    else:
        tasks.append(name)
    ended: list[dict[str, Any]] = []
    for task_id in tasks:
        book = tx.book_of_task(call.namespace, task_id)
        if book is not None and end_task_lease(book, task_id):
            keep(tx, book)
            ended.append({"kind": "workflow_task", "task_id": task_id})
    for run_id, sequence in activities:
        run = tx.run(run_id)
        book = None if run is None else tx.book(run, sequence=sequence)
        if book is not None and end_activity_lease(book, sequence):
            keep(tx, book)
            ended.append({"kind": "activity_task", "run_id": run_id, "sequence": sequence})
    return ended
