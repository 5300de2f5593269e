"""The cooperative cancellation of one claim: observed, learnt of, delivered at one boundary (cancellation.md §3-4).

Where the boundary lies is replay's to say, what is completed before it the turn's. Each observation on the claim must
agree with the one before it, with history, and with the stop order of the attempt that was running.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from proctor.core.replay.decision import Boundary
from proctor.core.wire.cancellation import (
    CancellationContext,
    CancellationObservation,
    DeliveryBoundary,
    check_delivery_event,
    check_request_event,
)
from proctor.core.wire.outcome import FIRST_PAGE_TOKEN
from proctor.core.wire.tasks import WorkflowTask
from proctor.running.claim import ClaimCalls
from proctor.running.claimed_history import ClaimedHistory
from proctor.running.turn_report import TurnEnd


class Delivering:
    """What one claim knows of a request to cancel its run, and how the workflow code comes to see it."""

    def __init__(self, calls: ClaimCalls, task: WorkflowTask, history: ClaimedHistory) -> None:
        self.observed: CancellationObservation | None = task.cancellation
        self.delivered = task.cancellation is not None and task.cancellation.delivered
        self._calls = calls
        self._history = history
        self._context: CancellationContext | None = None
        self._loaded = False

    @property
    def pending(self) -> bool:
        """Tell whether a request was observed that the workflow code has not been told of."""
        return self.observed is not None and not self.delivered

    @property
    def unread(self) -> bool:
        """Tell whether a pending request is not in the history that was loaded."""
        return self.pending and not self._loaded

    async def renew_claim(self) -> None:
        """Renew the claim and take in what it shows."""
        observed = await self._calls.renew_claim(self.observed)
        if observed is not None:
            self.observed = observed

    async def learn(self) -> None:
        """Load the history that holds the observed request; the next replay says where it is to be delivered."""
        observation = self.observed
        assert observation is not None
        events = await self._history.reload(observation.refresh_token)
        check_request_event(events, observation=observation, context=self._context)
        self._loaded = True

    async def observe(self) -> TurnEnd | None:
        """Observe on the claim the request for which the server just refused new work."""
        await self.renew_claim()
        return None if self.pending else TurnEnd("abandoned", "cancellation_not_observed")

    async def acknowledged(self, contexts: Sequence[CancellationContext]) -> TurnEnd | None:
        """Observe the request on the claim itself, which must agree with every stop order (prepared-local.md §4)."""
        self._context = context = contexts[0]
        observed = await self._calls.renew_claim(self.observed)
        if (
            observed is None
            or observed.request_id != context.request_id
            or observed.cleanup_deadline_at != context.cleanup_deadline_at
            or any(other != context for other in contexts)
        ):
            return TurnEnd("abandoned", "cancellation_observation_mismatch")
        self.observed = observed
        await self.learn()
        return None

    async def reach(self, reached: Boundary) -> TurnEnd | None:
        """Commit the call at which the code stands as the boundary of the cancellation, and reload what it is to see.

        A request that only history showed so far is observed on the claim first.
        """
        if self.delivered:
            return TurnEnd("abandoned", "cancellation_already_delivered")
        if self.observed is None:
            self.observed = await self._calls.renew_claim(None)
        observation = self.observed
        if observation is None or observation.request_id != reached.request_id:
            return TurnEnd("abandoned", "cancellation_not_observed")
        if not self._loaded:
            await self.learn()
            return None
        self._history.only_once("delivery", reached.sequence)
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
        events = await self._history.reload(FIRST_PAGE_TOKEN)
        check_delivery_event(events, request_id=observation.request_id, boundary=boundary)
        self.delivered = True
        self.observed = replace(observation, delivered=True)
        return None
