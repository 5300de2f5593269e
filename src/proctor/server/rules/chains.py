"""The runs of one workflow, one after the other: continued as new by the workflow, or tried again after a failure.

A successor has the same workflow id and the next run number. The execution deadline spans the whole chain and never
moves; the run timeout begins anew with each run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from proctor.server.rules.book import FollowUp, RunBook
from proctor.server.rules.children import follow
from proctor.server.rules.rows import Run, Task
from proctor.server.rules.runs import close, record_started, wake


def continue_as_new(book: RunBook, task: Task, facts: Mapping[str, Any]) -> None:
    """Close the run and start its successor with other arguments, both linked to each other."""
    run, sequence, link_id = book.run, book.take_sequence(), book.new_id()
    successor = _successor(
        book,
        workflow_type=facts["workflow_type"] or run.workflow_type,
        task_queue=facts["queue"] or run.task_queue,
    )
    book.update_run(next_run_id=successor.run_id)
    close(
        book,
        status="completed",
        reason="continued",
        event_type="WorkflowContinuedAsNew",
        payload={
            "sequence": sequence,
            "continued_to_run_id": successor.run_id,
            "continued_to_run_number": successor.run_number,
            "workflow_link_id": link_id,
            "closed_reason": "continued",
        },
        task_id=task.task_id,
    )
    link = {"continued_from_run_id": run.run_id, "workflow_link_id": link_id}
    book.follow_ups.append(
        FollowUp(successor.run_id, partial(_begin, link=link), new=successor, input=facts["arguments"])
    )
    _tell_parent(book, successor, {"continued_from_run_id": run.run_id})


def retry(book: RunBook, payload: Mapping[str, Any]) -> bool:
    """Start the next try of a child that failed; give False when its policy has none for this failure."""
    run = book.run
    policy = run.retry
    if policy is None or run.status != "failed" or policy.attempt >= policy.max_attempts:
        return False
    kinds = {payload.get("exception_type"), payload.get("exception_class")}
    if payload.get("non_retryable") is True or kinds & set(policy.non_retryable_error_types):
        return False
    if payload.get("timeout_kind") == "execution":
        return False
    gap = min(policy.attempt, len(policy.backoff_seconds)) - 1
    pause = policy.backoff_seconds[gap] if gap >= 0 else 0
    successor = msgspec.structs.replace(
        _successor(book, workflow_type=run.workflow_type, task_queue=run.task_queue, pause=pause),
        retry=msgspec.structs.replace(policy, attempt=policy.attempt + 1),
    )
    book.update_run(next_run_id=successor.run_id)
    link = {"retry_attempt": policy.attempt + 1, "retry_of_child_workflow_run_id": run.run_id}
    act = partial(_begin, link=link, available_at=book.now + timedelta(seconds=pause))
    book.follow_ups.append(FollowUp(successor.run_id, act, new=successor, input_of=run.run_id))
    _tell_parent(book, successor, {**link, "retry_backoff_seconds": pause})
    return True


def _successor(book: RunBook, *, workflow_type: str, task_queue: str, pause: int = 0) -> Run:
    run = book.run
    seconds = run.run_timeout_seconds
    return Run(
        namespace=run.namespace,
        workflow_id=run.workflow_id,
        run_id=book.new_id(),
        run_number=run.run_number + 1,
        workflow_type=workflow_type,
        task_queue=task_queue,
        memo=run.memo,
        memo_blob=run.memo_blob,
        search_attributes=run.search_attributes,
        execution_timeout_seconds=run.execution_timeout_seconds,
        run_timeout_seconds=seconds,
        execution_deadline_at=run.execution_deadline_at,
        run_deadline_at=None if seconds is None else book.now + timedelta(seconds=pause + seconds),
        parent=run.parent,
        retry=run.retry,
        compatibility=run.compatibility,
        previous_run_id=run.run_id,
        started_at=book.now,
        last_progress_at=book.now,
    )


def _begin(book: RunBook, link: Mapping[str, Any], available_at: datetime | None = None) -> None:
    record_started(book, link=link)
    wake(book, available_at=available_at)


def _tell_parent(book: RunBook, successor: Run, link: Mapping[str, Any]) -> None:
    parent = book.run.parent
    if parent is not None:
        act = partial(follow, sequence=parent.sequence, successor=successor, link=link)
        book.follow_ups.append(FollowUp(parent.run_id, act))
