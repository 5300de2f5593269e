"""Update validations on the worker plane: claimed with workflow tasks or alone, decided once (worker.md §4).

What a validator approves is accepted in the same transaction; whoever sent the update learns of it by its bell.
"""

from __future__ import annotations

from typing import Any

from proctor.core.external import External
from proctor.core.instants import format_instant
from proctor.server.operations import asked
from proctor.server.operations.calls import Call, saving
from proctor.server.operations.workers import active_registrations
from proctor.server.operations.workflow_polls import STALE, check_validates, polling_worker, replays
from proctor.server.operations.workflows import fresh
from proctor.server.rules import limits, updates, validations
from proctor.server.rules.fields import Fields
from proctor.server.rules.refusal import Answer, Refusal, conflict
from proctor.server.rules.rows import Registration
from proctor.server.rules.validations import UpdateValidation
from proctor.server.transaction import Transaction

_MESSAGE_LIMIT = 65_536


def poll(tx: Transaction, call: Call) -> Answer:
    """Lease a validation to this worker, or answer `empty` at once."""
    registration = polling_worker(tx, call, str(call.body["worker_id"]), str(call.body["task_queue"]))
    if call.incarnation not in (None, registration.token):
        return Answer({"task": None, "poll_status": STALE})
    check_validates(registration)
    task = claim(tx, registration, call.body.get("poll_request_id"))
    if task is None:
        return Answer({"task": None, "poll_status": "empty"}, incarnation=registration.token)
    return Answer({"task": task, "poll_status": "leased"})


def claim(tx: Transaction, registration: Registration, request_id: Any) -> dict[str, Any] | None:
    """Lease the oldest validation that this worker can do, or repeat the lease of the same request id."""
    held = asked.leased_before(tx, UpdateValidation, registration, request_id)
    if held is not None:
        return _task(tx, held)
    here = (registration.namespace, registration.task_queue, registration.workflow_types)
    for pending in tx.pending_questions(UpdateValidation, *here):
        if validations.may_take(registration, pending) and replays(tx, registration, pending.run_id):
            return _task(tx, asked.lease(tx, pending, registration, request_id))
    return None


def _task(tx: Transaction, leased: UpdateValidation) -> dict[str, Any] | None:
    run = tx.run(leased.run_id)
    if run is None:
        return None
    return {
        "task_kind": "update_validation",
        "update_validation_task_id": leased.question_id,
        "update_id": leased.question_id,
        "update_validation_attempt": leased.attempt,
        "lease_owner": leased.lease_owner,
        "lease_expires_at": format_instant(leased.deadline_at),
        "server_time": format_instant(tx.now),
        **asked.task_fields(tx, leased, run, asked="update"),
    }


def approve(tx: Transaction, call: Call) -> Answer:
    """Accept the update that a validator has nothing against, once."""
    approved = validations.approve(_owned(tx, call, Fields(call.body)))
    try:
        _accept(tx, approved)
    except Refusal as refusal:
        # The validator has spoken in any case; it is the sender who must hear that the run has ended meanwhile.
        told = {"status": refusal.status, "reason": refusal.reason, "message": refusal.text, **refusal.extra}
        approved = validations.reject(approved, told)
    tx.save_question(approved)
    return Answer(_reported(approved, "approved", None))


def _accept(tx: Transaction, approved: UpdateValidation) -> None:
    run = tx.current_run(approved.namespace, approved.workflow_id)
    run = None if run is None else fresh(tx, run)
    if run is None or run.is_closed or run.run_id != approved.run_id:
        raise conflict("run_not_active", "the run has ended while the update was validated")
    book = tx.book(run)
    limits.check_updates(book)
    command_id = book.new_id()
    with saving(tx, book):
        updates.accept(
            book,
            update_id=approved.question_id,
            name=approved.name,
            arguments=approved.arguments,
            command_id=command_id,
            request_id=approved.request_id,
        )
    if isinstance(approved.arguments, External):
        tx.claim_external({approved.arguments.external_payload.reference_id})
    tx.retain_command(
        approved.namespace,
        approved.workflow_id,
        approved.request_id,
        kind="update",
        fingerprint=approved.fingerprint,
        body={"update_id": approved.question_id, "command_id": command_id},
    )


def reject(tx: Transaction, call: Call) -> Answer:
    """Take in why an update is not accepted, once."""
    fields = Fields(call.body)
    reader = Fields(fields.object("failure"), "failure.", fields.errors)
    failure: dict[str, Any] = {
        "message": reader.text("message", limit=_MESSAGE_LIMIT),
        "reason": reader.optional_text("reason") or validations.REJECTED,
        "failure_type": reader.optional_text("type"),
        "errors": reader.optional_object("validation_errors"),
    }
    reader.optional_text("stack_trace", limit=4 * _MESSAGE_LIMIT, blank=True)
    held = _owned(tx, call, fields)
    rejected = validations.reject(held, {name: value for name, value in failure.items() if value is not None})
    tx.save_question(rejected)
    return Answer(_reported(rejected, rejected.status, failure["reason"]))


def _owned(tx: Transaction, call: Call, fields: Fields) -> UpdateValidation:
    owner, attempt = fields.text("lease_owner"), fields.integer("update_validation_attempt", low=1)
    fields.check()
    update_id = call.path["task_id"]
    active = any(worker.worker_id == owner for worker in active_registrations(tx, call.namespace))
    held = tx.question(UpdateValidation, call.namespace, update_id)
    return validations.owned(held, update_id, owner, attempt, tx.now, worker_is_active=active)


def _reported(validation: UpdateValidation, outcome: str, reason: str | None) -> dict[str, Any]:
    return {
        "update_validation_task_id": validation.question_id,
        "update_id": validation.question_id,
        "update_validation_attempt": validation.attempt,
        "outcome": outcome,
        "reason": reason,
        "status": 200,
    }
