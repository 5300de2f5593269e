"""One attempt of a queued activity in a supervised child: kept, stopped with proof, published once (worker.md §3).

The lease is renewed whether or not the handler beats: by renew-lease where the server offers it, else by heartbeats of
the worker's own; then the supervisor alone counts the handler's silence. A cooperative worker asks for the attempt's
status every second, before the child and before publishing. After lost authority nothing is published; a stop receipt
is sent only after the proof.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
import trio

from proctor.core.attempt import Abandon, ChildEnd, KeepCapacity, NotStarted, Raised, StopCause, Unproven
from proctor.core.authority import OPERATION_LIMIT_SECONDS, Bound, Exchange
from proctor.core.beats import Beats, details_of
from proctor.core.codec import decode_arguments, encode_bytes
from proctor.core.holding import SPENT, reason_lost
from proctor.core.jobs import Job, Limits
from proctor.core.queued import AskForReceipt, Complete, Fail, decide_queued, held_queued
from proctor.core.wire.queued import (
    QueuedStanding,
    QueuedTask,
    read_activity_standing,
    read_lease_renewal,
    read_stop_receipt,
)
from proctor.errors import PayloadError, ProctorError, ProtocolBreach, ServerRefused, ServerUnreachable
from proctor.running.carrying import KeptClaim, NotCarried, fetched, stored
from proctor.running.events import AttemptReport
from proctor.running.surroundings import Surroundings
from proctor.running.turn_report import TurnEnd
from proctor.transport.calls import Answer, Call, Transport, accepted, segment
from proctor.transport.external import ExternalPayloads

STATUS_SECONDS = 1.0
_LONGEST_RENEWAL_SECONDS = 30.0
_LEASE_PARTS = 3
_RETRY_SECONDS = 0.2
_TROUBLE = (ServerRefused, ServerUnreachable, ProtocolBreach)

_log = structlog.get_logger("proctor.queued")


@dataclass(frozen=True, slots=True)
class QueuedTerms:
    """What was agreed on: whether the server renews leases, and whether this worker is a cooperative one (1.20)."""

    renewable: bool
    cooperative: bool


@dataclass(frozen=True, slots=True)
class LeasedAttempt:
    """A polled task and the exchange that leased it."""

    task: QueuedTask
    exchange: Exchange


def exchange_of(answer: Answer, stated: datetime | None) -> Exchange:
    """Place an answer on both clocks: by the server's own time, else its Date header, else this machine's clock."""
    return Exchange(answer.started, answer.received, stated or answer.server_time or datetime.now(UTC))


class QueuedAttempt:
    """Runs one leased attempt to its end. Made for one task, used once."""

    def __init__(self, transport: Transport, leased: LeasedAttempt, around: Surroundings, terms: QueuedTerms) -> None:
        self._transport = transport
        self._task = leased.task
        self._around = around
        self._terms = terms
        self._path = f"/worker/activity-tasks/{segment(leased.task.task_id)}"
        self._lock = trio.Lock()
        self._holding = held_queued(leased.task, leased.exchange)
        self._reins = around.children.reins()
        self._beats = Beats(heartbeat_timeout=leased.task.heartbeat_timeout)
        self._beat_came = trio.Event()
        self._life = trio.CancelScope()
        self._confirmed_at = leased.exchange.started
        self._payloads = around.payloads or ExternalPayloads(transport, "worker", None)
        self._claim = KeptClaim(self._claim_left, trio.Event())

    async def run(self) -> TurnEnd:
        """Run the attempt; only cancellation leaves as an exception, with the child proven gone before it."""
        task = self._task
        report = AttemptReport(
            activity=task.activity_type,
            attempt=task.attempt_number,
            attempt_id=task.attempt_id,
            workflow_id=task.workflow_id,
            run_id=task.run_id,
        )
        try:
            if not await self._may_start():
                report.reason = self._holding.lost or SPENT
                return TurnEnd("abandoned", report.reason)
            return await self._supervise(report)
        finally:
            self._around.emit(report.as_event())

    # -- the attempt -------------------------------------------------------------------------------

    async def _may_start(self) -> bool:
        while self._holding.lost is None and self._budget() > 0:
            if not self._terms.cooperative and not self._terms.renewable:
                return True
            renewed = not self._terms.renewable or await self._renew()
            if renewed and (not self._terms.cooperative or await self._look()):
                return True
            await trio.sleep(_RETRY_SECONDS)
        return False

    async def _supervise(self, report: AttemptReport) -> TurnEnd:
        result: TurnEnd | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep)
            nursery.start_soon(self._watch)
            nursery.start_soon(self._send_heartbeats)
            if self._terms.cooperative:
                nursery.start_soon(self._keep_looking)
            end = await self._child(nursery, report)
            report.take_in(end, dropped=self._beats.dropped)
            try:
                end = await stored(end, self._payloads, self._claim)
            except NotCarried as exc:
                self._holding = self._holding.lose(exc.reason)  # unless it is over already
            result = await self._close(end, report)
            nursery.cancel_scope.cancel()
        assert result is not None
        return result

    async def _child(self, nursery: trio.Nursery, report: AttemptReport) -> ChildEnd:
        try:
            if self._task.activity_type not in self._around.activity_types:
                return Raised("UnknownActivityType", f"this worker has no activity {self._task.activity_type!r}", False)
            arguments = self._task.arguments
            if self._task.refers:
                arguments = await fetched(arguments, self._payloads, self._claim)
            job = self._job(arguments)
        except NotCarried as exc:
            return NotStarted(exc.reason)
        except (PayloadError, UnicodeEncodeError) as exc:
            return Raised(type(exc).__name__, f"the arguments cannot be read: {exc}", non_retryable=False)
        await trio.lowlevel.checkpoint_if_cancelled()  # a worker that stops starts no child
        self._around.emit({**report.as_event(), "event": "attempt_started"})
        nursery.start_soon(self._stop_when_cancelled)
        # The end of a child must be known, so the wait for it is shielded; its stop goes through the reins.
        with trio.CancelScope(shield=True):
            end = await self._around.children.run(job, self._reins, self._offer)
        if isinstance(end, Unproven):
            self._around.on_unproven(end.error)
        return end

    async def _stop_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            # Without effect on a child that has ended, which is the other way this task ends.
            self._reins.request_stop(StopCause.SHUTDOWN, "the worker stops")

    async def _close(self, end: ChildEnd, report: AttemptReport) -> TurnEnd:
        confirmed = False
        while True:
            verdict = decide_queued(end, self._holding, now=trio.current_time())
            if isinstance(verdict, KeepCapacity):
                report.reason = "stop_unconfirmed"
                return TurnEnd("abandoned", "stop_unconfirmed", verdict.error)
            if isinstance(verdict, Abandon):
                report.reason = report.reason or verdict.reason
                return TurnEnd("abandoned", verdict.reason)
            if isinstance(verdict, AskForReceipt):
                report.outcome = "cancelled"
                return await self._acknowledge(report)
            if not confirmed:
                await self._send_newest_heartbeat()
                confirmed = await self._confirm()
                if not confirmed:
                    await trio.sleep(_RETRY_SECONDS)
                continue
            published = await self._publish(end, verdict, report)
            if published is not None:
                return published

    async def _publish(self, end: ChildEnd, verdict: Complete | Fail, report: AttemptReport) -> TurnEnd | None:
        """Send the outcome; None when something came first and the verdict must be taken again."""
        async with self._lock:
            now = trio.current_time()
            if decide_queued(end, self._holding, now=now) != verdict:
                return None
            report.outcome = "completed" if isinstance(verdict, Complete) else "failed"
            operation, body = (
                ("complete", {"result": dict(verdict.result)})
                if isinstance(verdict, Complete)
                else ("fail", {"failure": dict(verdict.failure)})
            )
            try:
                await self._post(operation, body, within=self._budget())
            except _TROUBLE as exc:
                # Refused or unknown: the handler is never run again for it, the server's record decides.
                _log.warning("outcome_not_taken", attempt=self._task.attempt_id, problem=str(exc))
                report.outcome, report.reason = "abandoned", reason_lost(exc) or f"{operation}_unknown"
                return TurnEnd("abandoned", report.reason)
        report.published = True
        return TurnEnd("completed", operation)

    async def _acknowledge(self, report: AttemptReport) -> TurnEnd:
        """Send the stop receipt that the server asks for; it says which request in the attempt's status."""
        if not self._terms.cooperative:
            report.reason = self._holding.lost
            return TurnEnd("abandoned", self._holding.lost or "cancelled")
        try:
            answer = await self._post("status", {}, within=OPERATION_LIMIT_SECONDS)
            standing = read_activity_standing(answer.body, task=self._task, beat=False)
            if not standing.cancelled or standing.request_id is None:
                report.reason = "cancellation_without_request"
                return TurnEnd("abandoned", report.reason)
            request = standing.request_id
            answer = await self._post(
                "acknowledge-cancellation", {"request_id": request}, within=OPERATION_LIMIT_SECONDS
            )
            read_stop_receipt(answer.body, task=self._task, request_id=request)
        except _TROUBLE as exc:
            report.reason = reason_lost(exc) or "acknowledge-cancellation_unknown"
            _log.warning("receipt_not_taken", attempt=self._task.attempt_id, problem=str(exc))
            return TurnEnd("abandoned", report.reason)
        report.published = True
        return TurnEnd("released", "cancellation_acknowledged")

    # -- the authority -----------------------------------------------------------------------------

    def _budget(self) -> float:
        return self._holding.authority.operation_budget(trio.current_time())

    async def _confirm(self) -> bool:
        if self._terms.cooperative:
            return await self._look()
        return await self._renew() if self._terms.renewable else self._holding.lost is None and self._budget() > 0

    async def _keep(self) -> None:
        while self._holding.lost is None:
            lease = self._holding.authority.claim_until - self._confirmed_at
            period = min(_LONGEST_RENEWAL_SECONDS, lease / _LEASE_PARTS)
            if self._task.heartbeat_timeout is not None:
                period = min(period, self._task.heartbeat_timeout / _LEASE_PARTS)
            await trio.sleep_until(max(trio.current_time(), self._confirmed_at + period))
            while self._holding.lost is None:
                if await self._renew():
                    break
                await trio.sleep(_RETRY_SECONDS)

    async def _keep_looking(self) -> None:
        while self._holding.lost is None:
            await trio.sleep(STATUS_SECONDS)
            await self._look()

    async def _watch(self) -> None:
        while self._holding.authority.until > trio.current_time():
            with trio.CancelScope(deadline=self._holding.authority.until) as self._life:
                await trio.sleep_forever()
        self._pass_stop_on()

    async def _renew(self) -> bool:
        if self._terms.renewable:
            return await self._ask("renew-lease", {}, lambda body: read_lease_renewal(body, task=self._task))
        return await self._beat({})

    async def _look(self) -> bool:
        return await self._ask(
            "status", {}, lambda body: read_activity_standing(body, task=self._task, beat=False), moves_period=False
        )

    async def _beat(self, details: Mapping[str, Any]) -> bool:
        body = {"details": dict(details)} if details else {}
        return await self._ask("heartbeat", body, lambda body: read_activity_standing(body, task=self._task, beat=True))

    async def _ask(
        self,
        operation: str,
        body: Mapping[str, Any],
        read: Callable[[object], QueuedStanding],
        *,
        moves_period: bool = True,
    ) -> bool:
        """Make one call of the living attempt; True when its answer lets it go on."""
        async with self._lock:
            budget = self._budget()
            if budget <= 0 or self._holding.lost is not None:
                return False
            try:
                answer = await self._post(operation, body, within=budget)
                standing = read(answer.body)
            except _TROUBLE as exc:
                self._refused(operation, exc)
                return False
            self._holding = self._holding.take(standing, exchange_of(answer, standing.server_time))
            self._pass_stop_on()
            if self._holding.lost is not None:
                return False
            if moves_period:
                self._confirmed_at = answer.started
            self._life.deadline = self._holding.authority.until
            self._reins.extend_authority(self._holding.authority.claim_until)
            return True

    def _refused(self, operation: str, exc: ProctorError) -> None:
        reason = reason_lost(exc)
        if reason is None:
            _log.info("attempt_call_failed", attempt=self._task.attempt_id, operation=operation, problem=str(exc))
            return
        _log.warning("authority_lost", attempt=self._task.attempt_id, reason=reason, problem=str(exc))
        self._holding = self._holding.lose(reason)
        self._pass_stop_on()

    def _claim_left(self) -> float:
        return max(0.0, self._holding.authority.claim_until - trio.current_time())

    def _pass_stop_on(self) -> None:
        if self._holding.lost is not None:
            self._claim.over.set()
        wanted = self._holding.stop_wanted(trio.current_time())
        if wanted is not None:
            self._reins.request_stop(*wanted)

    # -- heartbeats --------------------------------------------------------------------------------

    def _offer(self, payload: bytes) -> None:
        self._beats.offer(payload)
        self._beat_came.set()

    async def _send_heartbeats(self) -> None:
        # Without authority the newest heartbeat stays unsent, and must not be tried again and again.
        while self._holding.lost is None and self._budget() > 0:
            self._beat_came = trio.Event()
            due = self._beats.due_at(trio.current_time())
            if due is None:
                await self._beat_came.wait()
                continue
            await trio.sleep_until(due)
            if not await self._send_newest_heartbeat():
                await trio.sleep(_RETRY_SECONDS)

    async def _send_newest_heartbeat(self) -> bool:
        payload = self._beats.take(trio.current_time()) if self._budget() > 0 else None
        if payload is None:
            return True
        try:
            details = details_of(payload)
        except PayloadError as exc:
            _log.warning("heartbeat_details_refused", attempt=self._task.attempt_id, problem=str(exc))
            details = {}
        sent = await self._beat(details)
        if not sent and self._holding.lost is None:
            self._beats.give_back(payload)
        return sent

    # -- calls -------------------------------------------------------------------------------------

    async def _post(self, operation: str, body: Mapping[str, Any], *, within: float) -> Answer:
        fenced = {
            **body,
            "activity_attempt_id": self._task.attempt_id,
            "lease_owner": self._task.lease_owner,
        }
        call = Call("worker", "POST", f"{self._path}/{operation}", fenced)
        return accepted(call, await self._transport.send(call, within=within))

    def _job(self, arguments: Any) -> Job:
        task, authority = self._task, self._holding.authority
        context = {
            "task_id": task.task_id,
            "activity_type": task.activity_type,
            "activity_execution_id": task.execution_id,
            "activity_attempt_id": task.attempt_id,
            "attempt_number": task.attempt_number,
            "task_queue": self._around.task_queue,
            "worker_id": self._around.worker_id,
            "workflow_id": task.workflow_id,
            "run_id": task.run_id,
            "last_heartbeat": None,
        }
        return Job(
            activity_type=task.activity_type,
            attempt_id=task.attempt_id,
            payload=encode_bytes(decode_arguments(arguments, task.payload_codec)),
            context=json.dumps(context).encode(),
            limits=Limits(
                attempt=authority.earliest(Bound.START_TO_CLOSE),
                total=authority.earliest(Bound.SCHEDULE_TO_CLOSE),
                authority=authority.claim_until,
                heartbeat_timeout=task.heartbeat_timeout,
            ),
            max_result_bytes=self._around.max_result_bytes,
        )
