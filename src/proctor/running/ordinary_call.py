"""One local activity of an ordinary worker: all its attempts inside the workflow task (commands.md §3.4).

The worker owns retries and deadlines here. The claim's authority is kept by `ClaimKeeper`; an attempt whose claim is
lost is stopped with proof, and nothing of the call is recorded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import structlog
import trio

from proctor.core.attempt import (
    TIMEOUT_OF,
    Abandon,
    ChildEnd,
    KeepCapacity,
    NotStarted,
    Raised,
    Returned,
    StopCause,
    Unproven,
)
from proctor.core.beats import Beats, details_of
from proctor.core.codec import encode_bytes
from proctor.core.jobs import Job, Limits, Reins
from proctor.core.replay.decision import LocalCall
from proctor.core.reported import AttemptEnd, Report, timed_out
from proctor.core.wire.tasks import WorkflowTask
from proctor.errors import PayloadError
from proctor.running.claim_keeper import ClaimKeeper
from proctor.running.events import AttemptReport
from proctor.running.surroundings import Surroundings

_log = structlog.get_logger("proctor.attempt")


class OrdinaryCall:
    """Runs one call to its end. Made for one call of one turn, used once; `reins` are those of the running child."""

    def __init__(self, around: Surroundings, task: WorkflowTask, call: LocalCall, keeper: ClaimKeeper) -> None:
        self._around = around
        self._task = task
        self._call = call
        self._keeper = keeper
        self._report = Report(call.descriptor, task_id=task.claim.task_id)
        self._details: Mapping[str, Any] | None = call.last_heartbeat
        self._began = trio.current_time()
        self._coalesced = 0
        self.reins: Reins | None = None

    async def run(self) -> Report | Abandon | KeepCapacity:
        """Run every attempt; only cancellation leaves as an exception, with the child proven gone before it."""
        while True:
            number, attempt_id = self._report.begin()
            if not await self._keeper.renew() and self._keeper.budget() <= 0:
                return Abandon(self._keeper.lost or "authority_spent")
            end = await self._attempt(number, attempt_id)
            if not isinstance(end, AttemptEnd):
                return end
            delay = self._report.end(end, elapsed_total=trio.current_time() - self._began)
            if self._report.dropped:
                _log.warning("heartbeats_not_recorded", activity=self._call.activity_type, dropped=self._report.dropped)
            if delay is None:
                return self._report
            await trio.sleep(delay)

    async def _attempt(self, number: int, attempt_id: str) -> AttemptEnd | Abandon | KeepCapacity:
        started = trio.current_time()
        told = AttemptReport(
            activity=self._call.activity_type,
            attempt=number,
            attempt_id=attempt_id,
            workflow_id=self._task.workflow_id,
            run_id=self._task.claim.run_id,
        )
        try:
            if self._task.cancel_requested:
                return self._note(
                    told, AttemptEnd("cancelled", 0, None, "the run is cancelled", "ActivityCancelled", True)
                )
            if self._call.activity_type not in self._around.activity_types:
                return self._note(told, self._unknown_activity())
            child = await self._child(started, number, attempt_id, told)
            told.take_in(child, dropped=self._coalesced + self._report.dropped)
            verdict = self._verdict(child)
            if isinstance(verdict, AttemptEnd):
                return self._note(told, verdict)
            told.reason = verdict.reason if isinstance(verdict, Abandon) else "stop_unconfirmed"
            return verdict
        finally:
            self._around.emit(told.as_event())

    @staticmethod
    def _note(told: AttemptReport, end: AttemptEnd) -> AttemptEnd:
        told.outcome = end.outcome
        told.timeout_kind = None if end.timeout is None else str(end.timeout)
        told.reason = "recorded_with_the_completion"
        return end

    async def _child(self, started: float, number: int, attempt_id: str, told: AttemptReport) -> ChildEnd:
        beats = Beats(heartbeat_timeout=self._call.heartbeat_timeout)

        def take(payload: bytes) -> None:
            beats.offer(payload)
            now = trio.current_time()
            due = beats.due_at(now)
            if due is not None and due <= now:
                self._beat(beats.take(now), now - started)

        await trio.lowlevel.checkpoint_if_cancelled()  # a turn that is over starts no child
        self._around.emit({**told.as_event(), "event": "attempt_started"})
        self.reins = reins = self._around.children.reins()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_cancelled, reins)
            # The end of a child must be known, so the wait for it is shielded; its stop goes through the reins.
            with trio.CancelScope(shield=True):
                end = await self._around.children.run(self._job(started, number, attempt_id), reins, take)
            self.reins = None
            told.take_in(end)  # here, as a worker that stops comes no further
            if isinstance(end, Unproven):
                self._around.on_unproven(end.error)
            nursery.cancel_scope.cancel()
        now = trio.current_time()
        self._beat(beats.take(now), now - started)
        self._coalesced += beats.dropped
        return end

    async def _stop_when_cancelled(self, reins: Reins) -> None:
        try:
            await trio.sleep_forever()
        finally:
            lost = self._keeper.lost
            # Without effect on a child that has ended, which is the other way this task ends.
            reins.request_stop(StopCause.SHUTDOWN if lost is None else StopCause.AUTHORITY_LOST, lost or "worker stops")

    def _beat(self, payload: bytes | None, elapsed: float) -> None:
        if payload is None:
            return
        try:
            details = details_of(payload)
        except PayloadError as exc:
            _log.warning("heartbeat_details_refused", activity=self._call.activity_type, problem=str(exc))
            details = {}
        self._details = details or self._details
        self._report.beat(elapsed, details)

    def _verdict(self, end: ChildEnd) -> AttemptEnd | Abandon | KeepCapacity:
        duration = end.facts.duration_ms
        if isinstance(end, Unproven):
            return KeepCapacity(end.error)
        if self._keeper.budget() <= 0:
            return Abandon(self._keeper.lost or "authority_spent")
        if isinstance(end, NotStarted):
            return Abandon(end.reason)
        if isinstance(end, Returned):
            return AttemptEnd("completed", duration, end.result)
        if isinstance(end, Raised):
            return AttemptEnd("failed", duration, None, end.message, end.exception_type, end.non_retryable)
        bound = TIMEOUT_OF.get(end.cause)
        if bound is not None:
            return timed_out(bound, duration)
        if end.cause is StopCause.MEMORY:
            return AttemptEnd(
                "failed", duration, None, "the child was stopped at its memory limit", "MemoryLimitExceeded"
            )
        return Abandon(str(end.cause))

    def _unknown_activity(self) -> AttemptEnd:
        known = ", ".join(sorted(self._around.activity_types)) or "none"
        text = f"this worker has no activity {self._call.activity_type!r}; registered: {known}"
        return AttemptEnd("failed", 0, None, text, "NonRetryableError", True)

    def _job(self, started: float, number: int, attempt_id: str) -> Job:
        call, claim = self._call, self._task.claim
        context = {
            "task_id": claim.task_id,
            "activity_type": call.activity_type,
            "activity_execution_id": f"{claim.task_id}:{call.sequence}",
            "activity_attempt_id": attempt_id,
            "attempt_number": number,
            "task_queue": self._around.task_queue,
            "worker_id": self._around.worker_id,
            "workflow_id": self._task.workflow_id,
            "run_id": claim.run_id,
            "last_heartbeat": self._last_heartbeat(),
        }
        return Job(
            activity_type=call.activity_type,
            attempt_id=attempt_id,
            payload=encode_bytes(list(call.arguments)),
            context=json.dumps(context).encode(),
            limits=Limits(
                attempt=_after(started, call.start_to_close_timeout),
                total=_after(self._began, call.schedule_to_close_timeout),
                authority=self._keeper.until,
                heartbeat_timeout=call.heartbeat_timeout,
            ),
            max_result_bytes=self._around.max_result_bytes,
        )

    def _last_heartbeat(self) -> str | None:
        if self._details is None:
            return None
        try:
            return base64.b64encode(encode_bytes(dict(self._details))).decode("ascii")
        except (PayloadError, UnicodeEncodeError):
            return None  # details from an older history may have no payload form


def _after(started: float, seconds: int | None) -> float | None:
    return None if seconds is None else started + seconds
