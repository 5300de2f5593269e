"""Leased questions to workflow code: what a query and the validation of an update have in common (worker.md §4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from proctor.core.wire.fields import Fields, shown
from proctor.core.wire.tasks import Event

SECTION = "worker §4"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionClaim:
    """One leased question. `workflow_arguments` and `arguments` are the wire fields as they came."""

    task_id: str
    attempt: int
    lease_owner: str
    workflow_id: str
    run_id: str
    workflow_type: str
    name: str
    payload_codec: str
    workflow_arguments: object
    arguments: object
    history: tuple[Event, ...]
    server_time: datetime | None


def read_common(
    fields: Fields, rule: str, *, kind: str, attempt: str, asked: str, worker_id: str, task_queue: str
) -> dict[str, Any]:
    """Validate the fields that every kind has; give them by their names in `QuestionClaim`.

    `kind` and `asked` are the prefixes of wire names (of the task's id, of the name and arguments that are asked
    about), `attempt` is the wire name of the attempt.
    Raises ProtocolBreach with `rule` for a claim that cannot be worked on safely.
    """
    fields.exactly("lease_owner", worker_id, rule)
    fields.exactly("task_queue", task_queue, rule)
    events = fields.present("history_events", rule)
    if not isinstance(events, list) or not all(isinstance(event, Mapping) for event in events):
        fields.breach(rule, f"has history_events {shown(events)}, not a list of objects")
    return {
        "task_id": fields.text(f"{kind}_task_id", rule),
        "attempt": fields.integer(attempt, rule, least=1),
        "lease_owner": worker_id,
        "workflow_id": fields.text_or_none("workflow_id", rule) or "",
        "run_id": fields.text("run_id", rule),
        "workflow_type": fields.text("workflow_type", rule),
        "name": fields.text(f"{asked}_name", rule),
        "payload_codec": fields.text("payload_codec", rule),
        "workflow_arguments": fields.body.get("workflow_arguments"),
        "arguments": fields.body.get(f"{asked}_arguments"),
        "history": tuple(events),
        "server_time": None if fields.body.get("server_time") is None else fields.instant("server_time", "timing"),
    }
