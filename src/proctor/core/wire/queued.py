"""Queued activities on the wire: the polled task, and the answers whether its attempt may go on (worker.md §3).

Every answer is read into a `QueuedStanding`: the attempt goes on with these instants, or it is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from proctor.core.authority import AttemptDeadlines
from proctor.core.wire.fields import Fields

SECTION = "worker §3"
_MAX_LEASE_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """One leased attempt of a queued activity. `arguments` is the wire field as it came, timeouts are seconds."""

    task_id: str
    workflow_id: str
    run_id: str
    execution_id: str
    attempt_id: str
    attempt_number: int
    activity_type: str
    arguments: object
    payload_codec: str
    lease_owner: str
    lease_expires_at: datetime
    deadlines: AttemptDeadlines
    heartbeat_timeout: int | None
    server_time: datetime | None
    refers: bool = False
    """Whether the arguments may be a reference to an external payload."""


@dataclass(frozen=True, slots=True)
class QueuedStanding:
    """What an answer says of an attempt. `stop` is why it must stop, None while it may go on.

    `cancelled`: the run is being cancelled; `request_id` names the request that a stop receipt may answer.
    """

    lease_expires_at: datetime | None
    heartbeat_deadline: datetime | None
    server_time: datetime | None
    stop: str | None = None
    cancelled: bool = False
    request_id: str | None = None


def read_activity_poll(body: object, *, worker_id: str, task_queue: str, renewable: bool) -> QueuedTask | None:
    """Validate an activity poll answer; None when nothing was leased. With `renewable` all timing is required."""
    reply = Fields(body, what="activity poll", section=SECTION)
    task = reply.present("task", "1")
    if task is None:
        return None
    fields = Fields(task, what="activity poll", section=SECTION)
    if renewable or "lease_owner" in fields.body:
        fields.exactly("lease_owner", worker_id, "1")
    if renewable or fields.body.get("task_queue") is not None:
        fields.exactly("task_queue", task_queue, "1")
    server_time = reply.instant("server_time", "1") if renewable else _optional(reply, "server_time")
    lease = fields.instant("lease_expires_at", "1")
    if server_time is not None and not 0 < (lease - server_time).total_seconds() <= _MAX_LEASE_SECONDS:
        fields.breach("1", "gives a lease that is over or longer than a day")
    workflow_id = fields.text("workflow_id", "1") if renewable else fields.text_or_none("workflow_id", "1") or ""
    policy = fields.body.get("retry_policy")
    timeout = policy.get("heartbeat_timeout") if isinstance(policy, Mapping) else None
    interval = timeout if isinstance(timeout, int) and not isinstance(timeout, bool) and timeout > 0 else None
    stated = fields.body.get("deadlines")
    deadlines = Fields(stated if stated is not None else {}, what="activity poll (deadlines)", section=SECTION)
    heartbeat = _optional(deadlines, "heartbeat")
    if renewable and heartbeat is not None:
        if interval is None or server_time is None:
            fields.breach("1", "has a heartbeat deadline without the timeout that moves it")
        if (heartbeat - server_time).total_seconds() > interval:
            fields.breach("1", "has a heartbeat deadline beyond the timeout that moves it")
    return QueuedTask(
        task_id=fields.text("task_id", "1"),
        workflow_id=workflow_id,
        run_id=fields.text("run_id", "1"),
        execution_id=fields.text("activity_execution_id", "1"),
        attempt_id=fields.text("activity_attempt_id", "1"),
        attempt_number=fields.integer("attempt_number", "1", least=1),
        activity_type=fields.text("activity_type", "1"),
        arguments=fields.body.get("arguments"),
        payload_codec=fields.text("payload_codec", "1"),
        lease_owner=worker_id,
        lease_expires_at=lease,
        deadlines=AttemptDeadlines(
            _optional(deadlines, "start_to_close"), _optional(deadlines, "schedule_to_close"), heartbeat
        ),
        heartbeat_timeout=interval,
        server_time=server_time,
    )


def read_lease_renewal(body: object, *, task: QueuedTask) -> QueuedStanding:
    """Validate a renew-lease answer; it may only say that the attempt goes on (worker.md §3.2)."""
    fields = Fields(body, what="renew-lease", section=SECTION)
    for key, expected in (
        ("lease_renewed", True),
        ("can_continue", True),
        ("cancel_requested", False),
        ("heartbeat_recorded", False),
        ("reason", None),
        ("workflow_task_id", task.task_id),
        ("workflow_instance_id", task.workflow_id),
        ("workflow_run_id", task.run_id),
        ("activity_execution_id", task.execution_id),
        ("activity_attempt_id", task.attempt_id),
        ("attempt_number", task.attempt_number),
        ("lease_owner", task.lease_owner),
    ):
        fields.exactly(key, expected, "2")
    server_time, lease = fields.instant("server_time", "2"), fields.instant("lease_expires_at", "2")
    if lease <= server_time:
        fields.breach("2", "renews a lease that is already over")
    return QueuedStanding(lease, _optional(fields, "heartbeat_deadline_at"), server_time)


def read_activity_standing(body: object, *, task: QueuedTask, beat: bool) -> QueuedStanding:
    """Validate a heartbeat (`beat`) or status answer (worker.md §3.3, §3.4)."""
    rule = "3" if beat else "4"
    fields = Fields(body, what="activity heartbeat" if beat else "activity status", section=SECTION)
    fields.exactly("activity_attempt_id", task.attempt_id, rule)
    fields.exactly("task_id", task.task_id, rule)
    fields.exactly("lease_owner", task.lease_owner, rule)
    cancelled = fields.boolean("cancel_requested", rule)
    goes_on = fields.boolean("can_continue", rule)
    recorded = fields.boolean("heartbeat_recorded", rule)
    server_time = _optional(fields, "server_time")
    if cancelled or not goes_on:
        reason = fields.text_or_none("reason", rule) or ("cancel_requested" if cancelled else "cannot_continue")
        return QueuedStanding(None, None, server_time, reason, cancelled, _request(fields.body))
    if recorded is not beat:
        fields.breach(rule, f"has heartbeat_recorded {recorded}")
    fields.exactly("reason", None, rule)
    stated = fields.body.get("deadlines")
    deadlines = Fields({} if stated is None else stated, what=f"{fields.what} (deadlines)", section=SECTION)
    return QueuedStanding(fields.instant("lease_expires_at", rule), _optional(deadlines, "heartbeat"), server_time)


def read_stop_receipt(body: object, *, task: QueuedTask, request_id: str) -> str:
    """Validate an acknowledge-cancellation answer; gives its history event (worker.md §3.5)."""
    fields = Fields(body, what="acknowledge-cancellation", section=SECTION)
    for key, expected in (
        ("task_id", task.task_id),
        ("activity_attempt_id", task.attempt_id),
        ("lease_owner", task.lease_owner),
        ("request_id", request_id),
        ("acknowledged", True),
        ("reason", None),
        ("heartbeat_recorded", False),
    ):
        fields.exactly(key, expected, "5")
    fields.boolean("duplicate", "5")
    return fields.text("history_event_id", "5")


def _request(body: Mapping[str, Any]) -> str | None:
    stated = body.get("cancellation_acknowledgement")
    request = stated.get("request_id") if isinstance(stated, Mapping) else None
    return request if isinstance(request, str) and request.strip() else None


def _optional(fields: Fields, key: str) -> datetime | None:
    value = fields.body.get(key)
    return None if value is None else fields.to_instant(key, value, "1")
