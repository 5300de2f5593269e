"""How an attempt ends without a result: retry or final failure, timed out or lost (prepared-local.md §2.6, §2.8, §6).

One place decides, so that an outcome report, a recovery and an elapsed total budget cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.activities import activity_fields, retry_policy_snapshot
from proctor.server.rules.book import RunBook
from proctor.server.rules.rows import Attempt, Event, Execution, Task
from proctor.server.rules.runs import wake

TIMEOUT_EXCEPTION = r"Workflow\V2\Exceptions\ActivityTimeoutException"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why an attempt ends: `reason` is the retry reason; `facts` are the payload fields of a failure."""

    reason: str
    timeout_kind: str | None = None
    retryable: bool = True
    facts: dict[str, Any] = field(default_factory=dict)


def timeout_ending(execution: Execution, kind: str) -> Ending:
    """Describe the ending of an attempt whose deadline of this kind has passed; the total one is final."""
    seconds = {
        "schedule_to_close": execution.schedule_to_close_timeout,
        "start_to_close": execution.start_to_close_timeout,
        "heartbeat": execution.heartbeat_timeout,
    }[kind]
    text = f"{execution.activity_type} exceeded its {kind} timeout"
    message = text + (f" of {seconds} s" if seconds is not None else " (the cleanup deadline)")
    return Ending(
        reason="timeout",
        timeout_kind=kind,
        retryable=kind != "schedule_to_close",
        facts={
            "message": message,
            "exception_class": TIMEOUT_EXCEPTION,
            "failure_category": "timeout",
            "timeout_kind": kind,
        },
    )


def end_attempt(
    book: RunBook,
    task: Task,
    execution: Execution,
    attempt: Attempt,
    ending: Ending,
    *,
    status: str,
    extra: dict[str, Any],
) -> tuple[Event, Attempt, list[str]]:
    """Record the end of a running attempt and give the event, the attempt and the ids of created tasks.

    With attempts left and a retryable ending the hosting task is completed and one new task becomes available when
    the retry is due; otherwise the call has failed for good and the claim goes on.
    """
    ended = msgspec.structs.replace(attempt, status=status)
    if ending.retryable and attempt.attempt_number < execution.max_attempts:
        return _schedule_retry(book, task, execution, ended, ending, extra)
    timed_out = ending.timeout_kind is not None
    closed = msgspec.structs.replace(
        execution,
        status="timed_out" if timed_out else "failed",
        closed_event_sequence=book.run.last_event + 1,
    )
    event = book.record(
        "ActivityTimedOut" if timed_out else "ActivityFailed",
        {
            **activity_fields(closed, ended, task_id=task.task_id),
            "failure_id": book.new_id(),
            **ending.facts,
            **extra,
        },
        task_id=task.task_id,
    )
    book.put(closed)
    book.put(ended)
    return event, ended, []


def _schedule_retry(
    book: RunBook, task: Task, execution: Execution, ended: Attempt, ending: Ending, extra: dict[str, Any]
) -> tuple[Event, Attempt, list[str]]:
    gap = ended.attempt_number - 1
    pause = execution.backoff_seconds[gap] if gap < len(execution.backoff_seconds) else 0
    due = book.now + timedelta(seconds=pause)
    waiting = msgspec.structs.replace(execution, status="pending", retry_available_at=due)
    # A retry that would start after the total time is over is still scheduled; its task comes at the total deadline
    # instead, and finds the call timed out. What arrived during the claim must not wait for the retry either.
    total = execution.schedule_to_close_deadline_at
    wanted = due if total is None else min(due, total)
    if book.run.wake_pending:
        wanted = book.now
    book.put(msgspec.structs.replace(task, status="completed"))
    book.update_run(status="waiting", wake_pending=False)
    retry_task = wake(
        book,
        available_at=wanted,
        source_kind="activity_retry",
        source_id=execution.execution_id,
    )
    if retry_task is None:
        raise ValueError(f"run {book.run.run_id} holds a second leased task")
    event = book.record(
        "ActivityRetryScheduled",
        {
            **activity_fields(waiting, ended, task_id=task.task_id),
            "retry_task_id": retry_task.task_id,
            "retry_of_task_id": task.task_id,
            "retry_available_at": format_instant(due),
            "retry_backoff_seconds": pause,
            "retry_after_attempt_id": ended.attempt_id,
            "retry_after_attempt": ended.attempt_number,
            "retry_reason": ending.reason,
            "max_attempts": execution.max_attempts,
            "retry_policy": retry_policy_snapshot(execution),
            "timeout_kind": ending.timeout_kind,
            **ending.facts,
            **extra,
        },
        task_id=task.task_id,
    )
    book.put(waiting)
    book.put(ended)
    return event, ended, [retry_task.task_id]


def time_out_pending(book: RunBook, execution: Execution, *, task_id: str | None) -> Event:
    """Record the final timeout of a call that waits for a retry and whose total time is over."""
    ending = timeout_ending(execution, "schedule_to_close")
    closed = msgspec.structs.replace(
        execution,
        status="timed_out",
        retry_available_at=None,
        closed_event_sequence=book.run.last_event + 1,
    )
    event = book.record(
        "ActivityTimedOut",
        {
            **activity_fields(closed, book.attempt_of(execution), task_id=task_id),
            "failure_id": book.new_id(),
            "deadline_at": format_instant(execution.schedule_to_close_deadline_at or book.now),
            **ending.facts,
        },
        task_id=task_id,
    )
    book.put(closed)
    return event


def time_out_elapsed(book: RunBook) -> None:
    """Time out every pending call whose total time is over; done whenever a task of the run is handed out."""
    for execution in book.open_executions():
        deadline = execution.schedule_to_close_deadline_at
        if execution.status == "pending" and deadline is not None and deadline <= book.now:
            time_out_pending(book, execution, task_id=None)
