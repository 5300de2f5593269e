"""The endpoints below ``/worker/workflow-tasks/{task_id}/local-activities/`` (prepared-local.md §2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from proctor.server.operations.calls import Call, book_of_task, saving
from proctor.server.rules.book import RunBook
from proctor.server.rules.fields import Fields
from proctor.server.rules.local import checkpoint as checkpoints
from proctor.server.rules.local import control as controls
from proctor.server.rules.local.acknowledge import acknowledge
from proctor.server.rules.local.claims import check_original_owner, check_protocol, find_attempt, refusal_fields
from proctor.server.rules.local.descriptor import check_policy, read_descriptor
from proctor.server.rules.local.group import checkpoint_group as admit_group
from proctor.server.rules.local.outcome import read_report, record_outcome
from proctor.server.rules.local.prepare import prepare as prepare_attempt
from proctor.server.rules.local.recover import recover as recover_attempt
from proctor.server.rules.refusal import Answer, Refusal, conflict, not_found
from proctor.server.rules.rows import Attempt, Execution, Registration, Task
from proctor.server.transaction import Transaction


def checkpoint(tx: Transaction, call: Call) -> Answer:
    """Make the commands before a local call durable."""
    return _checkpoint(tx, call, checkpoints.checkpoint, least=0)


def checkpoint_group(tx: Transaction, call: Call) -> Answer:
    """Admit a list of calls with local members, or nothing of it."""
    return _checkpoint(tx, call, admit_group, least=1)


def _checkpoint(
    tx: Transaction,
    call: Call,
    record: Callable[[RunBook, Task, checkpoints.Checkpoint], Answer],
    *,
    least: int,
) -> Answer:
    owner, epoch = _claim(tx, call, "invalid_local_activity_checkpoint")
    fields = Fields(call.body)
    asked = checkpoints.Checkpoint(
        owner=owner,
        epoch=epoch,
        checkpoint_id=fields.text("checkpoint_id"),
        start_sequence=fields.integer("start_sequence", low=1),
        items=fields.objects("commands", low=least, high=checkpoints.MAX_COMMANDS),
    )
    _refuse_as(fields, "invalid_local_activity_checkpoint", checkpointed=False)
    for name in ("message_stream_cursors", "message_stream_waits", "sticky_cache"):
        if call.body.get(name):
            fields.wrong(name, "belongs to a completion, not to a checkpoint")
    fields.check()
    book, task = _hosting_task(tx, call, checkpointed=False)
    with saving(tx, book), _adding(call, owner, epoch, checkpointed=False):
        return record(book, task, asked)


def prepare(tx: Transaction, call: Call) -> Answer:
    """Admit one attempt of a local call."""
    owner, epoch = _claim(tx, call, "invalid_local_activity_preparation")
    fields = Fields(call.body)
    sequence = fields.integer("sequence", low=1)
    nonce = fields.text("worker_attempt_id")
    if len(nonce.encode()) > 255:
        fields.wrong("worker_attempt_id", "must have at most 255 bytes")
    _refuse_as(fields, "invalid_local_activity_preparation", prepared=False)
    limit = tx.settings.max_payload_bytes
    descriptor = read_descriptor(call.body, limit=limit, refuse_as="invalid_local_activity_preparation")
    book, task = _hosting_task(tx, call, sequence=sequence, prepared=False)
    with saving(tx, book), _adding(call, owner, epoch, prepared=False):
        check_policy(call.body["descriptor"], _capabilities(task), tx.settings.policies)
        execution = book.execution_at(sequence)
        return prepare_attempt(
            book,
            task,
            _registration(tx, call, owner),
            owner=owner,
            epoch=epoch,
            sequence=sequence,
            nonce=nonce,
            descriptor=descriptor,
            reused_nonces=frozenset() if execution is None else tx.used_nonces(execution.execution_id),
        )


def recover(tx: Transaction, call: Call) -> Answer:
    """Close the attempt that a lost claim left behind."""
    owner, epoch = _claim(tx, call, "invalid_local_activity_recovery")
    fields = Fields(call.body)
    sequence = fields.integer("sequence", low=1)
    _refuse_as(fields, "invalid_local_activity_recovery", recovered=False)
    limit = tx.settings.max_payload_bytes
    descriptor = read_descriptor(call.body, limit=limit, refuse_as="invalid_local_activity_recovery")
    book, task = _hosting_task(tx, call, sequence=sequence, recovered=False)
    with saving(tx, book), _adding(call, owner, epoch, recovered=False):
        check_policy(call.body["descriptor"], _capabilities(task), tx.settings.policies)
        return recover_attempt(book, task, owner=owner, epoch=epoch, sequence=sequence, descriptor=descriptor)


def control(tx: Transaction, call: Call) -> Answer:
    """Say whether an attempt may go on, and renew its authority when asked to."""
    fields = Fields(call.body)
    renew = fields.flag("renew_lease")
    fields.check()

    def decide(book: RunBook, task: Task, execution: Execution, attempt: Attempt) -> Answer:
        registration = _registration(tx, call, attempt.lease_owner)
        return controls.control(book, task, execution, attempt, registration, renew_lease=renew)

    return _of_attempt(tx, call, decide, active=False, stop_required=True, renewed=False)


def heartbeat(tx: Transaction, call: Call) -> Answer:
    """Record application progress of an attempt."""
    progress = controls.read_progress(call.body)

    def decide(book: RunBook, task: Task, execution: Execution, attempt: Attempt) -> Answer:
        registration = _registration(tx, call, attempt.lease_owner)
        return controls.heartbeat(book, task, execution, attempt, registration, progress=progress)

    return _of_attempt(tx, call, decide, active=False, stop_required=True, renewed=False, heartbeat_recorded=False)


def outcome(tx: Transaction, call: Call) -> Answer:
    """Publish what became of an attempt."""
    report = read_report(call.body, limit=tx.settings.max_payload_bytes)

    def decide(book: RunBook, task: Task, execution: Execution, attempt: Attempt) -> Answer:
        registration = _registration(tx, call, attempt.lease_owner)
        return record_outcome(book, task, execution, attempt, registration, report)

    return _of_attempt(tx, call, decide, recorded=False, duplicate=False)


def acknowledge_cancellation(tx: Transaction, call: Call) -> Answer:
    """Record that the handler of a cancelled attempt is gone."""
    fields = Fields(call.body)
    request_id = fields.text("request_id")
    fields.check()

    def decide(book: RunBook, task: Task, execution: Execution, attempt: Attempt) -> Answer:
        return acknowledge(book, execution, attempt, request_id=request_id)

    return _of_attempt(tx, call, decide, acknowledged=False, duplicate=False)


def _of_attempt(
    tx: Transaction,
    call: Call,
    decide: Callable[[RunBook, Task, Execution, Attempt], Answer],
    **negatives: Any,
) -> Answer:
    """Load the attempt of the path, check who asks, and let `decide` answer."""
    owner, epoch = _claim(tx, call, None)
    task_id, attempt_id = call.path["task_id"], call.path["attempt_id"]
    book = book_of_task(tx, call, task_id, attempt_id=attempt_id)
    with saving(tx, book), _adding(call, owner, epoch, **negatives):
        execution, attempt = find_attempt(book, attempt_id, task_id)
        check_original_owner(attempt, owner, epoch)
        if book is None:
            raise not_found("task_not_found", "the run is gone")
        return decide(book, book.tasks[task_id], execution, attempt)


def _claim(tx: Transaction, call: Call, reason: str | None) -> tuple[str, int]:
    """Check the protocol first, then read the identity that every body carries."""
    owner = call.body.get("lease_owner")
    check_protocol(tx.settings, call.minor, owner if isinstance(owner, str) else "")
    fields = Fields(call.body)
    claim = fields.text("lease_owner"), fields.integer("workflow_task_attempt", low=1)
    if reason is not None:
        _refuse_as(fields, reason)
    fields.check()
    return claim


def _refuse_as(fields: Fields, reason: str, **extra: Any) -> None:
    if fields.errors:
        problems = "; ".join(f"{name} {texts[0]}" for name, texts in sorted(fields.errors.items()))
        raise conflict(reason, problems, errors=fields.errors, **extra)


def _hosting_task(
    tx: Transaction, call: Call, *, sequence: int | None = None, **negatives: Any
) -> tuple[RunBook, Task]:
    task_id = call.path["task_id"]
    book = book_of_task(tx, call, task_id, sequence=sequence)
    if book is None:
        raise not_found("task_not_found", f"there is no workflow task {task_id}", task_id=task_id, **negatives)
    return book, book.tasks[task_id]


def _capabilities(task: Task) -> tuple[str, ...]:
    return () if task.claim is None else task.claim.capabilities


def _registration(tx: Transaction, call: Call, worker_id: str) -> Registration | None:
    return tx.registration(call.namespace, worker_id)


@contextmanager
def _adding(call: Call, owner: str, epoch: int, **negatives: Any) -> Iterator[None]:
    """Give every refusal of the block the identity of the request and the operation's negative flags."""
    try:
        yield
    except Refusal as refusal:
        refusal.extra = {**refusal_fields(call.path["task_id"], epoch, owner), **negatives, **refusal.extra}
        raise
