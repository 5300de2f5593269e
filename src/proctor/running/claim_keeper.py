"""The authority of an ordinary turn: its task lease, renewed beside everything else, and its end.

The lease is all that an ordinary worker has. Renewals depend on no handler; every validated one moves the instant at
which the turn and its child must be over, here and at the supervisor. A refusal, which is how a legacy cancellation
shows, a contradiction, or silence until that instant ends the claim (cancellation.md §1).
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from proctor.core.authority import OPERATION_LIMIT_SECONDS
from proctor.core.holding import SPENT, reason_lost
from proctor.errors import ProtocolBreach, ServerRefused, ServerUnreachable
from proctor.running.claim import ClaimCalls

RENEWAL_SECONDS = 1.0
"""From one renewal's start to the next at most; a cancelled run stops its handler within it."""

_LEASE_PARTS = 3
_RETRY_SECONDS = 0.2
_BEGINNING_SECONDS = 10.0

_log = structlog.get_logger("proctor.claim")


class ClaimKeeper:
    """Holds one claim. `until` is the local instant until which it is certainly ours; `lost` says why it is not."""

    def __init__(self, calls: ClaimCalls, *, on_moved: Callable[[float], None], on_lost: Callable[[str], None]) -> None:
        self.until = trio.current_time()
        self.lost: str | None = None
        self._calls = calls
        self._on_moved = on_moved
        self._on_lost = on_lost
        self._renewed_at = trio.current_time()
        self._life = trio.CancelScope()

    def budget(self) -> float:
        """Give the seconds that one call of this claim may take now; 0 when the claim may be gone."""
        if self.lost is not None:
            return 0.0
        return max(0.0, min(OPERATION_LIMIT_SECONDS, self.until - trio.current_time()))

    async def begin(self) -> bool:
        """Renew for the first time, which is what gives authority at all; False when the claim is lost."""
        with trio.move_on_after(_BEGINNING_SECONDS):
            while not await self.renew(within=OPERATION_LIMIT_SECONDS):
                if self.lost is not None:
                    return False
                await trio.sleep(_RETRY_SECONDS)
            return True
        self.lose(SPENT)  # the lease as it was polled names no time to count from
        return False

    async def keep(self) -> None:
        """Renew until the claim is lost."""
        while self.lost is None:
            period = min(RENEWAL_SECONDS, max(0.0, self.until - self._renewed_at) / _LEASE_PARTS)
            await trio.sleep_until(max(trio.current_time(), self._renewed_at + period))
            while self.lost is None:
                if await self.renew():
                    break
                await trio.sleep(_RETRY_SECONDS)

    async def watch(self) -> None:
        """Give the claim up at the instant at which its last renewal runs out."""
        while self.until > trio.current_time():
            with trio.CancelScope(deadline=self.until) as self._life:
                await trio.sleep_forever()
        self.lose(SPENT)

    async def renew(self, *, within: float | None = None) -> bool:
        """Renew once; True when the claim is confirmed and its instant is moved."""
        budget = self.budget() if within is None else within
        if budget <= 0:
            return False
        started = trio.current_time()
        try:
            until = await self._calls.renew_lease(within=budget)
        except (ServerRefused, ServerUnreachable, ProtocolBreach) as exc:
            reason = reason_lost(exc)
            if reason is None:
                _log.info("renewal_failed", task=self._calls.claim.task_id, problem=str(exc))
            else:
                self.lose(reason)
            return False
        if self.lost is not None or until <= trio.current_time():
            return False
        self.until, self._renewed_at = until, started
        self._life.deadline = until
        self._on_moved(until)
        return True

    def lose(self, reason: str) -> None:
        """Give the claim up; the first reason stays."""
        if self.lost is None:
            self.lost = reason
            _log.warning("authority_lost", task=self._calls.claim.task_id, reason=reason)
            self._on_lost(reason)
