"""Worker sessions inside a transaction: as one is now, as it is shown, and what activities do to it (sessions.md §6).

The lifecycle endpoints are in `worker_sessions`, the polls and reports of activities in `activity_tasks`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from proctor.server.rules.refusal import Refusal
from proctor.server.rules.rows import Registration
from proctor.server.rules.sessions import leases, views
from proctor.server.rules.sessions.shapes import WorkerSession
from proctor.server.rules.steps import ActivityCall
from proctor.server.transaction import Transaction


def refreshed(tx: Transaction, session: WorkerSession) -> WorkerSession:
    """Give a session as it is now, and keep what time or the loss of its holder did to it."""
    current = _now(tx, session)
    if current is not session:
        tx.save_worker_session(current, None)
    return current


def _now(tx: Transaction, session: WorkerSession) -> WorkerSession:
    holder = tx.registration(session.namespace, session.lease_owner)
    return leases.refresh(session, holder, now=tx.now, stale_seconds=tx.settings.worker_stale_seconds)


def shown(tx: Transaction, session: WorkerSession) -> dict[str, Any]:
    """Give the snapshot of a session."""
    return views.snapshot(
        session,
        tx.registration(session.namespace, session.lease_owner),
        running=running_in(tx, session),
        now=tx.now,
        stale_seconds=tx.settings.worker_stale_seconds,
    )


def with_session(tx: Transaction, refusal: Refusal, session: WorkerSession | None) -> Refusal:
    """Add the session to those refusals that show it."""
    if session is None or refusal.reason not in leases.SHOWN_WITH:
        return refusal
    return refusal.with_fields(session=shown(tx, session))


def running_in(tx: Transaction, session: WorkerSession) -> int:
    """Count the attempts of the holder that run in a session under a live lease."""
    return sum(
        call.worker_session is not None
        and call.worker_session.session_id == session.session_id
        and _is_live(call.attempt.lease_expires_at, tx.now)
        for call in tx.running_activities(session.namespace, session.lease_owner)
    )


def _is_live(until: datetime | None, now: datetime) -> bool:
    return until is not None and until > now


def admit_activity(tx: Transaction, minor: int, worker: Registration, call: ActivityCall) -> bool:
    """Give the worker that polls for an activity the session it names, or leave both as they are."""
    if call.worker_session is None:
        return True
    if minor < leases.FLOOR:
        return False
    options = call.worker_session.filled(call.queue)
    known = tx.worker_session(call.namespace, options.session_id)
    current = None if known is None else _now(tx, known)
    try:
        _, session = leases.admit(
            current,
            options,
            worker,
            now=tx.now,
            held=tx.held_sessions(call.namespace, worker.worker_id),
            running=0 if current is None else running_in(tx, current),
        )
    except Refusal:
        return False
    tx.save_worker_session(session, worker)
    return True


def renew_by_activity(tx: Transaction, call: ActivityCall) -> dict[str, Any] | None:
    """Renew the session of a running activity with its heartbeat, and give the answer or the refusal of that."""
    options, owner = call.worker_session, call.attempt.lease_owner
    if options is None or owner is None:
        return None
    known = tx.worker_session(call.namespace, options.session_id)
    current = None if known is None else refreshed(tx, known)
    try:
        session = leases.renew(current, options.session_id, owner, now=tx.now, seconds=options.lease)
    except Refusal as refusal:
        refusal = with_session(tx, refusal, current)
        return {"error": refusal.text, "reason": refusal.reason, **refusal.extra}
    tx.save_worker_session(session, tx.registration(call.namespace, owner))
    return views.operation("heartbeat_recorded", 200, shown(tx, session))


def told_of_session(call: ActivityCall, session: WorkerSession | None) -> dict[str, Any] | None:
    """Give what the worker of an activity is told of its session."""
    if call.worker_session is None or session is None:
        return None
    return views.affinity(call.worker_session.filled(call.queue), session)


def session_of(tx: Transaction, call: ActivityCall) -> WorkerSession | None:
    """Give the session that an activity names as it is now, without keeping what changed."""
    if call.worker_session is None:
        return None
    known = tx.worker_session(call.namespace, call.worker_session.session_id)
    return None if known is None else _now(tx, known)


def is_usable(call: ActivityCall, session: WorkerSession | None) -> bool:
    """Say whether an attempt may go on as far as its session is concerned."""
    if call.worker_session is None:
        return True
    return session is not None and session.status == "active" and session.lease_owner == call.attempt.lease_owner
