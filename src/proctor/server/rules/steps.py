"""What a run has opened and waits for beside local activities: timers, waits, children, queued activities.

Only shapes live here, as in `rows`. Each is one authored call under one durable command number; `closed_event_sequence`
is the history sequence of the event that resolved it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from proctor.core.external import Payload
from proctor.server.rules.rows import StopReceipt
from proctor.server.rules.sessions.shapes import SessionOptions


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


class SignalWait(_Step, frozen=True, kw_only=True, tag="signal"):
    """A wait for one signal of a name, with an optional timer of its own; `step_id` is the signal wait id.

    It ends as `applied`, `timed_out` or `cancelled`.
    """

    name: str
    timeout_seconds: int | None = None
    timer_id: str | None = None
    fire_at: datetime | None = None


class ActivityAttempt(Struct, frozen=True, kw_only=True):
    """One lease of a queued activity, and what its owner reported; `lease_owner` is None until a worker polled it.

    `status` is ready, running, completed, failed, timed_out, lost or cancelled.
    """

    attempt_id: str
    task_id: str
    number: int
    available_at: datetime
    status: str = "ready"
    lease_owner: str | None = None
    registration_token: str | None = None
    poll_request_id: str | None = None
    started_event_sequence: int = 0
    lease_expires_at: datetime | None = None
    start_to_close_deadline_at: datetime | None = None
    heartbeat_deadline_at: datetime | None = None
    last_heartbeat_at: datetime | None = None
    stop: StopReceipt | None = None


class ActivityCall(_Step, frozen=True, kw_only=True, tag="activity"):
    """A queued activity over all its attempts; `step_id` is the activity execution id.

    Open as `pending` or `running`; ends as completed, failed, timed_out or cancelled. Timeouts are in seconds.
    """

    status: str = "pending"
    namespace: str
    activity_type: str
    arguments: Payload | None = None
    payload_codec: str = "avro"
    queue: str
    max_attempts: int = 1
    backoff_seconds: tuple[int, ...] = ()
    non_retryable_error_types: tuple[str, ...] = ()
    start_to_close_timeout: int | None = None
    schedule_to_start_timeout: int | None = None
    schedule_to_close_timeout: int | None = None
    heartbeat_timeout: int | None = None
    cancellation_policy: str | None = None
    schedule_to_close_deadline_at: datetime | None = None
    attempt: ActivityAttempt
    cancelled_event_id: str | None = None
    worker_session: SessionOptions | None = None

    @property
    def is_open(self) -> bool:
        """Say whether no terminal event of this activity is recorded."""
        return self.status in {"pending", "running"}

    @property
    def schedule_to_start_deadline_at(self) -> datetime | None:
        """Give the instant by which a worker must have taken the attempt that waits."""
        if self.schedule_to_start_timeout is None or self.status != "pending":
            return None
        return self.attempt.available_at + timedelta(seconds=self.schedule_to_start_timeout)

    def deadlines(self) -> list[tuple[str, datetime]]:
        """Give what ends the current attempt by itself, the gravest first: (timeout kind or ``lease``, instant)."""
        running = self.status == "running"
        attempt = self.attempt
        found = (
            ("schedule_to_close", self.schedule_to_close_deadline_at),
            ("schedule_to_start", self.schedule_to_start_deadline_at),
            ("start_to_close", attempt.start_to_close_deadline_at if running else None),
            ("heartbeat", attempt.heartbeat_deadline_at if running else None),
            ("lease", attempt.lease_expires_at if running else None),
        )
        return [(kind, instant) for kind, instant in found if instant is not None]


class ChildCall(_Step, frozen=True, kw_only=True, tag="child"):
    """A child workflow as its parent sees it; `step_id` is the child call id. Ends with the child's status.

    A child that is tried again or continues as new has several runs: `first_run_id` names the call for selections,
    `child_run_id` is the newest one. `cancellation` is what became of the request that was passed on to it.
    """

    child_workflow_id: str
    first_run_id: str
    child_run_id: str
    child_run_number: int = 1
    child_workflow_type: str
    workflow_link_id: str
    parent_close_policy: str = "abandon"
    cancellation_policy: str | None = None
    cancellation_asked: bool = False
    cancellation: dict[str, Any] | None = None


Step = Timer | ConditionWait | SignalWait | ChildCall | ActivityCall


def due_at(step: Step) -> datetime | None:
    """Give the instant at which a step resolves by itself."""
    if isinstance(step, ChildCall) or not step.is_open:
        return None
    if isinstance(step, ActivityCall):
        return min((instant for _, instant in step.deadlines()), default=None)
    return step.fire_at
