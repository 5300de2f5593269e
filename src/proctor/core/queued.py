"""What a worker holds of a queued attempt, and what its ended child still allows (worker.md §3). Pure.

The server owns retries and timeouts here: an attempt that was stopped at a deadline publishes nothing, the server's own
deadline does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from proctor.core.attempt import (
    CAUSE_OF,
    MAX_MESSAGE_BYTES,
    MAX_TYPE_BYTES,
    Abandon,
    ChildEnd,
    KeepCapacity,
    Raised,
    Returned,
    StopCause,
    Unproven,
    WasStopped,
    bounded_text,
)
from proctor.core.authority import AttemptDeadlines, Authority, Exchange, Leases, authority_of
from proctor.core.holding import SPENT
from proctor.core.wire.queued import QueuedStanding, QueuedTask


@dataclass(frozen=True, slots=True)
class QueuedHolding:
    """The claim on one queued attempt. What was lost stays lost; `cancelled` says that it was a cancellation."""

    authority: Authority
    deadlines: AttemptDeadlines
    lost: str | None = None
    cancelled: bool = False

    def take(self, standing: QueuedStanding, exchange: Exchange) -> QueuedHolding:
        """Take a validated answer in; only one that lets the attempt go on moves its instants."""
        if standing.stop is not None:
            return self.lose(standing.stop, cancelled=standing.cancelled)
        if self.lost is not None or standing.lease_expires_at is None:
            return self
        deadlines = self.deadlines
        if standing.heartbeat_deadline is not None:
            deadlines = replace(deadlines, heartbeat=standing.heartbeat_deadline)
        leases = Leases(attempt=standing.lease_expires_at)
        return replace(self, authority=authority_of(exchange, leases=leases, deadlines=deadlines), deadlines=deadlines)

    def lose(self, reason: str, *, cancelled: bool = False) -> QueuedHolding:
        """Give the claim up; the first reason stays."""
        return self if self.lost is not None else replace(self, lost=reason, cancelled=cancelled)

    def stop_wanted(self, now: float) -> tuple[StopCause, str] | None:
        """Give the cause and the words of the stop that the child must get at `now`; None while it may go on."""
        if self.lost is not None:
            return (StopCause.CANCELLED if self.cancelled else StopCause.AUTHORITY_LOST), self.lost
        if self.authority.until > now:
            return None
        cause = CAUSE_OF.get(self.authority.binding)
        return (StopCause.AUTHORITY_LOST, SPENT) if cause is None else (cause, f"{self.authority.binding} is over")


def held_queued(task: QueuedTask, exchange: Exchange) -> QueuedHolding:
    """Give what the poll that leased `task` gives."""
    leases = Leases(attempt=task.lease_expires_at)
    return QueuedHolding(authority_of(exchange, leases=leases, deadlines=task.deadlines), task.deadlines)


@dataclass(frozen=True, slots=True)
class Complete:
    """Publish this result."""

    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fail:
    """Publish this failure; the server decides on another attempt."""

    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AskForReceipt:
    """The child is gone because of a cancellation: ask what the server wants acknowledged."""


QueuedVerdict = Complete | Fail | AskForReceipt | Abandon | KeepCapacity


def decide_queued(end: ChildEnd, holding: QueuedHolding, *, now: float) -> QueuedVerdict:
    """Decide what one ended attempt may still do. An unproven stop beats everything, a cancellation beats a result."""
    if isinstance(end, Unproven):
        return KeepCapacity(end.error)
    if holding.cancelled:
        return AskForReceipt()
    if holding.lost is not None:
        return Abandon(holding.lost)
    if holding.authority.until <= now:
        return Abandon(SPENT)
    if isinstance(end, Returned):
        return Complete(end.result)
    if isinstance(end, WasStopped) and end.cause is StopCause.MEMORY:
        end = Raised("MemoryLimitExceeded", "the child was stopped at its memory limit", non_retryable=False)
    if not isinstance(end, Raised):
        return Abandon(str(end.cause) if isinstance(end, WasStopped) else end.reason)
    name = bounded_text(end.exception_type.strip(), MAX_TYPE_BYTES) or "Exception"
    failure: dict[str, Any] = {
        "message": bounded_text(end.message.strip(), MAX_MESSAGE_BYTES) or f"activity failed with {name}",
        "type": name,
    }
    if end.exception_class:
        failure["class"] = bounded_text(end.exception_class, MAX_TYPE_BYTES)
    if end.non_retryable:
        failure["non_retryable"] = True
    return Fail(failure)
