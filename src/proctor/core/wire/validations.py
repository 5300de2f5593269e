"""Polled update validations (worker.md §4): an update that is not accepted yet, and what its validator is to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from proctor.core.wire.fields import Fields, shown
from proctor.core.wire.tasks import Event

SECTION = "worker §4"
KIND = "update_validation"


@dataclass(frozen=True, slots=True)
class ValidationClaim:
    """One leased validation. `workflow_arguments` and `update_arguments` are the wire fields as they came."""

    task_id: str
    update_id: str
    attempt: int
    lease_owner: str
    workflow_id: str
    run_id: str
    workflow_type: str
    update_name: str
    payload_codec: str
    workflow_arguments: object
    update_arguments: object
    history: tuple[Event, ...]
    lease_expires_at: datetime
    server_time: datetime | None


def is_validation(body: object) -> bool:
    """Say whether a poll of several kinds has leased a validation."""
    task = body.get("task") if isinstance(body, Mapping) else None
    return isinstance(task, Mapping) and task.get("task_kind") == KIND


def read_validation(body: object, *, worker_id: str, task_queue: str) -> ValidationClaim:
    """Validate a poll answer that `is_validation`.

    Raises ProtocolBreach(rule="worker §4...") for a claim that cannot be worked on safely.
    """
    task = Fields(body, what="workflow-task poll", section=SECTION).present("task", "validation")
    fields = Fields(task, what="update validation", section=SECTION)
    fields.exactly("lease_owner", worker_id, "validation")
    fields.exactly("task_queue", task_queue, "validation")
    events = fields.present("history_events", "validation")
    if not isinstance(events, list) or not all(isinstance(event, Mapping) for event in events):
        fields.breach("validation", f"has history_events {shown(events)}, not a list of objects")
    return ValidationClaim(
        task_id=fields.text("update_validation_task_id", "validation"),
        update_id=fields.text("update_id", "validation"),
        attempt=fields.integer("update_validation_attempt", "validation", least=1),
        lease_owner=worker_id,
        workflow_id=fields.text_or_none("workflow_id", "validation") or "",
        run_id=fields.text("run_id", "validation"),
        workflow_type=fields.text("workflow_type", "validation"),
        update_name=fields.text("update_name", "validation"),
        payload_codec=fields.text("payload_codec", "validation"),
        workflow_arguments=fields.body.get("workflow_arguments"),
        update_arguments=fields.body.get("update_arguments"),
        history=tuple(events),
        lease_expires_at=fields.instant("lease_expires_at", "validation"),
        server_time=None if fields.body.get("server_time") is None else fields.instant("server_time", "validation"),
    )
