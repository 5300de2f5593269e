"""What to do when a child has ended: publish, acknowledge, abandon, or keep the slot for ever. Pure.

The facts come in as data (how the child ended, what the server last said, what the clock shows), one
`Verdict` comes out. Starting, stopping and sending is the shells' work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from proctor.core.authority import Authority, Bound
from proctor.core.codec import CODEC
from proctor.core.external import External, Reference, to_wire
from proctor.core.wire.cancellation import CancellationContext

MAX_MESSAGE_BYTES = 16 * 1024
MAX_TYPE_BYTES = 255
DEADLINE_REFUSAL = "local_activity_deadline_expired"


class StopCause(StrEnum):
    """Why a child was stopped; the values are those of the supervisor's stop reasons."""

    ATTEMPT_TIMEOUT = "attempt_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    CANCELLED = "cancelled"
    AUTHORITY_LOST = "authority_lost"
    MEMORY = "memory"
    SHUTDOWN = "shutdown"
    OWNER_DEATH = "owner_death"


TIMEOUT_OF = {
    StopCause.ATTEMPT_TIMEOUT: Bound.START_TO_CLOSE,
    StopCause.TOTAL_TIMEOUT: Bound.SCHEDULE_TO_CLOSE,
    StopCause.HEARTBEAT_TIMEOUT: Bound.HEARTBEAT,
}
CAUSE_OF = {bound: cause for cause, bound in TIMEOUT_OF.items()}


@dataclass(frozen=True, slots=True)
class ChildFacts:
    """What is worth telling about an ended child; plain JSON-able values only."""

    duration_ms: int = 0
    pid: int | None = None
    heartbeats: int = 0
    heartbeats_dropped: int = 0


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned; `blob` is its result as a checked wire blob, `stored` says where that is kept outside."""

    blob: str
    facts: ChildFacts = field(default_factory=ChildFacts)
    stored: Reference | None = None

    @property
    def result(self) -> dict[str, Any]:
        """The result as reports carry it."""
        return to_wire(self.blob if self.stored is None else External(CODEC, self.stored))


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler or its process failed. `non_retryable` covers a handler that ended as cancelled.

    `exception_class` is ``module.QualName`` of an exception that the handler raised, else empty.
    """

    exception_type: str
    message: str
    non_retryable: bool
    facts: ChildFacts = field(default_factory=ChildFacts)
    exception_class: str = ""


@dataclass(frozen=True, slots=True)
class WasStopped:
    """We stopped the child, and `proof` says how it is known to be gone."""

    cause: StopCause
    proof: Mapping[str, Any]
    facts: ChildFacts = field(default_factory=ChildFacts)


@dataclass(frozen=True, slots=True)
class NotStarted:
    """No child ever ran for this attempt, for a reason on our side."""

    reason: str
    facts: ChildFacts = field(default_factory=ChildFacts)


@dataclass(frozen=True, slots=True)
class Unproven:
    """The child could not be proven gone. `error` is what the supervisor raised."""

    error: BaseException
    facts: ChildFacts = field(default_factory=ChildFacts)


ChildEnd = Returned | Raised | WasStopped | NotStarted | Unproven


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known besides the child's end.

    `lost` is the reason why the claim is not ours any more, `cancellation` the validated stop order,
    `confirmed` that a control call has confirmed the claim since the child ended.
    """

    authority: Authority
    lost: str | None = None
    cancellation: CancellationContext | None = None
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class Publish:
    """Send this outcome report. `renew_first`: the claim must be confirmed by one more control call.

    `not_before` is the instant from which the server agrees that a deadline has passed.
    """

    report: Mapping[str, Any]
    renew_first: bool
    not_before: float | None = None
    timeout: Bound | None = None


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The child is gone because of a cancellation: send the stop receipt, publish nothing."""

    context: CancellationContext


@dataclass(frozen=True, slots=True)
class Abandon:
    """Publish nothing; the claim is left to expire."""

    reason: str


@dataclass(frozen=True, slots=True)
class KeepCapacity:
    """The child is not proven gone: publish nothing, acknowledge nothing, never reuse its slot."""

    error: BaseException


Verdict = Publish | Acknowledge | Abandon | KeepCapacity


def decide(end: ChildEnd, standing: Standing, *, now: float) -> Verdict:
    """Decide what one ended attempt may still do (prepared-local.md §5).

    The order matters: an unproven stop beats everything, a cancellation beats a result, a lost claim beats
    a report.
    """
    if isinstance(end, Unproven):
        return KeepCapacity(end.error)
    if standing.cancellation is not None:
        return Acknowledge(standing.cancellation)
    due = standing.authority.due_deadline(now)
    if standing.lost == DEADLINE_REFUSAL and due is not None:
        # The server and our own clock agree that a deadline is over, so the claim is intact and the truth
        # is a timeout.
        return _timed_out(due, standing.authority)
    if standing.lost is not None:
        return Abandon(standing.lost)
    if isinstance(end, NotStarted):
        return Abandon(end.reason)
    if isinstance(end, WasStopped):
        return _stopped(end, standing, due)
    report = completed(end) if isinstance(end, Returned) else failed(end)
    return Publish(report, renew_first=due is None and not standing.confirmed)


def _stopped(end: WasStopped, standing: Standing, due: Bound | None) -> Verdict:
    timeout = TIMEOUT_OF.get(end.cause)
    if due is not None and (timeout is not None or end.cause is StopCause.AUTHORITY_LOST):
        # Of several deadlines the server's precedence counts; and the dead man's instant may be the
        # attempt's own deadline, in which case the claim is still ours.
        timeout = due
    if timeout is not None:
        return _timed_out(timeout, standing.authority)
    if end.cause is StopCause.MEMORY:
        return Publish(
            failed(Raised("MemoryLimitExceeded", "the child was stopped at its memory limit", non_retryable=False)),
            renew_first=due is None and not standing.confirmed,
        )
    return Abandon("authority_spent" if end.cause is StopCause.AUTHORITY_LOST else str(end.cause))


def _timed_out(bound: Bound, authority: Authority) -> Verdict:
    not_before = authority.certainly_passed_at(bound)
    if not_before is None:
        # Stopped for a timeout that the server does not count: it would refuse the report, so none is sent.
        return Abandon(f"no {bound} deadline at the server")
    return Publish({"outcome": "timed_out"}, renew_first=False, not_before=not_before, timeout=bound)


def completed(end: Returned) -> Mapping[str, Any]:
    """Give the outcome report of a result."""
    return {"outcome": "completed", "result": end.result, "payload_codec": CODEC}


def failed(end: Raised) -> Mapping[str, Any]:
    """Give the outcome report of a failure; its texts are bounded."""
    name = bounded_text(end.exception_type.strip(), MAX_TYPE_BYTES) or "Exception"
    message = bounded_text(end.message.strip(), MAX_MESSAGE_BYTES) or f"local activity failed with {name}"
    return {
        "outcome": "failed",
        "message": message,
        "exception_type": name,
        "non_retryable": end.non_retryable,
    }


def bounded_text(text: str, limit: int) -> str:
    """Cut a text to at most `limit` UTF-8 bytes; what has no UTF-8 form is replaced, the cut is marked."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    mark = "…"
    return raw[: limit - len(mark.encode())].decode("utf-8", "ignore") + mark
