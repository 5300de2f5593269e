"""The poll that a worker's slots share for workflow tasks and update validations (worker.md §2.1, `task_kinds`)."""

from __future__ import annotations

from proctor.server.operations import validations, workflow_polls
from proctor.server.operations.calls import Call
from proctor.server.rules.refusal import Answer, conflict
from proctor.server.rules.validations import UpdateValidation
from proctor.server.transaction import Transaction


def poll(tx: Transaction, call: Call) -> Answer:
    """Lease a validation first, because somebody waits for it, else a workflow task.

    A repeated poll gets what it has got before, also a workflow task while a validation waits.
    """
    kinds = workflow_polls.task_kinds(call)
    if "update_validation" not in kinds:
        _check_not_for_validations(tx, call, kinds)
        return workflow_polls.poll(tx, call)
    worker = workflow_polls.polling_worker(tx, call, str(call.body["worker_id"]), str(call.body["task_queue"]))
    workflow_polls.check_validates(worker)
    held = workflow_polls.repeated(tx, call)
    if held is not None:
        return held
    answer = validations.poll(tx, call)
    if answer.body["task"] is not None or "workflow" not in kinds:
        return answer
    return workflow_polls.poll(tx, call)


def _check_not_for_validations(tx: Transaction, call: Call, kinds: list[str]) -> None:
    """Refuse a request id that a validation was leased under, when it is repeated without asking for validations."""
    request_id, worker_id = call.body.get("poll_request_id"), str(call.body["worker_id"])
    held = tx.questions_leased_by(UpdateValidation, call.namespace, worker_id) if request_id is not None else []
    if any(one.poll_request_id == request_id for one in held):
        raise conflict(
            "poll_cached_task_kind_conflict",
            "this poll_request_id has leased an update validation, which this poll does not ask for",
            task=None,
            poll_status="conflict",
            poll_request_id=request_id,
            requested_task_kinds=kinds,
            cached_task_kind="update_validation",
            cached_task_kind_state="unrequested_discriminator",
        )
