"""A small truthful server and the workers around it, for the model-based test: no I/O, one true clock.

A `Holder` is one lease of the hosting task by one worker, with its own clock; it takes every decision through the pure
cores that the real worker uses (`read_*`, `Holding`, `decide`). The referee's promises are asserted where something is
sent, and where the server records something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from proctor.core.attempt import (
    DEADLINE_REFUSAL,
    Abandon,
    Acknowledge,
    ChildEnd,
    KeepCapacity,
    Publish,
    Raised,
    Returned,
    StopCause,
    Unproven,
    WasStopped,
    decide,
)
from proctor.core.authority import OPERATION_LIMIT_SECONDS, Exchange
from proctor.core.holding import Holding, held, reason_lost
from proctor.core.instants import format_instant
from proctor.core.wire.control import read_control, read_heartbeat
from proctor.core.wire.outcome import read_acknowledgement, read_outcome
from proctor.core.wire.prepare import AttemptIdentity, ClaimIdentity, Timeouts, read_prepare
from proctor.errors import ProctorError, ProtocolBreach, ServerRefused, ServerUnreachable

Body = dict[str, Any]
Child = Literal["none", "running", "stopping", "gone", "unproven"]

EPOCH = datetime(2026, 10, 2, tzinfo=UTC)
LEASE = 10.0
TIMEOUTS = Timeouts(start_to_close=25, heartbeat=15)


@dataclass
class Attempt:
    """What the server knows of one attempt."""

    number: int
    epoch: int
    owner: str
    nonce: str
    start_to_close: float
    heartbeat: float
    status: Literal["running", "published", "cancelled", "interrupted"] = "running"
    receipts: int = 0
    published: Body | None = None

    @property
    def id(self) -> str:
        return f"A{self.number}"


class Server:
    """The truth. Instants are seconds of the one true clock."""

    def __init__(self, wall_offset: float) -> None:
        self.now = 0.0
        self._offset = timedelta(seconds=wall_offset)
        self.epoch = 0
        self.owner: str | None = None
        self.lease_until = 0.0
        self.stale: set[int] = set()
        self.cancellation: Body | None = None
        self.attempts: list[Attempt] = []
        self.terminal: list[str] = []

    def stamp(self, instant: float) -> str:
        return format_instant(EPOCH + self._offset + timedelta(seconds=instant))

    @property
    def leasable(self) -> bool:
        return not self.terminal and (self.owner is None or self.lease_until <= self.now)

    def lease(self, owner: str) -> int:
        assert self.leasable
        self.epoch += 1
        self.owner, self.lease_until = owner, self.now + LEASE
        if self.attempts and self.attempts[-1].status == "running":
            self.attempts[-1].status = "interrupted"  # recovered: at least once, never twice in history
        return self.epoch

    def replace_registration(self) -> None:
        """Free the lease at once, as registering the same worker id again does."""
        self.stale.add(self.epoch)
        self.owner = None

    def request_cancellation(self) -> None:
        if self.cancellation is None and not self.terminal:
            requested = self.stamp(self.now)
            self.cancellation = {
                "schema": "durable-workflow.cancellation-context/v1",
                "request_id": "Q",
                "root_request_id": "Q",
                "root_workflow_instance_id": "wf",
                "root_workflow_run_id": "R",
                "parent_request_id": None,
                "reason": None,
                "requester": {"type": "operator"},
                "source": "test",
                "requested_at": requested,
                "cleanup_deadline_at": self.stamp(self.now + 600),
                "lineage": [{"request_id": "Q", "workflow_instance_id": "wf", "workflow_run_id": "R"}],
            }

    def _claim_refusal(self, claim: ClaimIdentity) -> str | None:
        if claim.epoch in self.stale:
            return "stale_worker_registration"
        if (claim.epoch, claim.lease_owner) != (self.epoch, self.owner):
            return "workflow_claim_mismatch"
        return "workflow_claim_expired" if self.lease_until <= self.now else None

    def prepare(self, claim: ClaimIdentity, nonce: str) -> tuple[int, Body]:
        reason = self._claim_refusal(claim)
        if reason is None and self.cancellation is not None:
            reason = "cancellation_requested"
        duplicate = bool(self.attempts) and self.attempts[-1].nonce == nonce and self.attempts[-1].status == "running"
        if reason is None and self.attempts and not duplicate and self.attempts[-1].status != "interrupted":
            reason = "local_activity_preparation_mismatch"
        if reason is not None:
            return 409, {"reason": reason}
        if not duplicate:
            self.attempts.append(
                Attempt(len(self.attempts) + 1, claim.epoch, claim.lease_owner, nonce, self.now + 25, self.now + 15)
            )
        attempt = self.attempts[-1]
        return 200, {
            "prepared": True,
            "duplicate": duplicate,
            "reason": None,
            "activity_execution_id": "E",
            "activity_attempt_id": attempt.id,
            "worker_attempt_id": nonce,
            "attempt_number": attempt.number,
            "workflow_task_id": claim.task_id,
            "workflow_task_attempt": claim.epoch,
            "lease_owner": claim.lease_owner,
            "lease_expires_at": self.stamp(self.lease_until),
            "cancellation_cleanup": None,
            "server_time": self.stamp(self.now),
            "history_refresh_page_token": "MA==",
            **self._deadlines(attempt),
        }

    def _deadlines(self, attempt: Attempt) -> Body:
        return {
            "start_to_close_deadline_at": self.stamp(attempt.start_to_close),
            "schedule_to_close_deadline_at": None,
            "heartbeat_deadline_at": self.stamp(attempt.heartbeat),
        }

    def _due(self, attempt: Attempt) -> bool:
        return min(attempt.start_to_close, attempt.heartbeat) <= self.now

    def stand(self, identity: AttemptIdentity, *, beat: bool) -> tuple[int, Body]:
        """Answer control, or a heartbeat."""
        attempt = self._attempt(identity)
        if attempt is None:
            return 404, {"reason": "activity_attempt_not_found"}
        reason: str | None = None
        if self.cancellation is not None and attempt.status in ("running", "cancelled"):
            attempt.status = "cancelled"
            reason = "cancellation_requested"
        elif attempt.status != "running":
            reason = "stale_activity_attempt"
        else:
            reason = self._claim_refusal(identity.claim)
            if reason is None and self._due(attempt):
                reason = "local_activity_deadline_expired"
        active = reason is None
        if active and beat:
            attempt.heartbeat = self.now + 15
        elif active:
            self.lease_until = self.now + LEASE
        body: Body = {
            "active": active,
            "renewed": active and not beat,
            "stop_required": not active,
            "reason": reason,
            "activity_execution_id": "E",
            "activity_attempt_id": attempt.id,
            "workflow_task_id": identity.claim.task_id,
            "workflow_task_attempt": identity.claim.epoch,
            "lease_owner": identity.claim.lease_owner,
            "lease_expires_at": self.stamp(self.lease_until),
            "workflow_lease_expires_at": self.stamp(self.lease_until),
            "cancellation_cleanup": None,
            "heartbeat_recorded": active and beat,
            "heartbeat_history_event_id": "H" if active and beat else None,
            "server_time": self.stamp(self.now),
            **self._deadlines(attempt),
        }
        if reason == "cancellation_requested":
            fence = {"fenced": True, "cancellation_history_event_id": "VC"}
            return 200, {**body, **fence, "cancellation_request": self.cancellation}
        return (200 if active else 409), body

    def publish(self, identity: AttemptIdentity, report: Body) -> tuple[int, Body]:
        attempt = self._attempt(identity)
        if attempt is None:
            return 404, {"reason": "activity_attempt_not_found"}
        duplicate = attempt.published == report
        if not duplicate:
            reason = None
            if attempt.published is not None:
                reason = "local_activity_outcome_mismatch"
            elif self.cancellation is not None:
                reason = "cancellation_requested"
            elif attempt.status != "running":
                reason = "stale_activity_attempt"
            else:
                reason = self._claim_refusal(identity.claim)
            if reason is None and report["outcome"] == "timed_out" and not self._due(attempt):
                reason = "local_activity_timeout_not_due"
            if reason is not None:
                return 409, {"recorded": False, "reason": reason}
            attempt.status, attempt.published = "published", report
            kind = {"completed": "ActivityCompleted", "failed": "ActivityFailed"}.get(report["outcome"])
            self.terminal.append("ActivityTimedOut" if kind is None or self._due(attempt) else kind)
        return 200, {
            "recorded": True,
            "duplicate": duplicate,
            "reason": None,
            "event_id": "V",
            "event_type": self.terminal[-1],
            "workflow_run_id": "R",
            "workflow_task_id": identity.claim.task_id,
            "workflow_task_attempt": identity.claim.epoch,
            "activity_execution_id": "E",
            "activity_attempt_id": attempt.id,
            "worker_attempt_id": identity.nonce,
            "recorded_at": self.stamp(self.now),
            "claim_released": False,
            "created_task_ids": [],
            "history_refresh_page_token": "MA==",
        }

    def acknowledge(self, identity: AttemptIdentity) -> tuple[int, Body]:
        attempt = self._attempt(identity)
        if attempt is None:
            return 404, {"reason": "activity_attempt_not_found"}
        if attempt.status != "cancelled":
            return 409, {"reason": "activity_cancellation_not_recorded"}
        attempt.receipts += 1
        return 200, {
            "acknowledged": True,
            "duplicate": attempt.receipts > 1,
            "reason": None,
            "history_event_id": "K",
        }

    def _attempt(self, identity: AttemptIdentity) -> Attempt | None:
        return next((one for one in self.attempts if one.id == identity.attempt_id), None)


@dataclass
class Flight:
    """One call on its way: what it asks, until when its answer counts, and the answer once the server has served it."""

    operation: str
    started: float
    gives_up_at: float
    serve: Callable[[], tuple[int, Body]]
    answer: tuple[int, Body] | None = None
    lease: float = 0.0
    """True end of the lease when the server served it."""


@dataclass
class Holder:
    """One lease of the hosting task as its worker sees it. Local time is true time plus `shift`."""

    server: Server
    owner: str
    epoch: int
    shift: float
    confirmed_lease: float
    """True instant until which the newest receipt taken in says that the claim is ours."""
    holding: Holding | None = None
    identity: AttemptIdentity | None = None
    child: Child = "none"
    cause: StopCause | None = None
    end: ChildEnd | None = None
    confirmed: bool = False
    flight: Flight | None = None
    over: str | None = None

    @property
    def claim(self) -> ClaimIdentity:
        return ClaimIdentity("T", "R", self.owner, self.epoch)

    @property
    def now(self) -> float:
        return self.server.now + self.shift

    # -- what the shells do, one step each

    def step(self) -> None:
        """Send what comes next, if anything may be sent now."""
        if self.over is not None or self.flight is not None:
            return
        if self.holding is None:
            nonce = f"n{self.epoch}"
            self._send("prepare", OPERATION_LIMIT_SECONDS, lambda: self.server.prepare(self.claim, nonce))
        elif self.child == "none":
            self._before_the_child()
        elif self.child == "running":
            self._renew()
        elif self.child in ("gone", "unproven"):
            self._close()

    def beat(self) -> None:
        """Send a heartbeat of the running child."""
        if self.over is None and self.flight is None and self.child == "running" and self.holding is not None:
            assert self.identity is not None
            identity = self.identity
            self._send("heartbeat", self._budget(), lambda: self.server.stand(identity, beat=True))

    def _before_the_child(self) -> None:
        assert self.holding is not None
        if self.holding.cancellation is not None:
            self._acknowledge()
        elif self.holding.lost is not None or self._budget() <= 0:
            self.over = self.holding.lost or "authority_spent"
        elif self.confirmed:
            self.child = "running"
            self.confirmed = False
        else:
            self._renew()

    def _renew(self) -> None:
        assert self.identity is not None
        identity = self.identity
        self._send("control", self._budget(), lambda: self.server.stand(identity, beat=False))

    def _close(self) -> None:
        assert self.end is not None
        assert self.holding is not None
        verdict = decide(self.end, self.holding.standing(confirmed=self.confirmed), now=self.now)
        if isinstance(verdict, KeepCapacity | Abandon):
            self.over = "capacity_kept" if isinstance(verdict, KeepCapacity) else verdict.reason
        elif isinstance(verdict, Acknowledge):
            self._acknowledge()
        elif verdict.renew_first:
            self._renew()
            if self.flight is None:
                self.holding = self.holding.lose("authority_spent")
        elif verdict.not_before is None or verdict.not_before <= self.now:
            self._publish(verdict)

    def _publish(self, verdict: Publish) -> None:
        assert self.identity is not None
        assert self.holding is not None
        budget = self.holding.authority.publication_budget(self.now)
        if budget <= 0:
            self.over = "authority_spent"
            return
        assert self.child == "gone", "published although the child is not proven gone"
        # The one refusal after which the claim is still ours: both clocks say that the attempt's own deadline passed.
        timed_out = self.holding.lost == DEADLINE_REFUSAL and verdict.timeout is not None
        assert self.holding.cancellation is None, "published after a stop order"
        assert timed_out or self.holding.lost is None, "published after authority was lost"
        assert self.server.now < self.confirmed_lease, "published after the lease that it knew of was over"
        identity, report = self.identity, dict(verdict.report)
        self._send("outcome", budget, lambda: self.server.publish(identity, report))

    def _acknowledge(self) -> None:
        assert self.identity is not None
        assert self.child in ("none", "gone"), "acknowledged although the child is not proven gone"
        identity = self.identity
        self._send("acknowledge", OPERATION_LIMIT_SECONDS, lambda: self.server.acknowledge(identity))

    def _budget(self) -> float:
        assert self.holding is not None
        return self.holding.authority.operation_budget(self.now)

    def _send(self, operation: str, budget: float, serve: Callable[[], tuple[int, Body]]) -> None:
        if budget > 0:
            self.flight = Flight(operation, self.now, self.now + budget, serve)

    # -- what the network does

    def serve(self) -> None:
        """Let the server see the call; a second time is a duplicate on the wire."""
        if self.flight is not None:
            self.flight.answer = self.flight.serve()
            self.flight.lease = self.server.lease_until

    def arrive(self, falsify: Callable[[Body], None] | None = None) -> None:
        """Let the answer arrive, or nothing if there is none yet or it comes too late."""
        flight, self.flight = self.flight, None
        if flight is None:
            return
        try:
            if flight.answer is None or self.now >= flight.gives_up_at:
                raise ServerUnreachable("no usable answer in time")
            status, body = flight.answer
            body = dict(body)
            if falsify is not None:
                falsify(body)
            self._take(flight, status, body)
        except (ServerRefused, ServerUnreachable, ProtocolBreach) as exc:
            self._failed(flight.operation, exc)
        self._pull_reins()

    def _take(self, flight: Flight, status: int, body: Body) -> None:
        if status >= 400:
            reason = body.get("reason")
            raise ServerRefused("refused", status=status, reason=reason if isinstance(reason, str) else None, body=body)
        if flight.operation == "prepare":
            prepared = read_prepare(body, claim=self.claim, nonce=f"n{self.epoch}", timeouts=TIMEOUTS)
            self.identity = prepared.identity
            self.holding = held(prepared, Exchange(flight.started, self.now, prepared.server_time))
            return
        assert self.identity is not None
        assert self.holding is not None
        if flight.operation == "outcome":
            read_outcome(body, identity=self.identity)
            self.over = "published"
            return
        if flight.operation == "acknowledge":
            read_acknowledgement(body)
            self.over = "acknowledged"
            return
        if flight.operation == "heartbeat":
            receipt = read_heartbeat(
                body, identity=self.identity, deadlines=self.holding.deadlines, heartbeat_timeout=TIMEOUTS.heartbeat
            )
        else:
            receipt = read_control(body, identity=self.identity, deadlines=self.holding.deadlines)
        stated = getattr(receipt, "server_time", None)
        before = self.holding
        self.holding = before.take(receipt, None if stated is None else Exchange(flight.started, self.now, stated))
        if self.holding.ended:
            return
        # A heartbeat renews nothing, but its receipt may tell of a renewal whose own answer was lost.
        self.confirmed_lease = max(self.confirmed_lease, flight.lease)
        if flight.operation == "control":
            self.confirmed = self.child != "running"

    def _failed(self, operation: str, exc: ProctorError) -> None:
        if operation in ("prepare", "outcome", "acknowledge"):
            fenced = isinstance(exc, ServerRefused) and exc.reason == "cancellation_requested"
            if operation == "outcome" and fenced and self.holding is not None:
                self._renew()  # asks for the stop order
                return
            self.over = f"{operation}_failed"
            return
        reason = reason_lost(exc)
        if reason is not None and self.holding is not None:
            self.holding = self.holding.lose(reason)

    # -- what the machine and the supervisor do

    def _pull_reins(self) -> None:
        if self.child == "running" and self.holding is not None:
            wanted = self.holding.stop_wanted(self.now)
            if wanted is not None:
                self.child, self.cause = "stopping", wanted[0]

    def enforce(self) -> None:
        """Do what both the worker and the supervisor do when time has passed: the dead man's instant kills."""
        if self.holding is None:
            return
        self.holding = self.holding.expire(self.now)
        self._pull_reins()
        if self.child == "stopping" and self.holding.authority.until <= self.now:
            self.prove()

    def prove(self) -> None:
        if self.child == "stopping":
            assert self.cause is not None
            self.child, self.end = "gone", WasStopped(self.cause, {})

    def fail_to_prove(self) -> None:
        if self.child == "stopping":
            self.child, self.end = "unproven", Unproven(RuntimeError("state D"))

    def finish(self, *, raises: bool) -> None:
        """Let the handler end by itself; with a stop under way it may still win."""
        if self.child in ("running", "stopping"):
            self.end = Raised("ValueError", "no", non_retryable=True) if raises else Returned("blob")
            self.child = "gone"
