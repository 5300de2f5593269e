"""acknowledge-cancellation: the handler of a fenced attempt is gone and joined (prepared-local.md §2.7).

The receipt grants nothing; it is evidence. It wakes a run that waits for exactly this stop.
"""

from __future__ import annotations

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import RunBook
from proctor.server.rules.refusal import Answer, conflict
from proctor.server.rules.rows import Attempt, Execution, StopReceipt
from proctor.server.rules.runs import wake
from proctor.server.rules.tasks import HISTORY_START_TOKEN


def acknowledge(book: RunBook, execution: Execution, attempt: Attempt, *, request_id: str) -> Answer:
    """Record the stop, repeat the receipt of an earlier one, or raise the first refusal.

    Allowed after the registration was replaced, after the claim was taken over and after the run was closed.
    """
    cancellation = book.run.cancellation
    if attempt.attempt_id != execution.current_attempt_id:
        raise conflict(
            "activity_cancellation_acknowledgement_fence_mismatch",
            f"attempt {attempt.attempt_id} is not the current attempt of its call",
        )
    if cancellation is None or cancellation.request_id != request_id:
        raise conflict("cancellation_request_mismatch", f"the run has no cancellation request {request_id}")
    if attempt.stop is not None:
        return _receipt(attempt.stop, duplicate=True)
    if execution.cancelled_event_id is None or execution.cancelled_event_sequence is None:
        raise conflict(
            "activity_cancellation_not_recorded",
            "the attempt is not fenced yet: call control or outcome first",
        )
    if attempt.started_event_sequence >= execution.cancelled_event_sequence:
        raise conflict(
            "activity_cancellation_snapshot_mismatch", "the attempt started after the cancellation was recorded"
        )
    late = cancellation.cleanup_deadline_at <= book.now
    event = book.record(
        "ActivityCancellationAcknowledged",
        {
            "sequence": execution.sequence,
            "execution_mode": "local",
            "local_activity": True,
            "activity_execution_id": execution.execution_id,
            "activity_attempt_id": attempt.attempt_id,
            "lease_owner": attempt.lease_owner,
            "cancellation_history_event_id": execution.cancelled_event_id,
            "request_id": cancellation.request_id,
            "root_request_id": cancellation.context["root_request_id"],
            "cleanup_deadline_at": format_instant(cancellation.cleanup_deadline_at),
            "callback_state": "stopped",
            "evidence_source": "workflow_worker",
            "acknowledged_at": format_instant(book.now),
            "received_after_deadline": late,
            "workflow_task_id": attempt.task_id,
            "task": attempt.started_task,
        },
        task_id=attempt.task_id,
        command_id=cancellation.request_id,
    )
    receipt = StopReceipt(
        event_id=event.id,
        request_id=request_id,
        acknowledged_at=book.now,
        received_after_deadline=late,
    )
    book.put(msgspec.structs.replace(attempt, stop=receipt))
    awaited = cancellation.awaiting
    if awaited is not None and execution.sequence in awaited.awaited and not book.run.is_closed:
        wake(
            book,
            source_kind="activity_cancellation_acknowledged",
            source_id=event.id,
            command_id=cancellation.request_id,
        )
    return _receipt(receipt, duplicate=False)


def _receipt(receipt: StopReceipt, *, duplicate: bool) -> Answer:
    return Answer(
        {
            "acknowledged": True,
            "duplicate": duplicate,
            "reason": None,
            "history_event_id": receipt.event_id,
            "request_id": receipt.request_id,
            "history_refresh_page_token": HISTORY_START_TOKEN,
        }
    )
