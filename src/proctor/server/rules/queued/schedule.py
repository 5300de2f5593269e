"""Scheduling a queued activity, and what every event of it carries (commands.md §2, events.md §5)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from proctor.core.external import Payload, is_small
from proctor.server.rules.book import RunBook
from proctor.server.rules.commands.options import RetryPolicy, Timeouts
from proctor.server.rules.rows import Task
from proctor.server.rules.sessions.shapes import SessionOptions
from proctor.server.rules.sessions.views import recorded
from proctor.server.rules.steps import ActivityAttempt, ActivityCall

_REPEATED_ARGUMENTS_LIMIT = 16_384


def schedule(book: RunBook, task: Task, facts: Mapping[str, Any]) -> ActivityCall:
    """Schedule an activity under the next durable number; its first attempt is ready at once."""
    timeouts: Timeouts = facts["timeouts"]
    policy: RetryPolicy = facts["retry_policy"]
    total = timeouts.schedule_to_close
    session: SessionOptions | None = facts["worker_session"]
    call = ActivityCall(
        step_id=book.new_id(),
        run_id=book.run.run_id,
        namespace=book.run.namespace,
        sequence=book.take_sequence(),
        opened_event_sequence=book.run.last_event + 1,
        activity_type=facts["activity_type"],
        arguments=facts["arguments"],
        queue=facts["queue"] or (session and session.queue) or book.run.task_queue,
        worker_session=session,
        max_attempts=policy.max_attempts,
        backoff_seconds=policy.backoff_seconds,
        non_retryable_error_types=policy.non_retryable_error_types,
        start_to_close_timeout=timeouts.start_to_close,
        schedule_to_start_timeout=timeouts.schedule_to_start,
        schedule_to_close_timeout=total,
        heartbeat_timeout=timeouts.heartbeat,
        cancellation_policy=facts["cancellation_policy"],
        group=facts["group"],
        schedule_to_close_deadline_at=None if total is None else book.now + timedelta(seconds=total),
        attempt=ActivityAttempt(attempt_id=book.new_id(), task_id=book.new_id(), number=1, available_at=book.now),
    )
    book.put(call)
    book.record("ActivityScheduled", event_fields(call, attempted=False), task_id=task.task_id)
    return call


def event_fields(call: ActivityCall, *, attempted: bool = True, result: Payload | None = None) -> dict[str, Any]:
    """Give the payload fields of an event; `attempted` says that it is about an attempt that a worker has begun."""
    activity: dict[str, Any] = {
        "id": call.step_id,
        "idempotency_key": call.step_id,
        "sequence": call.sequence,
        "type": call.activity_type,
        "class": call.activity_type,
        "local_activity": False,
        "status": call.status,
        "payload_codec": call.payload_codec,
        "attempt_count": call.attempt.number if attempted else call.attempt.number - 1,
        "retry_policy": policy_snapshot(call),
        "queue": call.queue,
    }
    if not attempted or is_small(call.arguments, _REPEATED_ARGUMENTS_LIMIT):
        activity["arguments"] = call.arguments
    fields: dict[str, Any] = {
        "activity_execution_id": call.step_id,
        "activity_class": call.activity_type,
        "activity_type": call.activity_type,
        "sequence": call.sequence,
        **call.group,
    }
    if call.cancellation_policy is not None:
        activity["cancellation_policy"] = fields["cancellation_policy"] = call.cancellation_policy
    if call.worker_session is not None:
        activity["worker_session"] = recorded(call.worker_session)
    if attempted:
        fields |= {"activity_attempt_id": call.attempt.attempt_id, "attempt_number": call.attempt.number}
        activity["attempt_id"] = call.attempt.attempt_id
    if result is not None:
        activity["result"] = result
    return fields | {"activity": activity}


def policy_snapshot(call: ActivityCall) -> dict[str, Any]:
    """Give the retry policy as events carry it."""
    return {
        "snapshot_version": 1,
        "max_attempts": call.max_attempts,
        "backoff_seconds": list(call.backoff_seconds),
        "start_to_close_timeout": call.start_to_close_timeout,
        "schedule_to_start_timeout": call.schedule_to_start_timeout,
        "schedule_to_close_timeout": call.schedule_to_close_timeout,
        "heartbeat_timeout": call.heartbeat_timeout,
        "non_retryable_error_types": list(call.non_retryable_error_types),
    }
