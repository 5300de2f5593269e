"""How a queued activity ends: completed, failed, timed out, cancelled; or its attempt does, and is tried again.

One place decides between a retry and a final failure, for reports, deadlines and lost leases alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from proctor.core.external import Payload
from proctor.core.instants import format_instant
from proctor.server.rules.book import RunBook
from proctor.server.rules.local.timeouts import TIMEOUT_EXCEPTION
from proctor.server.rules.queued.schedule import event_fields, policy_snapshot
from proctor.server.rules.resolving import resolved
from proctor.server.rules.rows import StopReceipt
from proctor.server.rules.runs import wake
from proctor.server.rules.steps import ActivityAttempt, ActivityCall

_LOST = "ActivityLeaseLost"


def complete(book: RunBook, call: ActivityCall, result: Payload | None) -> list[str]:
    """Record the result, and give the ids of the workflow tasks this made."""
    call = _closed(book, call, "completed", attempt="completed")
    payload = {**event_fields(call, result=result), "result": result, "payload_codec": call.payload_codec}
    event = book.record("ActivityCompleted", payload, task_id=call.attempt.task_id)
    return resolved(book, call, event, source_kind="activity")


def fail(book: RunBook, call: ActivityCall, failure: Mapping[str, Any]) -> list[str]:
    """End the attempt that reported a failure: another one follows if the policy allows."""
    kind = failure.get("type") or failure.get("class") or "RuntimeException"
    final = failure.get("non_retryable") is True or kind in call.non_retryable_error_types
    facts = {
        "message": failure.get("message") or "",
        "exception_type": kind,
        "exception_class": failure.get("class") or kind,
        "code": failure.get("code"),
        "failure_category": "activity",
        "non_retryable": final,
        "exception": {name: value for name, value in failure.items() if value is not None},
    }
    facts = {name: value for name, value in facts.items() if value is not None}
    return _end_attempt(book, call, facts, attempt="failed", reason="failure", final=final)


def expire(book: RunBook, call: ActivityCall) -> None:
    """Do what the gravest passed deadline of a call asks for."""
    passed = [kind for kind, instant in call.deadlines() if instant <= book.now]
    if not passed:
        return
    kind = passed[0]
    if kind == "lease":
        text = f"the worker that ran attempt {call.attempt.number} of {call.activity_type} did not renew its lease"
        facts = {"message": text, "exception_type": _LOST, "exception_class": _LOST, "failure_category": "activity"}
        _end_attempt(book, call, facts, attempt="lost", reason="lease_expired", final=False)
        return
    seconds = getattr(call, f"{kind}_timeout")
    facts = {
        "message": f"{call.activity_type} exceeded its {kind} timeout of {seconds} s",
        "exception_class": TIMEOUT_EXCEPTION,
        "failure_category": "timeout",
        "timeout_kind": kind,
    }
    final = kind in ("schedule_to_close", "schedule_to_start")
    _end_attempt(book, call, facts, attempt="timed_out", reason="timeout", final=final)


def cancel(book: RunBook, call: ActivityCall, *, task_id: str | None) -> ActivityCall:
    """Record `ActivityCancelled`, once: whatever the worker reports from here on is refused."""
    request_id = book.run.cancellation.request_id if book.run.cancellation is not None else None
    started = call.status == "running"
    call = _closed(book, call, "cancelled", attempt="cancelled")
    payload = {
        **event_fields(call, attempted=started),
        "workflow_command_id": request_id,
        "cancelled_at": format_instant(book.now),
    }
    event = book.record("ActivityCancelled", payload, task_id=task_id, command_id=request_id)
    call = msgspec.structs.replace(call, cancelled_event_id=event.id)
    book.put(call)
    return call


def awaits_stop(call: ActivityCall) -> bool:
    """Say whether a delivery must wait for the stop receipt of an attempt that was really started."""
    attempt = call.attempt
    return (
        call.cancellation_policy == "wait_cancellation_completed"
        and call.status == "cancelled"
        and attempt.lease_owner is not None
        and attempt.stop is None
    )


def acknowledge(book: RunBook, call: ActivityCall, request_id: str) -> tuple[StopReceipt, bool]:
    """Record that the handler of a cancelled attempt is gone; give the receipt, and whether it is an earlier one.

    The caller has checked that the run has this cancellation request and that the call was cancelled by it.
    """
    attempt, request = call.attempt, book.run.cancellation
    if attempt.stop is not None:
        return attempt.stop, True
    if request is None:
        raise ValueError(f"run {book.run.run_id} has no cancellation request")
    late = request.cleanup_deadline_at <= book.now
    event = book.record(
        "ActivityCancellationAcknowledged",
        {
            "sequence": call.sequence,
            "activity_execution_id": call.step_id,
            "activity_attempt_id": attempt.attempt_id,
            "lease_owner": attempt.lease_owner,
            "cancellation_history_event_id": call.cancelled_event_id,
            "request_id": request_id,
            "root_request_id": request.context["root_request_id"],
            "cleanup_deadline_at": format_instant(request.cleanup_deadline_at),
            "callback_state": "stopped",
            "evidence_source": "activity_worker",
            "acknowledged_at": format_instant(book.now),
            "received_after_deadline": late,
        },
        task_id=attempt.task_id,
        command_id=request_id,
    )
    receipt = StopReceipt(
        event_id=event.id, request_id=request_id, acknowledged_at=book.now, received_after_deadline=late
    )
    book.put(msgspec.structs.replace(call, attempt=msgspec.structs.replace(attempt, stop=receipt)))
    awaited = request.awaiting
    if awaited is not None and call.sequence in awaited.awaited:
        wake(book, source_kind="activity_cancellation_acknowledged", source_id=event.id)
    return receipt, False


def release(book: RunBook, call: ActivityCall) -> None:
    """Offer an attempt again that no worker can have begun: its answer found nobody. It does not count."""
    if call.status == "running":
        text = "the worker left before it could be told of the attempt"
        _retry(book, call, {"message": text}, attempt="lost", reason="lease_released", counts=False)


def _end_attempt(
    book: RunBook, call: ActivityCall, facts: Mapping[str, Any], *, attempt: str, reason: str, final: bool
) -> list[str]:
    started = call.status == "running"
    if not final and call.attempt.number < call.max_attempts:
        _retry(book, call, facts, attempt=attempt, reason=reason)
        return []
    timed_out = attempt == "timed_out"
    call = _closed(book, call, "timed_out" if timed_out else "failed", attempt=attempt)
    payload = {**event_fields(call, attempted=started), "failure_id": book.new_id(), **facts}
    kind = "ActivityTimedOut" if timed_out else "ActivityFailed"
    event = book.record(kind, payload, task_id=call.attempt.task_id)
    return resolved(book, call, event, source_kind="activity")


def _retry(
    book: RunBook, call: ActivityCall, facts: Mapping[str, Any], *, attempt: str, reason: str, counts: bool = True
) -> None:
    ended = msgspec.structs.replace(call.attempt, status=attempt)
    # A list shorter than the retries goes on with its last pause (replay.md §7).
    gap = min(ended.number, len(call.backoff_seconds)) - 1
    pause = call.backoff_seconds[gap] if counts and gap >= 0 else 0
    due = book.now + timedelta(seconds=pause)
    following = ActivityAttempt(
        attempt_id=book.new_id(), task_id=book.new_id(), number=ended.number + int(counts), available_at=due
    )
    payload = {
        **event_fields(msgspec.structs.replace(call, status="pending", attempt=ended)),
        "retry_task_id": following.task_id,
        "retry_of_task_id": ended.task_id,
        "retry_available_at": format_instant(due),
        "retry_backoff_seconds": pause,
        "retry_after_attempt_id": ended.attempt_id,
        "retry_after_attempt": ended.number,
        "retry_reason": reason,
        "max_attempts": call.max_attempts,
        "retry_policy": policy_snapshot(call),
        **facts,
    }
    book.put(msgspec.structs.replace(call, status="pending", attempt=following))
    book.record("ActivityRetryScheduled", payload, task_id=ended.task_id)


def _closed(book: RunBook, call: ActivityCall, status: str, *, attempt: str) -> ActivityCall:
    call = msgspec.structs.replace(
        call,
        status=status,
        closed_event_sequence=book.run.last_event + 1,
        attempt=msgspec.structs.replace(call.attempt, status=attempt),
    )
    book.put(call)
    return call
