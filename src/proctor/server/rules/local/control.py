"""control and heartbeat: may the handler go on, and how long does its authority last (prepared-local.md §2.4, §2.5).

Control renews the hosting lease and the attempt lease together and moves no business deadline. Heartbeat moves the
heartbeat deadline and renews no lease. Both tell the original owner of a cancelled attempt to stop, even after
another worker took the task over.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.activities import activity_fields, fence
from proctor.server.rules.book import RunBook
from proctor.server.rules.local.claims import (
    check_claim,
    check_registration,
    check_run_open,
    cleanup_body,
    passed_deadline,
)
from proctor.server.rules.refusal import Answer, Refusal, conflict
from proctor.server.rules.rows import Attempt, Execution, Registration, Task
from proctor.server.rules.runs import instant_or_none, lease_until
from proctor.server.rules.tasks import HISTORY_START_TOKEN

PROGRESS_LIMIT = 65_536


def control(
    book: RunBook,
    task: Task,
    execution: Execution,
    attempt: Attempt,
    registration: Registration | None,
    *,
    renew_lease: bool,
) -> Answer:
    """Answer whether the attempt may go on; with `renew_lease` both leases start anew from now."""
    stop = _stop(book, task, execution, attempt, registration)
    if stop is not None:
        return stop
    if renew_lease:
        until = lease_until(book)
        task = msgspec.structs.replace(task, lease_expires_at=until)
        attempt = msgspec.structs.replace(attempt, lease_expires_at=until)
        book.put(task)
        book.put(attempt)
    return Answer(_body(book, task, execution, attempt) | {"renewed": renew_lease})


def heartbeat(
    book: RunBook,
    task: Task,
    execution: Execution,
    attempt: Attempt,
    registration: Registration | None,
    *,
    progress: dict[str, Any],
) -> Answer:
    """Record application progress and move the heartbeat deadline."""
    stop = _stop(book, task, execution, attempt, registration)
    if stop is not None:
        return stop
    if execution.heartbeat_timeout is not None:
        deadline = book.now + timedelta(seconds=execution.heartbeat_timeout)
        if execution.cleanup is not None:
            deadline = min(deadline, execution.cleanup.cleanup_deadline_at)
        attempt = msgspec.structs.replace(attempt, heartbeat_deadline_at=deadline)
        book.put(attempt)
    event = book.record(
        "ActivityHeartbeatRecorded",
        {
            **activity_fields(execution, attempt, task_id=attempt.task_id),
            "heartbeat_at": format_instant(book.now),
            "lease_expires_at": format_instant(attempt.lease_expires_at),
            "progress": progress,
        },
        task_id=attempt.task_id,
    )
    return Answer(
        _body(book, task, execution, attempt) | {"heartbeat_recorded": True, "heartbeat_history_event_id": event.id}
    )


def read_progress(body: dict[str, Any]) -> dict[str, Any]:
    """Read the `progress` of a heartbeat: empty, or `details` that are an object or a list of bounded size."""
    progress = body.get("progress", {})
    if not isinstance(progress, dict) or set(progress) - {"details"}:
        raise _invalid('progress must be {} or {"details": {...}}')
    details = progress.get("details")
    if details is None:
        return {}
    if not isinstance(details, dict | list):
        raise _invalid("progress.details must be an object or a list")
    if len(msgspec.json.encode(details)) > PROGRESS_LIMIT:
        raise _invalid(f"progress.details is larger than {PROGRESS_LIMIT} bytes")
    return {"details": details}


def _invalid(text: str) -> Refusal:
    return conflict("invalid_local_activity_heartbeat", text, heartbeat_recorded=False)


def cancellation_stop(book: RunBook, execution: Execution, attempt: Attempt) -> dict[str, Any] | None:
    """Give the cancellation part of a stop when a request concerns this attempt, fencing the attempt first.

    A cleanup attempt is concerned only by the cleanup deadline; an attempt that was resolved before is not.
    """
    cancellation = book.run.cancellation
    if cancellation is None or attempt.attempt_id != execution.current_attempt_id:
        return None
    expired = cancellation.cleanup_deadline_at <= book.now
    if attempt.status == "running" and (execution.cleanup is None or expired):
        execution = fence(book, execution, task_id=attempt.task_id)
    elif attempt.status != "cancelled" or execution.cancelled_event_id is None:
        return None
    return {
        "reason": "cancellation_deadline_expired" if expired else "cancellation_requested",
        "cancellation_request": cancellation.context,
        "fenced": True,
        "cancellation_history_event_id": execution.cancelled_event_id,
    }


def _stop(
    book: RunBook,
    task: Task,
    execution: Execution,
    attempt: Attempt,
    registration: Registration | None,
) -> Answer | None:
    inactive = {"active": False, "stop_required": True, "renewed": False}
    cancelled = cancellation_stop(book, execution, attempt)
    if cancelled is not None:
        execution = book.executions[execution.execution_id]
        return Answer(_body(book, task, execution, attempt) | inactive | cancelled)
    try:
        check_registration(attempt.registration_token, registration)
        if attempt.status != "running" and not book.run.is_closed:
            raise conflict("stale_activity_attempt", f"attempt {attempt.attempt_id} is {attempt.status}")
        check_run_open(book)
        check_claim(book, task, attempt.lease_owner, attempt.epoch)
        if attempt.lease_expires_at <= book.now:
            raise conflict("local_activity_lease_expired", "the lease of this attempt has ended")
        kind = passed_deadline(execution, attempt, book.now)
        if kind is not None:
            raise conflict("local_activity_deadline_expired", f"the {kind} deadline has passed", timeout_kind=kind)
    except Refusal as refusal:
        task = book.tasks[task.task_id]
        body = _body(book, task, execution, attempt)
        return Answer(
            body | inactive | refusal.extra | {"reason": refusal.reason, "error": refusal.text},
            status=refusal.status,
        )
    return None


def _body(book: RunBook, task: Task, execution: Execution, attempt: Attempt) -> dict[str, Any]:
    return {
        "active": True,
        "renewed": False,
        "stop_required": False,
        "reason": None,
        "activity_execution_id": execution.execution_id,
        "activity_attempt_id": attempt.attempt_id,
        "workflow_task_id": attempt.task_id,
        "workflow_task_attempt": attempt.epoch,
        "lease_owner": attempt.lease_owner,
        "lease_expires_at": format_instant(attempt.lease_expires_at),
        "workflow_lease_expires_at": instant_or_none(task.lease_expires_at),
        "start_to_close_deadline_at": instant_or_none(attempt.start_to_close_deadline_at),
        "schedule_to_close_deadline_at": instant_or_none(execution.schedule_to_close_deadline_at),
        "heartbeat_deadline_at": instant_or_none(attempt.heartbeat_deadline_at),
        "cancellation_cleanup": cleanup_body(execution.cleanup),
        "heartbeat_recorded": False,
        "heartbeat_history_event_id": None,
        "run_status": book.run.status,
        "task_status": task.status,
        "server_time": format_instant(book.now),
        "history_refresh_page_token": HISTORY_START_TOKEN,
    }
