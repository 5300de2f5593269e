"""How a run gets its one request to cancel: from the control plane, from a parent that was cancelled, or has closed.

A child has a request of its own, with the root, the reason and the deadline of its parent's (cancellation.md §6, §8).
The deadline never moves, whoever asks again; a request of another root changes nothing. A parent that closes without
having been asked is the root itself: its end is the origin of one request for all children that it leaves to cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import Closing, FollowUp, RunBook
from proctor.server.rules.rows import Cancellation, Run
from proctor.server.rules.runs import wake
from proctor.server.rules.steps import ChildCall

CLOSE_BUDGET = timedelta(seconds=600)
"""How long children may clean up whose parent has closed without a request of its own, from its closing event on."""
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


def root_context(
    run: Run,
    request_id: str,
    *,
    reason: str | None,
    requester: Mapping[str, str],
    source: str,
    requested_at: datetime,
    deadline: datetime,
) -> dict[str, Any]:
    """Give the context of a request that no other one is behind (prepared-local.md §4)."""
    return {
        "schema": "durable-workflow.cancellation-context/v1",
        "request_id": request_id,
        "root_request_id": request_id,
        "root_workflow_instance_id": run.workflow_id,
        "root_workflow_run_id": run.run_id,
        "parent_request_id": None,
        "reason": reason,
        "requester": requester,
        "source": source,
        "requested_at": format_instant(requested_at),
        "cleanup_deadline_at": format_instant(deadline),
        "lineage": [_place(run, request_id)],
    }


def ask_child(book: RunBook, call: ChildCall) -> None:
    """Pass the run's request on to a child whose policy says so, once; the child's answer is recorded here."""
    if call.cancellation_asked or call.cancellation_policy not in COOPERATIVE_POLICIES:
        return
    book.put(msgspec.structs.replace(call, cancellation_asked=True))
    theirs = book.run.cancellation
    if theirs is None:
        raise ValueError(f"run {book.run.run_id} has no cancellation request to pass on")
    book.follow_ups.append(_passed_on(call, theirs, policy=call.cancellation_policy))


def request_at_close(book: RunBook, closing: Closing) -> Cancellation | None:
    """Give the request that a closed run leaves to its children: its own one, else one that its end is the origin of.

    The origin is recorded, and does not change how the run ended. A run that continues as new has not come to an end
    that could be one, so without a request of its own it gives None.
    """
    run, closed = book.run, closing.event
    if run.cancellation is not None or run.closed_reason == "continued":
        return run.cancellation
    request_id, deadline = book.new_id(), closed.recorded_at + CLOSE_BUDGET
    reason = f"the parent workflow {run.workflow_id} has closed"
    context = root_context(
        run,
        request_id,
        reason=reason,
        requester={"type": "workflow", "id": run.workflow_id, "label": "parent-close policy"},
        source="parent_close_policy",
        requested_at=closed.recorded_at,
        deadline=deadline,
    )
    payload = {
        "parent_terminal_history_event_id": closed.id,
        "parent_terminal_event_type": closed.event_type,
        "cancellation": context,
    }
    event = book.record("ParentCloseCancellationRequested", payload)
    return Cancellation(
        request_id=request_id,
        reason=reason,
        requested_at=closed.recorded_at,
        cleanup_deadline_at=deadline,
        event_id=event.id,
        event_sequence=event.sequence,
        context=context,
    )


def ask_after_close(call: ChildCall, request: Cancellation) -> FollowUp:
    """Pass the request of a parent that has closed on to a child that it leaves behind."""
    return _passed_on(call, request, policy=None)


def _passed_on(call: ChildCall, request: Cancellation, *, policy: str | None) -> FollowUp:
    act = partial(_receive, theirs=request, parent_run_id=call.run_id, sequence=call.sequence, policy=policy)
    return FollowUp(call.child_run_id, act)


def _receive(book: RunBook, *, theirs: Cancellation, parent_run_id: str, sequence: int, policy: str | None) -> None:
    """Take the request of a parent in, as a child. With a `policy` the parent waits to hear of it."""
    root = theirs.context["root_request_id"]
    refused = None
    if book.run.cancellation is None and book.run.is_closed:
        refused = "run_not_active"
    elif book.run.cancellation is None:
        request_id = book.new_id()
        context = {
            **theirs.context,
            "request_id": request_id,
            "parent_request_id": theirs.request_id,
            "lineage": [*theirs.context["lineage"], _place(book.run, request_id)],
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
    book.follow_ups.append(FollowUp(parent_run_id, partial(_note, sequence=sequence, payload=payload)))


def _place(run: Run, request_id: str) -> dict[str, str]:
    return {"request_id": request_id, "workflow_instance_id": run.workflow_id, "workflow_run_id": run.run_id}


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
        and call.sequence in cancellation.awaiting.awaited
    ):
        wake(book, source_kind="child_workflow", source_id=call.step_id)
