"""The bodies of "not now" answers, word for word as transport.md §4 has them, for any request. Pure.

A request whose operation the reference names no body for gets what its kind has, without an `operation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from proctor.errors import UsageError
from proctor.harness.exchanges import Request

Reason = Literal[
    "backend_unavailable",
    "storage_pressure",
    "storage_admission_unavailable",
    "backend_lock_pressure",
    "long_poll_capacity_exhausted",
]
REASONS: tuple[str, ...] = get_args(Reason)

# transport.md §4 names these, and no others.
_NAMED = frozenset(
    {
        "poll_workflow_task", "poll_activity_task", "poll_query_task", "register_worker", "heartbeat_worker",
        "heartbeat_workflow_task", "complete_workflow_task", "complete_activity_task", "deregister_worker",
    }
)  # fmt: skip
_TEXT = "the fault proxy answered in the server's place; the request did not reach the server"


def check_refusal(reason: str, retry_after_seconds: int) -> None:
    """Raise UsageError for a reason that the reference does not have, or a delay outside 1 to 60 s."""
    if reason not in REASONS:
        raise UsageError(f"there is no refusal {reason!r}; there are: {', '.join(REASONS)}")
    if isinstance(retry_after_seconds, bool) or not 1 <= retry_after_seconds <= 60:
        raise UsageError(f"retry_after_seconds is 1 to 60, not {retry_after_seconds!r}")


def refusal(
    reason: str, request: Request, *, retry_after_seconds: int = 1, envelope: Mapping[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    """Give status and body of a refusal of `request`; `envelope` holds what every worker answer carries (§3)."""
    body: dict[str, Any] = {"error": _TEXT, "reason": reason}
    body |= {"retryable": True, "retry_after_seconds": retry_after_seconds}
    status = 503
    if reason == "backend_unavailable":
        body |= _identity(request) | _poll_fields(request, reason)
    elif reason in ("storage_pressure", "storage_admission_unavailable"):
        body |= {"storage_state": "draining" if reason == "storage_pressure" else "fenced", "request_admitted": False}
        if _is_poll(request):
            body |= _poll_fields(request, reason) | {"claim_admitted": False}
    elif _is_poll(request):
        status = 429 if reason == "long_poll_capacity_exhausted" else 503
        body |= {"task": None, "poll_status": reason, "task_queue": request.document.get("task_queue")}
        body["task_kind"] = (request.operation or "").removeprefix("poll_")
        if status == 503:
            body["namespace"] = request.namespace
    else:
        body |= _identity(request)
    return status, body | dict(envelope or {})


def _is_poll(request: Request) -> bool:
    return (request.operation or "").startswith("poll_")


def _identity(request: Request) -> dict[str, Any]:
    asked, operation = request.document, request.operation
    found: dict[str, Any] = {"outcome": "unknown", "worker_id": request.worker, "task_queue": asked.get("task_queue")}
    if operation in _NAMED:
        found["operation"] = operation
    found |= {
        name: asked[name] for name in ("lease_owner", "workflow_task_attempt", "registration_token") if name in asked
    }
    if operation in ("heartbeat_workflow_task", "complete_workflow_task", "complete_activity_task"):
        found["task_id"] = request.path.split("/")[-2]
    return found


def _poll_fields(request: Request, reason: str) -> dict[str, Any]:
    if not _is_poll(request):
        return {}
    return {
        "task": None,
        "poll_status": reason,
        "poll_request_id": request.document.get("poll_request_id"),
        "retry_same_poll_request_id": True,
    }
