"""The life of a run: started, woken, closed by a command, a person or a deadline (control-plane.md §3, §9).

Closing revokes everything at once: the open task, its lease, and the running attempts. What a worker may still report
afterwards is decided where it reports it, from the rows left behind here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import Closing, RunBook
from proctor.server.rules.rows import Parent, Run, RunRetry, Task, Update
from proctor.server.rules.steps import ChildCall
from proctor.server.rules.sticky import inherited

_BUCKETS = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "failed",
    "terminated": "failed",
}


def instant_or_none(instant: datetime | None) -> str | None:
    """Give the wire text of an instant that may be absent."""
    return None if instant is None else format_instant(instant)


def status_bucket(status: str) -> str:
    """Give the coarse status that `list` filters on: running, completed or failed."""
    return _BUCKETS.get(status, "running")


def new_run(
    *,
    namespace: str,
    workflow_id: str,
    run_id: str,
    run_number: int,
    workflow_type: str,
    task_queue: str,
    now: datetime,
    execution_timeout_seconds: int | None,
    run_timeout_seconds: int | None,
    memo: dict[str, Any] | None = None,
    search_attributes: dict[str, Any] | None = None,
    parent: Parent | None = None,
    retry: RunRetry | None = None,
    compatibility: str | None = None,
) -> Run:
    """Make the row of a run that starts now; the deadlines are fixed here and never move."""

    def after(seconds: int | None) -> datetime | None:
        return None if seconds is None else now + timedelta(seconds=seconds)

    return Run(
        namespace=namespace,
        workflow_id=workflow_id,
        run_id=run_id,
        run_number=run_number,
        workflow_type=workflow_type,
        task_queue=task_queue,
        execution_timeout_seconds=execution_timeout_seconds,
        run_timeout_seconds=run_timeout_seconds,
        execution_deadline_at=after(execution_timeout_seconds),
        run_deadline_at=after(run_timeout_seconds),
        memo=memo,
        search_attributes=search_attributes,
        parent=parent,
        retry=retry,
        compatibility=compatibility,
        started_at=now,
        last_progress_at=now,
    )


def begin(book: RunBook) -> None:
    """Record the two opening events of a run that the control plane starts, and make its first workflow task."""
    command_id = book.new_id()
    book.record("StartAccepted", {**_identity(book.run, command_id), "outcome": "started_new"}, command_id=command_id)
    record_started(book, command_id=command_id)
    wake(book)


def record_started(book: RunBook, *, command_id: str | None = None, link: Mapping[str, Any] | None = None) -> None:
    """Record `WorkflowStarted`; `link` says which run this one comes from."""
    run = book.run
    parent = {}
    if run.parent is not None:
        parent = {
            "parent_workflow_instance_id": run.parent.workflow_id,
            "parent_workflow_run_id": run.parent.run_id,
            "parent_sequence": run.parent.sequence,
            "child_call_id": run.parent.child_call_id,
            "workflow_link_id": run.parent.workflow_link_id,
            "parent_close_policy": run.parent.parent_close_policy,
        }
    book.record(
        "WorkflowStarted",
        {
            **_identity(run, command_id),
            **timeout_fields(run),
            **parent,
            **({} if run.retry is None else {"retry_policy": retry_snapshot(run.retry)}),
            **({} if run.compatibility is None else {"compatibility": run.compatibility}),
            **(link or {}),
        },
        command_id=command_id,
    )


def _identity(run: Run, command_id: str | None) -> dict[str, Any]:
    return {
        "workflow_command_id": command_id,
        "workflow_instance_id": run.workflow_id,
        "workflow_run_id": run.run_id,
        "workflow_class": run.workflow_type,
        "workflow_type": run.workflow_type,
        "business_key": None,
        "visibility_labels": None,
        "memo": run.memo,
        "search_attributes": run.search_attributes,
    }


def timeout_fields(run: Run) -> dict[str, Any]:
    """Give the timeouts of a run and the instants they end at, as events carry them."""
    return {
        "execution_timeout_seconds": run.execution_timeout_seconds,
        "run_timeout_seconds": run.run_timeout_seconds,
        "execution_deadline_at": instant_or_none(run.execution_deadline_at),
        "run_deadline_at": instant_or_none(run.run_deadline_at),
    }


def retry_snapshot(retry: RunRetry) -> dict[str, Any]:
    """Give the retry policy of a child as events carry it."""
    return {
        "snapshot_version": 1,
        "max_attempts": retry.max_attempts,
        "backoff_seconds": list(retry.backoff_seconds),
        "non_retryable_error_types": list(retry.non_retryable_error_types),
    }


def wake(
    book: RunBook,
    *,
    available_at: datetime | None = None,
    source_kind: str | None = None,
    source_id: str | None = None,
    command_id: str | None = None,
) -> Task | None:
    """Make sure the run gets a workflow task, and return it.

    A ready task is used (and brought forward when due later); a leased one, or one for an update, is left alone and
    the run remembers that it needs another task afterwards, in which case None is returned.
    """
    due = available_at or book.now
    task = book.open_task()
    if task is None:
        task = Task(
            task_id=book.new_id(),
            namespace=book.run.namespace,
            run_id=book.run.run_id,
            workflow_id=book.run.workflow_id,
            workflow_type=book.run.workflow_type,
            task_queue=book.run.task_queue,
            available_at=due,
            affinity=inherited(book.run, book.now),
            resume_source_kind=source_kind,
            resume_source_id=source_id,
            workflow_command_id=command_id,
        )
        book.update_run(wake_pending=False)
    elif task.status == "leased" or task.update_id is not None:
        book.update_run(wake_pending=True)
        return None
    else:
        task = msgspec.structs.replace(
            task,
            available_at=min(task.available_at, due),
            resume_source_kind=source_kind or task.resume_source_kind,
            resume_source_id=source_id or task.resume_source_id,
            workflow_command_id=command_id or task.workflow_command_id,
        )
    book.put(task)
    return task


def wake_for_update(book: RunBook, update: Update) -> Task | None:
    """Give an accepted update a task of its own, unless another task must come first; None then.

    A task that waits for an instant does not come first: what it waits for is looked at again when the update is done.
    """
    task = book.open_task()
    if task is not None and (
        task.status == "leased" or task.update_id is not None or task.available_at <= book.now or book.run.task_failures
    ):
        return None
    if task is None:
        task = wake(book)
    if task is not None:
        task = msgspec.structs.replace(
            task,
            available_at=book.now,
            update_id=update.update_id,
            resume_source_kind="update",
            resume_source_id=update.update_id,
            workflow_command_id=update.command_id,
        )
        book.put(task)
    return task


def close(
    book: RunBook,
    *,
    status: str,
    reason: str,
    event_type: str,
    payload: Mapping[str, Any],
    task_id: str | None = None,
    command_id: str | None = None,
) -> None:
    """Record the terminal event and revoke the open task, running attempts, pending calls and open steps.

    What it means for a parent and for children is in `relatives`, and is done when the book is kept.
    """
    for execution in book.open_executions():
        attempt = book.attempt_of(execution)
        if attempt is not None and attempt.status == "running":
            book.put(msgspec.structs.replace(attempt, status="cancelled"))
        book.put(msgspec.structs.replace(execution, status="cancelled", retry_available_at=None))
    children = tuple(step for step in book.open_steps() if isinstance(step, ChildCall))
    for step in book.open_steps():
        book.put(msgspec.structs.replace(step, status="cancelled"))
    for update in book.open_updates():
        lost = {"message": "the run ended before the update was applied", "exception_type": "UpdateNotApplied"}
        book.put(msgspec.structs.replace(update, status="failed", closed_at=book.now, failure=lost))
    task = book.open_task()
    if task is not None:
        ended = "completed" if task.task_id == task_id else "cancelled"
        book.put(msgspec.structs.replace(task, status=ended))
    event = book.record(event_type, payload, task_id=task_id, command_id=command_id)
    book.closing = Closing(event, payload, children)
    book.update_run(status=status, closed_reason=reason, closed_at=book.now, wake_pending=False, affinity=None)


def close_as_cancelled(book: RunBook, *, task_id: str | None) -> None:
    """End a run on its cooperative cancellation request: after cleanup, or at the cleanup deadline."""
    cancellation = book.run.cancellation
    if cancellation is None:
        raise ValueError(f"run {book.run.run_id} has no cancellation request to end on")
    close(
        book,
        status="cancelled",
        reason="cancelled",
        event_type="WorkflowCancelled",
        payload={
            "workflow_command_id": cancellation.request_id,
            "reason": cancellation.reason,
            "cancellation": cancellation.context,
        },
        task_id=task_id,
        command_id=cancellation.request_id,
    )


def lease_until(book: RunBook) -> datetime:
    """Give the end of a workflow-task lease granted or renewed now (cancellation.md §3)."""
    settings = book.settings
    cancellation = book.run.cancellation
    if cancellation is None:
        return book.now + timedelta(seconds=settings.lease_seconds)
    seconds = min(settings.lease_seconds, settings.cleanup_lease_seconds)
    return min(book.now + timedelta(seconds=seconds), cancellation.cleanup_deadline_at)
