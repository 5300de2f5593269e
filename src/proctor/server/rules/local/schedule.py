"""Scheduling a local call: its row, its total deadline, its `ActivityScheduled` (prepared-local.md §2.2, §2.3).

The total time of a call begins here and nowhere else, whether the call is prepared at once or admitted with its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from proctor.server.rules.activities import activity_fields
from proctor.server.rules.book import RunBook
from proctor.server.rules.local.descriptor import Descriptor
from proctor.server.rules.rows import Cleanup, Execution, Task


def schedule(
    book: RunBook,
    task: Task,
    descriptor: Descriptor,
    cleanup: Cleanup | None,
    *,
    group: Mapping[str, Any] | None = None,
    admission: Mapping[str, Any] | None = None,
) -> Execution:
    """Schedule a call under the next durable number, without an attempt.

    `admission` is what history says of the checkpoint that admitted it with its `group`.
    """
    execution = Execution(
        execution_id=book.new_id(),
        run_id=book.run.run_id,
        sequence=book.take_sequence(),
        activity_type=descriptor.activity_type,
        arguments=descriptor.arguments,
        queue=book.run.task_queue,
        descriptor_fingerprint=descriptor.fingerprint,
        group=dict(group or {}),
        max_attempts=descriptor.max_attempts,
        backoff_seconds=descriptor.backoff_seconds,
        non_retryable_error_types=descriptor.non_retryable_error_types,
        start_to_close_timeout=descriptor.start_to_close_timeout,
        schedule_to_close_timeout=descriptor.schedule_to_close_timeout,
        heartbeat_timeout=descriptor.heartbeat_timeout,
        cancellation_policy=descriptor.cancellation_policy,
        schedule_to_close_deadline_at=capped(book.now, descriptor.schedule_to_close_timeout, cleanup),
        cleanup=cleanup,
    )
    book.put(execution)
    if descriptor.cancellation_policy is not None and not book.run.needs_policy_support:
        book.update_run(needs_policy_support=True)
    payload = activity_fields(execution, None, task_id=task.task_id)
    if admission is not None:
        payload["local_group_admission"] = dict(admission)
    book.record("ActivityScheduled", payload, task_id=task.task_id)
    return execution


def capped(now: datetime, timeout: int | None, cleanup: Cleanup | None) -> datetime | None:
    """Give now + timeout, never later than the cleanup deadline, which also stands in for an absent timeout."""
    deadline = None if timeout is None else now + timedelta(seconds=timeout)
    if cleanup is None:
        return deadline
    return cleanup.cleanup_deadline_at if deadline is None else min(deadline, cleanup.cleanup_deadline_at)
