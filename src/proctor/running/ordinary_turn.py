"""One leased workflow task of an ordinary worker (1.18, 1.19): replay, run local activities inside it, complete.

What the turn does is only recorded by its completion; until then replay gets it as uncommitted. When the claim is lost
nothing is sent: the task is offered again and everything runs again.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import trio

from proctor.core.attempt import Abandon, KeepCapacity, StopCause
from proctor.core.replay.decision import Decision, LocalCall, WorkflowDefinition
from proctor.running.claim_keeper import ClaimKeeper
from proctor.running.ordinary_call import OrdinaryCall
from proctor.running.turn import Turn
from proctor.running.turn_report import TurnEnd


class OrdinaryTurn(Turn):
    """Works on one leased task under the ordinary profile. Made for one task, used once."""

    prepared = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._done: list[dict[str, Any]] = []
        self._begun = trio.Event()
        self._running: OrdinaryCall | None = None
        self._keeper = ClaimKeeper(self._calls, on_moved=self._move, on_lost=self._lose)

    def _move(self, until: float) -> None:
        if self._running is not None and self._running.reins is not None:
            self._running.reins.extend_authority(until)

    def _lose(self, reason: str) -> None:
        self._claim_lost = reason
        if self._running is not None and self._running.reins is not None:
            # The call ends with the proof of the stop, and the turn after it.
            self._running.reins.request_stop(StopCause.AUTHORITY_LOST, reason)
        else:
            self._scope.cancel()

    async def _keep_claim(self) -> None:
        if not await self._keeper.begin():
            return
        self._begun.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keeper.keep)
            nursery.start_soon(self._keeper.watch)

    async def _work(self) -> TurnEnd:
        await self._begun.wait()
        return await super()._work()

    def _uncommitted(self) -> list[dict[str, Any]]:
        return self._done

    async def _advance(self, decision: LocalCall) -> TurnEnd | None:
        """Run the unanswered local call; None when its record is there and the next replay goes on from it."""
        if decision.descriptor.get("cancellation_policy") is not None:
            return await self._report.fail(
                "RuntimeCapabilityUnsupported",
                f"the cancellation_policy of local activity {decision.activity_type!r} needs the supervised profile",
            )
        if self._draining():
            # Nothing is recorded yet: the whole task is done again by another worker.
            return TurnEnd("abandoned", "draining")
        self._running = OrdinaryCall(self._around, self._task, decision, self._keeper)
        try:
            end = await self._running.run()
        finally:
            self._running = None
        if isinstance(end, KeepCapacity):
            return TurnEnd("abandoned", "stop_unconfirmed", end.error)
        if isinstance(end, Abandon):
            return TurnEnd("abandoned", end.reason)
        self._done = [*decision.prefix, end.command()]
        return None

    def _time_left(self) -> float:
        return self._keeper.budget()

    def _replayed(self, definition: WorkflowDefinition) -> Decision:
        decision = super()._replayed(definition)
        if isinstance(decision, LocalCall) and decision.interrupted is not None:
            # Nothing of a lost claim was recorded as running; an attempt without an end is simply run again.
            return dataclasses.replace(decision, interrupted=None)
        return decision
