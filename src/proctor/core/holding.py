"""What a worker holds of one attempt: authority, and whether it is lost or to be cancelled. Pure.

Every answer of the server is taken in here; the shells only send, wait and pass the stop on. What was lost stays lost:
no later receipt gives it back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from proctor.core.attempt import CAUSE_OF, DEADLINE_REFUSAL, Standing, StopCause
from proctor.core.authority import AttemptDeadlines, Authority, Exchange, Leases, authority_of
from proctor.core.wire.cancellation import CancellationContext
from proctor.core.wire.control import Active, StopOrder
from proctor.core.wire.prepare import Cleanup, Prepared
from proctor.errors import ProctorError, ServerRefused, ServerUnreachable

SPENT = "authority_spent"
"""Why a claim is lost whose last receipt has run out."""

BREACH = "protocol_breach"
"""Why a claim is lost whose server contradicted the protocol."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The claim on one attempt as the newest validated receipt leaves it.

    `lost` is why the claim is not ours any more, `cancellation` the validated stop order of a cancellation,
    `cleanup` the proof that the attempt is itself part of a cancellation's cleanup.
    """

    authority: Authority
    deadlines: AttemptDeadlines
    lost: str | None = None
    cancellation: CancellationContext | None = None
    cleanup: Cleanup | None = None

    @property
    def ended(self) -> bool:
        """Tell whether the attempt must stop: its claim is lost or its run is being cancelled."""
        return self.lost is not None or self.cancellation is not None

    def standing(self, *, confirmed: bool) -> Standing:
        """Give what `core.attempt.decide` needs to know."""
        return Standing(self.authority, self.lost, self.cancellation, confirmed)

    def take(self, receipt: Active | StopOrder, exchange: Exchange | None) -> Holding:
        """Take a validated answer in. Only an active one comes with an `exchange`, and only it extends authority."""
        if isinstance(receipt, StopOrder):
            if receipt.cancellation is None:
                return self.lose(receipt.reason)
            return self if self.cancellation is not None else replace(self, cancellation=receipt.cancellation)
        assert exchange is not None
        if self.ended:
            return self
        leases = Leases(receipt.lease_expires_at, receipt.workflow_lease_expires_at, _deadline(self.cleanup))
        authority = authority_of(exchange, leases=leases, deadlines=receipt.deadlines)
        return replace(self, authority=authority, deadlines=receipt.deadlines)

    def lose(self, reason: str) -> Holding:
        """Give the claim up; the first reason stays."""
        return self if self.lost is not None else replace(self, lost=reason)

    def expire(self, now: float) -> Holding:
        """Give the claim up if its last receipt has run out; a deadline of the attempt does not take it away."""
        if self.authority.until <= now and self.authority.binding not in CAUSE_OF:
            return self.lose(SPENT)
        return self

    def stop_wanted(self, now: float) -> tuple[StopCause, str] | None:
        """Give the cause and the words of the stop that the child must get at `now`; None while it may go on."""
        if self.lost is not None:
            due = self.authority.due_deadline(now)
            timed_out = self.lost == DEADLINE_REFUSAL and due is not None
            return (CAUSE_OF[due] if timed_out and due is not None else StopCause.AUTHORITY_LOST), self.lost
        if self.cancellation is not None:
            return StopCause.CANCELLED, f"cancellation {self.cancellation.request_id}"
        if self.authority.until > now:
            return None
        bound = self.authority.binding
        cause = CAUSE_OF.get(bound)
        return (StopCause.AUTHORITY_LOST, SPENT) if cause is None else (cause, f"the {bound} deadline is over")


def held(prepared: Prepared, exchange: Exchange) -> Holding:
    """Give what the admission of an attempt gives; its receipt names one lease, which is both."""
    leases = Leases(attempt=prepared.lease_expires_at, cleanup=_deadline(prepared.cleanup))
    authority = authority_of(exchange, leases=leases, deadlines=prepared.deadlines)
    return Holding(authority, prepared.deadlines, cleanup=prepared.cleanup)


def _deadline(cleanup: Cleanup | None) -> datetime | None:
    return None if cleanup is None else cleanup.deadline


def reason_lost(exc: ProctorError) -> str | None:
    """Say why a failed call ends the claim; None when it does not: silence and overload leave it as it is."""
    if isinstance(exc, ServerUnreachable):
        return None
    if isinstance(exc, ServerRefused):
        return None if exc.status == 429 or exc.status >= 500 else exc.reason or f"http_{exc.status}"
    return BREACH
