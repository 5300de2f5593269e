"""Workflow tasks: leasing, the ownership check, renewal, release and the end of a claim (worker.md §2).

Every lease raises `attempt` (the epoch) by one. A claim that is released or expired leaves the task ready, never lost.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import RunBook
from proctor.server.rules.refusal import conflict, not_found
from proctor.server.rules.registration import may_replay
from proctor.server.rules.rows import Claim, Execution, Registration, Task
from proctor.server.rules.runs import lease_until, wake, wake_for_update
from proctor.server.rules.sticky import replay_mode

HISTORY_START_TOKEN = "MA=="  # noqa: S105 - base64 of "0", the documented cursor of the first event

_WAITING_TYPE = "workflowtaskwaitingforhistory"
_WAITING_MESSAGE = "workflow task waiting for scheduled history"
_FAILURE_TEXT_LIMIT = 2_000


def why_not_leasable(book: RunBook, registration: Registration, protocol_minor: int) -> str | None:
    """Say why this worker may not lease this run's task, or None when it may.

    A pinned run goes only to its build, one with memo updates or typed attributes only to workers that declare them,
    one with a cancellation request only to cooperative 1.20 workers (cancellation.md §3), one with an open prepared
    call, alone or in a group, only to workers that can recover it, one that records an explicit policy only to workers
    that honour it (prepared-local.md §7).
    """
    if not may_replay(registration, book.run):
        return "the run is pinned to another build, or holds what only workers with other capabilities replay"
    capabilities = set(registration.capabilities)
    if book.run.cancellation is not None and (protocol_minor < 20 or "cooperative_cancellation" not in capabilities):
        return "the run has a cancellation request that this worker cannot deliver"
    prepared = list(book.open_executions())
    if prepared and "prepared_local_activities" not in capabilities:
        return "the run has an open prepared local activity that this worker cannot recover"
    if any(row.group for row in prepared) and "prepared_local_activity_groups" not in capabilities:
        return "the run has an open group of local activities that this worker cannot go on with"
    if book.run.needs_policy_support and "prepared_local_activity_cancellation_policies" not in capabilities:
        return "the run records a local cancellation policy that this worker does not honour"
    return None


def lease(book: RunBook, task: Task, registration: Registration, protocol: str) -> Task:
    """Give the task to a worker: a new epoch, a new lease, and the worker's capabilities frozen into the claim."""
    leased = msgspec.structs.replace(
        task,
        status="leased",
        attempt=task.attempt + 1,
        lease_expires_at=lease_until(book),
        sticky_replay_mode=replay_mode(task, registration.worker_id, book.now),
        sticky_claimed_at=book.now,
        claim=Claim(
            worker_id=registration.worker_id,
            registration_token=registration.token,
            protocol=protocol,
            capabilities=registration.capabilities,
            epoch=task.attempt + 1,
        ),
    )
    book.put(leased)
    if (book.run.status, book.run.signals_leased) != ("running", book.run.signals):
        book.update_run(status="running", signals_leased=book.run.signals)
    return leased


def owned(book: RunBook | None, task_id: str, owner: str, epoch: int) -> Task:
    """Give the task when `owner` holds it in `epoch`; otherwise raise the first refusal of worker.md §2.6.

    An expired lease is refused and released in the same breath, which is how recovery starts.
    """
    identity = {"task_id": task_id, "workflow_task_attempt": epoch}
    task = None if book is None else book.tasks.get(task_id)
    if book is None or task is None:
        raise not_found("task_not_found", f"there is no workflow task {task_id}", **identity)
    if task.status == "cancelled" and book.run.is_closed:
        raise conflict(
            "run_closed",
            f"the run of task {task_id} is closed ({book.run.status}); nothing is accepted for it any more",
            run_status=book.run.status,
            run_closed_reason=book.run.closed_reason,
            **identity,
        )
    if task.status != "leased" or task.claim is None or task.lease_expires_at is None:
        raise conflict("task_not_leased", f"task {task_id} is not leased (it is {task.status})", **identity)
    if task.lease_expires_at <= book.now:
        expired = conflict(
            "lease_expired",
            f"the lease of task {task_id} ended at {format_instant(task.lease_expires_at)}; poll again",
            task_status="leased",
            lease_owner=task.claim.worker_id,
            lease_expires_at=format_instant(task.lease_expires_at),
            **identity,
        )
        release(book, task)
        raise expired
    if task.claim.worker_id != owner:
        raise conflict(
            "lease_owner_mismatch",
            f"task {task_id} is leased by another worker",
            lease_owner=task.claim.worker_id,
            **identity,
        )
    if task.attempt != epoch:
        raise conflict(
            "workflow_task_attempt_mismatch",
            f"task {task_id} is in attempt {task.attempt}, not {epoch}",
            current_attempt=task.attempt,
            **identity,
        )
    return task


def renew(book: RunBook, task: Task) -> Task:
    """Renew the lease of a claim from now."""
    renewed = msgspec.structs.replace(task, lease_expires_at=lease_until(book))
    book.put(renewed)
    return renewed


def release(book: RunBook, task: Task, *, forced_cold_replay: bool = False) -> Task:
    """Take a leased task back, so that the next poll may lease it in a new epoch."""
    released = msgspec.structs.replace(
        task,
        status="ready",
        claim=None,
        lease_expires_at=None,
        available_at=min(task.available_at, book.now),
        forced_cold_replay=forced_cold_replay or task.forced_cold_replay,
        sticky_replay_mode=None,
        sticky_claimed_at=None,
    )
    book.put(released)
    if not book.run.is_closed:
        # Whoever leases a task sees what has happened since, but one for an update is not there for it.
        book.update_run(status="waiting", wake_pending=book.run.wake_pending and task.update_id is not None)
    return released


def finish_claim(book: RunBook, task: Task, *, again: bool) -> list[str]:
    """Complete a claim of a run that stays open, and give the ids of the successor tasks made (none or one).

    A successor is due with `again`, when something happened during the claim, and while a local call is open: then it
    becomes available with the retry, or when the attempt left behind may be recovered. After a benign wait nothing
    else makes one, or a worker that has nothing to say would be asked again and again. An update gets its task when
    nothing else is due: what the code would do next is then recorded before its handler runs.
    """
    book.put(msgspec.structs.replace(task, status="completed"))
    now_due = again or book.run.wake_pending
    dues = [_next_move(book, execution) for execution in book.open_executions()]
    book.update_run(
        status="waiting",
        task_failures=0,
        last_task_failure=None,
        wake_pending=False,
        signals_applied=book.run.signals_leased,
    )
    updates = [] if now_due else book.open_updates()
    if updates:
        asked = wake_for_update(book, updates[0])
        return [] if asked is None else [asked.task_id]
    if not now_due and not dues:
        return []
    cancellation = book.run.cancellation
    source = None
    if cancellation is not None and cancellation.delivery is None and cancellation.awaiting is None:
        source = cancellation.request_id
    successor = wake(
        book,
        available_at=None if now_due else min(dues),
        source_kind=None if source is None else "cancellation_request",
        source_id=source,
        command_id=source,
    )
    return [] if successor is None else [successor.task_id]


def _next_move(book: RunBook, execution: Execution) -> datetime:
    """Give the instant from which a worker can do something about an open local call."""
    attempt = book.attempt_of(execution)
    if execution.status == "running" and attempt is not None:
        return attempt.lease_expires_at
    return execution.retry_available_at or book.now


def is_waiting_for_history(failure: dict[str, Any]) -> bool:
    """Recognise the benign report of a worker whose replay produced no command (worker.md §2.4)."""
    kind, message = failure.get("type"), failure.get("message")
    if isinstance(kind, str) and kind.strip().lower() == _WAITING_TYPE:
        return True
    return isinstance(message, str) and message.strip().lower().startswith(_WAITING_MESSAGE)


def fail(book: RunBook, task: Task, failure: dict[str, Any]) -> Task:
    """Take a failed task back for another try, each time later: 1 s, 2 s, 4 s up to the cap, so nothing spins.

    The run stays open and no history is written; `describe` shows the last failure.
    """
    failures = book.run.task_failures + 1
    settings = book.settings
    pause = min(settings.failure_backoff_seconds * 2.0 ** min(failures - 1, 30), settings.failure_backoff_cap_seconds)
    message = str(failure.get("message") or failure.get("type") or "no message")[:_FAILURE_TEXT_LIMIT]
    retried = msgspec.structs.replace(
        task,
        status="ready",
        claim=None,
        lease_expires_at=None,
        available_at=book.now + timedelta(seconds=pause),
    )
    book.put(retried)
    pending = book.run.wake_pending and task.update_id is not None
    book.update_run(status="waiting", wake_pending=pending, task_failures=failures, last_task_failure=message)
    return retried
