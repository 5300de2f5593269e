"""Portable affinity: what a completion may use only when its worker is registered for it (transport.md §7).

The floor is that of the request, the capability that of the stored registration of the lease owner: in its flat list
and in its manifest. A refusal rejects the whole completion.
"""

from __future__ import annotations

from typing import Any

from proctor.server.rules.refusal import Refusal, conflict
from proctor.server.rules.registration import MANIFEST_FLOOR
from proctor.server.rules.rows import Registration, Task


def require(capability: str, *, minor: int, task: Task, registration: Registration | None) -> None:
    """Refuse a completion that uses `capability` below its floor or without having registered it."""
    if minor < MANIFEST_FLOOR:
        raise rejected(
            "portable_worker_affinity_protocol_floor_unavailable",
            f"{capability} needs worker protocol 1.{MANIFEST_FLOOR}, this request speaks 1.{minor}",
            f"send the completion with protocol 1.{MANIFEST_FLOOR} or newer",
            capability=capability,
            minor=minor,
            task=task,
        )
    entry = {} if registration is None else registration.manifest.get(capability) or {}
    flat = () if registration is None else registration.capabilities
    if capability not in flat or entry.get("supported") is not True:
        raise rejected(
            "worker_capability_not_supported",
            f"the registration behind this lease does not hold the capability {capability}",
            f"register with {capability} in capabilities and supported in capability_manifest",
            capability=capability,
            minor=minor,
            task=task,
        )


def rejected(reason: str, text: str, remediation: str, *, capability: str, minor: int, task: Task) -> Refusal:
    """Make the refusal of a whole completion, in the form that all affinity capabilities share."""
    facts: dict[str, Any] = {
        "task_id": task.task_id,
        "workflow_task_attempt": task.attempt,
        "outcome": "rejected",
        "recorded": False,
        "capability": capability,
        "requested_version": f"1.{minor}",
        "minimum_protocol_version": f"1.{MANIFEST_FLOOR}",
        "remediation": remediation,
    }
    return conflict(reason, text, **facts)
