"""The steps that take an unanswered local call or group forward on its claim (prepared-local.md §2, §5).

Checkpoint, admission, recovery, one attempt: each grows history, which is loaded again and must show it, or ends the
claim. Which step is due is the turn's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proctor.core.attempt import Abandon, KeepCapacity
from proctor.core.replay.decision import LocalCall, LocalGroup
from proctor.core.wire.checkpoint import check_group_events
from proctor.core.wire.outcome import Closed, check_outcome_event, check_recovery_event
from proctor.core.wire.tasks import WorkflowTask
from proctor.running.claim import ClaimCalls
from proctor.running.claimed_history import ClaimedHistory
from proctor.running.delivering import Delivering
from proctor.running.local_call import Acknowledged, LocalCallRun, Surroundings
from proctor.running.turn_report import TurnEnd

_CHECKPOINT_LIMIT = 100  # commands in one checkpoint (prepared-local.md §2.1)


class LocalSteps:
    """The steps of one claim. Each gives the end of the turn, or None when the grown history is to be replayed."""

    def __init__(
        self,
        around: Surroundings,
        calls: ClaimCalls,
        task: WorkflowTask,
        *,
        history: ClaimedHistory,
        delivering: Delivering,
    ) -> None:
        self._attempting = False
        self._around = around
        self._calls = calls
        self._task = task
        self._history = history
        self._delivering = delivering

    def run_an_attempt(self) -> bool:
        """Tell whether an attempt runs on this claim: its control calls renew both leases."""
        return self._attempting

    async def checkpoint(self, prefix: tuple[dict[str, Any], ...], start: int) -> None:
        """Make the commands that were authored before a local call durable."""
        self._history.only_once("checkpoint", start)
        # What is beyond the server's limit is found unrecorded again by the next replay, and checkpointed then.
        await self._history.reload(await self._calls.checkpoint(prefix[:_CHECKPOINT_LIMIT], start=start))

    async def admit(self, group: LocalGroup) -> None:
        """Admit a group as a whole."""
        self._history.only_once("group", group.base)
        admitted = await self._calls.checkpoint_group(group.admission, start=group.base)
        events = await self._history.reload(admitted.refresh_token)
        check_group_events(events, admitted, start=group.base, commands=group.admission)

    async def recover(self, call: LocalCall) -> TurnEnd | None:
        """Close the attempt of `call` whose claim is gone."""
        assert call.interrupted is not None
        self._history.only_once("recovery", call.sequence)
        closed = await self._calls.recover(
            call.descriptor,
            sequence=call.sequence,
            execution_id=call.interrupted.activity_execution_id,
            attempt_id=call.interrupted.activity_attempt_id,
        )
        return await self._take_in(
            closed,
            lambda events: check_recovery_event(events, closed, claim=self._task.claim, sequence=call.sequence),
        )

    async def attempt(self, call: LocalCall) -> TurnEnd | None:
        """Run one attempt of `call` to its end."""
        self._history.only_once("attempt", call.sequence)
        self._attempting = True
        try:
            end = await LocalCallRun(self._around, self._calls, self._task, call).run()
        finally:
            self._attempting = False
        if isinstance(end, KeepCapacity):
            return TurnEnd("abandoned", "stop_unconfirmed", end.error)
        if isinstance(end, Abandon):
            return TurnEnd("abandoned", end.reason)
        if isinstance(end, Acknowledged):
            return await self._delivering.acknowledged(end.context)
        return await self._take_in(end, lambda events: check_outcome_event(events, end, sequence=call.sequence))

    async def _take_in(self, closed: Closed, check: Callable[[Any], None]) -> TurnEnd | None:
        if closed.claim_released:
            return TurnEnd("released", closed.event_type)
        check(await self._history.reload(closed.refresh_token))
        return None
