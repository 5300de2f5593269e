"""recover: a replacement claim closes an attempt whose owner lost it (prepared-local.md §2.8).

A lost lease proves lost authority, not that the handler stopped; so the event says `callback_stop_state: unknown` and
no attempt is admitted here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import RunBook
from proctor.server.rules.local.claims import check_capability, check_claim, check_run_open, passed_deadline
from proctor.server.rules.local.control import cancellation_stop
from proctor.server.rules.local.descriptor import Descriptor
from proctor.server.rules.local.timeouts import Ending, end_attempt, timeout_ending
from proctor.server.rules.refusal import Answer, conflict
from proctor.server.rules.rows import Attempt, Execution, Receipt, Task
from proctor.server.rules.tasks import HISTORY_START_TOKEN


def recover(book: RunBook, task: Task, *, owner: str, epoch: int, sequence: int, descriptor: Descriptor) -> Answer:
    """Close the interrupted attempt of this call, repeat the receipt, or raise the first refusal."""
    execution = book.execution_at(sequence)
    attempt = None if execution is None else book.attempt_of(execution)
    if execution is not None and attempt is not None and attempt.recovery is not None:
        known = attempt.recovery
        same = (known.task_id, known.epoch, known.lease_owner) == (task.task_id, epoch, owner)
        if same and known.fingerprint == descriptor.fingerprint:
            return _receipt(attempt, known, duplicate=True)
    task = check_claim(book, task, owner, epoch)
    check_capability(task)
    check_run_open(book)
    if execution is None or attempt is None:
        raise conflict("local_activity_preparation_not_found", f"no attempt of call {sequence} was ever prepared")
    if execution.descriptor_fingerprint != descriptor.fingerprint:
        raise conflict("local_activity_recovery_mismatch", f"call {sequence} was prepared with another descriptor")
    stop = cancellation_stop(book, execution, attempt)
    if stop is not None:
        reason = stop.pop("reason")
        raise conflict(reason, "the attempt is fenced by a cancellation; deliver that first", **stop)
    if attempt.status != "running":
        raise conflict("stale_activity_attempt", f"attempt {attempt.attempt_id} is {attempt.status}")
    _check_original_gone(book, task, attempt)
    return _close(book, task, execution, attempt, descriptor)


def _check_original_gone(book: RunBook, task: Task, attempt: Attempt) -> None:
    if attempt.lease_expires_at > book.now:
        raise conflict(
            "local_activity_previous_attempt_live",
            f"the lease of attempt {attempt.attempt_id} lasts until {format_instant(attempt.lease_expires_at)}",
            lease_expires_at=format_instant(attempt.lease_expires_at),
        )
    if attempt.task_id == task.task_id:
        if attempt.epoch >= task.attempt:
            raise conflict("local_activity_original_claim_not_reclaimed", "this claim prepared the attempt itself")
        return
    original = book.tasks.get(attempt.task_id)
    if original is None:
        raise conflict("original_workflow_claim_not_found", f"task {attempt.task_id} is unknown")
    if original.is_open:
        raise conflict("local_activity_original_claim_live", f"task {attempt.task_id} is still open")


def _close(book: RunBook, task: Task, execution: Execution, attempt: Attempt, descriptor: Descriptor) -> Answer:
    owner = "" if task.claim is None else task.claim.worker_id
    extra: dict[str, Any] = {
        "local_recovery": {
            "version": 1,
            "descriptor_fingerprint": descriptor.fingerprint,
            "workflow_task_id": task.task_id,
            "workflow_task_attempt": task.attempt,
            "lease_owner": owner,
            "original_workflow_task_id": attempt.task_id,
            "original_workflow_task_attempt": attempt.epoch,
            "original_lease_owner": attempt.lease_owner,
            "original_lease_expires_at": format_instant(attempt.lease_expires_at),
            "callback_stop_state": "unknown",
        }
    }
    kind = passed_deadline(execution, attempt, book.now)
    ending = _lost(execution) if kind is None else timeout_ending(execution, kind)
    event, ended, created = end_attempt(book, task, execution, attempt, ending, status="expired", extra=extra)
    receipt = Receipt(
        fingerprint=descriptor.fingerprint,
        event_id=event.id,
        event_type=event.event_type,
        recorded_at=book.now,
        claim_released=bool(created),
        created_task_ids=tuple(created),
        task_id=task.task_id,
        epoch=task.attempt,
        lease_owner=owner,
    )
    book.put(msgspec.structs.replace(ended, recovery=receipt))
    return _receipt(ended, receipt, duplicate=False)


def _lost(execution: Execution) -> Ending:
    message = f"the worker running {execution.activity_type} lost its lease before it reported an outcome"
    return Ending(
        reason="cold_replay",
        facts={
            "message": message,
            "exception_type": "LocalActivityLost",
            "exception_class": "LocalActivityLost",
            "failure_category": "activity",
            "non_retryable": False,
        },
    )


def _receipt(attempt: Attempt, receipt: Receipt, *, duplicate: bool) -> Answer:
    return Answer(
        {
            "recovered": True,
            "duplicate": duplicate,
            "reason": None,
            "event_id": receipt.event_id,
            "event_type": receipt.event_type,
            "activity_execution_id": attempt.execution_id,
            "activity_attempt_id": attempt.attempt_id,
            "workflow_task_id": receipt.task_id,
            "workflow_task_attempt": receipt.epoch,
            "recorded_at": format_instant(receipt.recorded_at),
            "callback_stop_state": "unknown",
            "claim_released": receipt.claim_released,
            "created_task_ids": list(receipt.created_task_ids),
            "history_refresh_page_token": HISTORY_START_TOKEN,
        }
    )
