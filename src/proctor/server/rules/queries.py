"""Query tasks: questions to workflow code, from the asker to a worker and back (worker.md §4, control-plane.md §7).

Who may be asked, what refuses a claim on a query, and what its asker is told.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from proctor.core.external import Payload
from proctor.core.instants import format_instant
from proctor.server.rules.fields import envelope
from proctor.server.rules.questions import Question
from proctor.server.rules.refusal import Refusal, conflict, not_found
from proctor.server.rules.registration import may_replay
from proctor.server.rules.rows import Registration, Run

CAPABILITY = "query_tasks"

# The one closed status whose state may still be asked for; the reference server refuses the others.
_ANSWERABLE_WHEN_CLOSED = "completed"
_REFUSED_WITH = {"rejected_unknown_query": 404, "query_not_found": 404, "invalid_query_arguments": 422}


class QueryTask(Question, frozen=True, kw_only=True):
    """One query; it is settled as completed, failed or timed_out."""

    result: Any = None
    result_payload: Payload | None = None


def check_answerable(run: Run, name: str) -> None:
    """Refuse a query for a run that ended in any other way than by completing."""
    if run.is_closed and run.status != _ANSWERABLE_WHEN_CLOSED:
        raise conflict(
            "run_not_active",
            f"the run is closed ({run.status}); only an open or a completed run answers queries",
            query_name=name,
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            run_status=run.status,
        )


def check_workers(run: Run, name: str, active: list[Registration]) -> None:
    """Refuse a query that none of the active workers could answer."""
    facts = {"query_name": name, "workflow_id": run.workflow_id, "run_id": run.run_id}
    here = [worker for worker in active if worker.task_queue == run.task_queue and CAPABILITY in worker.capabilities]
    if not here:
        raise conflict(
            "query_worker_unavailable",
            f"no active worker on queue {run.task_queue} takes query tasks; start one and ask again",
            **facts,
        )
    if not any(run.workflow_type in worker.workflow_types and may_replay(worker, run) for worker in here):
        build = "" if run.compatibility is None else f" in build {run.compatibility}"
        raise conflict(
            "query_worker_incompatible",
            f"the workers on queue {run.task_queue} that take query tasks do not have the workflow type "
            f"{run.workflow_type}{build}",
            **facts,
        )


def queue_full(run: Run, name: str, limit: int) -> Refusal:
    """Make the refusal of a query whose queue has no room."""
    return Refusal(
        429,
        "query_task_queue_full",
        f"{limit} queries already wait on queue {run.task_queue}",
        {
            "query_name": name,
            "workflow_id": run.workflow_id,
            "run_id": run.run_id,
            "retryable": True,
            "retry_after_seconds": 1,
        },
    )


def expire(task: QueryTask) -> QueryTask:
    """Close a query that nobody waits for any more; why is told by what it was before."""
    reason, text = "query_task_not_claimed", f"no worker took the query {task.name!r} in time"
    if task.status == "leased":
        reason = "query_worker_execution_timeout"
        text = f"worker {task.lease_owner} did not answer the query {task.name!r} in time"
    return msgspec.structs.replace(task, status="timed_out", failure={"status": 504, "reason": reason, "message": text})


def owned(task: QueryTask | None, query_task_id: str, owner: str, attempt: int, now: datetime) -> QueryTask:
    """Give the query when `owner` holds it in `attempt`; otherwise raise the first refusal of worker.md §4."""
    identity = {"query_task_id": query_task_id, "query_task_attempt": attempt, "outcome": "rejected"}
    if task is None:
        raise not_found("query_task_not_found", f"there is no query task {query_task_id}", **identity)
    if task.status == "timed_out" or (task.is_open and task.deadline_at <= now):
        raise conflict(
            "query_task_timed_out",
            f"the query task {query_task_id} was answered too late; nobody waits for it any more",
            timed_out_at=format_instant(task.deadline_at),
            **identity,
        )
    if task.status != "leased":
        raise conflict("query_task_not_leased", f"query task {query_task_id} is {task.status}", **identity)
    if task.lease_owner != owner:
        raise conflict(
            "lease_owner_mismatch",
            f"query task {query_task_id} is leased by another worker",
            lease_owner=task.lease_owner,
            **identity,
        )
    if task.attempt != attempt:
        raise conflict(
            "query_task_attempt_mismatch",
            f"query task {query_task_id} is in attempt {task.attempt}, not {attempt}",
            current_attempt=task.attempt,
            **identity,
        )
    return task


def complete(task: QueryTask, result: Any, result_payload: Payload | None) -> QueryTask:
    """Take the answer of the worker in."""
    return msgspec.structs.replace(task, status="completed", result=result, result_payload=result_payload)


def fail(task: QueryTask, *, reason: str, message: str, validation_errors: dict[str, Any] | None) -> QueryTask:
    """Take in why the worker has no answer."""
    failure = {"status": _REFUSED_WITH.get(reason, 409), "reason": reason, "message": message}
    if validation_errors:
        failure["errors"] = validation_errors
    return msgspec.structs.replace(task, status="failed", failure=failure)


def answer(task: QueryTask) -> dict[str, Any]:
    """Give the asker's answer of a settled query, or raise why there is none."""
    facts = {"workflow_id": task.workflow_id, "run_id": task.run_id, "query_name": task.name, "result": None}
    if task.failure is not None:
        failure = dict(task.failure)
        status, reason, text = failure.pop("status"), failure.pop("reason"), failure.pop("message")
        raise Refusal(status, reason, text, {**facts, **failure})
    return {**facts, "result": task.result, "result_envelope": envelope(task.result_payload), "reason": None}
