"""Local activity calls as history shows them: the snapshots inside events, and the cancellation fence.

The field names are those of events.md §5 and §8. Nothing here decides an outcome; `rules.local` does.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proctor.core.external import Payload, is_small
from proctor.core.instants import format_instant
from proctor.server.rules.book import RunBook
from proctor.server.rules.rows import Attempt, Execution, Task

# A snapshot repeats the arguments in every event of a call; past this size only the first event carries them.
_REPEATED_ARGUMENTS_LIMIT = 16_384


def fence(book: RunBook, execution: Execution, *, task_id: str | None) -> Execution:
    """Record `ActivityCancelled` for an open call, once: from here on nothing about it can be published."""
    if not execution.is_open:
        return execution
    request_id = book.run.cancellation.request_id if book.run.cancellation is not None else None
    attempt = book.attempt_of(execution)
    if attempt is not None and attempt.status == "running":
        attempt = msgspec.structs.replace(attempt, status="cancelled")
        book.put(attempt)
    cancelled = msgspec.structs.replace(execution, status="cancelled", retry_available_at=None)
    event = book.record(
        "ActivityCancelled",
        {
            **activity_fields(cancelled, attempt, task_id=attempt.task_id if attempt else task_id),
            "workflow_command_id": request_id,
            "cancelled_at": format_instant(book.now),
        },
        task_id=task_id,
        command_id=request_id,
    )
    cancelled = msgspec.structs.replace(
        cancelled,
        closed_event_sequence=event.sequence,
        cancelled_event_id=event.id,
        cancelled_event_sequence=event.sequence,
    )
    book.put(cancelled)
    return cancelled


def activity_fields(
    execution: Execution, attempt: Attempt | None, *, task_id: str | None, result: Payload | None = None
) -> dict[str, Any]:
    """Give the payload fields that every event of a local activity carries (events.md §5, §8)."""
    policy = retry_policy_snapshot(execution)
    activity: dict[str, Any] = {
        "id": execution.execution_id,
        "idempotency_key": execution.execution_id,
        "sequence": execution.sequence,
        "type": execution.activity_type,
        "class": execution.activity_type,
        "execution_mode": "local",
        "local_activity": True,
        "status": execution.status,
        "payload_codec": execution.payload_codec,
        "attempt_count": execution.attempt_count,
        "retry_policy": policy,
        "queue": execution.queue,
    }
    arguments = execution.arguments
    if attempt is None or is_small(arguments, _REPEATED_ARGUMENTS_LIMIT):
        activity["arguments"] = arguments
    if execution.cancellation_policy is not None:
        activity["cancellation_policy"] = execution.cancellation_policy
    fields: dict[str, Any] = {
        "execution_mode": "local",
        "local_activity": True,
        "activity_execution_id": execution.execution_id,
        "activity_class": execution.activity_type,
        "activity_type": execution.activity_type,
        "sequence": execution.sequence,
        "workflow_task_id": task_id,
        **execution.group,
    }
    if execution.cancellation_policy is not None:
        fields["cancellation_policy"] = execution.cancellation_policy
    if attempt is not None:
        fields |= {
            "activity_attempt_id": attempt.attempt_id,
            "worker_attempt_id": attempt.worker_attempt_id,
            "attempt_number": attempt.attempt_number,
            "activity_attempt": {
                "id": attempt.attempt_id,
                "worker_attempt_id": attempt.worker_attempt_id,
                "activity_execution_id": execution.execution_id,
                "task_id": attempt.task_id,
                "attempt_number": attempt.attempt_number,
                "status": attempt.status,
                "lease_owner": attempt.lease_owner,
            },
        }
        activity["attempt_id"] = attempt.attempt_id
    if result is not None:
        activity["result"] = result
    fields["activity"] = activity
    return fields


def retry_policy_snapshot(execution: Execution) -> dict[str, Any]:
    """Give the retry policy as events carry it."""
    return {
        "snapshot_version": 1,
        "max_attempts": execution.max_attempts,
        "backoff_seconds": list(execution.backoff_seconds),
        "start_to_close_timeout": execution.start_to_close_timeout,
        "schedule_to_start_timeout": None,
        "schedule_to_close_timeout": execution.schedule_to_close_timeout,
        "heartbeat_timeout": execution.heartbeat_timeout,
        "non_retryable_error_types": list(execution.non_retryable_error_types),
    }


def task_snapshot(task: Task) -> dict[str, Any]:
    """Give the recording task as events carry it: the proof of who held which claim when."""
    claim = task.claim
    return {
        "id": task.task_id,
        "type": "workflow",
        "status": task.status,
        "lease_owner": None if claim is None else claim.worker_id,
        "attempt": task.attempt,
        "lease_expires_at": None if task.lease_expires_at is None else format_instant(task.lease_expires_at),
    }
