"""Child workflows as their parent sees them: started by a command, followed over their runs, heard of when they end.

A child is a run of its own under a workflow id that the server chooses. What happens in one of the two runs reaches
the other as a `FollowUp` of the same transaction, so that no reader ever sees one without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import FollowUp, RunBook
from proctor.server.rules.commands.options import RetryPolicy
from proctor.server.rules.requesting import ask_after_close, hear_of_cancelled_end
from proctor.server.rules.resolving import resolved
from proctor.server.rules.rows import Cancellation, Event, Parent, Run, RunRetry, Task
from proctor.server.rules.runs import (
    close,
    instant_or_none,
    new_run,
    record_started,
    retry_snapshot,
    timeout_fields,
    wake,
)
from proctor.server.rules.selections import selection_of
from proctor.server.rules.steps import ChildCall

_ENDS = {
    "completed": "ChildRunCompleted",
    "failed": "ChildRunFailed",
    "cancelled": "ChildRunCancelled",
    "terminated": "ChildRunTerminated",
}
_MESSAGES = {
    "failed": "the child workflow failed",
    "cancelled": "the child workflow was cancelled",
    "terminated": "the child workflow was terminated",
}
# What a child that ended badly tells its parent of the failure.
_FAILURE_FACTS = ("exception_type", "exception_class", "exception", "non_retryable", "timeout_kind")


def start_child(book: RunBook, task: Task, facts: Mapping[str, Any]) -> ChildCall:
    """Start a child under the next durable number; its first task is ready with this transaction."""
    run, sequence = book.run, book.take_sequence()
    call_id, link_id = book.new_id(), book.new_id()
    policy: RetryPolicy | None = facts["retry_policy"]
    child = new_run(
        namespace=run.namespace,
        workflow_id=f"child-{book.new_id()}",
        run_id=book.new_id(),
        run_number=1,
        workflow_type=facts["workflow_type"],
        task_queue=facts["queue"] or run.task_queue,
        now=book.now,
        execution_timeout_seconds=facts["execution_timeout_seconds"],
        run_timeout_seconds=facts["run_timeout_seconds"],
        parent=Parent(
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            sequence=sequence,
            child_call_id=call_id,
            workflow_link_id=link_id,
            parent_close_policy=facts["parent_close_policy"] or "abandon",
        ),
        retry=None
        if policy is None
        else RunRetry(
            max_attempts=policy.max_attempts,
            backoff_seconds=policy.backoff_seconds,
            non_retryable_error_types=policy.non_retryable_error_types,
        ),
    )
    call = ChildCall(
        step_id=call_id,
        run_id=run.run_id,
        sequence=sequence,
        opened_event_sequence=run.last_event + 1,
        child_workflow_id=child.workflow_id,
        first_run_id=child.run_id,
        child_run_id=child.run_id,
        child_workflow_type=child.workflow_type,
        workflow_link_id=link_id,
        parent_close_policy=facts["parent_close_policy"] or "abandon",
        cancellation_policy=facts["cancellation_policy"],
        group=facts["group"],
    )
    book.put(call)
    payload = {**_fields(call), **_origin(child)}
    book.record("ChildWorkflowScheduled", payload, task_id=task.task_id)
    book.record("ChildRunStarted", payload, task_id=task.task_id)
    book.follow_ups.append(FollowUp(child.run_id, _begin, new=child, input=facts["arguments"]))
    return call


def _begin(book: RunBook) -> None:
    record_started(book)
    wake(book)


def follow(book: RunBook, sequence: int, successor: Run, link: Mapping[str, Any]) -> None:
    """Note in the parent that its child goes on in another run: tried again, or continued as new."""
    call = book.steps.get(sequence)
    if book.run.is_closed or not isinstance(call, ChildCall) or not call.is_open:
        return
    call = msgspec.structs.replace(
        call,
        child_run_id=successor.run_id,
        child_run_number=successor.run_number,
        child_workflow_type=successor.workflow_type,
    )
    book.put(call)
    book.record("ChildRunStarted", {**_fields(call), **_origin(successor), **link})


def hear_of_end(book: RunBook, sequence: int, child: Run, payload: Mapping[str, Any], ended: Event) -> None:
    """Record in the parent how its child ended by the event `ended`, and wake it; a closed parent hears nothing."""
    call = book.steps.get(sequence)
    if book.run.is_closed or not isinstance(call, ChildCall) or not call.is_open:
        return
    call = msgspec.structs.replace(
        call, status=child.status, child_run_id=child.run_id, closed_event_sequence=book.run.last_event + 1
    )
    book.put(call)
    facts = {
        **_fields(call),
        "child_status": child.status,
        "closed_reason": child.closed_reason,
        "closed_at": instant_or_none(child.closed_at),
        **_outcome(book, child, payload),
    }
    event = book.record(_ENDS[child.status], facts)
    hear_of_cancelled_end(book, call, status=child.status, event_id=ended.id, event_type=ended.event_type)
    resolved(book, call, event, source_kind="child_workflow")


def _outcome(book: RunBook, child: Run, payload: Mapping[str, Any]) -> dict[str, Any]:
    if child.status == "completed":
        output = payload.get("output")
        return {"result": output, "output": output, "payload_codec": child.payload_codec}
    told = {name: payload[name] for name in _FAILURE_FACTS if payload.get(name) is not None}
    return {
        "message": payload.get("message") or payload.get("reason") or _MESSAGES[child.status],
        "failure_id": payload.get("failure_id") or book.new_id(),
        "failure_category": "child_workflow" if child.status == "failed" else child.status,
        **told,
    }


def end_with_parent(book: RunBook, status: str, parent: Parent) -> None:
    """Close a child because its parent has closed: as `terminated` or as `cancelled`, at once."""
    reason = f"the parent workflow {parent.workflow_id} has closed"
    _close(book, status, reason, parent_workflow_instance_id=parent.workflow_id, parent_workflow_run_id=parent.run_id)


def end_as_cancelled(book: RunBook, reason: str) -> None:
    """Close a child that its parent wants no longer."""
    _close(book, "cancelled", reason)


def _close(book: RunBook, status: str, reason: str, **facts: str) -> None:
    if book.run.is_closed:
        return
    command_id = book.new_id()
    close(
        book,
        status=status,
        reason=status,
        event_type="WorkflowTerminated" if status == "terminated" else "WorkflowCancelled",
        payload={"workflow_command_id": command_id, "reason": reason, **facts},
        command_id=command_id,
    )


def when_parent_closes(call: ChildCall, parent: Run, request: Cancellation | None) -> FollowUp | None:
    """Give what the parent-close policy of an open child asks for; None for a child that is left alone.

    `request` is the one to pass on to those that are asked to cancel themselves.
    """
    if call.parent_close_policy == "request_cancellation":
        return None if request is None else ask_after_close(call, request)
    status = {"terminate": "terminated", "request_cancel": "cancelled"}.get(call.parent_close_policy)
    if status is None:
        return None
    link = Parent(
        workflow_id=parent.workflow_id,
        run_id=parent.run_id,
        sequence=call.sequence,
        child_call_id=call.step_id,
        workflow_link_id=call.workflow_link_id,
    )
    return FollowUp(call.child_run_id, partial(end_with_parent, status=status, parent=link))


def _fields(call: ChildCall) -> dict[str, Any]:
    selected = selection_of(call.group) is not None
    fields: dict[str, Any] = {
        "sequence": call.sequence,
        "child_call_id": call.step_id,
        "workflow_link_id": call.workflow_link_id,
        "child_workflow_instance_id": call.child_workflow_id,
        # The operation identity of a selection's member never changes.
        "child_workflow_run_id": call.first_run_id if selected else call.child_run_id,
        "child_workflow_class": call.child_workflow_type,
        "child_workflow_type": call.child_workflow_type,
        "child_run_number": call.child_run_number,
        "parent_close_policy": call.parent_close_policy,
        **call.group,
    }
    if call.cancellation_policy is not None:
        fields["cancellation_policy"] = call.cancellation_policy
    return fields


def _origin(child: Run) -> dict[str, Any]:
    retry = {} if child.retry is None else {"retry_policy": retry_snapshot(child.retry)}
    return {**retry, **timeout_fields(child), "started_at": format_instant(child.started_at)}
