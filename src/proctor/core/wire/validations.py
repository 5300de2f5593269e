"""Polled update validations (worker.md §4): an update that is not accepted yet, and what its validator is to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from proctor.core.wire.fields import Fields
from proctor.core.wire.questions import SECTION, QuestionClaim, read_common

KIND = "update_validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationClaim(QuestionClaim):
    """One leased validation: whether the update that is asked about may be accepted."""

    update_id: str
    lease_expires_at: datetime


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
    common = read_common(
        fields,
        "validation",
        kind="update_validation",
        attempt="update_validation_attempt",
        asked="update",
        worker_id=worker_id,
        task_queue=task_queue,
    )
    return ValidationClaim(
        **common,
        update_id=fields.text("update_id", "validation"),
        lease_expires_at=fields.instant("lease_expires_at", "validation"),
    )
