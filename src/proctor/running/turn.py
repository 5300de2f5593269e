"""One workflow task from lease to end: load history, replay, act on the decision, replay again.

A turn ends in one of a few ways, told by `TurnEnd`; no error of one workflow or of the server leaves it.
The claim's lease is renewed beside the work whenever no attempt renews it. The steps themselves are `LocalSteps` and
`Delivering`, the last word to the server is `TurnReport`'s.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
import trio

from proctor.core.authority import OPERATION_LIMIT_SECONDS
from proctor.core.replay.decision import (
    Boundary,
    Commands,
    Decision,
    LocalCall,
    LocalGroup,
    ReplayTask,
    Unworkable,
    WorkflowDefinition,
)
from proctor.core.replay.interaction import answer_update
from proctor.core.wire.tasks import WorkflowTask
from proctor.errors import (
    HistoryError,
    NonDeterminismError,
    PayloadError,
    ProtocolBreach,
    ServerRefused,
    ServerUnreachable,
    UsageError,
)
from proctor.running.claim import ClaimCalls
from proctor.running.claimed_history import ClaimedHistory
from proctor.running.delivering import Delivering
from proctor.running.local_steps import LocalSteps
from proctor.running.surroundings import Surroundings
from proctor.running.turn_report import TurnEnd, TurnReport
from proctor.transport.calls import Transport

Replay = Callable[[WorkflowDefinition, ReplayTask], Decision]

CLAIM_RENEWAL_SECONDS = 3.0
"""Renewal of a claim that runs no attempt; a third of the shortest lease the protocol speaks of (10 s)."""

_MAX_LOGGED_STACK = 4000

_log = structlog.get_logger("proctor.turn")


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
        self._calls = ClaimCalls(transport, task.claim, surroundings.payloads)
        self._task = task
        self._workflows = workflows
        self._replay = replay
        self._around = surroundings
        self._history = ClaimedHistory(self._calls, task)
        self._delivering = Delivering(self._calls, task, self._history)
        self._steps = LocalSteps(
            surroundings,
            self._calls,
            task,
            history=self._history,
            delivering=self._delivering,
            draining=draining,
        )
        self._report = TurnReport(self._calls, time_left=self._time_left)
        self._draining = draining
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
                return await self._report.fail("WorkflowTaskNotSendable", str(exc))
            except PayloadError as exc:  # a stored payload that cannot be read, or one that is too large to store
                return await self._report.fail_for(exc)
        except ServerRefused as exc:
            return self._report.abandoned(exc.reason or f"http_{exc.status}", exc)
        except ServerUnreachable as exc:
            return self._report.abandoned("server_unreachable", exc)
        except ProtocolBreach as exc:
            return self._report.abandoned("protocol_breach", exc)

    async def _keep_claim(self) -> None:
        while True:
            await trio.sleep(CLAIM_RENEWAL_SECONDS)
            if self._steps.run_an_attempt():
                continue
            try:
                await self._delivering.renew_claim()
            except ServerUnreachable:
                continue
            except (ServerRefused, ProtocolBreach) as exc:
                if isinstance(exc, ServerRefused) and (exc.status == 429 or exc.status >= 500):
                    continue
                if self._steps.run_an_attempt():
                    continue  # an attempt has started meanwhile; it finds out by its own receipts
                self._claim_lost = getattr(exc, "reason", None) or "protocol_breach"
                self._scope.cancel()
                return

    async def _work(self) -> TurnEnd:
        definition = self._workflows.get(self._task.workflow_type)
        if definition is None:
            known = ", ".join(sorted(self._workflows)) or "none"
            return await self._report.fail(
                "UnknownWorkflowType",
                f"worker {self._around.worker_id} has no workflow {self._task.workflow_type!r}; registered: {known}",
            )
        await self._history.load_rest()
        while True:
            try:
                decision = self._replayed(definition)
            except (NonDeterminismError, HistoryError, PayloadError) as exc:
                return await self._report.fail_for(exc)
            except Exception as exc:  # noqa: BLE001 - one workflow's defect must not end the other turns
                # Bounded here: a log renderer may take minutes over a hostile traceback.
                stack = "".join(traceback.format_tb(exc.__traceback__))[-_MAX_LOGGED_STACK:]
                _log.error("replay_crashed", task=self._task.claim.task_id, type=type(exc).__name__, stack=stack)
                return await self._report.fail(type(exc).__name__, f"the replay broke: {exc!r}")
            updates_memo = any(command["type"] == "upsert_memo" for command in _authored(decision))
            if updates_memo and not self._around.memo_updates:
                return await self._report.fail(
                    "RuntimeCapabilityUnsupported",
                    "ctx.upsert_memo needs a server that offers workflow_memo_updates with the command upsert_memo",
                )
            if isinstance(decision, Commands):
                return await self._report.finish(decision.commands, decision.cursors, decision.stream_waits)
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
        """Replay, for what the code does next or for the one update that this task is for."""
        task = ReplayTask(
            workflow_id=self._task.workflow_id,
            run_id=self._task.claim.run_id,
            workflow_type=self._task.workflow_type,
            payload_codec=self._task.payload_codec,
            arguments=self._history.arguments,
            history=self._history.events,
            prepared=self.prepared,
            queue=self._around.task_queue,
            command_id=self._task.command_id,
            cancel_requested=self._task.cancel_requested,
            uncommitted=self._uncommitted(),
        )
        if self._task.update_id is not None:
            return answer_update(definition, task, self._task.update_id)
        return self._replay(definition, task)

    async def _advance(self, call: LocalCall) -> TurnEnd | None:
        """Take the unanswered local call one step further; None when the history has grown and is replayed."""
        return await self._advance_all(call.prefix, call.prefix_start, (call,))

    async def _advance_group(self, group: LocalGroup) -> TurnEnd | None:
        """Take a group one step further: admit it as a whole, then run its open local members side by side."""
        if not self._around.groups:
            return TurnEnd("abandoned", "prepared_local_group_not_supported")
        return await self._advance_all(group.prefix, group.prefix_start, group.calls, group=group)

    async def _advance_all(
        self,
        prefix: tuple[dict[str, Any], ...],
        prefix_start: int,
        calls: Sequence[LocalCall],
        *,
        group: LocalGroup | None = None,
    ) -> TurnEnd | None:
        if prefix:
            if self._delivering.pending:
                # New work is fenced while a request waits; what was authored before it is completed first,
                # and the successor task delivers at its own sequence (cancellation.md §4).
                return await self._report.finish(prefix)
            return await self._steps.checkpoint(prefix, prefix_start)
        if self._delivering.unread:
            await self._delivering.learn()
            return None
        if self._delivering.pending:
            # New work is fenced while a request waits, and a shielded call is no boundary: nothing can be done here.
            return TurnEnd("abandoned", "shielded_call_before_delivery")
        if self._delivering.delivered and any(call.cleanup is None for call in calls):
            return TurnEnd("abandoned", "call_after_cancellation")
        interrupted = next((call for call in calls if call.interrupted is not None), None)
        if interrupted is not None:
            return await self._steps.recover(interrupted)
        if self._draining():
            # A draining worker finishes what runs and starts nothing; its deregistration frees this claim.
            return TurnEnd("abandoned", "draining")
        if group is not None and group.admission:
            return await self._steps.admit(group)
        return await self._steps.attempt(calls)

    async def _reach(self, reached: Boundary) -> TurnEnd | None:
        if reached.prefix:
            # New work is fenced while a request waits; what was authored before it is completed first, and the
            # successor task delivers at its own sequence (cancellation.md §4).
            return await self._report.finish(reached.prefix)
        return await self._delivering.reach(reached)


def _authored(decision: Decision) -> Sequence[Mapping[str, Any]]:
    """Give the commands that a decision wants recorded next."""
    if isinstance(decision, Commands):
        return decision.commands
    return () if isinstance(decision, Unworkable) else decision.prefix
