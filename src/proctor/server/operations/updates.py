"""Updates on the control plane: accepted once per request id, waited for if the caller wants (control-plane.md §8)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from proctor.core.instants import format_instant
from proctor.server.operations.calls import Call, Waiting, saving
from proctor.server.operations.commands import declares, open_book, read_intent, repeated, retain
from proctor.server.operations.workflows import find_run
from proctor.server.rules import updates
from proctor.server.rules.fields import Fields, envelope
from proctor.server.rules.refusal import Answer, Refusal, not_found
from proctor.server.rules.rows import Run, Update
from proctor.server.rules.runs import instant_or_none
from proctor.server.transaction import Transaction, answer_bell

STAGES = ("accepted", "completed")
_LONGEST_WAIT = 3_600
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
    updates.check_room(book)
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
