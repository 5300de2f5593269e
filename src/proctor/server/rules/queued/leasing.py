"""The lease of a queued activity: taken by a poll, renewed, and kept alive by heartbeats (worker.md §3.1 to §3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.book import RunBook
from proctor.server.rules.queued.schedule import event_fields
from proctor.server.rules.rows import Registration
from proctor.server.rules.runs import instant_or_none
from proctor.server.rules.steps import ActivityAttempt, ActivityCall


def lease(book: RunBook, call: ActivityCall, registration: Registration, request_id: str | None) -> ActivityCall:
    """Give the ready attempt of a call to a worker."""
    attempt = msgspec.structs.replace(
        call.attempt,
        status="running",
        lease_owner=registration.worker_id,
        registration_token=registration.token,
        poll_request_id=request_id,
        started_event_sequence=book.run.last_event + 1,
        lease_expires_at=_lease_until(book),
        start_to_close_deadline_at=_after(book, call.start_to_close_timeout),
        heartbeat_deadline_at=_after(book, call.heartbeat_timeout),
    )
    call = msgspec.structs.replace(call, status="running", attempt=attempt)
    book.put(call)
    facts = {
        **event_fields(call),
        "lease_expires_at": instant_or_none(attempt.lease_expires_at),
        "activity_attempt": _snapshot(call, attempt),
    }
    book.record("ActivityStarted", facts, task_id=attempt.task_id)
    return call


def renew(book: RunBook, call: ActivityCall) -> ActivityCall:
    """Renew the lease of a running attempt from now; no business deadline moves."""
    attempt = msgspec.structs.replace(call.attempt, lease_expires_at=_lease_until(book))
    call = msgspec.structs.replace(call, attempt=attempt)
    book.put(call)
    return call


def beat(book: RunBook, call: ActivityCall, progress: Mapping[str, Any]) -> ActivityCall:
    """Record a heartbeat: the lease and the heartbeat deadline start anew."""
    attempt = msgspec.structs.replace(
        call.attempt,
        lease_expires_at=_lease_until(book),
        heartbeat_deadline_at=_after(book, call.heartbeat_timeout),
        last_heartbeat_at=book.now,
    )
    call = msgspec.structs.replace(call, attempt=attempt)
    book.put(call)
    facts = {
        **event_fields(call),
        "heartbeat_at": format_instant(book.now),
        "lease_expires_at": instant_or_none(attempt.lease_expires_at),
        "progress": dict(progress),
    }
    book.record("ActivityHeartbeatRecorded", facts, task_id=attempt.task_id)
    return call


def deadline_texts(book: RunBook, call: ActivityCall) -> dict[str, str]:
    """Give the deadlines of a call as answers carry them, those of its run included."""
    attempt = call.attempt
    found = {
        "schedule_to_start": call.schedule_to_start_deadline_at,
        "start_to_close": attempt.start_to_close_deadline_at,
        "schedule_to_close": call.schedule_to_close_deadline_at,
        "heartbeat": attempt.heartbeat_deadline_at,
        "run": book.run.run_deadline_at,
        "execution": book.run.execution_deadline_at,
    }
    return {kind: format_instant(instant) for kind, instant in found.items() if instant is not None}


def _snapshot(call: ActivityCall, attempt: ActivityAttempt) -> dict[str, Any]:
    return {
        "id": attempt.attempt_id,
        "activity_execution_id": call.step_id,
        "task_id": attempt.task_id,
        "attempt_number": attempt.number,
        "status": attempt.status,
        "lease_owner": attempt.lease_owner,
    }


def _lease_until(book: RunBook) -> datetime:
    return book.now + timedelta(seconds=book.settings.activity_lease_seconds)


def _after(book: RunBook, seconds: int | None) -> datetime | None:
    return None if seconds is None else book.now + timedelta(seconds=seconds)
