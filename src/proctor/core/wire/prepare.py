"""The prepare receipt: admission of exactly one attempt (prepared-local.md §2.3, §3.1 to §3.6).

Cancellation cleanup calls are not authored yet, so a receipt that speaks of cleanup is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from proctor.core.authority import AttemptDeadlines
from proctor.core.wire.fields import Fields

SECTION = "prepared-local §3"


@dataclass(frozen=True, slots=True)
class ClaimIdentity:
    """The claim of one hosting task. `epoch` is the `workflow_task_attempt` of the lease."""

    task_id: str
    run_id: str
    lease_owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The authored timeouts of one local call, in whole seconds; None when not given."""

    start_to_close: int | None = None
    schedule_to_close: int | None = None
    heartbeat: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptIdentity:
    """One admitted attempt: the claim it runs under and the ids the server gave it. `nonce` is ours."""

    claim: ClaimIdentity
    execution_id: str
    attempt_id: str
    nonce: str
    attempt_number: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A validated prepare receipt."""

    identity: AttemptIdentity
    duplicate: bool
    lease_expires_at: datetime
    deadlines: AttemptDeadlines
    server_time: datetime


def read_prepare(body: object, *, claim: ClaimIdentity, nonce: str, timeouts: Timeouts) -> Prepared:
    """Validate a prepare answer against the request that was sent.

    Raises ProtocolBreach with the number of the rule in prepared-local.md §3.
    """
    fields = Fields(body, what="prepare", section=SECTION)
    fields.exactly("prepared", True, "1")
    duplicate = fields.boolean("duplicate", "1")
    fields.exactly("reason", None, "1")
    fields.exactly("workflow_task_id", claim.task_id, "2")
    fields.exactly("lease_owner", claim.lease_owner, "2")
    fields.exactly("worker_attempt_id", nonce, "2")
    fields.exactly("workflow_task_attempt", claim.epoch, "2")
    identity = AttemptIdentity(
        claim=claim,
        execution_id=fields.text("activity_execution_id", "2"),
        attempt_id=fields.text("activity_attempt_id", "2"),
        nonce=nonce,
        attempt_number=fields.integer("attempt_number", "2", least=1),
    )
    server_time = fields.instant("server_time", "3")
    lease_expires_at = fields.instant("lease_expires_at", "3")
    if lease_expires_at <= server_time:
        fields.breach("3", "gives a lease that is already over")
    deadlines = _deadlines(fields, server_time, timeouts)
    fields.exactly("cancellation_cleanup", None, "6")
    return Prepared(identity, duplicate, lease_expires_at, deadlines, server_time)


def _deadlines(fields: Fields, server_time: datetime, timeouts: Timeouts) -> AttemptDeadlines:
    start_to_close = fields.instant_or_none("start_to_close_deadline_at", "4")
    schedule_to_close = fields.instant_or_none("schedule_to_close_deadline_at", "4")
    heartbeat = fields.instant_or_none("heartbeat_deadline_at", "4")
    for name, deadline, timeout in (
        ("start_to_close", start_to_close, timeouts.start_to_close),
        ("schedule_to_close", schedule_to_close, timeouts.schedule_to_close),
        ("heartbeat", heartbeat, timeouts.heartbeat),
    ):
        if deadline is not None and deadline <= server_time:
            fields.breach("4", f"gives a {name} deadline that has already passed")
        # The published SDK checks this for heartbeats only. A timeout that the author asked for and the
        # receipt drops would let a handler run without an end, so the other two are required as well.
        if deadline is None and timeout is not None:
            fields.breach("5" if name == "heartbeat" else "4", f"has no {name} deadline for an authored timeout")
    if timeouts.heartbeat is None:
        if heartbeat is not None:
            fields.breach("5", "gives a heartbeat deadline to a call that has no heartbeat timeout")
    elif heartbeat is not None and heartbeat > server_time + timedelta(seconds=timeouts.heartbeat):
        fields.breach("5", "gives a heartbeat deadline beyond the authored timeout")
    return AttemptDeadlines(start_to_close, schedule_to_close, heartbeat)
