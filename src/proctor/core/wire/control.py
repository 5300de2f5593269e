"""Control and heartbeat receipts: may this attempt go on? (prepared-local.md §2.4, §2.5, §3.7 to §3.15)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from proctor.core.authority import AttemptDeadlines
from proctor.core.wire.cancellation import CancellationContext, read_context
from proctor.core.wire.fields import Fields
from proctor.core.wire.prepare import SECTION, AttemptIdentity, Cleanup, check_cleanup

_CANCELLATION_REASONS = frozenset({"cancellation_requested", "cancellation_deadline_expired"})


@dataclass(frozen=True, slots=True)
class Active:
    """The attempt may go on; the leases and deadlines are those to count from now."""

    server_time: datetime
    lease_expires_at: datetime
    workflow_lease_expires_at: datetime
    deadlines: AttemptDeadlines


@dataclass(frozen=True, slots=True)
class StopOrder:
    """The attempt must stop. `cancellation` is set when the stop is to be acknowledged afterwards."""

    reason: str
    cancellation: CancellationContext | None


def read_control(
    body: object, *, identity: AttemptIdentity, deadlines: AttemptDeadlines, cleanup: Cleanup | None = None
) -> Active | StopOrder:
    """Validate a control answer to a lease renewal; `deadlines` are those of the newest receipt.

    Raises ProtocolBreach with the number of the rule in prepared-local.md §3.
    """
    fields = Fields(body, what="control", section=SECTION)
    active = _standing(fields, identity, cleanup, renewed_when_active=True)
    fields.exactly("heartbeat_recorded", False, "10")
    fields.exactly("heartbeat_history_event_id", None, "10")
    _unchanged(fields, deadlines)
    if fields.instant_or_none("heartbeat_deadline_at", "12") != deadlines.heartbeat:
        fields.breach("12", "moves the heartbeat deadline without a heartbeat")
    return _active(fields, deadlines, cleanup) if active else _stop_order(fields, identity)


def read_heartbeat(
    body: object,
    *,
    identity: AttemptIdentity,
    deadlines: AttemptDeadlines,
    heartbeat_timeout: int | None,
    cleanup: Cleanup | None = None,
) -> Active | StopOrder:
    """Validate a heartbeat answer; `heartbeat_timeout` is the authored one in seconds.

    Raises ProtocolBreach with the number of the rule in prepared-local.md §3.
    """
    fields = Fields(body, what="heartbeat", section=SECTION)
    active = _standing(fields, identity, cleanup, renewed_when_active=False)
    fields.exactly("heartbeat_recorded", active, "10")
    if active:
        fields.text("heartbeat_history_event_id", "10")
    else:
        fields.exactly("heartbeat_history_event_id", None, "10")
    _unchanged(fields, deadlines)
    moved = fields.instant_or_none("heartbeat_deadline_at", "12")
    if not active:
        return _stop_order(fields, identity)
    server_time = fields.instant("server_time", "12")
    if heartbeat_timeout is None or deadlines.heartbeat is None:
        if moved != deadlines.heartbeat:
            fields.breach("12", "gives a heartbeat deadline to a call that has no heartbeat timeout")
    elif moved is None or moved < deadlines.heartbeat:
        fields.breach("12", "moves the heartbeat deadline back")
    elif deadlines.heartbeat <= server_time:
        fields.breach("12", "accepts a heartbeat after its deadline")
    elif moved > server_time + timedelta(seconds=heartbeat_timeout):
        fields.breach("12", "moves the heartbeat deadline beyond the authored timeout")
    elif cleanup is not None and moved > cleanup.deadline:
        fields.breach("12", "moves the heartbeat deadline beyond the cleanup deadline")
    return _active(fields, AttemptDeadlines(deadlines.start_to_close, deadlines.schedule_to_close, moved), cleanup)


def _standing(fields: Fields, identity: AttemptIdentity, cleanup: Cleanup | None, *, renewed_when_active: bool) -> bool:
    """Check identity and the consistency of the flags (rules 6 to 9)."""
    fields.exactly("workflow_task_id", identity.claim.task_id, "7")
    fields.exactly("workflow_task_attempt", identity.claim.epoch, "7")
    fields.exactly("lease_owner", identity.claim.lease_owner, "7")
    fields.exactly("activity_execution_id", identity.execution_id, "7")
    fields.exactly("activity_attempt_id", identity.attempt_id, "7")
    check_cleanup(fields, cleanup, "7")
    active = fields.boolean("active", "8")
    renewed = fields.boolean("renewed", "8")
    if fields.boolean("stop_required", "8") is active:
        fields.breach("8", "says both go on and stop" if active else "says neither go on nor stop")
    fields.present("reason", "8")
    if active:
        fields.exactly("reason", None, "9")
        if renewed is not renewed_when_active:
            fields.breach("9", f"has renewed {renewed}")
    else:
        fields.text("reason", "9")
        if renewed:
            fields.breach("9", "renews the lease of an attempt that must stop")
    return active


def _unchanged(fields: Fields, deadlines: AttemptDeadlines) -> None:
    for key, known in (
        ("start_to_close_deadline_at", deadlines.start_to_close),
        ("schedule_to_close_deadline_at", deadlines.schedule_to_close),
    ):
        if fields.instant_or_none(key, "11") != known:
            fields.breach("11", f"changes {key}")


def _active(fields: Fields, deadlines: AttemptDeadlines, cleanup: Cleanup | None) -> Active:
    server_time = fields.instant("server_time", "13")
    lease = fields.instant("lease_expires_at", "13")
    workflow_lease = fields.instant("workflow_lease_expires_at", "13")
    instants = (
        lease,
        workflow_lease,
        deadlines.start_to_close,
        deadlines.schedule_to_close,
        deadlines.heartbeat,
        None if cleanup is None else cleanup.deadline,
    )
    if any(instant is not None and instant <= server_time for instant in instants):
        fields.breach("13", "says go on although a lease or a deadline is over")
    return Active(server_time, lease, workflow_lease, deadlines)


def _stop_order(fields: Fields, identity: AttemptIdentity) -> StopOrder:
    reason = fields.text("reason", "9")
    if reason not in _CANCELLATION_REASONS:
        return StopOrder(reason, None)
    fields.exactly("fenced", True, "15")
    fields.text("cancellation_history_event_id", "15")
    context = read_context(fields.present("cancellation_request", "15"), run_id=identity.claim.run_id)
    return StopOrder(reason, context)
