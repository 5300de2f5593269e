"""Updates on the control plane: accepted once per request id, waited for if the caller wants (control-plane.md §8)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from proctor.core.instants import format_instant
from proctor.server.operations.calls import Call, Waiting, saving
from proctor.server.operations.commands import Intent, declares, open_book, read_intent, repeated, retain
from proctor.server.operations.workers import active_registrations
from proctor.server.operations.workflows import find_run
from proctor.server.rules import limits, questions, updates, validations
from proctor.server.rules.fields import Fields, envelope
from proctor.server.rules.refusal import Answer, Refusal, conflict, not_found
from proctor.server.rules.rows import Run, Update
from proctor.server.rules.runs import instant_or_none
from proctor.server.rules.validations import CONTRACT_FIELD, UpdateValidation
from proctor.server.transaction import Transaction, answer_bell

STAGES = ("accepted", "completed")
_LONGEST_WAIT = 3_600
# A validation that could not be had says nothing; the same request may try again.
_STANDING = frozenset({"pending", "leased", "approved", "rejected"})
_OUTCOMES = {"accepted": "update_accepted", "completed": "update_completed", "failed": "update_failed"}


def update(tx: Transaction, call: Call) -> Answer:
    """Accept an update for the current run; with ``wait_for: completed`` its answer is waited for."""
    fields = Fields(call.body)
    intent = read_intent(tx, call, "update", fields)
    stage = fields.choice("wait_for", STAGES, default="accepted")
    seconds = fields.optional_integer("wait_timeout_seconds", low=1, high=_LONGEST_WAIT)
    fields.check()
    run = find_run(tx, call)
    asked = {"wait_for": stage, "wait_timeout_seconds": seconds, "request_id": intent.request_id}
    until = tx.now + timedelta(seconds=tx.settings.update_seconds if seconds is None else seconds)
    known = repeated(tx, call, intent)
    if known is not None:
        return _told(tx, known["update_id"], run, until, {**asked, "retained": True, "intent_verified": True})
    book = open_book(tx, call)
    if declares(tx, book.run, "updates", intent.name) is False:
        raise not_found(
            "unknown_update",
            f"the workflow type {book.run.workflow_type} declares no update {intent.name!r}",
            workflow_id=book.run.workflow_id,
            run_id=book.run.run_id,
            update_name=intent.name,
            outcome="rejected_unknown_update",
        )
    limits.check_updates(book)
    if declares(tx, book.run, CONTRACT_FIELD, intent.name):
        return _validated(tx, book.run, intent, seconds, asked)
    with saving(tx, book):
        accepted = updates.accept(
            book,
            update_id=book.new_id(),
            name=intent.name,
            arguments=intent.arguments,
            command_id=book.new_id(),
            request_id=intent.request_id,
        )
    retain(tx, call, intent, {"update_id": accepted.update_id, "command_id": accepted.command_id})
    told = {**asked, "retained": False, "intent_verified": True}
    return _told(tx, accepted.update_id, book.run, until, told)


def _validated(tx: Transaction, run: Run, intent: Intent, seconds: int | None, asked: dict[str, Any]) -> Answer:
    """Ask the validator first; a request that is repeated meanwhile waits for the same validation."""
    request_id = intent.request_id
    if request_id is None:
        text = "an update that is validated before it is accepted needs a request_id"
        raise Refusal(422, "update_validation_request_id_required", text, {"update_name": intent.name})
    known = next(
        (
            one
            for one in reversed(tx.questions_of(UpdateValidation, run.namespace, run.task_queue))
            if (one.run_id, one.request_id) == (run.run_id, request_id) and one.status in _STANDING
        ),
        None,
    )
    if known is None:
        validations.check_workers(run, intent.name, active_registrations(tx, run.namespace))
        known = questions.ask(
            UpdateValidation,
            run,
            question_id=tx.new_id(),
            name=intent.name,
            arguments=intent.arguments,
            now=tx.now,
            seconds=tx.settings.validation_seconds,
            request_id=request_id,
            fingerprint=intent.fingerprint,
        )
        tx.save_question(known)
    elif known.fingerprint != intent.fingerprint:
        raise conflict(
            "update_validation_idempotency_conflict",
            f"the request id {request_id} was used for another update",
            request_id=request_id,
            update_name=intent.name,
        )
    return _decided(tx, known, run, seconds, asked)


def _decided(
    tx: Transaction, asked_for: UpdateValidation, run: Run, seconds: int | None, asked: dict[str, Any]
) -> Answer:
    """Tell what became of a validation, or wait for that."""
    known = tx.question(UpdateValidation, asked_for.namespace, asked_for.question_id) or asked_for
    if known.is_open and known.deadline_at > tx.now:
        return Waiting(
            {},
            bell=answer_bell(known.namespace, known.question_id),
            until=known.deadline_at,
            look=lambda tx, call: _decided(tx, known, run, seconds, asked),
            passing=True,
        )
    if known.is_open:
        known = validations.expire(known)
        tx.save_question(known)
    if known.status != "approved":
        raise validations.not_accepted(known)
    until = tx.now + timedelta(seconds=tx.settings.update_seconds if seconds is None else seconds)
    told = {**asked, "retained": False, "intent_verified": True}
    return _told(tx, known.question_id, run, until, told)


def _told(tx: Transaction, update_id: str, run: Run, until: datetime, asked: dict[str, Any]) -> Answer:
    known = tx.update(update_id)
    if known is None:
        raise not_found("update_not_found", f"there is no update {update_id} any more", workflow_id=run.workflow_id)
    waits = known.is_open and asked["wait_for"] == "completed"
    if waits and tx.now < until:
        return Waiting(
            {},
            bell=answer_bell(run.namespace, update_id),
            until=until,
            look=lambda tx, call: _told(tx, update_id, run, until, asked),
        )
    return _answer(known, run, {**asked, "wait_timed_out": waits})


def _answer(known: Update, run: Run, asked: dict[str, Any]) -> Answer:
    body: dict[str, Any] = {
        "workflow_id": run.workflow_id,
        "run_id": known.run_id,
        "workflow_type": run.workflow_type,
        "update_id": known.update_id,
        "update_name": known.name,
        "update_status": known.status,
        "command_id": known.command_id,
        "command_status": "accepted",
        "outcome": _OUTCOMES[known.status],
        "workflow_sequence": known.workflow_sequence,
        "result": None,
        "result_envelope": envelope(known.result),
        "accepted_at": format_instant(known.accepted_at),
        "closed_at": instant_or_none(known.closed_at),
        "reason": None,
        **asked,
    }
    if known.failure is not None:
        message = str(known.failure["message"])
        told = {"failure_message": message, "failure_id": known.failure.get("failure_id"), "failure": known.failure}
        raise Refusal(422, "update_failed", message, body | told | {"reason": "update_failed"})
    return Answer(body, status=202 if known.is_open else 200)
