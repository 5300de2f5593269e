"""Who may do what with a prepared local activity: the claim, the original owner, the passed deadlines.

Shared by the operations of this package; each of them keeps its own order of checks, as prepared-local.md gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from proctor.core.instants import format_instant
from proctor.server.rules.book import RunBook, Settings
from proctor.server.rules.refusal import Refusal, conflict, not_found
from proctor.server.rules.rows import Attempt, Cleanup, Execution, Registration, Task
from proctor.server.rules.tasks import release

MINIMUM_MINOR = 20


def not_supported(unavailable: list[str], *, worker_id: str, text: str) -> Refusal:
    """Make the refusal of a caller that lacks what prepared local activities need."""
    return conflict(
        "prepared_local_activity_not_supported",
        text,
        required_capability="prepared_local_activities",
        minimum_protocol_version="1.20",
        worker_id=worker_id,
        unavailable=unavailable,
        remediation="use a worker and a server that both speak protocol 1.20 with prepared local activities",
    )


def check_protocol(settings: Settings, request_minor: int, worker_id: str) -> None:
    """Refuse a request below protocol 1.20, and any request when the server itself speaks less."""
    unavailable = [
        name
        for name, minor in (("server_protocol", settings.minor), ("request_protocol", request_minor))
        if minor < MINIMUM_MINOR
    ]
    if unavailable:
        text = "prepared local activities need protocol 1.20 on both sides"
        raise not_supported(unavailable, worker_id=worker_id, text=text)


def check_claim(book: RunBook, task: Task, owner: str, epoch: int) -> Task:
    """Give the task when `owner` holds it in `epoch` with a living lease; otherwise refuse (409).

    A claim that went away because its run was closed says so, which tells a worker more than a mismatch would.
    """
    same_claim = task.claim is not None and task.claim.worker_id == owner and task.attempt == epoch
    if same_claim and task.status == "cancelled":
        check_run_open(book)
    if not same_claim or task.status != "leased" or task.lease_expires_at is None:
        raise conflict(
            "workflow_claim_mismatch",
            f"task {task.task_id} is not held by this worker in attempt {epoch}",
            task_id=task.task_id,
        )
    if task.lease_expires_at <= book.now:
        release(book, task)
        raise conflict(
            "workflow_claim_expired",
            f"the lease of task {task.task_id} ended at {format_instant(task.lease_expires_at)}",
            task_id=task.task_id,
            lease_expires_at=format_instant(task.lease_expires_at),
        )
    return task


def check_run_open(book: RunBook) -> None:
    """Refuse when the run is closed; a run that ran out of time says which time it was."""
    if not book.run.is_closed:
        return
    reason = "run_closed"
    cancellation = book.run.cancellation
    if book.run.closed_reason == "timed_out":
        reason = "run_deadline_expired"
    elif cancellation is not None and cancellation.cleanup_deadline_at <= book.now:
        reason = "cancellation_deadline_expired"
    raise conflict(
        reason,
        f"the run is closed ({book.run.status}, {book.run.closed_reason})",
        run_status=book.run.status,
        run_closed_reason=book.run.closed_reason,
    )


def check_capability(task: Task) -> None:
    """Refuse a claim whose worker had not registered prepared local activities when it leased the task."""
    capabilities = () if task.claim is None else task.claim.capabilities
    if not {"prepared_local_activities", "cooperative_cancellation"} <= set(capabilities):
        raise not_supported(
            ["worker_claim_capability"],
            worker_id="" if task.claim is None else task.claim.worker_id,
            text="the worker did not have the capability when it leased this task; poll for a new claim",
        )


def check_group_capability(task: Task) -> None:
    """Refuse a claim whose worker had not registered groups of prepared local activities when it leased the task."""
    claim = task.claim
    if claim is None or "prepared_local_activity_groups" not in claim.capabilities:
        raise conflict(
            "prepared_local_activity_groups_not_supported",
            "the worker had not registered groups of local activities when it leased this task",
            required_capability="prepared_local_activity_groups",
            minimum_protocol_version="1.20",
            worker_id="" if claim is None else claim.worker_id,
            unavailable=["worker_claim_capability"],
            remediation="register with prepared_local_activity_groups, and poll for a new claim",
        )


def check_registration(registration_token: str, registration: Registration | None) -> None:
    """Refuse when the registration behind a claim was replaced or is gone."""
    if registration is None or registration.token != registration_token:
        raise conflict(
            "stale_worker_registration",
            "the registration behind this claim was replaced or is gone; stop the handler",
        )


def find_attempt(book: RunBook | None, attempt_id: str, task_id: str) -> tuple[Execution, Attempt]:
    """Give the attempt hosted by the task, with its call; otherwise refuse (404)."""
    attempt = None if book is None else book.attempts.get(attempt_id)
    if book is None or attempt is None or attempt.task_id != task_id:
        raise not_found(
            "activity_attempt_not_found",
            f"task {task_id} has no local activity attempt {attempt_id}",
            activity_attempt_id=attempt_id,
        )
    return book.executions[attempt.execution_id], attempt


def check_original_owner(attempt: Attempt, owner: str, epoch: int) -> None:
    """Refuse anyone but the claim that prepared the attempt."""
    if attempt.lease_owner != owner or attempt.epoch != epoch:
        raise not_supported(
            ["original_prepared_local_claim"],
            worker_id=owner,
            text=f"attempt {attempt.attempt_id} was prepared by another claim",
        )


def passed_deadline(execution: Execution, attempt: Attempt | None, now: datetime) -> str | None:
    """Give the kind of the first deadline that has passed, in the order the server decides by."""
    total = execution.schedule_to_close_deadline_at
    if total is not None and total <= now:
        return "schedule_to_close"
    if attempt is not None:
        if attempt.heartbeat_deadline_at is not None and attempt.heartbeat_deadline_at <= now:
            return "heartbeat"
        if attempt.start_to_close_deadline_at is not None and attempt.start_to_close_deadline_at <= now:
            return "start_to_close"
    return None


def cleanup_body(cleanup: Cleanup | None) -> dict[str, Any] | None:
    """Give the cleanup proof as receipts carry it."""
    if cleanup is None:
        return None
    return {
        "request_id": cleanup.request_id,
        "root_request_id": cleanup.root_request_id,
        "delivery_history_event_id": cleanup.delivery_history_event_id,
        "cleanup_deadline_at": format_instant(cleanup.cleanup_deadline_at),
    }


def cleanup_authority(book: RunBook, proof: tuple[str, str] | None, sequence: int) -> Cleanup | None:
    """Check the proof that a call runs inside cancellation cleanup, and give what the receipt says about it.

    Raises the cancellation refusals of prepare: a call without a proof is refused once a cancellation is accepted.
    """
    cancellation = book.run.cancellation
    if proof is None:
        if cancellation is not None:
            raise conflict(
                "cancellation_requested",
                "the run has an accepted cancellation; only cleanup calls are admitted",
                cancellation_request_id=cancellation.request_id,
            )
        return None
    request_id, delivery_event_id = proof
    delivery = None if cancellation is None else cancellation.delivery
    if (
        cancellation is None
        or delivery is None
        or cancellation.request_id != request_id
        or delivery.event_id != delivery_event_id
        or sequence < delivery.boundary.sequence + delivery.boundary.sequence_span
    ):
        raise conflict(
            "local_activity_cleanup_authority_mismatch",
            "the cleanup proof names no recorded cancellation delivery that precedes this call",
        )
    return Cleanup(
        request_id=cancellation.request_id,
        root_request_id=str(cancellation.context["root_request_id"]),
        delivery_history_event_id=delivery.event_id,
        cleanup_deadline_at=cancellation.cleanup_deadline_at,
    )


def refusal_fields(task_id: str, epoch: int, owner: str) -> Mapping[str, Any]:
    """Give the identity fields that every refusal of this package repeats."""
    return {"workflow_task_id": task_id, "workflow_task_attempt": epoch, "lease_owner": owner}
