"""The life of one registration on the wire: register, worker heartbeat, fenced deregistration (worker.md
§1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from proctor.core.wire.fields import Fields

_TOKEN = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MAX_INTERVAL_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Registration:
    """One incarnation of this worker. `fence` is the token of its deregistration; it never appears in a
    log.
    """

    worker_id: str
    fence: str | None
    heartbeat_interval: float

    def __repr__(self) -> str:
        return f"Registration(worker_id={self.worker_id!r}, fenced={self.fence is not None})"


def read_registration(body: object, *, worker_id: str, fenced: bool, default_interval: float) -> Registration:
    """Validate a register answer; with `fenced` the deregistration token is required (worker.md §1.1)."""
    fields = Fields(body, what="register", section="worker §1.1")
    fence: str | None = None
    if fenced:
        fields.exactly("worker_id", worker_id, "registration")
        fields.exactly("registered", True, "registration")
        fence = fields.text("registration_token", "registration")
        if not _TOKEN.fullmatch(fence):
            fields.breach("registration", "has a registration_token that is not 32 lower-case hex digits")
    return Registration(worker_id, fence, heartbeat_interval(body, default=default_interval))


def heartbeat_interval(body: object, *, default: float) -> float:
    """Give the seconds between two worker heartbeats; the server's positive integer replaces our own."""
    stated = body.get("heartbeat_interval_seconds") if isinstance(body, dict) else None
    if isinstance(stated, int) and not isinstance(stated, bool) and 0 < stated <= _MAX_INTERVAL_SECONDS:
        return float(stated)
    return default


def read_deregistration(body: object, *, registration: Registration) -> int:
    """Validate a deregistration receipt and give the number of recovered workflow tasks (worker.md §1.3)."""
    fields = Fields(body, what="deregister", section="worker §1.3")
    fields.exactly("worker_id", registration.worker_id, "receipt")
    fields.exactly("outcome", "deregistered", "receipt")
    if registration.fence is not None and fields.body.get("registration_token") != registration.fence:
        fields.breach("receipt", "is for another registration")
    if registration.fence is None and "recovered_workflow_task_count" not in fields.body:
        return 0
    return fields.integer("recovered_workflow_task_count", "receipt", least=0)


def retry_deregistration_after(body: object, *, registration: Registration) -> int | None:
    """Give the seconds after which a refused deregistration may be repeated, None when it may not.

    Only a complete 503 that names this incarnation allows a repeat (worker.md §1.3).
    """
    if not isinstance(body, dict):
        return None
    after = body.get("retry_after_seconds")
    complete = (
        body.get("reason") in ("backend_lock_pressure", "backend_unavailable")
        and body.get("operation") == "deregister_worker"
        and body.get("outcome") == "unknown"
        and body.get("worker_id") == registration.worker_id
        and body.get("registration_token") == registration.fence
        and body.get("retryable") is True
    )
    if not complete or not isinstance(after, int) or isinstance(after, bool) or not 1 <= after <= 60:
        return None
    return after
