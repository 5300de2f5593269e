"""How an attempt of a queued activity stands, in the words of answers: may its handler go on, and what has ended it.

What ends an attempt is decided in `ending` and `leasing`; who owns one is the operations' business.
"""

from __future__ import annotations

from typing import Any

from proctor.server.rules.book import RunBook
from proctor.server.rules.refusal import Refusal, conflict
from proctor.server.rules.runs import instant_or_none
from proctor.server.rules.steps import ActivityCall

SESSION_LOST = "worker_session_unavailable"
CLOSED = "attempt_closed"
STALE = "stale_attempt"
ONLY_IN_STATUS = ("run_status", "activity_status", "attempt_status", "task_status", "deadlines")


def check_running(book: RunBook, activity: ActivityCall) -> None:
    """Refuse a report on an attempt that is over."""
    if activity.status == "running":
        return
    if book.run.is_closed and activity.status == "cancelled":
        raise conflict(
            f"run_{book.run.closed_reason or book.run.status}",
            f"the run is closed ({book.run.status}); nothing is accepted for it any more",
            outcome="ignored",
            recorded=False,
            run_status=book.run.status,
        )
    raise stale(book, activity, activity.attempt.task_id, activity.attempt.status)


def stale(book: RunBook, activity: ActivityCall, task_id: str, attempt_status: str) -> Refusal:
    """Make the refusal of a report on an attempt that has ended as `attempt_status` says."""
    return conflict(
        STALE,
        f"the attempt of task {task_id} is over",
        recorded=False,
        outcome="ignored",
        activity_status=activity.status,
        attempt_status=attempt_status,
        task_status="completed",
        run_status=book.run.status,
        run_closed_reason=book.run.closed_reason,
        run_closed_at=instant_or_none(book.run.closed_at),
    )


def told_of_follower(refusal: Refusal, task_id: str, attempt_id: str, owner: str) -> dict[str, Any]:
    """Give what whoever looks after an attempt is answered once another one has followed: it must stop."""
    facts = ("run_closed_reason", "run_closed_at", "run_status", "activity_status", "attempt_status", "task_status")
    return {
        "task_id": task_id,
        "activity_attempt_id": attempt_id,
        "lease_owner": owner,
        "cancel_requested": False,
        "can_continue": False,
        "reason": CLOSED,
        "heartbeat_recorded": False,
        "lease_expires_at": None,
        "last_heartbeat_at": None,
        "worker_session": None,
        "deadlines": None,
        **{name: refusal.extra[name] for name in facts},
    }


def why_stop(book: RunBook, activity: ActivityCall) -> str | None:
    """Say why the handler must stop; None while it may go on."""
    if activity.status == "running":
        return None
    if activity.status != "cancelled":
        return CLOSED
    if book.run.is_closed:
        return f"run_{book.run.closed_reason or book.run.status}"
    return "cancellation_requested"


def state(
    book: RunBook, activity: ActivityCall, stop: str | None, *, recorded: bool, session: dict[str, Any] | None
) -> dict[str, Any]:
    """Give what heartbeats and looks at an attempt are answered."""
    attempt = activity.attempt
    return {
        "activity_attempt_id": attempt.attempt_id,
        "lease_owner": attempt.lease_owner,
        "cancel_requested": stop not in (None, CLOSED, SESSION_LOST),
        "can_continue": stop is None,
        "reason": stop,
        "run_closed_reason": book.run.closed_reason,
        "run_closed_at": instant_or_none(book.run.closed_at),
        "heartbeat_recorded": recorded,
        "lease_expires_at": instant_or_none(attempt.lease_expires_at),
        "last_heartbeat_at": instant_or_none(attempt.last_heartbeat_at),
        "worker_session": session,
    }
