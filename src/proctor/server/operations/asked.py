"""Leasing questions to workflow code: what the tasks of queries and of update validations share (worker.md §4)."""

from __future__ import annotations

from typing import Any, TypeVar

from proctor.core.codec import envelope as encoded
from proctor.server.operations.calls import worker_event
from proctor.server.rules import questions
from proctor.server.rules.fields import envelope
from proctor.server.rules.queries import QueryTask
from proctor.server.rules.questions import Question
from proctor.server.rules.rows import Registration, Run
from proctor.server.rules.validations import UpdateValidation
from proctor.server.transaction import Transaction

_NO_ARGUMENTS = encoded([])

Q = TypeVar("Q", QueryTask, UpdateValidation)


def leased_before(tx: Transaction, kind: type[Q], registration: Registration, request_id: Any) -> Q | None:
    """Give the question that a poll with this request id has leased already."""
    if request_id is None:
        return None
    held = tx.questions_leased_by(kind, registration.namespace, registration.worker_id)
    return next((one for one in held if one.poll_request_id == request_id), None)


def lease(tx: Transaction, question: Q, registration: Registration, request_id: Any) -> Q:
    """Lease a pending question to a worker, and write it down."""
    leased = questions.lease(question, registration.worker_id, None if request_id is None else str(request_id))
    tx.save_question(leased)
    return leased


def undo(tx: Transaction, kind: type[Q], namespace: str, question_id: str, attempt: int) -> None:
    """Take back a lease whose answer could not be delivered because the client had left."""
    held = tx.question(kind, namespace, question_id)
    if held is not None and held.status == "leased" and held.attempt == attempt:
        tx.save_question(questions.release(held))


def task_fields(tx: Transaction, question: Question, run: Run, *, asked: str) -> dict[str, Any]:
    """Give the run, its whole history and what is asked; `asked` is the prefix of the latter's wire names."""
    events = tx.history(run.run_id, after=0, limit=run.last_event)
    return {
        "workflow_id": run.workflow_id,
        "run_id": run.run_id,
        "workflow_type": run.workflow_type,
        "compatibility": run.compatibility,
        f"{asked}_name": question.name,
        f"{asked}_arguments": envelope(question.arguments) or _NO_ARGUMENTS,
        "workflow_arguments": envelope(tx.payloads(run.run_id)[0]),
        "payload_codec": run.payload_codec,
        "run_status": run.status,
        "last_history_sequence": run.last_event,
        "history_events": [worker_event(event) for event in events],
        "task_queue": question.task_queue,
    }
