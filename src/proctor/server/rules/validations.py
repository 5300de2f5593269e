"""Validating an update before it is accepted: asked of a worker whose workflow declares a validator (worker.md §4).

Nothing is recorded of an update that its validator has not approved.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from proctor.server.rules.questions import Question
from proctor.server.rules.refusal import Refusal, conflict
from proctor.server.rules.rows import Registration, Run

CAPABILITY = "update_validation_tasks"
CONTRACT_FIELD = "update_validators"
REJECTED = "update_validator_rejected"


class UpdateValidation(Question, frozen=True, kw_only=True):
    """The validation of one update, whose id it has; settled as approved, rejected, failed or timed_out."""

    request_id: str
    fingerprint: str


def may_take(worker: Registration, validation: UpdateValidation) -> bool:
    """Say whether a worker can validate this update."""
    return CAPABILITY in worker.capabilities and _declares(worker, validation.workflow_type, validation.name)


def _declares(worker: Registration, workflow_type: str, name: str) -> bool:
    contract = worker.command_contracts.get(workflow_type)
    declared = contract.get(CONTRACT_FIELD) if isinstance(contract, dict) else None
    return workflow_type in worker.workflow_types and isinstance(declared, list) and name in declared


def check_workers(run: Run, name: str, active: list[Registration]) -> None:
    """Refuse an update that none of the active workers could validate."""
    facts: dict[str, Any] = {"workflow_id": run.workflow_id, "run_id": run.run_id, "update_name": name}
    facts |= {"outcome": "update_validation_failed"}
    here = [worker for worker in active if worker.task_queue == run.task_queue]
    if not here:
        raise conflict(
            "update_validator_worker_unavailable",
            f"no active worker on queue {run.task_queue} can validate the update {name!r}; start one and ask again",
            retryable=True,
            **facts,
        )
    capable = [worker for worker in here if CAPABILITY in worker.capabilities]
    if not capable:
        raise conflict(
            "update_validation_capability_unsupported",
            f"the workers on queue {run.task_queue} do not validate updates before they are accepted",
            retryable=False,
            **facts,
        )
    if not any(_declares(worker, run.workflow_type, name) for worker in capable):
        raise conflict(
            "update_validator_worker_incompatible",
            f"no active worker on queue {run.task_queue} has a validator for {name!r} of {run.workflow_type}",
            retryable=True,
            **facts,
        )


def expire(validation: UpdateValidation) -> UpdateValidation:
    """Close a validation that has taken too long."""
    reason, text = "update_validation_task_not_claimed", f"no worker took the validation of {validation.name!r} in time"
    if validation.status == "leased":
        reason = "update_validation_execution_timeout"
        text = f"worker {validation.lease_owner} did not validate the update {validation.name!r} in time"
    failure = {"status": 504, "reason": reason, "message": text}
    return msgspec.structs.replace(validation, status="timed_out", failure=failure)


def owned(
    validation: UpdateValidation | None,
    update_id: str,
    owner: str,
    attempt: int,
    now: datetime,
    *,
    worker_is_active: bool,
) -> UpdateValidation:
    """Give the validation when `owner` holds it in `attempt`; otherwise raise the first typed refusal."""

    def refusal(status: int, reason: str, text: str) -> Refusal:
        known = attempt if validation is None else validation.attempt
        identity = {"update_validation_task_id": update_id, "update_id": update_id, "update_validation_attempt": known}
        return Refusal(status, reason, text, {**identity, "outcome": "rejected", "status": status})

    name = f"update validation task {update_id}"
    if validation is None:
        raise refusal(404, "update_validation_task_not_found", f"there is no {name}")
    stale = refusal(409, "stale_update_validation_completion", f"{name} is in attempt {validation.attempt}")
    if not validation.is_open:
        if (validation.lease_owner, validation.attempt) != (owner, attempt):
            raise stale
        raise refusal(409, "duplicate_update_validation_completion", f"{name} is {validation.status} already")
    if validation.status != "leased":
        raise refusal(409, "update_validation_task_not_leased", f"{name} is not leased")
    if validation.lease_owner != owner:
        raise refusal(409, "update_validation_lease_owner_mismatch", f"{name} is leased by another worker")
    if validation.attempt != attempt:
        raise stale
    if validation.deadline_at <= now:
        raise refusal(409, "update_validation_lease_expired", f"the lease of {name} is over")
    if not worker_is_active:
        raise refusal(409, "update_validator_worker_lost", f"worker {owner} is not active any more")
    return validation


def approve(validation: UpdateValidation) -> UpdateValidation:
    """Take in that the validator has nothing against the update."""
    return msgspec.structs.replace(validation, status="approved")


def reject(validation: UpdateValidation, failure: dict[str, Any]) -> UpdateValidation:
    """Take in that the validator refuses the update, or that it could not be asked."""
    rejected = failure["reason"] == REJECTED
    told = {**failure, "status": 422 if rejected else 409}
    return msgspec.structs.replace(validation, status="rejected" if rejected else "failed", failure=told)


def not_accepted(validation: UpdateValidation) -> Refusal:
    """Make what the sender of an update is told that was not accepted."""
    failure = dict(validation.failure or {})
    status, reason, text = failure.pop("status", 409), failure.pop("reason", REJECTED), failure.pop("message", "")
    facts = {
        "workflow_id": validation.workflow_id,
        "run_id": validation.run_id,
        "update_name": validation.name,
        "update_id": validation.question_id,
        "update_status": "rejected" if validation.status == "rejected" else None,
        "outcome": "rejected_invalid_arguments" if validation.status == "rejected" else "update_validation_failed",
        "rejection_reason": reason,
        "retryable": False,
        "request_id": validation.request_id,
    }
    return Refusal(int(status), str(reason), str(text), {**facts, **failure})
