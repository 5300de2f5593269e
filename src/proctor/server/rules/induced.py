"""Leases that end because a test said so, by the same fields that time would end them by. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from proctor.server.rules.book import RunBook
from proctor.server.rules.sessions.shapes import WorkerSession
from proctor.server.rules.steps import ActivityCall


def end_task_lease(book: RunBook, task_id: str) -> bool:
    """Let the lease of a workflow task, and of the prepared attempts under it, end now; false when it has none."""
    task = book.tasks.get(task_id)
    if task is None or task.status != "leased" or task.lease_expires_at is None:
        return False
    book.put(msgspec.structs.replace(task, lease_expires_at=min(task.lease_expires_at, book.now)))
    for attempt in list(book.attempts.values()):
        if attempt.task_id == task_id and attempt.status == "running" and attempt.lease_expires_at > book.now:
            book.put(msgspec.structs.replace(attempt, lease_expires_at=book.now))
    return True


def end_activity_lease(book: RunBook, sequence: int) -> bool:
    """Let the lease of the running attempt of a queued activity end now; false when it has none."""
    call = book.steps.get(sequence)
    if not isinstance(call, ActivityCall) or call.status != "running" or call.attempt.lease_expires_at is None:
        return False
    attempt = msgspec.structs.replace(call.attempt, lease_expires_at=min(call.attempt.lease_expires_at, book.now))
    book.put(msgspec.structs.replace(call, attempt=attempt))
    return True


def with_lease_ended(session: WorkerSession, now: datetime) -> WorkerSession | None:
    """Give a session whose lease ends now; None for one that nobody holds. Its last possible end does not move."""
    if session.status != "active" or session.lease_expires_at <= now:
        return None
    return msgspec.structs.replace(session, lease_expires_at=now)
