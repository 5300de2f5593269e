"""Worker sessions on the wire: the snapshot of operations and listings, and what a leased activity is told."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from proctor.core.instants import format_instant
from proctor.server.rules.registration import is_stale
from proctor.server.rules.rows import Registration
from proctor.server.rules.runs import instant_or_none
from proctor.server.rules.sessions.leases import STATUSES
from proctor.server.rules.sessions.shapes import SessionOptions, WorkerSession

VERBS = ("create", "heartbeat", "close")


def recorded(options: SessionOptions) -> dict[str, Any]:
    """Give the options as history keeps them: every key, null where nothing was authored."""
    return {**msgspec.structs.asdict(options), "requirements": list(options.requirements)}


def snapshot(
    session: WorkerSession, holder: Registration | None, *, running: int, now: datetime, stale_seconds: int
) -> dict[str, Any]:
    """Give a session as operators and holders see it."""
    stale = holder is None or is_stale(holder, now=now, stale_seconds=stale_seconds)
    return {
        **recorded(session.options),
        "namespace": session.namespace,
        "status": session.status,
        "lease_owner": session.lease_owner,
        "holder": {
            "worker_id": session.lease_owner,
            "task_queue": None if holder is None else holder.task_queue,
            "status": None if holder is None else "active",
            "last_heartbeat_at": None if holder is None else format_instant(holder.last_heartbeat_at),
            "is_stale": stale,
        },
        "lease_expires_at": format_instant(session.lease_expires_at),
        "ttl_expires_at": format_instant(session.ttl_expires_at),
        "closed_at": instant_or_none(session.closed_at),
        "failure_reason": session.failure_reason,
        "active_activity_count": running,
        "last_heartbeat_at": format_instant(session.last_heartbeat_at),
        "created_at": format_instant(session.created_at),
        "updated_at": format_instant(session.updated_at),
    }


def affinity(options: SessionOptions, session: WorkerSession) -> dict[str, Any]:
    """Give what the worker that runs an activity needs to know of its session; nulls are left out.

    `options` are those of the activity, filled; another activity of the session may have others.
    """
    facts = {
        **recorded(options),
        "status": session.status,
        "lease_owner": session.lease_owner,
        "lease_expires_at": format_instant(session.lease_expires_at),
        "ttl_expires_at": format_instant(session.ttl_expires_at),
    }
    return {name: value for name, value in facts.items() if value is not None}


def operation(outcome: str, status: int, session: dict[str, Any]) -> dict[str, Any]:
    """Give the body of a lifecycle operation that was admitted."""
    return {
        "admitted": True,
        "outcome": outcome,
        "session": session,
        "activity_task_id": None,
        "status": status,
        "reason": None,
    }


def metrics(sessions: Iterable[WorkerSession]) -> dict[str, int]:
    """Count sessions by status."""
    counted = dict.fromkeys(("total", *STATUSES), 0)
    for session in sessions:
        counted["total"] += 1
        counted[session.status] += 1
    return counted


def contract() -> dict[str, Any]:
    """Give the contract that discovery publishes (sessions.md §9)."""
    return {
        "feature": "worker_sessions",
        "supported": True,
        "contract_version": "1.0",
        "minimum_protocol_version": "1.8",
        "command_field": "worker_session",
        "activity_options_field": "worker_session",
        "verbs": list(VERBS),
        "ownership": "single_worker_lease_owner",
        "lifecycle": {
            "creation": "lazy_create_on_first_admitted_activity_or_explicit_worker_create",
            "renewal": "activity_heartbeat_or_explicit_session_heartbeat",
            "close": "explicit_holder_close",
            "lease_expiry": "session_expires_when_lease_is_not_renewed",
            "ttl_expiry": "absolute_session_ttl_is_terminal_for_that_session_id",
        },
        "lease": {
            "scope": "namespace_session_id",
            "owner": "registered_worker_id",
            "activity_attempt_leases_remain_independent": True,
        },
        "admission": {
            "queue_routing_first": True,
            "requires_registered_worker": True,
            "requires_capabilities": True,
            "create_if_missing_default": True,
            "allow_reacquire_after_failure_default": True,
        },
        "limits": {"max_concurrent_worker_sessions": "worker_registration", "max_concurrent_activities": "session"},
        "default_max_concurrent_activities": 1,
        "renewal": {"activity_heartbeat_renews_session": True, "explicit_session_heartbeat": True},
        "failure_detection": ["lease_expiry", "registered_worker_heartbeat_staleness"],
        "holder_loss": {
            "in_flight_activities_keep_at_least_once_attempt_semantics": True,
            "replacement_worker_must_reacquire_session": True,
            "process_local_state_must_be_rebuilt_after_reacquire": True,
        },
        "cancellation": {
            "workflow_cancellation_observed_through_activity_heartbeat": True,
            "session_lease_does_not_override_activity_cancel_requested": True,
            "planned_shutdown_should_close_sessions": True,
        },
        "routing": ["queue", "connection", "requirements"],
        "visibility": list(STATUSES),
        "statuses": list(STATUSES),
        "terminal_statuses": ["closed"],
        "terminal_conditions": ["explicit_close", "ttl_expired", "allow_reacquire_after_failure_false"],
        "authoring_guidance": [
            "name one session in every activity that must share the state of one process",
            "build that state again whenever the session was created or reacquired",
            "heartbeat long activities, or renew the session, at least once in a third of its lease",
        ],
    }
