"""What a request is told that could not be carried out (transport.md §4): the database, its disk, a server that stops.

A client repeats the same request when the identity in the body is complete, so the bodies are exact.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from proctor.server.operations import activity_tasks, multiplexed_polls, queries, validations, workers, workflow_tasks
from proctor.server.operations.calls import Call, Operation
from proctor.server.rules.refusal import Refusal

RETRY_SECONDS = 1
_RETRY_AT_CAPACITY_SECONDS = 2

_OPERATION_NAMES: dict[Operation, str] = {
    multiplexed_polls.poll: "poll_workflow_task",
    validations.poll: "poll_update_validation_task",
    activity_tasks.poll: "poll_activity_task",
    queries.poll: "poll_query_task",
    workers.register: "register_worker",
    workers.heartbeat: "heartbeat_worker",
    workers.deregister_fenced: "deregister_worker",
    workflow_tasks.heartbeat: "heartbeat_workflow_task",
    workflow_tasks.complete: "complete_workflow_task",
    activity_tasks.complete: "complete_activity_task",
}


def unavailable(text: str) -> Refusal:
    """Say that nothing is known of what became of a request."""
    extra = {"outcome": "unknown", "retryable": True, "retry_after_seconds": RETRY_SECONDS}
    return Refusal(503, "backend_unavailable", text, extra)


def not_admitted(reason: str, text: str, *, fenced: bool, retry_after_seconds: int = RETRY_SECONDS) -> Refusal:
    """Say that a request was refused because of its storage and changed nothing."""
    return Refusal(
        503,
        reason,
        text,
        {
            "retryable": True,
            "retry_after_seconds": retry_after_seconds,
            "storage_state": "fenced" if fenced else "draining",
            "request_admitted": False,
        },
    )


def refused_by_database(exc: sqlite3.Error) -> Refusal:
    """Tell a full disk, where nothing was changed for certain, from everything else that a database may refuse."""
    if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        text = "the disk of the database is full; nothing was changed. Free some space and the server goes on"
        return not_admitted("storage_pressure", text, fenced=True)
    return unavailable("the database refused the transaction; nothing was changed, try again")


def identified(refusal: Refusal, operation: Operation, call: Call) -> Refusal:
    """Add to a 503 of the worker plane whose request it answers; other refusals are given back as they are."""
    if refusal.status != 503:
        return refusal
    name = _OPERATION_NAMES.get(operation)
    if name is not None and name.startswith("poll_"):
        refusal = poll_refusal(refusal, call.body)
    return refusal.with_fields(**_identity(name, call)) if refusal.reason == "backend_unavailable" else refusal


def poll_refusal(refusal: Refusal, body: dict[str, Any]) -> Refusal:
    """Add what the 503 of a poll says beside its reason."""
    facts: dict[str, Any] = {
        "task": None,
        "poll_status": refusal.reason,
        "poll_request_id": _text(body.get("poll_request_id")),
        "retry_same_poll_request_id": True,
    }
    if "request_admitted" in refusal.extra:
        facts["claim_admitted"] = False
    return refusal.with_fields(**facts)


def at_capacity(kind: str, namespace: str, queue: str) -> Refusal:
    """Say that no further poll can be held."""
    reason = "long_poll_capacity_exhausted"
    return Refusal(
        429,
        reason,
        "this server holds as many polls as it may; poll again later",
        {
            "task": None,
            "poll_status": reason,
            "namespace": namespace,
            "task_queue": queue,
            "task_kind": f"{kind}_task",
            "wait_pool": "query" if kind in ("query", "update_validation") else "worker",
            "retryable": True,
            "retry_after_seconds": _RETRY_AT_CAPACITY_SECONDS,
        },
    )


def _identity(name: str | None, call: Call) -> dict[str, Any]:
    body = call.body
    facts: dict[str, Any] = {
        "operation": name,
        "worker_id": _text(body.get("worker_id") or body.get("lease_owner") or call.path.get("worker_id")),
        "task_queue": _text(body.get("task_queue")),
    }
    for field in ("lease_owner", "activity_attempt_id", "registration_token"):
        if field in body:
            facts[field] = _text(body[field])
    attempt = body.get("workflow_task_attempt")
    if isinstance(attempt, int) and not isinstance(attempt, bool):
        facts["workflow_task_attempt"] = attempt
    if "task_id" in call.path:
        facts["task_id"] = call.path["task_id"]
    return facts


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
