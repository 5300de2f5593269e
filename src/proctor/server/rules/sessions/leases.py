"""The life of a worker session: taken, renewed, closed, and what time does to it (sessions.md §3, §5).

Every rule takes a session that `refresh` has looked at. A refusal is raised in the order of the reference, and changes
nothing beyond what `refresh` found out.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from proctor.server.rules.refusal import Refusal, conflict
from proctor.server.rules.registration import is_stale
from proctor.server.rules.rows import Registration, Task
from proctor.server.rules.sessions.shapes import SessionOptions, WorkerSession

CAPABILITY = "worker_sessions"
FLOOR = 8
STATUSES = ("active", "closed", "expired", "failed", "orphaned")

SHOWN_WITH = frozenset(
    {
        "session_owned_by_another_worker",
        "session_activity_limit_exceeded",
        "session_closed",
        "session_reacquire_disallowed",
        "session_not_active",
        "session_owner_mismatch",
    }
)
"""The refusals that carry the session they are about."""


def check_floor(minor: int, supported: str, *, rejected: Task | None = None) -> None:
    """Refuse a request below the floor of sessions; `rejected` is the task whose completion asks for one."""
    if minor >= FLOOR:
        return
    facts: dict[str, Any] = {} if rejected is None else _rejection(rejected)
    raise conflict(
        "worker_sessions_unavailable",
        f"worker sessions need worker protocol 1.{FLOOR}, this request speaks 1.{minor}",
        **facts,
        supported_version=supported,
        requested_version=f"1.{minor}",
        minimum_protocol_version=f"1.{FLOOR}",
        remediation=f"send worker protocol 1.{FLOOR} or newer",
    )


def _rejection(task: Task) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "workflow_task_attempt": task.attempt,
        "outcome": "rejected",
        "recorded": False,
    }


def refresh(session: WorkerSession, holder: Registration | None, *, now: datetime, stale_seconds: int) -> WorkerSession:
    """Give the session as it is now: its time may be over, its lease, or its holder may be gone."""
    if session.status == "closed" or session.failure_reason == "ttl_expired":
        return session
    if session.ttl_expires_at <= now:
        return _ended(session, "expired", "ttl_expired", now)
    if session.status != "active":
        return session
    if session.lease_expires_at <= now:
        return _ended(session, "expired", "lease_expired", now)
    if holder is None or is_stale(holder, now=now, stale_seconds=stale_seconds):
        return _ended(session, "orphaned", "worker_heartbeat_stale", now)
    return session


def admit(
    known: WorkerSession | None,
    options: SessionOptions,
    worker: Registration,
    *,
    now: datetime,
    held: int,
    running: int | None = None,
) -> tuple[str, WorkerSession]:
    """Give a worker the session it asks for, and how: created, reused or reacquired.

    `options` are filled; `held` counts the worker's live leases. For an activity `running` counts the attempts that the
    session's holder runs in it; a worker that only wants the session gives None.
    """
    if options.queue != worker.task_queue:
        raise refused(
            "session_queue_mismatch",
            f"the session is for queue {options.queue}, worker {worker.worker_id} works on {worker.task_queue}",
        )
    missing = [requirement for requirement in options.requirements if requirement not in worker.capabilities]
    if missing:
        raise refused(
            "session_requirements_not_met",
            f"worker {worker.worker_id} did not register {', '.join(missing)}",
            missing_requirements=missing,
        )
    if known is None:
        if not options.create_if_missing:
            raise refused("session_missing", f"there is no session {options.session_id}, and none is to be created")
    else:
        _check_known(known, options, worker, running)
        if known.status == "active":
            return "reused", _leased(known, options, worker, now)
    if held >= worker.max_concurrent_worker_sessions:
        raise refused(
            "worker_session_limit_exceeded",
            f"worker {worker.worker_id} holds {held} sessions and may hold {worker.max_concurrent_worker_sessions}",
            max_concurrent_worker_sessions=worker.max_concurrent_worker_sessions,
        )
    if known is not None:
        return "reacquired", _leased(known, options, worker, now)
    return "created", WorkerSession(
        namespace=worker.namespace,
        options=options,
        lease_owner=worker.worker_id,
        lease_expires_at=now + timedelta(seconds=options.lease),
        ttl_expires_at=now + timedelta(seconds=options.ttl),
        last_heartbeat_at=now,
        created_at=now,
        updated_at=now,
    )


def _check_known(known: WorkerSession, options: SessionOptions, worker: Registration, running: int | None) -> None:
    if known.status == "active":
        if known.lease_owner != worker.worker_id:
            raise refused(
                "session_owned_by_another_worker", f"session {known.session_id} is held by worker {known.lease_owner}"
            )
        limit = known.options.activities
        if running is not None and running >= limit:
            raise refused(
                "session_activity_limit_exceeded",
                f"session {known.session_id} runs {running} activities and may run {limit}",
                max_concurrent_activities=limit,
            )
        return
    if known.status == "closed":
        raise refused("session_closed", f"session {known.session_id} was closed; its id cannot be used again")
    may_reacquire = known.options.allow_reacquire_after_failure and options.allow_reacquire_after_failure
    if known.failure_reason == "ttl_expired" or not may_reacquire:
        raise refused(
            "session_reacquire_disallowed",
            f"session {known.session_id} is {known.status} ({known.failure_reason}) and may not be taken again",
        )


def renew(
    session: WorkerSession | None, session_id: str, worker_id: str, *, now: datetime, seconds: int | None
) -> WorkerSession:
    """Renew the lease of the holder from now; `seconds` counts for this time only."""
    session = _found(session, session_id)
    if session.status != "active":
        raise refused("session_not_active", f"session {session_id} is {session.status}; acquire it again")
    _check_owner(session, worker_id)
    until = now + timedelta(seconds=seconds or session.options.lease)
    return msgspec.structs.replace(session, lease_expires_at=until, last_heartbeat_at=now, updated_at=now)


def close(
    session: WorkerSession | None, session_id: str, worker_id: str, *, now: datetime
) -> tuple[str, WorkerSession]:
    """End a session for good, whatever became of its lease; give the outcome and the session."""
    session = _found(session, session_id)
    if session.status == "closed" and session.lease_owner == worker_id:
        return "already_closed", session
    _check_owner(session, worker_id)
    return "closed", msgspec.structs.replace(
        session, status="closed", closed_at=now, failure_reason=None, updated_at=now
    )


def refused(reason: str, text: str, *, status: int = 409, **extra: Any) -> Refusal:
    """Make the refusal of a session operation."""
    return Refusal(status, reason, text, {"admitted": False, "status": status, **extra})


def _found(session: WorkerSession | None, session_id: str) -> WorkerSession:
    if session is None:
        raise refused("session_not_found", f"there is no worker session {session_id}", status=404)
    return session


def _check_owner(session: WorkerSession, worker_id: str) -> None:
    if session.lease_owner != worker_id:
        raise refused(
            "session_owner_mismatch",
            f"session {session.session_id} belongs to worker {session.lease_owner}, not to {worker_id}",
        )


def _leased(known: WorkerSession, options: SessionOptions, worker: Registration, now: datetime) -> WorkerSession:
    connection = options.connection or known.options.connection
    return msgspec.structs.replace(
        known,
        options=msgspec.structs.replace(options, connection=connection),
        status="active",
        lease_owner=worker.worker_id,
        lease_expires_at=now + timedelta(seconds=options.lease),
        failure_reason=None,
        last_heartbeat_at=now,
        updated_at=now,
    )


def _ended(session: WorkerSession, status: str, reason: str, now: datetime) -> WorkerSession:
    return msgspec.structs.replace(session, status=status, failure_reason=reason, updated_at=now)
