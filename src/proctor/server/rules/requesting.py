"""How a run gets its one request to cancel: from the control plane, or from the parent that was cancelled.

A child has a request of its own, with the root, the reason and the deadline of its parent's (cancellation.md §6, §8).
The deadline never moves, whoever asks again; a request of another root changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import FollowUp, RunBook
from proctor.server.rules.rows import Cancellation, Run
from proctor.server.rules.runs import wake
from proctor.server.rules.steps import ChildCall

COOPERATIVE_POLICIES = ("try_cancel", "wait_cancellation_completed")


def accept(
    book: RunBook, request_id: str, context: Mapping[str, Any], *, reason: str | None, deadline: datetime
) -> Cancellation:
    """Record the request of a run that has none, and wake the run."""
    payload: dict[str, Any] = {
        "workflow_command_id": request_id,
        "workflow_instance_id": book.run.workflow_id,
        "workflow_run_id": book.run.run_id,
        "cleanup_deadline_at": format_instant(deadline),
        "cancellation": context,
    }
    if reason is not None:
        payload["reason"] = reason
    event = book.record("CooperativeCancellationRequested", payload, command_id=request_id)
    cancellation = Cancellation(
        request_id=request_id,
        reason=reason,
        requested_at=book.now,
        cleanup_deadline_at=deadline,
        event_id=event.id,
        event_sequence=event.sequence,
        context=dict(context),
    )
    book.update_run(cancellation=cancellation)
    wake(book, source_kind="cancellation_request", source_id=request_id, command_id=request_id)
    return cancellation


def ask_child(book: RunBook, call: ChildCall) -> None:
    """Pass the run's request on to a child whose policy says so, once; the child's answer is recorded here."""
    if call.cancellation_asked or call.cancellation_policy not in COOPERATIVE_POLICIES:
        return
    book.put(msgspec.structs.replace(call, cancellation_asked=True))
    act = partial(_receive, parent=book.run, sequence=call.sequence, policy=call.cancellation_policy)
    book.follow_ups.append(FollowUp(call.child_run_id, act))


def ask_after_close(call: ChildCall, parent: Run) -> FollowUp | None:
    """Pass the request of a parent that has closed on to a child that it leaves behind; None without a request."""
    if parent.cancellation is None:
        return None
    return FollowUp(call.child_run_id, partial(_receive, parent=parent, sequence=call.sequence, policy=None))


def _receive(book: RunBook, *, parent: Run, sequence: int, policy: str | None) -> None:
    """Take the request of a parent in, as a child. With a `policy` the parent waits to hear of it."""
    theirs = parent.cancellation
    if theirs is None:
        raise ValueError(f"run {parent.run_id} has no cancellation request to pass on")
    root = theirs.context["root_request_id"]
    refused = None
    if book.run.cancellation is None and book.run.is_closed:
        refused = "run_not_active"
    elif book.run.cancellation is None:
        request_id = book.new_id()
        place = {
            "request_id": request_id,
            "workflow_instance_id": book.run.workflow_id,
            "workflow_run_id": book.run.run_id,
        }
        context = {
            **theirs.context,
            "request_id": request_id,
            "parent_request_id": theirs.request_id,
            "lineage": [*theirs.context["lineage"], place],
        }
        accept(book, request_id, context, reason=theirs.reason, deadline=theirs.cleanup_deadline_at)
    elif book.run.cancellation.context["root_request_id"] != root:
        refused = "cancellation_root_conflict"
    if policy is None:
        return
    ours = book.run.cancellation
    payload = {
        "sequence": sequence,
        "policy": policy,
        "parent_request_id": theirs.request_id,
        "root_request_id": root,
        "cleanup_deadline_at": format_instant(theirs.cleanup_deadline_at),
        "child_workflow_instance_id": book.run.workflow_id,
        "child_workflow_run_id": book.run.run_id,
        "child_request_id": None if ours is None else ours.request_id,
        "child_root_request_id": None if ours is None else ours.context["root_request_id"],
        "child_cleanup_deadline_at": None if ours is None else format_instant(ours.cleanup_deadline_at),
        "request_outcome": "accepted" if refused is None else "rejected",
        "rejection_reason": refused,
    }
    book.follow_ups.append(FollowUp(parent.run_id, partial(_note, sequence=sequence, payload=payload)))


def _note(book: RunBook, *, sequence: int, payload: dict[str, Any]) -> None:
    """Record in the parent what became of the request that it passed on."""
    call = book.steps.get(sequence)
    if not isinstance(call, ChildCall) or not call.is_open:
        return
    book.put(msgspec.structs.replace(call, cancellation=payload))
    book.record("ChildCancellationRequested", payload, command_id=payload["parent_request_id"])


def hear_of_cancelled_end(book: RunBook, call: ChildCall, *, status: str, event_id: str, event_type: str) -> None:
    """Record how a child ended that was asked to cancel, and wake a delivery that waits for it."""
    if call.cancellation is None:
        return
    payload = {
        **call.cancellation,
        "child_status": status,
        "child_terminal_history_event_id": event_id,
        "child_terminal_event_type": event_type,
        "reason": None,
    }
    book.record("ChildCancellationResolved", payload, command_id=payload["parent_request_id"])
    cancellation = book.run.cancellation
    if (
        cancellation is not None
        and cancellation.awaiting is not None
        and call.sequence in cancellation.awaiting.numbers
    ):
        wake(book, source_kind="child_workflow", source_id=call.step_id)
