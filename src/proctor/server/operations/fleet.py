"""The control plane: the workers of a namespace, and its task queues with who polls them (control-plane.md §10)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from proctor.core.instants import format_instant
from proctor.server.operations.calls import Call, release_expired, resolve_overdue
from proctor.server.rules.queries import QueryTask
from proctor.server.rules.refusal import Answer, not_found
from proctor.server.rules.registration import is_stale
from proctor.server.rules.rows import Registration
from proctor.server.rules.runs import instant_or_none
from proctor.server.transaction import Transaction

_MOST_LEASES_SHOWN = 50


def describe_worker(tx: Transaction, registration: Registration) -> dict[str, Any]:
    """Give a registration as the control plane shows it."""
    return {
        "worker_id": registration.worker_id,
        "namespace": registration.namespace,
        "task_queue": registration.task_queue,
        "runtime": registration.runtime,
        "sdk_version": registration.sdk_version,
        "build_id": registration.build_id,
        "status": "stale" if _is_stale(tx, registration) else "active",
        "capabilities": list(registration.capabilities),
        "capability_manifest": registration.manifest,
        "max_concurrent_workflow_tasks": registration.max_concurrent_workflow_tasks,
        "max_concurrent_activity_tasks": registration.max_concurrent_activity_tasks,
        "max_concurrent_worker_sessions": registration.max_concurrent_worker_sessions,
        "supported_workflow_types": list(registration.workflow_types),
        "supported_activity_types": list(registration.activity_types),
        "task_slots": registration.task_slots,
        "process_metrics": registration.process_metrics,
        "heartbeat_interval_seconds": registration.heartbeat_interval_seconds,
        "registered_at": format_instant(registration.registered_at),
        "last_heartbeat_at": format_instant(registration.last_heartbeat_at),
        "updated_at": format_instant(registration.last_heartbeat_at),
    }


def _is_stale(tx: Transaction, registration: Registration) -> bool:
    return is_stale(registration, now=tx.now, stale_seconds=tx.settings.worker_stale_seconds)


def list_workers(tx: Transaction, call: Call) -> Answer:
    """List the registered workers, optionally of one queue or status."""
    workers = [describe_worker(tx, row) for row in tx.registrations(call.namespace)]
    for name in ("task_queue", "status"):
        if call.query.get(name):
            workers = [worker for worker in workers if worker[name] == call.query[name]]
    return Answer(
        {
            "namespace": call.namespace,
            "workers": workers,
            "stale_after_seconds": tx.settings.worker_stale_seconds,
        }
    )


def show_worker(tx: Transaction, call: Call) -> Answer:
    """Describe one registered worker."""
    worker_id = call.path["worker_id"]
    known = tx.registration(call.namespace, worker_id)
    if known is None:
        raise not_found("worker_not_found", f"worker {worker_id} is not registered", worker_id=worker_id)
    return Answer(describe_worker(tx, known))


def list_task_queues(tx: Transaction, call: Call) -> Answer:
    """List the queues that have workers or open tasks, with what waits in each and what its workers can take."""
    _settle(tx)
    pollers: dict[str, list[Registration]] = {}
    for row in tx.registrations(call.namespace):
        pollers.setdefault(row.task_queue, []).append(row)
    names = sorted({*pollers, *tx.task_queues(call.namespace)})
    queues = [_summary(tx, call.namespace, name, pollers.get(name, ())) for name in names]
    return Answer({"namespace": call.namespace, "task_queues": queues})


def show_task_queue(tx: Transaction, call: Call) -> Answer:
    """Describe one queue with its pollers and leases; a queue that nobody has used yet is an empty one."""
    _settle(tx)
    name = call.path["name"]
    workers = [row for row in tx.registrations(call.namespace) if row.task_queue == name]
    pollers = sorted(
        (_poller(tx, row) for row in workers), key=lambda poller: (poller["is_stale"], poller["worker_id"])
    )
    leases = _leases(tx, call.namespace, name)
    return Answer({**_summary(tx, call.namespace, name, workers), "pollers": pollers, "current_leases": leases})


def _settle(tx: Transaction) -> None:
    """Do what is due, as every poll does first, so that no lease is shown that has ended."""
    resolve_overdue(tx)
    release_expired(tx)


def _summary(tx: Transaction, namespace: str, name: str, workers: Sequence[Registration]) -> dict[str, Any]:
    active = [row for row in workers if not _is_stale(tx, row)]
    ready, leased = tx.waiting_in(namespace, name), tx.leased_from(namespace, name)
    oldest = _longest_waiting(tx, namespace, name)
    age = None if oldest is None else oldest["age_seconds"]
    everywhere = tx.leased_from(namespace)
    slots = (
        [row.max_concurrent_workflow_tasks for row in active],
        [row.max_concurrent_activity_tasks for row in active],
    )
    kinds = ("workflow_tasks", "activity_tasks")
    return {
        "name": name,
        "namespace": namespace,
        "stats": {
            "approximate_backlog_count": sum(ready),
            "approximate_backlog_age": None if age is None else f"{age}s",
            "approximate_backlog_age_seconds": age,
            "oldest_ready_task": oldest,
            **{
                kind: {"ready_count": ready[index], "leased_count": leased[index], "expired_lease_count": 0}
                for index, kind in enumerate(kinds)
            },
            "pollers": {
                "active_count": len(active),
                "stale_count": len(workers) - len(active),
                "stale_after_seconds": tx.settings.worker_stale_seconds,
            },
        },
        "admission": {
            **{
                kind: _admission(kind, slots[index], ready[index], leased[index], everywhere[index])
                for index, kind in enumerate(kinds)
            },
            "query_tasks": _query_admission(tx, namespace, name),
        },
    }


def _longest_waiting(tx: Transaction, namespace: str, name: str) -> dict[str, Any] | None:
    found = tx.longest_waiting(namespace, name)
    if found is None:
        return None
    task_id, kind, run_id, since = found
    run = tx.run(run_id)
    return {
        "task_id": task_id,
        "task_type": kind,
        "workflow_id": None if run is None else run.workflow_id,
        "run_id": run_id,
        "available_at": format_instant(since),
        "age_seconds": (tx.now - since) // timedelta(seconds=1),
    }


def _admission(kind: str, slots: Sequence[int], ready: int, leased: int, everywhere: int) -> dict[str, Any]:
    """Say what the workers of a queue can take; the server itself sets no budget for tasks."""
    configured = sum(slots)
    if not slots:
        status = "no_active_workers"
    elif configured == 0:
        status = "no_slots"
    else:
        status = "saturated" if leased >= configured else "accepting"
    return {
        "status": status,
        "budget_source": f"worker_registration.max_concurrent_{kind}",
        "server_budget_source": None,
        "active_worker_count": len(slots),
        "configured_slot_count": configured,
        "leased_count": leased,
        "ready_count": ready,
        "available_slot_count": max(0, configured - leased),
        "server_max_active_leases_per_queue": None,
        "server_active_lease_count": leased,
        "server_remaining_active_lease_capacity": None,
        "server_max_active_leases_per_namespace": None,
        "server_namespace_active_lease_count": everywhere,
        "server_remaining_namespace_active_lease_capacity": None,
        "server_lock_required": False,
        "server_lock_supported": True,
    }


def _query_admission(tx: Transaction, namespace: str, name: str) -> dict[str, Any]:
    most, pending = tx.settings.max_pending_queries, tx.count_pending(QueryTask, namespace, name)
    return {
        "status": "full" if pending >= most else "accepting",
        "budget_source": "server.query_tasks.max_pending_per_queue",
        "max_pending_per_queue": most,
        "approximate_pending_count": pending,
        "remaining_pending_capacity": max(0, most - pending),
        "lock_required": False,
        "lock_supported": True,
    }


def _poller(tx: Transaction, row: Registration) -> dict[str, Any]:
    stale = _is_stale(tx, row)
    expires = row.last_heartbeat_at + timedelta(seconds=tx.settings.worker_stale_seconds)
    return {
        "worker_id": row.worker_id,
        "runtime": row.runtime,
        "sdk_version": row.sdk_version,
        "build_id": row.build_id,
        "last_heartbeat_at": format_instant(row.last_heartbeat_at),
        "heartbeat_expires_at": format_instant(expires),
        "status": "stale" if stale else "active",
        "is_stale": stale,
        "supported_workflow_types": list(row.workflow_types),
        "supported_activity_types": list(row.activity_types),
        "max_concurrent_workflow_tasks": row.max_concurrent_workflow_tasks,
        "max_concurrent_activity_tasks": row.max_concurrent_activity_tasks,
    }


def _leases(tx: Transaction, namespace: str, name: str) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = [
        {
            "task_id": task.task_id,
            "task_type": "workflow",
            "workflow_id": task.workflow_id,
            "run_id": task.run_id,
            "lease_owner": None if task.claim is None else task.claim.worker_id,
            "lease_expires_at": instant_or_none(task.lease_expires_at),
            "is_expired": False,
            "workflow_task_attempt": task.attempt,
            "sticky_replay_mode": task.sticky_replay_mode,
            "sticky_claimed_at": instant_or_none(task.sticky_claimed_at),
        }
        for task in tx.leased_tasks(namespace, name, _MOST_LEASES_SHOWN)
    ]
    for call in tx.leased_activities(namespace, name, _MOST_LEASES_SHOWN - len(shown)):
        run = tx.run(call.run_id)
        shown.append(
            {
                "task_id": call.attempt.task_id,
                "task_type": "activity",
                "workflow_id": None if run is None else run.workflow_id,
                "run_id": call.run_id,
                "lease_owner": call.attempt.lease_owner,
                "lease_expires_at": instant_or_none(call.attempt.lease_expires_at),
                "is_expired": False,
                "activity_attempt_id": call.attempt.attempt_id,
                "attempt_number": call.attempt.number,
            }
        )
    return shown
