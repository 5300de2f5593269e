"""What a run has opened and waits for beside activities: timers, condition waits, child workflows.

Only shapes live here, as in `rows`. Each is one authored call under one durable command number; `closed_event_sequence`
is the history sequence of the event that resolved it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct


class _Step(Struct, frozen=True, kw_only=True):
    step_id: str
    run_id: str
    sequence: int
    status: str = "open"
    opened_event_sequence: int = 0
    closed_event_sequence: int | None = None
    group: dict[str, Any] = {}

    @property
    def is_open(self) -> bool:
        """Say whether nothing has resolved this step yet."""
        return self.status == "open"


class Timer(_Step, frozen=True, kw_only=True, tag="timer"):
    """A durable timer; `step_id` is the timer id. It ends as `fired` or `cancelled`."""

    delay_seconds: int
    fire_at: datetime


class ConditionWait(_Step, frozen=True, kw_only=True, tag="condition"):
    """A wait for workflow state, with an optional timer of its own. Ends as `satisfied`, `timed_out` or `cancelled`."""

    key: str | None = None
    fingerprint: str | None = None
    timeout_seconds: int | None = None
    timer_id: str | None = None
    fire_at: datetime | None = None


class ChildCall(_Step, frozen=True, kw_only=True, tag="child"):
    """A child workflow as its parent sees it; `step_id` is the child call id. Ends with the child's status."""

    child_workflow_id: str
    child_run_id: str
    child_workflow_type: str
    parent_close_policy: str = "abandon"
    cancellation_policy: str | None = None
    cancellation_requested: bool = False


Step = Timer | ConditionWait | ChildCall


def due_at(step: Step) -> datetime | None:
    """Give the instant at which a step resolves by itself."""
    if isinstance(step, ChildCall) or not step.is_open:
        return None
    return step.fire_at
