"""One unanswered local activity on one claim: prepare, run under supervision, close (prepared-local.md §5).

The order is fixed: prepare -> control -> child -> control -> outcome. What an ended child still allows is
decided in `proctor.core.attempt`; this shell only carries it out. A lost or ambiguous answer never starts a
second child and never publishes: the claim is left to expire.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
import trio

from proctor.core.attempt import (
    Abandon,
    Acknowledge,
    ChildEnd,
    KeepCapacity,
    Publish,
    Raised,
    StopCause,
    Unproven,
    Verdict,
    decide,
)
from proctor.core.authority import Bound
from proctor.core.codec import encode_bytes
from proctor.core.instants import parse_instant
from proctor.core.jobs import Job
from proctor.core.replay import decision
from proctor.core.replay.decision import LocalCall
from proctor.core.retry import RetryPolicy
from proctor.core.wire.cancellation import CancellationContext
from proctor.core.wire.outcome import Closed
from proctor.core.wire.prepare import Cleanup, Prepared, Timeouts
from proctor.core.wire.tasks import WorkflowTask
from proctor.errors import PayloadError, ProtocolBreach, ServerRefused, ServerUnreachable
from proctor.running.attempt_keeper import AttemptKeeper
from proctor.running.carrying import NotCarried, stored
from proctor.running.claim import ClaimCalls
from proctor.running.events import AttemptReport
from proctor.running.surroundings import Place, Surroundings

_START_RETRY_SECONDS = 0.2
_REPORTING_SECONDS = 1.0
SIBLING = "sibling_abandoned"
"""Why the claim of a call is given up that was lost for another member of its group."""

_FENCED = frozenset({"cancellation_requested", "cancellation_deadline_expired"})

_log = structlog.get_logger("proctor.attempt")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The child is gone and the server knows it; the workflow code is next to learn of its cancellation."""

    context: CancellationContext


@dataclass(frozen=True, slots=True)
class Fenced:
    """Nothing was started: the run is being cancelled, and the claim is to observe that."""


CallEnd = Closed | Acknowledged | Fenced | Abandon | KeepCapacity


class OtherMembers(Protocol):
    """The other members of a group, as one of them knows them."""

    async def wait(self, member: int, *, until: float) -> None:
        """Wait until they have ended or wait as well, at most until an instant."""


class LocalCallRun:
    """Runs one local call to its end. Made for one call on one claim, used once.

    `place` is given back when the child is proven gone. `quorum` are the other members of its group, if it is in one;
    `on_claim_over` is told at once why the claim ends for the others, too, also while the child is still being stopped.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        calls: ClaimCalls,
        task: WorkflowTask,
        call: LocalCall,
        place: Place,
        *,
        quorum: OtherMembers | None = None,
        on_claim_over: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.admitted = trio.Event()
        """Set when prepare was answered, whatever the answer was."""
        self._place = place
        self._on_claim_over = on_claim_over
        self._quorum = quorum
        self._keeper: AttemptKeeper | None = None
        self._given_up_for: str | None = None
        self._cleanup = _proof(call.cleanup)
        self._around = surroundings
        self._calls = calls
        self._task = task
        self._call = call
        self._timeouts = Timeouts(call.start_to_close_timeout, call.schedule_to_close_timeout, call.heartbeat_timeout)

    async def run(self) -> CallEnd:
        """Run the call; only cancellation leaves as an exception, with the child proven gone before it."""
        try:
            if self._given_up_for is not None:
                return Abandon(self._given_up_for)
            return await self._run()
        finally:
            self.admitted.set()
            self._place.release()

    def give_up(self, reason: str) -> None:
        """Stop the child, if there is one, and publish nothing: the claim is over for the whole group."""
        self._given_up_for = self._given_up_for or reason
        if self._keeper is not None:
            self._keeper.lose(reason)

    def _lose_claim(self) -> None:
        self._on_claim_over(SIBLING)

    async def _run(self) -> CallEnd:
        try:
            prepared, exchange = await self._calls.prepare(
                self._call.descriptor,
                sequence=self._call.sequence,
                timeouts=self._timeouts,
                cleanup=self._cleanup,
            )
        except (ServerRefused, ServerUnreachable, ProtocolBreach) as exc:
            if isinstance(exc, ServerRefused) and exc.reason == "cancellation_requested":
                return Fenced()
            return self._abandoned("prepare", exc)
        self.admitted.set()
        reins = self._around.children.reins()
        keeper = self._keeper = AttemptKeeper(
            self._calls, prepared, exchange, self._timeouts, reins, on_claim_lost=self._lose_claim
        )
        if self._given_up_for is not None:
            keeper.lose(self._given_up_for)
        report = AttemptReport(
            activity=self._call.activity_type,
            attempt=prepared.identity.attempt_number,
            attempt_id=prepared.identity.attempt_id,
            workflow_id=self._task.workflow_id,
            run_id=self._task.claim.run_id,
        )
        try:
            if not await self._confirm_start(keeper):
                return await self._end_without_child(keeper, report)
            return await self._supervise(keeper, prepared, report)
        finally:
            self._around.emit(report.as_event())

    async def _confirm_start(self, keeper: AttemptKeeper) -> bool:
        """Renew once before the child starts; False when the attempt must not start."""
        while not await keeper.renew():
            if keeper.ended or keeper.authority.operation_budget(trio.current_time()) <= 0:
                return False
            await trio.sleep(_START_RETRY_SECONDS)
        return True

    async def _end_without_child(self, keeper: AttemptKeeper, report: AttemptReport) -> CallEnd:
        if keeper.cancellation is not None:
            return await self._acknowledge(keeper, keeper.cancellation, report)
        report.reason = keeper.lost or "authority_spent"
        return Abandon(report.reason)

    async def _supervise(self, keeper: AttemptKeeper, prepared: Prepared, report: AttemptReport) -> CallEnd:
        end: ChildEnd
        result: CallEnd | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.keep)
            nursery.start_soon(keeper.watch)
            nursery.start_soon(keeper.send_heartbeats)
            if self._call.activity_type in self._around.activity_types:
                await trio.lowlevel.checkpoint_if_cancelled()  # a worker that stops starts no child
                self._around.emit(self._started_event(report))
                job = self._job(keeper, prepared)
                nursery.start_soon(self._stop_when_cancelled, keeper)
                # The end of a child must be known, so the wait for it is shielded; its stop goes through
                # the reins.
                with trio.CancelScope(shield=True):
                    end = await self._around.children.run(job, keeper.reins, keeper.offer_heartbeat)
                self._take_in(report, end)
            else:
                end = self._unknown_activity()
            try:
                end = await stored(end, self._calls.payloads, keeper.claim)
            except NotCarried as exc:
                keeper.lose(exc.reason)  # unless it is over already; in either case nothing is published
            result = await self._close(keeper, end, report)
            nursery.cancel_scope.cancel()
        assert result is not None
        return result

    async def _stop_when_cancelled(self, keeper: AttemptKeeper) -> None:
        try:
            await trio.sleep_forever()
        finally:
            # Without effect on a child that has ended, which is the other way this task ends.
            keeper.reins.request_stop(StopCause.SHUTDOWN, "the worker stops")

    def _take_in(self, report: AttemptReport, end: ChildEnd) -> None:
        report.take_in(end)
        if isinstance(end, Unproven):
            self._place.keep()
            self._around.on_unproven(end.error)
            self._lose_claim()
        self._place.release()

    async def _close(self, keeper: AttemptKeeper, end: ChildEnd, report: AttemptReport) -> CallEnd:
        """Carry the verdict out; it is taken again after every wait, because the standing may have changed."""
        confirmed = flushed = waited = False
        while True:
            verdict: Verdict = decide(end, keeper.standing(confirmed=confirmed), now=trio.current_time())
            if isinstance(verdict, KeepCapacity):
                report.reason = "stop_unconfirmed"
                return verdict
            if isinstance(verdict, Abandon):
                report.reason = verdict.reason
                return verdict
            if isinstance(verdict, Acknowledge):
                return await self._acknowledge(keeper, verdict.context, report)
            if self._quorum is not None and not waited and self._ends_claim(verdict, keeper):
                waited, confirmed = True, False
                await self._quorum.wait(self._call.sequence, until=_true_until(keeper))
                continue
            if verdict.renew_first:
                if not flushed:
                    flushed = True
                    await keeper.send_newest_heartbeat()
                    continue
                confirmed = await keeper.renew()
                if not confirmed and not keeper.ended:
                    if keeper.authority.publication_budget(trio.current_time()) <= 0:
                        keeper.lose("authority_spent")
                        continue
                    await trio.sleep(_START_RETRY_SECONDS)
                continue
            if verdict.not_before is not None and verdict.not_before > trio.current_time():
                await trio.sleep_until(verdict.not_before)
                continue
            published = await self._publish(keeper, end, verdict, report)
            if published is not None:
                return published

    def _ends_claim(self, verdict: Publish, keeper: AttemptKeeper) -> bool:
        """Tell whether the server will answer this report with a retry, which ends the claim."""
        report = verdict.report
        if report["outcome"] == "completed" or verdict.timeout is Bound.SCHEDULE_TO_CLOSE:
            return False
        policy = RetryPolicy.from_wire(self._call.descriptor.get("retry_policy") or {})
        pause = policy.delay_after(
            keeper.identity.attempt_number,
            error_type=report.get("exception_type"),
            non_retryable=report.get("non_retryable") is True,
        )
        return pause is not None

    async def _publish(
        self, keeper: AttemptKeeper, end: ChildEnd, verdict: Publish, report: AttemptReport
    ) -> CallEnd | None:
        """Send the outcome; None when something came first and the verdict must be taken again."""
        async with keeper.lock:
            now = trio.current_time()
            # A renewal or heartbeat may have held the lock and changed what this attempt may do.
            if decide(end, keeper.standing(confirmed=True), now=now) != verdict:
                return None
            budget = keeper.authority.publication_budget(now)
            if budget <= 0:
                return self._given_up(report, "authority_spent")
            report.outcome = str(verdict.report["outcome"])
            report.timeout_kind = None if verdict.timeout is None else str(verdict.timeout)
            try:
                closed = await self._calls.outcome(keeper.identity, verdict.report, within=budget)
            except (ServerRefused, ServerUnreachable, ProtocolBreach) as exc:
                if not (isinstance(exc, ServerRefused) and exc.reason in _FENCED):
                    return self._given_up(report, self._abandoned("outcome", exc).reason)
            else:
                if closed.claim_released:
                    self._on_claim_over("claim_released")
                report.published = True
                report.reason = closed.event_type
                late = report.outcome == "completed" and closed.event_type != "ActivityCompleted"
                if late or closed.event_type == "ActivityTimedOut":
                    report.outcome = "timed_out"  # a deadline that had passed won over the report
                return closed
        await keeper.find_cancellation()
        if keeper.cancellation is not None:
            return None
        return self._given_up(report, keeper.lost or "cancellation_without_context")

    def _given_up(self, report: AttemptReport, reason: str) -> Abandon:
        self._lose_claim()
        report.outcome, report.timeout_kind, report.reason = "abandoned", None, reason
        return Abandon(reason)

    async def _acknowledge(self, keeper: AttemptKeeper, context: CancellationContext, report: AttemptReport) -> CallEnd:
        report.outcome = "cancelled"
        async with keeper.lock:
            try:
                await self._calls.acknowledge(keeper.identity, context.request_id)
            except (ServerRefused, ServerUnreachable, ProtocolBreach) as exc:
                abandoned = self._abandoned("acknowledge-cancellation", exc)
                report.reason = abandoned.reason
                return abandoned
        report.published = True
        return Acknowledged(context)

    def _abandoned(self, operation: str, exc: ServerRefused | ServerUnreachable | ProtocolBreach) -> Abandon:
        if isinstance(exc, ServerRefused):
            reason = exc.reason or f"http_{exc.status}"
        else:
            reason = "protocol_breach" if isinstance(exc, ProtocolBreach) else f"{operation}_unknown"
        self._lose_claim()
        _log.warning(
            "claim_abandoned",
            operation=operation,
            reason=reason,
            task=self._task.claim.task_id,
            problem=str(exc),
        )
        return Abandon(reason)

    def _unknown_activity(self) -> Raised:
        known = ", ".join(sorted(self._around.activity_types)) or "none"
        return Raised(
            "UnknownActivityType",
            f"this worker ({self._around.worker_id}) has no activity {self._call.activity_type!r}; "
            f"registered: {known}. Register it with every worker of task queue {self._around.task_queue!r}",
            non_retryable=True,
        )

    def _started_event(self, report: AttemptReport) -> dict[str, Any]:
        return {
            "event": "attempt_started",
            "activity": report.activity,
            "attempt": report.attempt,
            "attempt_id": report.attempt_id,
            "workflow_id": report.workflow_id,
            "run_id": report.run_id,
        }

    def _job(self, keeper: AttemptKeeper, prepared: Prepared) -> Job:
        identity = prepared.identity
        context = {
            "task_id": identity.claim.task_id,
            "activity_type": self._call.activity_type,
            "activity_execution_id": identity.execution_id,
            "activity_attempt_id": identity.attempt_id,
            "attempt_number": identity.attempt_number,
            "task_queue": self._around.task_queue,
            "worker_id": self._around.worker_id,
            "workflow_id": self._task.workflow_id,
            "run_id": identity.claim.run_id,
            "last_heartbeat": self._last_heartbeat(),
        }
        return Job(
            activity_type=self._call.activity_type,
            attempt_id=identity.attempt_id,
            payload=encode_bytes(list(self._call.arguments)),
            context=json.dumps(context).encode(),
            limits=keeper.limits(),
            max_result_bytes=self._around.max_result_bytes,
        )

    def _last_heartbeat(self) -> str | None:
        """Give the recorded details for the child; history is JSON, not everything in it has a payload
        form.
        """
        if self._call.last_heartbeat is None:
            return None
        try:
            return base64.b64encode(encode_bytes(self._call.last_heartbeat)).decode("ascii")
        except (PayloadError, UnicodeEncodeError) as exc:
            _log.warning("last_heartbeat_unusable", task=self._task.claim.task_id, problem=str(exc))
            return None


def _true_until(keeper: AttemptKeeper) -> float:
    """Give the instant until which the report of an ended child may wait.

    When a deadline of the attempt passes, the server takes it for a timeout, and its lease cannot be renewed any more.
    """
    near = [keeper.authority.earliest(bound) for bound in (Bound.START_TO_CLOSE, Bound.HEARTBEAT)]
    instants = [instant - _REPORTING_SECONDS for instant in near if instant is not None]
    # The total time ends the call for good, which ends no claim.
    total = keeper.authority.certainly_passed_at(Bound.SCHEDULE_TO_CLOSE)
    return min([*instants, math.inf if total is None else total])


def _proof(stated: decision.Cleanup | None) -> Cleanup | None:
    if stated is None:
        return None
    return Cleanup(
        stated.request_id,
        stated.root_request_id,
        stated.delivery_history_event_id,
        parse_instant(stated.cleanup_deadline_at),
    )
