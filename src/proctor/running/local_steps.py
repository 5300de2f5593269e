"""The steps that take an unanswered local call or group forward on its claim (prepared-local.md §2, §5).

Checkpoint, admission, recovery, one attempt: each grows history, which is loaded again and must show it, or ends the
claim. Which step is due is the turn's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from proctor.core.attempt import Abandon, KeepCapacity
from proctor.core.replay.decision import LocalCall, LocalGroup
from proctor.core.wire.checkpoint import check_group_events
from proctor.core.wire.outcome import Closed, check_outcome_event, check_recovery_event
from proctor.core.wire.tasks import WorkflowTask
from proctor.errors import ServerRefused
from proctor.running.claim import ClaimCalls
from proctor.running.claimed_history import ClaimedHistory
from proctor.running.delivering import Delivering
from proctor.running.local_call import Acknowledged, Fenced
from proctor.running.siblings import SiblingsRun
from proctor.running.surroundings import Surroundings
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
        draining: Callable[[], bool],
    ) -> None:
        self._siblings: SiblingsRun | None = None
        self._around = around
        self._calls = calls
        self._task = task
        self._history = history
        self._delivering = delivering
        self._draining = draining

    def run_an_attempt(self) -> bool:
        """Tell whether an attempt runs on this claim: its control calls renew both leases."""
        return self._siblings is not None and self._siblings.renews_the_claim

    async def checkpoint(self, prefix: tuple[dict[str, Any], ...], start: int) -> TurnEnd | None:
        """Make the commands that were authored before a local call durable."""
        self._history.only_once("checkpoint", start)
        try:
            # What is beyond the server's limit is found unrecorded again by the next replay, and checkpointed then.
            token = await self._calls.checkpoint(prefix[:_CHECKPOINT_LIMIT], start=start)
        except ServerRefused as exc:
            return await self._observe_cancellation(exc)
        await self._history.reload(token)
        return None

    async def admit(self, group: LocalGroup) -> TurnEnd | None:
        """Admit a group as a whole."""
        self._history.only_once("group", group.base)
        try:
            admitted = await self._calls.checkpoint_group(group.admission, start=group.base)
        except ServerRefused as exc:
            return await self._observe_cancellation(exc)
        events = await self._history.reload(admitted.refresh_token)
        check_group_events(events, admitted, start=group.base, commands=group.admission)
        return None

    async def _observe_cancellation(self, exc: ServerRefused) -> TurnEnd | None:
        """Go on with the delivery when new work was refused for a request that this claim has not seen yet."""
        if exc.reason != "cancellation_requested":
            raise exc
        return await self._delivering.observe()

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
        if closed.claim_released:
            return TurnEnd("released", closed.event_type)
        events = await self._history.reload(closed.refresh_token)
        check_recovery_event(events, closed, claim=self._task.claim, sequence=call.sequence)
        return None

    async def attempt(self, calls: Sequence[LocalCall]) -> TurnEnd | None:
        """Run one attempt of each of the `calls`, side by side when there are several."""
        for call in calls:
            self._history.only_once("attempt", call.sequence)
        payloads = self._calls.payloads
        calls = [replace(call, descriptor=await payloads.offloaded(call.descriptor)) for call in calls]
        self._siblings = siblings = SiblingsRun(self._around, self._calls, self._task, calls, draining=self._draining)
        await siblings.run()
        end = siblings.breaking_end
        if isinstance(end, KeepCapacity):
            return TurnEnd("abandoned", "stop_unconfirmed", end.error)
        if isinstance(end, Abandon):
            return TurnEnd("abandoned", end.reason)
        if isinstance(end, Closed):
            return TurnEnd("released", end.event_type)
        closed = [(call, one) for call, one in siblings.ends if isinstance(one, Closed)]
        if isinstance(end, Acknowledged):
            contexts = [one.context for _, one in siblings.ends if isinstance(one, Acknowledged)]
            stopped = await self._delivering.acknowledged(contexts)
            if stopped is not None:
                return stopped
        elif isinstance(end, Fenced):
            return await self._delivering.observe()
        elif closed:
            await self._history.reload(closed[-1][1].refresh_token)
        for call, one in closed:
            check_outcome_event(self._history.events, one, sequence=call.sequence)
        return None
