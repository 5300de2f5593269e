"""The server of the claim model: a small truth about leases, epochs, attempts and receipts, on trio's clock.

It answers honestly; what becomes of calls and answers on their way is `running.claims_world`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import trio

from proctor.core.instants import format_instant
from proctor.core.wire.prepare import ClaimIdentity

Body = dict[str, Any]
Reply = tuple[int, Body]
Status = Literal["running", "published", "cancelled", "interrupted"]

LEASE = 10.0
START_TO_CLOSE, HEARTBEAT = 12, 6
MOST_ATTEMPTS = 3
_WALL = datetime(2026, 10, 2, tzinfo=UTC)


@dataclass
class Attempt:
    """What the server knows of one attempt; `member` is its sequence, 0 for the queued activity."""

    id: str
    member: int
    number: int
    claim: ClaimIdentity
    nonce: str
    start_to_close: float
    heartbeat: float
    status: Status = "running"
    recorded: int = 0
    published: tuple[str, Body] | None = None
    receipts: int = 0
    lease_until: float = 0.0
    """Of a queued attempt; that of a prepared one is its task's."""


@dataclass
class Truth:
    """One run with a group of local members, and one queued activity beside it."""

    members: int
    policy: str
    wall: float = 0.0
    task_number: int = 1
    epoch: int = 0
    owner: str | None = None
    lease_until: float = 0.0
    stale: set[str] = field(default_factory=set)
    cancelled: bool = False
    delivered: bool = False
    attempts: dict[str, Attempt] = field(default_factory=dict)
    terminal: dict[int, list[str]] = field(default_factory=dict)

    def stamp(self, instant: float) -> str:
        return format_instant(_WALL + timedelta(seconds=self.wall + instant))

    # -- leases

    @property
    def closed(self) -> bool:
        return self.delivered or not (self.open_members() or not self.terminal.get(0))

    @property
    def leasable(self) -> bool:
        free = self.owner is None or self.lease_until <= trio.current_time()
        return free and not self.delivered and bool(self.open_members())

    def open_members(self) -> list[int]:
        return [one for one in range(1, self.members + 1) if not self.terminal.get(one)]

    def lease(self, owner: str) -> ClaimIdentity:
        assert self.leasable
        self.epoch += 1
        self.owner, self.lease_until = owner, trio.current_time() + LEASE
        return ClaimIdentity(f"T{self.task_number}", "R", owner, self.epoch)

    def last_of(self, member: int) -> Attempt | None:
        return next((one for one in reversed(list(self.attempts.values())) if one.member == member), None)

    def lease_queued(self, owner: str) -> Attempt | None:
        last, now = self.last_of(0), trio.current_time()
        if self.cancelled or self.terminal.get(0) or (last and last.status == "running" and last.lease_until > now):
            return None
        if last is not None and last.status == "running":
            last.status = "interrupted"
        claim = ClaimIdentity("Q", "R", owner, 1)
        return self._admit(0, claim, nonce="")

    def replace_registration(self, owner: str) -> None:
        """Free every lease of a worker, as registering its id again does."""
        self.stale.add(owner)
        if self.owner == owner:
            self.owner = None
        for one in self.attempts.values():
            if one.member == 0 and one.claim.lease_owner == owner:
                one.lease_until = 0.0

    def _admit(self, member: int, claim: ClaimIdentity, nonce: str) -> Attempt:
        now = trio.current_time()
        number = 1 + sum(one.member == member for one in self.attempts.values())
        one = Attempt(f"A{member}-{number}", member, number, claim, nonce, now + START_TO_CLOSE, now + HEARTBEAT)
        one.lease_until = now + LEASE
        self.attempts[one.id] = one
        return one

    def _refusal(self, claim: ClaimIdentity) -> str | None:
        if claim.lease_owner in self.stale:
            return "stale_worker_registration"
        if (claim.task_id, claim.epoch, claim.lease_owner) != (f"T{self.task_number}", self.epoch, self.owner):
            return "workflow_claim_mismatch"
        return "workflow_claim_expired" if self.lease_until <= trio.current_time() else None

    def lease_of(self, attempt: Attempt) -> float:
        return attempt.lease_until if attempt.member == 0 else self.lease_until

    # -- prepared local activities

    def prepare(self, claim: ClaimIdentity, body: Body) -> Reply:
        member, nonce = body["sequence"], body["worker_attempt_id"]
        last = self.last_of(member)
        reason = self._refusal(claim) or ("cancellation_requested" if self.cancelled else None)
        duplicate = last is not None and (last.nonce, last.status) == (nonce, "running")
        if reason is None and not duplicate and (self.terminal.get(member) or (last and last.status == "running")):
            reason = "local_activity_preparation_mismatch"
        if reason is not None:
            return 409, {"reason": reason}
        one = last if duplicate and last is not None else self._admit(member, claim, nonce)
        return 200, {
            "prepared": True, "duplicate": duplicate, "reason": None, "activity_execution_id": f"E{member}",
            "activity_attempt_id": one.id, "worker_attempt_id": nonce, "attempt_number": one.number,
            "workflow_task_id": claim.task_id, "workflow_task_attempt": claim.epoch, "lease_owner": claim.lease_owner,
            "lease_expires_at": self.stamp(self.lease_until), "cancellation_cleanup": None,
            "server_time": self.stamp(trio.current_time()), **self._deadlines(one),
        }  # fmt: skip

    def _deadlines(self, one: Attempt) -> Body:
        return {
            "start_to_close_deadline_at": self.stamp(one.start_to_close),
            "schedule_to_close_deadline_at": None,
            "heartbeat_deadline_at": self.stamp(one.heartbeat),
        }

    def _due(self, one: Attempt) -> bool:
        return min(one.start_to_close, one.heartbeat) <= trio.current_time()

    def stand(self, one: Attempt, *, beat: bool) -> Reply:
        """Answer control, or a heartbeat."""
        now, reason = trio.current_time(), None
        if self.cancelled and one.status in ("running", "cancelled"):
            one.status, reason = "cancelled", "cancellation_requested"
        elif one.status != "running":
            reason = "stale_activity_attempt"
        else:
            reason = self._refusal(one.claim) or ("local_activity_deadline_expired" if self._due(one) else None)
        if reason is None and beat:
            one.heartbeat = now + HEARTBEAT
        elif reason is None:
            self.lease_until = now + LEASE
        body: Body = {
            "active": reason is None, "renewed": reason is None and not beat, "stop_required": reason is not None,
            "reason": reason, "activity_execution_id": f"E{one.member}", "activity_attempt_id": one.id,
            "workflow_task_id": one.claim.task_id, "workflow_task_attempt": one.claim.epoch,
            "lease_owner": one.claim.lease_owner, "lease_expires_at": self.stamp(self.lease_until),
            "workflow_lease_expires_at": self.stamp(self.lease_until), "cancellation_cleanup": None,
            "heartbeat_recorded": reason is None and beat,
            "heartbeat_history_event_id": "H" if reason is None and beat else None,
            "server_time": self.stamp(now), **self._deadlines(one),
        }  # fmt: skip
        if reason == "cancellation_requested":
            fence = {"fenced": True, "cancellation_history_event_id": "VC"}
            return 200, {**body, **fence, "cancellation_request": self._context()}
        return (200 if reason is None else 409), body

    def _context(self) -> Body:
        return {
            "schema": "durable-workflow.cancellation-context/v1", "request_id": "Q", "root_request_id": "Q",
            "root_workflow_instance_id": "wf", "root_workflow_run_id": "R", "parent_request_id": None, "reason": None,
            "requester": {"type": "operator"}, "source": "test", "requested_at": self.stamp(0),
            "cleanup_deadline_at": self.stamp(100_000),
            "lineage": [{"request_id": "Q", "workflow_instance_id": "wf", "workflow_run_id": "R"}],
        }  # fmt: skip

    def publish(self, one: Attempt, report: Body) -> Reply:
        duplicate = one.published is not None and one.published[1] == report
        if not duplicate:
            reason = None
            if one.published is not None:
                reason = "local_activity_outcome_mismatch"
            elif self.cancelled:
                reason = "cancellation_requested"
                one.status = "cancelled" if one.status == "running" else one.status
            elif one.status != "running":
                reason = "stale_activity_attempt"
            else:
                reason = self._refusal(one.claim)
            if reason is None and report["outcome"] == "timed_out" and not self._due(one):
                reason = "local_activity_timeout_not_due"
            if reason is not None:
                return 409, {"recorded": False, "reason": reason}
            kind = {"completed": "ActivityCompleted", "failed": "ActivityFailed"}.get(report["outcome"])
            kind = "ActivityTimedOut" if kind is None or self._due(one) else kind
            self._close(one, kind, final=kind == "ActivityCompleted" or report.get("non_retryable") is True)
            one.published = (one.published or (kind, {}))[0], report
            one.recorded += 1
        assert one.published is not None
        return 200, {
            "recorded": True, "duplicate": duplicate, "reason": None, "event_id": "V", "workflow_run_id": "R",
            "worker_attempt_id": one.nonce, "workflow_task_attempt": one.claim.epoch,
            **self._closing(one, one.published[0], one.claim),
        }  # fmt: skip

    def _close(self, one: Attempt, kind: str, *, final: bool) -> None:
        """Close an attempt with an end of its call or, if it may be tried again, with a retry that frees the claim."""
        one.status = "published"
        if final or one.number >= MOST_ATTEMPTS:
            self.terminal.setdefault(one.member, []).append(kind)
            one.published = kind, {}
        else:
            one.published = "ActivityRetryScheduled", {}
            self.task_number += 1
            self.epoch, self.owner = 0, None

    def _closing(self, one: Attempt, kind: str, claim: ClaimIdentity) -> Body:
        released = kind == "ActivityRetryScheduled"
        return {
            "event_type": kind, "claim_released": released, "created_task_ids": ["T+"] if released else [],
            "workflow_task_id": claim.task_id, "activity_execution_id": f"E{one.member}", "activity_attempt_id": one.id,
            "recorded_at": self.stamp(trio.current_time()), "history_refresh_page_token": "MA==",
        }  # fmt: skip

    def acknowledge(self, one: Attempt) -> Reply:
        if one.status != "cancelled":
            return 409, {"reason": "activity_cancellation_not_recorded"}
        one.receipts += 1
        return 200, {"acknowledged": True, "duplicate": one.receipts > 1, "reason": None, "history_event_id": "K"}

    def recover(self, claim: ClaimIdentity, body: Body) -> Reply:
        one = self.last_of(body["sequence"])
        reason = self._refusal(claim) or ("cancellation_requested" if self.cancelled else None)
        if reason is None and (one is None or one.status != "running" or one.claim == claim):
            reason = "local_activity_preparation_not_found"
        if reason is not None or one is None:
            return 409, {"reason": reason}
        self._close(one, "ActivityFailed", final=False)
        kind = one.published[0] if one.published else ""
        one.status, one.published = "interrupted", None
        return 200, {
            "recovered": True, "duplicate": False, "reason": None, "event_id": "V", "callback_stop_state": "unknown",
            **self._closing(one, kind, claim),
        }  # fmt: skip

    def deliver(self) -> bool:
        """Let the workflow code learn of its cancellation, if the policy of its calls allows that yet."""
        waits = any(one.status == "cancelled" and not one.receipts for one in self.attempts.values() if one.member)
        if self.policy == "wait_cancellation_completed" and waits:
            return False
        self.delivered, self.owner = True, None
        return True

    # -- the queued activity

    def queued(self, one: Attempt, operation: str, body: Body) -> Reply:
        now = trio.current_time()
        over = one.status != "running" or one.lease_until <= now or one.claim.lease_owner in self.stale
        if operation in ("complete", "fail"):
            if one.published == (operation, body):
                return 200, {"recorded": True}
            if over or self.cancelled or min(one.start_to_close, one.heartbeat) <= now:
                return 409, {"recorded": False, "reason": "run_cancelled" if self.cancelled else "stale_attempt"}
            one.status, one.published = "published", (operation, body)
            one.recorded += 1
            if operation == "complete" or one.number >= MOST_ATTEMPTS:
                self.terminal.setdefault(0, []).append(operation)
            return 200, {"recorded": True}
        if operation == "acknowledge-cancellation":
            if not self.cancelled or one.status == "published":
                return 409, {"reason": "activity_cancellation_not_recorded"}
            one.receipts += 1
            return 200, {
                "task_id": "Q", "activity_attempt_id": one.id, "lease_owner": one.claim.lease_owner, "request_id": "Q",
                "acknowledged": True, "reason": None, "heartbeat_recorded": False, "duplicate": one.receipts > 1,
                "history_event_id": "K",
            }  # fmt: skip
        if operation == "renew-lease":
            if over or self.cancelled:
                return 409, {"reason": "run_cancelled" if self.cancelled else "stale_attempt"}
            one.lease_until = now + LEASE
            return 200, {
                "lease_renewed": True, "can_continue": True, "cancel_requested": False, "heartbeat_recorded": False,
                "reason": None, "workflow_task_id": "Q", "workflow_instance_id": "wf", "workflow_run_id": "R",
                "activity_execution_id": "E0", "activity_attempt_id": one.id, "attempt_number": one.number,
                "lease_owner": one.claim.lease_owner, "server_time": self.stamp(now),
                "lease_expires_at": self.stamp(one.lease_until), "heartbeat_deadline_at": self.stamp(one.heartbeat),
            }  # fmt: skip
        beat = operation == "heartbeat"
        goes_on = not over and not self.cancelled
        if beat and goes_on:
            one.lease_until, one.heartbeat = now + LEASE, now + HEARTBEAT
        reply: Body = {
            "task_id": "Q", "activity_attempt_id": one.id, "lease_owner": one.claim.lease_owner,
            "cancel_requested": self.cancelled, "can_continue": goes_on, "heartbeat_recorded": beat and goes_on,
            "reason": None if goes_on else "run_cancelled" if self.cancelled else "stale_attempt",
            "server_time": self.stamp(now), "lease_expires_at": self.stamp(one.lease_until),
            "deadlines": {"heartbeat": self.stamp(one.heartbeat), "start_to_close": self.stamp(one.start_to_close)},
        }  # fmt: skip
        if self.cancelled:
            reply["cancellation_acknowledgement"] = {"request_id": "Q"}
        return 200, reply
