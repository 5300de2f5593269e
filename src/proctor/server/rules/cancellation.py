"""Cooperative cancellation: one request, one delivery, one deadline (cancellation.md §3 to §6).

The request is accepted once and never changes; delivering it is the worker's act at an authored call. Fencing the
attempt at that call happens here, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules import signal_waits, waits
from proctor.server.rules.activities import fence
from proctor.server.rules.book import RunBook, Settings
from proctor.server.rules.queued import ending
from proctor.server.rules.refusal import Answer, conflict
from proctor.server.rules.requesting import accept, ask_child, root_context
from proctor.server.rules.rows import Boundary, Cancellation, Delivery, Execution, Task
from proctor.server.rules.runs import instant_or_none
from proctor.server.rules.selections import member_numbers, selection_of
from proctor.server.rules.steps import ActivityCall, ChildCall, ConditionWait, SignalWait, Step, Timer
from proctor.server.rules.tasks import HISTORY_START_TOKEN
from proctor.server.rules.timers import cancel_timer

CALL_KINDS = (
    "activity",
    "local_activity",
    "timer",
    "condition",
    "signal",
    "child",
    "parallel",
    "selection_handle",
)
MAX_SPAN = 1_000
REQUESTER = {"type": "operator", "id": "control-plane", "label": "control plane"}


def observation(cancellation: Cancellation) -> dict[str, Any]:
    """Give the request as polls, heartbeats and the control plane show it: exactly these six keys."""
    delivery = cancellation.delivery
    return {
        "request_id": cancellation.request_id,
        "requested_at": format_instant(cancellation.requested_at),
        "cleanup_deadline_at": format_instant(cancellation.cleanup_deadline_at),
        "delivery_sequence": None if delivery is None else delivery.boundary.sequence,
        "delivered_at": None if delivery is None else instant_or_none(delivery.delivered_at),
        "history_refresh_page_token": HISTORY_START_TOKEN,
    }


def check_supported(settings: Settings) -> None:
    """Refuse what a server of an older protocol does not have, whatever it is asked for."""
    if settings.minor < 20:
        raise conflict(
            "cooperative_cancellation_not_supported",
            f"cooperative cancellation needs protocol 1.20, this server speaks {settings.protocol}",
        )


def _is_live(task: Task, now: datetime) -> bool:
    return task.status == "leased" and task.lease_expires_at is not None and task.lease_expires_at > now


def request(book: RunBook, *, reason: str | None, cleanup_timeout_seconds: int) -> Answer:
    """Accept a cancellation request (202), repeat the first one (200), or refuse."""
    run = book.run
    check_supported(book.settings)
    if run.cancellation is not None:
        return _accepted(book, run.cancellation, duplicate=True)
    if run.is_closed:
        raise conflict("run_not_active", f"the run is closed ({run.status})", run_status=run.status, run_id=run.run_id)
    task = book.open_task()
    if task is not None and _is_live(task, book.now) and not _is_cooperative(task):
        raise conflict(
            "active_claim_cancellation_not_supported",
            "a worker without cooperative cancellation holds the workflow task right now; try again later",
            task_id=task.task_id,
            workflow_task_attempt=task.attempt,
        )
    request_id = book.new_id()
    deadline = book.now + timedelta(seconds=cleanup_timeout_seconds)
    context = root_context(
        book.run,
        request_id,
        reason=reason,
        requester=REQUESTER,
        source="control_plane",
        requested_at=book.now,
        deadline=deadline,
    )
    cancellation = accept(book, request_id, context, reason=reason, deadline=deadline)
    return _accepted(book, cancellation, duplicate=False)


def _accepted(book: RunBook, cancellation: Cancellation, *, duplicate: bool) -> Answer:
    body = {
        "workflow_id": book.run.workflow_id,
        "run_id": book.run.run_id,
        "accepted": True,
        "duplicate": duplicate,
        "run_status": book.run.status,
        "cancellation_request": observation(cancellation),
        "reason": None,
    }
    return Answer(body, status=200 if duplicate else 202)


def _is_cooperative(task: Task) -> bool:
    claim = task.claim
    if claim is None or "cooperative_cancellation" not in claim.capabilities:
        return False
    return claim.minor >= 20


def check_cooperative(task: Task) -> None:
    """Refuse a claim whose worker could not deliver a cancellation when it leased the task."""
    if not _is_cooperative(task):
        raise conflict(
            "active_claim_cancellation_not_supported",
            "this claim was leased without cooperative cancellation; poll for a new one",
        )


def deliver(
    book: RunBook,
    task: Task,
    *,
    request_id: str,
    boundary: Boundary,
) -> Answer:
    """Commit the delivery at this call, repeat the identical one, or release the claim to wait for a stop."""
    check_cooperative(task)
    cancellation = book.run.cancellation
    if cancellation is None or cancellation.request_id != request_id:
        raise conflict("cancellation_request_mismatch", f"the run has no cancellation request {request_id}")
    spans = boundary.call_kind == "parallel" or boundary.sequence_span == 1
    if not spans or (boundary.call_kind == "selection_handle") != (boundary.operation_sequence is not None):
        raise conflict("invalid_cancellation_delivery", "the span does not fit the kind of call")
    if cancellation.delivery is not None:
        if cancellation.delivery.boundary != boundary:
            raise conflict("cancellation_delivery_mismatch", "the cancellation was delivered at another call")
        return _delivered(book, task, request_id, boundary)
    if cancellation.awaiting is not None and cancellation.awaiting != boundary:
        raise conflict("cancellation_wait_boundary_mismatch", "the cancellation waits for a stop at another call")
    members = _check_boundary(book, cancellation, boundary)
    for member in members:
        _stop(book, member, task_id=task.task_id)
    waiting_for = _must_wait(book, [book.row_at(member.sequence) for member in members])
    if waiting_for is not None:
        return _wait(book, task, cancellation, boundary, waiting_for)
    _commit(book, task, cancellation, boundary)
    return _delivered(book, task, request_id, boundary)


def _check_boundary(book: RunBook, cancellation: Cancellation, boundary: Boundary) -> list[Execution | Step]:
    """Check the authored call against what is recorded at its numbers; give what is recorded there."""
    if boundary.sequence > book.run.next_sequence:
        raise conflict(
            "cancellation_delivery_sequence_mismatch",
            f"the next durable command is {book.run.next_sequence}, not {boundary.sequence}",
            next_sequence=book.run.next_sequence,
        )
    if boundary.operation_sequence is not None:
        members = _check_handle(book, boundary)
    elif boundary.sequence == book.run.next_sequence:
        return []
    else:
        members = _check_call(book, boundary)
    before = [
        row
        for row in members
        if row.closed_event_sequence is not None and row.closed_event_sequence < cancellation.event_sequence
    ]
    if len(before) == len(members) or any(row.status not in _SUCCESSES for row in before):
        raise conflict(
            "cancellation_delivery_not_eligible", "this call was resolved before the cancellation was requested"
        )
    return members


def _check_call(book: RunBook, boundary: Boundary) -> list[Execution | Step]:
    members = [row for row in map(book.row_at, boundary.awaited) if row is not None]
    if len(members) != boundary.sequence_span or not _has_shape(members, boundary):
        raise conflict(
            "cancellation_delivery_shape_mismatch",
            f"history at command {boundary.sequence} is not an open {boundary.call_kind}",
        )
    return members


def _check_handle(book: RunBook, boundary: Boundary) -> list[Execution | Step]:
    """Give the operations of the member whose handle is awaited; awaiting one is itself a new command."""
    if boundary.sequence != book.run.next_sequence:
        raise conflict(
            "cancellation_delivery_shape_mismatch", f"history at command {boundary.sequence} is not a selection_handle"
        )
    members = [row for row in map(book.row_at, boundary.awaited) if row is not None]
    entries = [selection_of(row.group) for row in members]
    ranges = [None if entry is None else member_numbers(entry) for entry in entries]
    if len(members) != boundary.operation_sequence_span or any(found != boundary.awaited for found in ranges):
        raise conflict(
            "cancellation_delivery_sequence_mismatch",
            f"command {boundary.operation_sequence} does not begin a member of {boundary.operation_sequence_span} "
            "operations of a selection",
            next_sequence=book.run.next_sequence,
        )
    return members


_SUCCESSES = ("completed", "fired", "satisfied", "applied")


def _has_shape(members: Sequence[Execution | Step], boundary: Boundary) -> bool:
    if boundary.call_kind != "parallel":
        return kind_of(members[0]) == boundary.call_kind and not members[0].group
    paths = [row.group.get("parallel_group_path") or [{}] for row in members]
    return all(
        (path[0].get("parallel_group_base_sequence"), path[0].get("parallel_group_size"))
        == (boundary.sequence, boundary.sequence_span)
        for path in paths
    )


def kind_of(row: Execution | Step) -> str:
    """Give the call kind of a recorded step, in the words of a delivery."""
    match row:
        case Timer():
            return "timer"
        case ConditionWait():
            return "condition"
        case SignalWait():
            return "signal"
        case ChildCall():
            return "child"
        case ActivityCall():
            return "activity"
        case Execution():
            return "local_activity"


def _stop(book: RunBook, row: Execution | Step, *, task_id: str) -> None:
    """Cancel an open member of the boundary, in the transaction of the delivery."""
    request = book.run.cancellation
    command_id = None if request is None else request.request_id
    if not row.is_open:
        return
    match row:
        case Execution():
            fence(book, row, task_id=task_id)
        case Timer():
            cancel_timer(book, row, task_id=task_id, command_id=command_id)
        case ConditionWait():
            waits.abandon(book, row, task_id=task_id)
        case SignalWait():
            signal_waits.abandon(book, row, task_id=task_id)
        case ActivityCall():
            ending.cancel(book, row, task_id=task_id)
        case ChildCall():
            ask_child(book, row)


def _must_wait(book: RunBook, members: Sequence[Execution | Step | None]) -> str | None:
    """Say what the delivery must wait for by policy: the stop receipt of a started attempt, the end of a child."""
    for row in members:
        if isinstance(row, ChildCall):
            if row.is_open and row.cancellation_policy == "wait_cancellation_completed":
                return "child"
            continue
        if isinstance(row, ActivityCall):
            if ending.awaits_stop(row):
                return "activity"
            continue
        if not isinstance(row, Execution) or row.cancellation_policy != "wait_cancellation_completed":
            continue
        attempt = book.attempt_of(row)
        if row.status == "cancelled" and attempt is not None and attempt.status == "cancelled" and attempt.stop is None:
            return "activity"
    return None


def _wait(book: RunBook, task: Task, cancellation: Cancellation, boundary: Boundary, waiting_for: str) -> Answer:
    book.update_run(
        cancellation=msgspec.structs.replace(cancellation, awaiting=boundary),
        status="waiting",
        wake_pending=False,
    )
    book.put(msgspec.structs.replace(task, status="completed"))
    return Answer(
        {
            "delivered": False,
            "reason": f"cancellation_waiting_for_{waiting_for}",
            "claim_released": True,
            "task_id": task.task_id,
            "workflow_run_id": book.run.run_id,
            **dict.fromkeys(
                (
                    "request_id",
                    "sequence",
                    "call_kind",
                    "sequence_span",
                    "operation_sequence",
                    "operation_sequence_span",
                )
            ),
        }
    )


def _commit(book: RunBook, task: Task, cancellation: Cancellation, boundary: Boundary) -> None:
    payload: dict[str, Any] = {
        "workflow_command_id": cancellation.request_id,
        "workflow_run_id": book.run.run_id,
        "sequence": boundary.sequence,
        "call_kind": boundary.call_kind,
        "cancellation": cancellation.context,
    }
    if boundary.sequence_span != 1:
        payload["sequence_span"] = boundary.sequence_span
    if boundary.operation_sequence is not None:
        payload["operation_sequence"] = boundary.operation_sequence
    if boundary.operation_sequence_span != 1:
        payload["operation_sequence_span"] = boundary.operation_sequence_span
    event = book.record(
        "CooperativeCancellationDelivered",
        payload,
        task_id=task.task_id,
        command_id=cancellation.request_id,
    )
    delivery = Delivery(boundary=boundary, event_id=event.id, delivered_at=book.now)
    book.update_run(
        cancellation=msgspec.structs.replace(cancellation, delivery=delivery, awaiting=None),
        next_sequence=max(book.run.next_sequence, boundary.sequence + boundary.sequence_span),
    )


def _delivered(book: RunBook, task: Task, request_id: str, boundary: Boundary) -> Answer:
    return Answer(
        {
            "delivered": True,
            "task_id": task.task_id,
            "workflow_run_id": book.run.run_id,
            "request_id": request_id,
            "sequence": boundary.sequence,
            "call_kind": boundary.call_kind,
            "sequence_span": boundary.sequence_span,
            "operation_sequence": boundary.operation_sequence,
            # A whole number even where there is no operation: the official client refuses anything else.
            "operation_sequence_span": boundary.operation_sequence_span,
            "reason": None,
        }
    )
