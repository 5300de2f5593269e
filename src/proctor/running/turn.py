"""One workflow task from lease to end: load history, replay, act on the decision, replay again.

A turn ends in one of a few ways, told by `TurnEnd`; no error of one workflow or of the server leaves it.
The claim's lease is renewed beside the work whenever no attempt renews it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import structlog
import trio

from proctor.core.attempt import Abandon, KeepCapacity, bounded_text
from proctor.core.authority import OPERATION_LIMIT_SECONDS
from proctor.core.replay.decision import (
    Boundary,
    Commands,
    Decision,
    LocalCall,
    LocalGroup,
    ReplayTask,
    StreamCursor,
    Unworkable,
    WorkflowDefinition,
)
from proctor.core.wire.cancellation import (
    CancellationContext,
    CancellationObservation,
    DeliveryBoundary,
    check_delivery_event,
    check_request_event,
)
from proctor.core.wire.checkpoint import check_group_events
from proctor.core.wire.outcome import FIRST_PAGE_TOKEN, Closed, check_outcome_event, check_recovery_event
from proctor.core.wire.tasks import Event, WorkflowTask
from proctor.errors import (
    HistoryError,
    NonDeterminismError,
    PayloadError,
    ProctorError,
    ProtocolBreach,
    ServerRefused,
    ServerUnreachable,
    UsageError,
)
from proctor.running.claim import ClaimCalls
from proctor.running.local_call import Acknowledged, LocalCallRun, Surroundings
from proctor.transport.calls import Transport

Replay = Callable[[WorkflowDefinition, ReplayTask], Decision]

CLAIM_RENEWAL_SECONDS = 3.0
"""Renewal of a claim that runs no attempt; a third of the shortest lease the protocol speaks of (10 s)."""

_CHECKPOINT_LIMIT = 100  # commands in one checkpoint (prepared-local.md §2.1)
_MAX_FAILURE_MESSAGE = 16 * 1024
_MAX_LOGGED_STACK = 4000
_LOST_REASONS = frozenset(
    {
        "lease_expired",
        "lease_owner_mismatch",
        "run_already_closed",
        "run_closed",
        "task_not_found",
        "task_not_leased",
        "workflow_task_attempt_mismatch",
    }
)
_WAITING = {
    "message": "Workflow task waiting for scheduled history.",
    "type": "WorkflowTaskWaitingForHistory",
}

_log = structlog.get_logger("proctor.turn")

_WIRE_TYPES: Mapping[type[ProctorError], str] = {
    # As the ecosystem spells them: a server may block a task by these names instead of offering it again.
    NonDeterminismError: "NonDeterministicReplayError",
    PayloadError: "WorkflowPayloadDecodeError",
    HistoryError: "HistoryError",
}


def _wire_type(exc: ProctorError) -> str:
    return next((name for kind, name in _WIRE_TYPES.items() if isinstance(exc, kind)), type(exc).__name__)


How = Literal["completed", "failed", "waiting", "released", "abandoned"]


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended. `unproven` is set when its child could not be proven gone: the slot is then lost."""

    how: How
    reason: str = ""
    unproven: BaseException | None = None


class Turn:
    """Works on one leased task of the supervised profile. Made for one task, used once."""

    prepared = True

    def __init__(
        self,
        transport: Transport,
        task: WorkflowTask,
        *,
        workflows: Mapping[str, WorkflowDefinition],
        replay: Replay,
        surroundings: Surroundings,
        draining: Callable[[], bool],
    ) -> None:
        self._calls = ClaimCalls(transport, task.claim)
        self._task = task
        self._workflows = workflows
        self._replay = replay
        self._around = surroundings
        self._history: tuple[Event, ...] = task.history
        self._cancellation: CancellationObservation | None = task.cancellation
        self._context: CancellationContext | None = None
        self._delivered = task.cancellation is not None and task.cancellation.delivered
        self._requested = False
        self._draining = draining
        self._steps: set[tuple[str, int]] = set()
        self._attempt_renews = False
        self._claim_lost: str | None = None
        self._scope = trio.CancelScope()

    async def run(self) -> TurnEnd:
        """Work on the task until the claim is over; only cancellation leaves as an exception."""
        end: TurnEnd | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_claim)
            with self._scope:
                end = await self._guarded()
            nursery.cancel_scope.cancel()
        if end is None:
            end = TurnEnd("abandoned", self._claim_lost or "claim_lost")
        self._around.emit(
            {
                "event": "workflow_task",
                "workflow_id": self._task.workflow_id,
                "run_id": self._task.claim.run_id,
                "workflow_type": self._task.workflow_type,
                "task_id": self._task.claim.task_id,
                "outcome": end.how,
                "reason": end.reason,
            }
        )
        return end

    async def _guarded(self) -> TurnEnd:
        try:
            try:
                return await self._work()
            except UsageError as exc:  # the workflow made something that has no wire form
                return await self._fail("WorkflowTaskNotSendable", str(exc))
        except ServerRefused as exc:
            return self._abandoned(exc.reason or f"http_{exc.status}", exc)
        except ServerUnreachable as exc:
            return self._abandoned("server_unreachable", exc)
        except ProtocolBreach as exc:
            return self._abandoned("protocol_breach", exc)

    def _abandoned(self, reason: str, exc: ProctorError) -> TurnEnd:
        _log.warning("claim_abandoned", task=self._task.claim.task_id, reason=reason, problem=str(exc))
        return TurnEnd("abandoned", reason)

    async def _keep_claim(self) -> None:
        while True:
            await trio.sleep(CLAIM_RENEWAL_SECONDS)
            if self._renewed_by_attempt():
                continue
            try:
                observed = await self._calls.renew_claim(self._cancellation)
            except ServerUnreachable:
                continue
            except (ServerRefused, ProtocolBreach) as exc:
                if isinstance(exc, ServerRefused) and (exc.status == 429 or exc.status >= 500):
                    continue
                if self._renewed_by_attempt():
                    continue  # an attempt has started meanwhile; it finds out by its own receipts
                self._claim_lost = getattr(exc, "reason", None) or "protocol_breach"
                self._scope.cancel()
                return
            if observed is not None:
                self._cancellation = observed

    def _renewed_by_attempt(self) -> bool:
        """Tell whether an attempt runs on this claim: its control calls renew both leases."""
        return self._attempt_renews

    async def _work(self) -> TurnEnd:
        definition = self._workflows.get(self._task.workflow_type)
        if definition is None:
            return await self._fail_unknown_workflow()
        if self._task.update_id is not None:
            return await self._fail(
                "UpdatesNotSupported", f"this worker cannot run workflow updates (update {self._task.update_id!r})"
            )
        if self._task.next_page_token is not None:
            self._history = await self._calls.history(self._task.next_page_token, before=self._history)
        while True:
            try:
                decision = self._replayed(definition)
            except (NonDeterminismError, HistoryError, PayloadError) as exc:
                return await self._fail(_wire_type(exc), str(exc))
            except Exception as exc:  # noqa: BLE001 - one workflow's defect must not end the other turns
                # Bounded here: a log renderer may take minutes over a hostile traceback.
                stack = "".join(traceback.format_tb(exc.__traceback__))[-_MAX_LOGGED_STACK:]
                _log.error("replay_crashed", task=self._task.claim.task_id, type=type(exc).__name__, stack=stack)
                return await self._fail(type(exc).__name__, f"the replay broke: {exc!r}")
            if isinstance(decision, Commands):
                return await self._finish(decision.commands, decision.cursors, decision.stream_waits)
            if isinstance(decision, Unworkable):
                return TurnEnd("abandoned", decision.reason)
            if isinstance(decision, LocalGroup):
                end = await self._advance_group(decision)
            elif isinstance(decision, Boundary):
                end = await self._reach(decision)
            else:
                end = await self._advance(decision)
            if end is not None:
                return end
            await trio.lowlevel.checkpoint()

    def _uncommitted(self) -> Sequence[Mapping[str, Any]]:
        """Give what this turn has done that only its completion records."""
        return ()

    def _time_left(self) -> float:
        """Give the seconds that completing may take."""
        return OPERATION_LIMIT_SECONDS

    def _replayed(self, definition: WorkflowDefinition) -> Decision:
        return self._replay(
            definition,
            ReplayTask(
                workflow_id=self._task.workflow_id,
                run_id=self._task.claim.run_id,
                workflow_type=self._task.workflow_type,
                payload_codec=self._task.payload_codec,
                arguments=self._task.arguments,
                history=self._history,
                prepared=self.prepared,
                queue=self._around.task_queue,
                command_id=self._task.command_id,
                cancel_requested=self._task.cancel_requested,
                uncommitted=self._uncommitted(),
            ),
        )

    async def _advance(self, call: LocalCall) -> TurnEnd | None:
        """Take the unanswered local call one step further; None when the history has grown and is replayed."""
        cancelling = self._cancellation is not None and not self._delivered
        if call.prefix:
            if cancelling:
                # New work is fenced while a request waits; what was authored before it is completed first,
                # and the successor task delivers at its own sequence (cancellation.md §4).
                return await self._finish(call.prefix)
            await self._checkpoint(call.prefix, call.prefix_start)
            return None
        if cancelling and not self._requested:
            await self._learn_of_cancellation()
            return None
        if cancelling:
            # New work is fenced while a request waits, and a shielded call is no boundary: nothing can be done here.
            return TurnEnd("abandoned", "shielded_call_before_delivery")
        if self._delivered and call.cleanup is None:
            return TurnEnd("abandoned", "call_after_cancellation")
        if call.interrupted is not None:
            return await self._recover(call)
        if self._draining():
            # A draining worker finishes what runs and starts nothing; its deregistration frees this claim.
            return TurnEnd("abandoned", "draining")
        return await self._run_call(call)

    async def _advance_group(self, group: LocalGroup) -> TurnEnd | None:
        """Take a group one step further: admit it as a whole, then run its local members in authored order.

        One after the other: a member that must be retried ends the claim, and with it every attempt that runs on it.
        """
        if not self._around.groups:
            return TurnEnd("abandoned", "prepared_local_group_not_supported")
        if self._cancellation is not None and not self._delivered and not self._requested:
            await self._learn_of_cancellation()
            return None
        if group.prefix:
            await self._checkpoint(group.prefix, group.prefix_start)
            return None
        if not group.admission:
            return await self._advance(group.calls[0])
        self._only_once("group", group.base)
        admitted = await self._calls.checkpoint_group(group.admission, start=group.base)
        self._history = await self._calls.history(admitted.refresh_token)
        check_group_events(self._history, admitted, start=group.base, commands=group.admission)
        return None

    async def _checkpoint(self, prefix: tuple[dict[str, Any], ...], start: int) -> None:
        self._only_once("checkpoint", start)
        # What is beyond the server's limit is found unrecorded again by the next replay, and checkpointed then.
        token = await self._calls.checkpoint(prefix[:_CHECKPOINT_LIMIT], start=start)
        self._history = await self._calls.history(token)

    def _only_once(self, step: str, sequence: int) -> None:
        """Let a step of one sequence happen once on a claim: history must show it afterwards.

        Without this a server that hides what it recorded could have a second child started, or be asked for
        ever.
        """
        if (step, sequence) in self._steps:
            raise ProtocolBreach(
                f"history does not show the {step} of sequence {sequence} that the server confirmed on this claim; "
                "it is not repeated, the claim is left to expire",
                rule="prepared-local §5",
            )
        self._steps.add((step, sequence))

    async def _recover(self, call: LocalCall) -> TurnEnd | None:
        assert call.interrupted is not None
        self._only_once("recovery", call.sequence)
        closed = await self._calls.recover(
            call.descriptor,
            sequence=call.sequence,
            execution_id=call.interrupted.activity_execution_id,
            attempt_id=call.interrupted.activity_attempt_id,
        )
        if closed.claim_released:
            return TurnEnd("released", closed.event_type)
        self._history = await self._calls.history(closed.refresh_token)
        check_recovery_event(self._history, closed, claim=self._task.claim, sequence=call.sequence)
        return None

    async def _run_call(self, call: LocalCall) -> TurnEnd | None:
        self._only_once("attempt", call.sequence)
        self._attempt_renews = True
        try:
            end = await LocalCallRun(self._around, self._calls, self._task, call).run()
        finally:
            self._attempt_renews = False
        if isinstance(end, KeepCapacity):
            return TurnEnd("abandoned", "stop_unconfirmed", end.error)
        if isinstance(end, Abandon):
            return TurnEnd("abandoned", end.reason)
        if isinstance(end, Acknowledged):
            self._context = end.context
            return await self._after_acknowledgement(call)
        return await self._after_outcome(call, end)

    async def _after_outcome(self, call: LocalCall, closed: Closed) -> TurnEnd | None:
        if closed.claim_released:
            return TurnEnd("released", closed.event_type)
        self._history = await self._calls.history(closed.refresh_token)
        check_outcome_event(self._history, closed, sequence=call.sequence)
        return None

    async def _after_acknowledgement(self, call: LocalCall) -> TurnEnd | None:
        """Observe the request on the claim itself, which must agree with the stop order (prepared-local.md
        §4).
        """
        observed = await self._calls.renew_claim(self._cancellation)
        context = self._context
        assert context is not None
        if (
            observed is None
            or observed.request_id != context.request_id
            or observed.cleanup_deadline_at != context.cleanup_deadline_at
        ):
            return TurnEnd("abandoned", "cancellation_observation_mismatch")
        self._cancellation = observed
        await self._learn_of_cancellation()
        return None

    async def _learn_of_cancellation(self) -> None:
        """Load the history that holds the observed request; the next replay says where it is to be delivered."""
        observation = self._cancellation
        assert observation is not None
        self._history = await self._calls.history(observation.refresh_token)
        check_request_event(self._history, observation=observation, context=self._context)
        self._requested = True

    async def _reach(self, reached: Boundary) -> TurnEnd | None:
        """Commit the call at which the code stands as the boundary of the cancellation, and reload what it is to see.

        A request that only history showed so far is observed on the claim first.
        """
        if reached.prefix:
            # New work is fenced while a request waits; what was authored before it is completed first, and the
            # successor task delivers at its own sequence (cancellation.md §4).
            return await self._finish(reached.prefix)
        if self._delivered:
            return TurnEnd("abandoned", "cancellation_already_delivered")
        if self._cancellation is None:
            self._cancellation = await self._calls.renew_claim(None)
        observation = self._cancellation
        if observation is None or observation.request_id != reached.request_id:
            return TurnEnd("abandoned", "cancellation_not_observed")
        if not self._requested:
            await self._learn_of_cancellation()
            return None
        self._only_once("delivery", reached.sequence)
        boundary = DeliveryBoundary(
            reached.sequence,
            reached.call_kind,
            reached.span,
            reached.operation_sequence,
            None if reached.operation_sequence is None else reached.operation_span,
        )
        delivery = await self._calls.deliver(observation.request_id, boundary)
        if delivery.claim_released:
            return TurnEnd("released", delivery.reason or "cancellation_waiting")
        self._history = await self._calls.history(FIRST_PAGE_TOKEN)
        check_delivery_event(self._history, request_id=observation.request_id, boundary=boundary)
        self._delivered = True
        self._cancellation = replace(observation, delivered=True)
        return None

    async def _finish(
        self,
        commands: tuple[dict[str, object], ...],
        cursors: tuple[StreamCursor, ...] = (),
        waits: tuple[StreamCursor, ...] = (),
    ) -> TurnEnd:
        if not commands:
            return await self._report_failure(_WAITING, "waiting")
        try:
            await self._calls.complete(commands, cursors=cursors, waits=waits, within=self._time_left())
        except ServerRefused as exc:
            if exc.reason in _LOST_REASONS or exc.status == 429 or exc.status >= 500:
                return self._abandoned(exc.reason or f"http_{exc.status}", exc)
            return await self._fail("WorkflowTaskCompletionRefused", str(exc))
        return TurnEnd("completed", ", ".join(str(command.get("type")) for command in commands))

    async def _fail_unknown_workflow(self) -> TurnEnd:
        known = ", ".join(sorted(self._workflows)) or "none"
        return await self._fail(
            "UnknownWorkflowType",
            f"worker {self._around.worker_id} has no workflow {self._task.workflow_type!r}; registered: {known}",
        )

    async def _fail(self, kind: str, message: str) -> TurnEnd:
        _log.error("workflow_task_failed", task=self._task.claim.task_id, type=kind, problem=message[:2000])
        text = bounded_text(message, _MAX_FAILURE_MESSAGE) or kind
        return await self._report_failure({"message": text, "type": kind}, "failed")

    async def _report_failure(self, failure: Mapping[str, str], how: How) -> TurnEnd:
        await self._calls.fail(failure)
        return TurnEnd(how, failure["type"])
