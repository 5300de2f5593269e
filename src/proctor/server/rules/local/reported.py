"""Recording a local call that the worker has already finished: one event series, in one go (events.md §5).

The worker tells durations, not instants; they are counted back from the completion, and never to before the run began.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.activities import activity_fields, retry_policy_snapshot
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.reported import Ended, ReportedAttempt, ReportedCall, ended_facts
from proctor.server.rules.local.timeouts import TIMEOUT_EXCEPTION
from proctor.server.rules.rows import Attempt, Execution, Task

_EVENTS = {
    "completed": "ActivityCompleted",
    "failed": "ActivityFailed",
    "timed_out": "ActivityTimedOut",
    "cancelled": "ActivityCancelled",
}


def record_reported_call(book: RunBook, task: Task, call: ReportedCall) -> None:
    """Record a reported call under the next durable number; it is closed from the start."""
    execution = _execution(book, call)
    book.record("ActivityScheduled", activity_fields(execution, None, task_id=task.task_id), task_id=task.task_id)
    starts = _starts(book, call.attempts)
    attempt: Attempt | None = None
    for reported, start in zip(call.attempts, starts, strict=True):
        attempt = _attempt(book, task, execution, reported)
        execution = msgspec.structs.replace(
            execution,
            status="running",
            attempt_count=attempt.attempt_number,
            current_attempt_id=attempt.attempt_id,
        )
        book.record("ActivityStarted", activity_fields(execution, attempt, task_id=task.task_id), task_id=task.task_id)
        _record_beats(book, task, execution, attempt, reported, start)
        attempt = msgspec.structs.replace(attempt, status=reported.ended.outcome)
        if reported.retry_reason is not None:
            execution = msgspec.structs.replace(execution, status="pending")
            _record_retry(book, task, execution, attempt, reported)
    execution = msgspec.structs.replace(
        execution, status=call.ended.outcome, closed_event_sequence=book.run.last_event + 1
    )
    book.record(
        _EVENTS[call.ended.outcome],
        {
            **activity_fields(execution, attempt, task_id=task.task_id, result=call.result),
            **_ending(book, call),
        },
        task_id=task.task_id,
    )
    book.put(execution)


def _execution(book: RunBook, call: ReportedCall) -> Execution:
    return Execution(
        execution_id=book.new_id(),
        run_id=book.run.run_id,
        sequence=book.take_sequence(),
        activity_type=call.activity_type,
        arguments=call.arguments,
        queue=book.run.task_queue,
        max_attempts=call.policy.max_attempts,
        backoff_seconds=call.policy.backoff_seconds,
        non_retryable_error_types=call.policy.non_retryable_error_types,
        start_to_close_timeout=call.timeouts.start_to_close,
        schedule_to_close_timeout=call.timeouts.schedule_to_close,
        heartbeat_timeout=call.timeouts.heartbeat,
    )


def _starts(book: RunBook, attempts: Sequence[ReportedAttempt]) -> list[datetime]:
    """Give the instant at which each attempt began, counted back from now."""
    longest = (book.now - book.run.started_at) / timedelta(milliseconds=1)
    back, starts = 0, []
    for attempt in reversed(attempts):
        back += attempt.duration_ms + attempt.backoff_seconds * 1_000
        # The pause of this entry lies behind the attempt, so both lie between its start and what was counted before.
        starts.append(book.now - timedelta(milliseconds=min(back, longest)))
    return starts[::-1]


def _attempt(book: RunBook, task: Task, execution: Execution, reported: ReportedAttempt) -> Attempt:
    if task.claim is None or task.lease_expires_at is None:
        raise ValueError(f"task {task.task_id} is not leased")
    return Attempt(
        attempt_id=book.new_id(),
        execution_id=execution.execution_id,
        run_id=book.run.run_id,
        worker_attempt_id=reported.attempt_id,
        attempt_number=execution.attempt_count + 1,
        task_id=task.task_id,
        epoch=task.attempt,
        lease_owner=task.claim.worker_id,
        registration_token=task.claim.registration_token,
        started_event_sequence=book.run.last_event + 1,
        started_task={},
        lease_expires_at=task.lease_expires_at,
    )


def _record_beats(
    book: RunBook, task: Task, execution: Execution, attempt: Attempt, reported: ReportedAttempt, start: datetime
) -> None:
    whole = (book.now - start) / timedelta(milliseconds=1)
    for beat in reported.heartbeats:
        at = start + timedelta(milliseconds=min(beat.elapsed_ms, whole))
        book.record(
            "ActivityHeartbeatRecorded",
            {
                **activity_fields(execution, attempt, task_id=task.task_id),
                "heartbeat_at": format_instant(at),
                "progress": {} if beat.details is None else {"details": beat.details},
            },
            task_id=task.task_id,
        )


def _record_retry(book: RunBook, task: Task, execution: Execution, attempt: Attempt, reported: ReportedAttempt) -> None:
    book.record(
        "ActivityRetryScheduled",
        {
            **activity_fields(execution, attempt, task_id=task.task_id),
            "retry_backoff_seconds": reported.backoff_seconds,
            "retry_after_attempt_id": attempt.attempt_id,
            "retry_after_attempt": attempt.attempt_number,
            "retry_reason": reported.retry_reason,
            "max_attempts": execution.max_attempts,
            "retry_policy": retry_policy_snapshot(execution),
            **ended_facts(reported.ended),
        },
        task_id=task.task_id,
    )


def _ending(book: RunBook, call: ReportedCall) -> dict[str, Any]:
    ended: Ended = call.ended
    if ended.outcome == "completed":
        return {"result": call.result, "payload_codec": "avro"}
    if ended.outcome == "cancelled":
        return {**ended_facts(ended), "cancelled_at": format_instant(book.now), "failure_category": "cancelled"}
    facts: dict[str, Any] = {"failure_id": book.new_id(), **ended_facts(ended)}
    if ended.outcome == "timed_out":
        return facts | {"exception_class": TIMEOUT_EXCEPTION, "failure_category": "timeout"}
    return facts | {
        "exception_class": ended.exception_type,
        "failure_category": "activity",
        "exception": {
            "class": ended.exception_type,
            "type": ended.exception_type,
            "message": ended.message,
            "non_retryable": ended.non_retryable,
        },
    }
