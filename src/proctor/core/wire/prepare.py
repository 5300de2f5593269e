"""The prepare receipt: admission of exactly one attempt (prepared-local.md §2.3, §3.1 to §3.6).

A call inside cancellation cleanup carries the proof of it, and every receipt must repeat that proof (§3.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from proctor.core.authority import AttemptDeadlines
from proctor.core.wire.fields import Fields, shown

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
class Cleanup:
    """The proof that a call runs inside cancellation cleanup. The root scope only: no other is authored here."""

    request_id: str
    root_request_id: str
    delivery_history_event_id: str
    deadline: datetime


_CLEANUP_KEYS = frozenset({"request_id", "root_request_id", "delivery_history_event_id", "cleanup_deadline_at"})


def check_cleanup(fields: Fields, cleanup: Cleanup | None, rule: str) -> None:
    """Require that a receipt repeats the cleanup proof, or says null where there is none (prepared-local.md §3.6)."""
    stated = fields.present("cancellation_cleanup", rule)
    if cleanup is None and stated is None:
        return
    if cleanup is None or not isinstance(stated, Mapping):
        fields.breach(rule, f"has cancellation_cleanup {shown(stated)} instead of {shown(cleanup)}")
    proof = Fields(stated, what=f"{fields.what} (cancellation_cleanup)", section=fields.section)
    if set(proof.body) != _CLEANUP_KEYS:
        proof.breach(rule, f"has the keys {shown(sorted(map(str, proof.body)))}")
    proof.exactly("request_id", cleanup.request_id, rule)
    proof.exactly("root_request_id", cleanup.root_request_id, rule)
    proof.exactly("delivery_history_event_id", cleanup.delivery_history_event_id, rule)
    if proof.instant("cleanup_deadline_at", rule) != cleanup.deadline:
        proof.breach(rule, "moves the cleanup deadline")
    if fields.body.get("cancellation_scope_id") is not None:
        fields.breach(rule, "names a cancellation scope, and none was authored")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A validated prepare receipt."""

    identity: AttemptIdentity
    duplicate: bool
    lease_expires_at: datetime
    deadlines: AttemptDeadlines
    server_time: datetime
    cleanup: Cleanup | None = None


def read_prepare(
    body: object, *, claim: ClaimIdentity, nonce: str, timeouts: Timeouts, cleanup: Cleanup | None = None
) -> Prepared:
    """Validate a prepare answer against the request that was sent; `cleanup` is the proof that went with it.

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
    deadlines = _deadlines(fields, server_time, timeouts, cleanup)
    check_cleanup(fields, cleanup, "6")
    if cleanup is not None and cleanup.deadline <= server_time:
        fields.breach("6", "admits a cleanup call after the cleanup deadline")
    return Prepared(identity, duplicate, lease_expires_at, deadlines, server_time, cleanup)


def _deadlines(fields: Fields, server_time: datetime, timeouts: Timeouts, cleanup: Cleanup | None) -> AttemptDeadlines:
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
        if deadline is not None and cleanup is not None and deadline > cleanup.deadline:
            fields.breach("4", f"gives a {name} deadline beyond the cleanup deadline")
        # The published SDK checks this for heartbeats only. A timeout that the author asked for and the
        # receipt drops would let a handler run without an end, so the other two are required as well.
        if deadline is None and timeout is not None:
            fields.breach("5" if name == "heartbeat" else "4", f"has no {name} deadline for an authored timeout")
    if timeouts.heartbeat is None:
        if heartbeat is not None and (cleanup is None or heartbeat != cleanup.deadline):
            fields.breach("5", "gives a heartbeat deadline to a call that has no heartbeat timeout")
    elif heartbeat is not None and heartbeat > server_time + timedelta(seconds=timeouts.heartbeat):
        fields.breach("5", "gives a heartbeat deadline beyond the authored timeout")
    return AttemptDeadlines(start_to_close, schedule_to_close, heartbeat)
