"""What the fault proxy knows of one exchange: the request as it was read, and the record that is kept of it. Pure.

Headers are never part of a record, so that no token gets into one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

_TASK = "/api/worker/workflow-tasks/{task_id}"
_LOCAL = _TASK + "/local-activities"
_ACTIVITY = "/api/worker/activity-tasks/{task_id}"
_QUERY = "/api/worker/query-tasks/{task_id}"
_VALIDATION = "/api/worker/update-validation-tasks/{task_id}"
_REGISTRATIONS = "/api/worker/registrations/{worker_id}"
_SESSIONS = "/api/worker/sessions"

OPERATIONS: Mapping[str, tuple[str, str]] = {
    "cluster_info": ("GET", "/api/cluster/info"),
    "register_worker": ("POST", "/api/worker/register"),
    "heartbeat_worker": ("POST", "/api/worker/heartbeat"),
    "deregister_worker": ("POST", _REGISTRATIONS + "/deregister"),
    "deregister_worker_unfenced": ("DELETE", _REGISTRATIONS),
    "poll_workflow_task": ("POST", "/api/worker/workflow-tasks/poll"),
    "poll_activity_task": ("POST", "/api/worker/activity-tasks/poll"),
    "poll_query_task": ("POST", "/api/worker/query-tasks/poll"),
    "workflow_task_history": ("POST", _TASK + "/history"),
    "heartbeat_workflow_task": ("POST", _TASK + "/heartbeat"),
    "complete_workflow_task": ("POST", _TASK + "/complete"),
    "fail_workflow_task": ("POST", _TASK + "/fail"),
    "deliver_cancellation": ("POST", _TASK + "/deliver-cancellation"),
    "checkpoint": ("POST", _LOCAL + "/checkpoint"),
    "checkpoint_group": ("POST", _LOCAL + "/checkpoint-group"),
    "prepare": ("POST", _LOCAL + "/prepare"),
    "recover": ("POST", _LOCAL + "/recover"),
    "control": ("POST", _LOCAL + "/{attempt_id}/control"),
    "heartbeat": ("POST", _LOCAL + "/{attempt_id}/heartbeat"),
    "outcome": ("POST", _LOCAL + "/{attempt_id}/outcome"),
    "acknowledge_cancellation": ("POST", _LOCAL + "/{attempt_id}/acknowledge-cancellation"),
    "renew_activity_lease": ("POST", _ACTIVITY + "/renew-lease"),
    "heartbeat_activity_task": ("POST", _ACTIVITY + "/heartbeat"),
    "activity_task_status": ("POST", _ACTIVITY + "/status"),
    "complete_activity_task": ("POST", _ACTIVITY + "/complete"),
    "fail_activity_task": ("POST", _ACTIVITY + "/fail"),
    "acknowledge_activity_cancellation": ("POST", _ACTIVITY + "/acknowledge-cancellation"),
    "query_task_status": ("GET", _QUERY + "/status"),
    "complete_query_task": ("POST", _QUERY + "/complete"),
    "fail_query_task": ("POST", _QUERY + "/fail"),
    "approve_update": ("POST", _VALIDATION + "/approve"),
    "reject_update": ("POST", _VALIDATION + "/reject"),
    "create_session": ("POST", _SESSIONS),
    "heartbeat_session": ("POST", _SESSIONS + "/{session_id}/heartbeat"),
    "close_session": ("DELETE", _SESSIONS + "/{session_id}"),
    "upload_payload": ("POST", "/api/external-payloads/v1"),
    "fetch_payload": ("GET", "/api/external-payloads/v1/{reference_id}"),
    "start_workflow": ("POST", "/api/workflows"),
}
"""The operations that a rule may name instead of a method and a path."""

_PIECE = re.compile(r"(\{[^{}]*\}|\*\*|\*)")
_REGISTRATION = re.compile(r"/api/worker/registrations/([^/]+)(?:/deregister)?")


def path_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a path: ``{name}`` and ``*`` stand for one segment or part of it, ``**`` for anything."""
    pieces = (
        ".*" if piece == "**" else "[^/]+" if piece[:1] in "*{" and piece else re.escape(piece)
        for piece in _PIECE.split(pattern)
    )
    return re.compile("".join(pieces), re.DOTALL)


_KNOWN = tuple((name, method, path_pattern(path)) for name, (method, path) in OPERATIONS.items())


def operation_of(method: str, path: str) -> str | None:
    """Name the protocol operation of a method and a path; None for one that is not listed."""
    return next((name for name, known, pattern in _KNOWN if known == method and pattern.fullmatch(path)), None)


@dataclass(frozen=True)
class Request:
    """One request as the proxy read it. `worker` is who sent it, as far as it or its connection says."""

    method: str
    path: str
    body: bytes = b""
    namespace: str = "default"
    sender: str | None = None

    @cached_property
    def document(self) -> dict[str, Any]:
        """The body as a JSON object; an empty one for anything else."""
        try:
            found = msgspec.json.decode(self.body) if self.body else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def operation(self) -> str | None:
        """The protocol operation, by the names of `OPERATIONS`."""
        return operation_of(self.method, self.path)

    @cached_property
    def worker(self) -> str | None:
        """The worker that the request names, or the one that its connection belongs to."""
        for name in ("worker_id", "lease_owner"):
            stated = self.document.get(name)
            if isinstance(stated, str):
                return stated
        in_path = _REGISTRATION.fullmatch(self.path)
        return self.sender if in_path is None else in_path[1]


@dataclass(slots=True, eq=False)
class Exchange:
    """The record of one exchange. Times are those of Trio's clock, None where it has not come to that.

    `fault` is what the proxy did to it, None when it passed untouched; `sent` counts how often the request reached the
    server in full; `status` is what the server answered last, `given` what the client got (None: no whole answer).
    `notes` say what others did: the client left, the server could not be reached or broke the connection off.
    """

    number: int
    connection: int
    method: str
    path: str
    operation: str | None
    worker: str | None
    began: float
    fault: str | None = None
    sent: int = 0
    status: int | None = None
    given: int | None = None
    answered: float | None = None
    ended: float | None = None
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Give the record as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        done = f"{self.fault or 'passed'}, server {self.status or '-'}, client {self.given or '-'}"
        notes = f" ({'; '.join(self.notes)})" if self.notes else ""
        return f"#{self.number} {self.worker or '?'} {self.method} {self.path}: {done}{notes}"
