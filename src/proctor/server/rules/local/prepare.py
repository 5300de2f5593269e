"""prepare: admit one local activity attempt before its handler runs (prepared-local.md §2.3).

It records what is about to happen, fixes the deadlines, and renews nothing: the attempt lives under the hosting
task's lease. A member of a group was scheduled before, with its whole group; here only its attempts are admitted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules import waits
from proctor.server.rules.activities import activity_fields, task_snapshot
from proctor.server.rules.book import RunBook
from proctor.server.rules.local.claims import (
    check_capability,
    check_claim,
    check_group_capability,
    check_registration,
    check_run_open,
    cleanup_authority,
    cleanup_body,
    passed_deadline,
)
from proctor.server.rules.local.descriptor import Descriptor
from proctor.server.rules.local.schedule import capped, schedule
from proctor.server.rules.local.timeouts import time_out_pending
from proctor.server.rules.refusal import Answer, conflict
from proctor.server.rules.rows import Attempt, Cleanup, Execution, Registration, Task
from proctor.server.rules.runs import instant_or_none
from proctor.server.rules.tasks import HISTORY_START_TOKEN


def prepare(
    book: RunBook,
    task: Task,
    registration: Registration | None,
    *,
    owner: str,
    epoch: int,
    sequence: int,
    nonce: str,
    descriptor: Descriptor,
    reused_nonces: frozenset[str],
) -> Answer:
    """Admit an attempt, repeat the receipt of the identical one, or raise the first refusal.

    `reused_nonces` are the worker attempt ids that earlier attempts of this call already used.
    """
    task = check_claim(book, task, owner, epoch)
    check_capability(task)
    if descriptor.group:
        check_group_capability(task)
    check_run_open(book)
    if task.claim is not None:
        check_registration(task.claim.registration_token, registration)
    cleanup = cleanup_authority(book, descriptor.cleanup, sequence)
    execution = book.execution_at(sequence)
    if execution is None:
        execution = _schedule(book, task, sequence, descriptor, cleanup)
        return _receipt(book, task, execution, _start(book, task, execution, nonce), duplicate=False)
    if execution.status == "running":
        return _repeat(book, task, execution, nonce, descriptor)
    if execution.status != "pending":
        raise conflict("local_activity_preparation_mismatch", f"call {sequence} has already ended: {execution.status}")
    if execution.descriptor_fingerprint != descriptor.fingerprint:
        if execution.attempt_count == 0:
            raise conflict(
                "local_activity_group_admission_mismatch",
                f"call {sequence} was admitted with another descriptor or at another place in its group",
            )
        raise conflict(
            "local_activity_retry_preparation_mismatch",
            f"call {sequence} was first prepared with another descriptor",
        )
    if passed_deadline(execution, None, book.now) is not None:
        event = time_out_pending(book, execution, task_id=task.task_id)
        raise conflict(
            "local_activity_deadline_expired",
            f"the total time of call {sequence} is used up",
            event_id=event.id,
            event_type=event.event_type,
        )
    if execution.retry_available_at is not None and book.now < execution.retry_available_at:
        raise conflict(
            "local_activity_retry_not_due",
            f"the retry of call {sequence} is due at {format_instant(execution.retry_available_at)}",
            retry_available_at=format_instant(execution.retry_available_at),
        )
    if nonce in reused_nonces:
        raise conflict("local_activity_retry_worker_attempt_reused", "a retry needs a worker_attempt_id of its own")
    return _receipt(book, task, execution, _start(book, task, execution, nonce), duplicate=False)


def _repeat(book: RunBook, task: Task, execution: Execution, nonce: str, descriptor: Descriptor) -> Answer:
    attempt = book.attempt_of(execution)
    if attempt is None:
        raise LookupError(f"running call {execution.execution_id} has no attempt row")
    if (attempt.task_id, attempt.epoch) != (task.task_id, task.attempt):
        raise conflict(
            "local_activity_previous_attempt_unresolved",
            f"attempt {attempt.attempt_id} of an earlier claim is not resolved; recover it first",
            activity_attempt_id=attempt.attempt_id,
        )
    if nonce != attempt.worker_attempt_id or descriptor.fingerprint != execution.descriptor_fingerprint:
        raise conflict(
            "local_activity_preparation_mismatch",
            f"call {execution.sequence} is already prepared with another nonce or descriptor",
        )
    if attempt.lease_expires_at <= book.now:
        raise conflict("local_activity_preparation_lease_expired", "the lease of this attempt has ended")
    if passed_deadline(execution, attempt, book.now) is not None:
        raise conflict("local_activity_deadline_expired", "a deadline of this attempt has passed")
    return _receipt(book, task, execution, attempt, duplicate=True)


def _schedule(book: RunBook, task: Task, sequence: int, descriptor: Descriptor, cleanup: Cleanup | None) -> Execution:
    if descriptor.group:
        raise conflict(
            "local_activity_group_not_admitted",
            f"call {sequence} is a member of a group that was not admitted; send the whole group to checkpoint-group",
        )
    if sequence != book.run.next_sequence:
        reason = (
            "local_activity_command_prefix_not_recorded"
            if sequence > book.run.next_sequence
            else "local_activity_preparation_mismatch"
        )
        raise conflict(
            reason,
            f"the next durable command is {book.run.next_sequence}, not {sequence}",
            next_sequence=book.run.next_sequence,
        )
    waits.passed(book, task)
    return schedule(book, task, descriptor, cleanup)


def _start(book: RunBook, task: Task, execution: Execution, nonce: str) -> Attempt:
    if task.claim is None or task.lease_expires_at is None:
        raise ValueError(f"task {task.task_id} is not leased")
    attempt = Attempt(
        attempt_id=book.new_id(),
        execution_id=execution.execution_id,
        run_id=book.run.run_id,
        worker_attempt_id=nonce,
        attempt_number=execution.attempt_count + 1,
        task_id=task.task_id,
        epoch=task.attempt,
        lease_owner=task.claim.worker_id,
        registration_token=task.claim.registration_token,
        started_event_sequence=book.run.last_event + 1,
        started_task=task_snapshot(task),
        lease_expires_at=task.lease_expires_at,
        start_to_close_deadline_at=capped(book.now, execution.start_to_close_timeout, execution.cleanup),
        heartbeat_deadline_at=capped(book.now, execution.heartbeat_timeout, execution.cleanup),
    )
    running = msgspec.structs.replace(
        execution,
        status="running",
        attempt_count=attempt.attempt_number,
        current_attempt_id=attempt.attempt_id,
        retry_available_at=None,
    )
    preparation: dict[str, Any] = {
        "version": 1,
        "descriptor_fingerprint": execution.descriptor_fingerprint,
        "worker_attempt_id": nonce,
        "workflow_task_attempt": task.attempt,
        "schedule_to_close_deadline_at": instant_or_none(execution.schedule_to_close_deadline_at),
    }
    if execution.cleanup is not None:
        preparation["cancellation_cleanup"] = cleanup_body(execution.cleanup)
    book.put(attempt)
    book.put(running)
    book.record(
        "ActivityStarted",
        {
            **activity_fields(running, attempt, task_id=task.task_id),
            "lease_expires_at": format_instant(attempt.lease_expires_at),
            "local_preparation": preparation,
            "task": attempt.started_task,
        },
        task_id=task.task_id,
    )
    return attempt


def _receipt(book: RunBook, task: Task, execution: Execution, attempt: Attempt, *, duplicate: bool) -> Answer:
    return Answer(
        {
            "prepared": True,
            "duplicate": duplicate,
            "reason": None,
            "activity_execution_id": execution.execution_id,
            "activity_attempt_id": attempt.attempt_id,
            "worker_attempt_id": attempt.worker_attempt_id,
            "attempt_number": attempt.attempt_number,
            "workflow_task_id": task.task_id,
            "workflow_task_attempt": attempt.epoch,
            "lease_owner": attempt.lease_owner,
            "lease_expires_at": format_instant(attempt.lease_expires_at),
            "start_to_close_deadline_at": instant_or_none(attempt.start_to_close_deadline_at),
            "schedule_to_close_deadline_at": instant_or_none(execution.schedule_to_close_deadline_at),
            "heartbeat_deadline_at": instant_or_none(attempt.heartbeat_deadline_at),
            "cancellation_cleanup": cleanup_body(execution.cleanup),
            "server_time": format_instant(book.now),
            "history_refresh_page_token": HISTORY_START_TOKEN,
        }
    )
