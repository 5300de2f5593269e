"""Cooperative cancellation as history records it, and the metadata that workflow code sees of it (cancellation.md).

It reads and checks the request and the delivery, says at which calls a request may be delivered, and keeps the replay
time that `remaining` counts from. Delivering to the code is `engine`'s work, talking to the server the worker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from proctor.core.instants import parse_instant
from proctor.core.replay.recorded.steps import LARGEST, equal, is_number, text
from proctor.core.wire.cancellation import read_context
from proctor.errors import HistoryError, ProtocolBreach

_CALL_KINDS: Final = frozenset(
    {
        "activity",
        "local_activity",
        "timer",
        "condition",
        "signal",
        "child",
        "parallel",
        "selection_handle",
        "service_operation",
    }
)
MAX_SPAN: Final = 1000


@dataclass(frozen=True, slots=True)
class CancellationLineage:
    """One request on the way from the root request to this run's."""

    request_id: str
    workflow_instance_id: str
    workflow_run_id: str


class ReplayTime:
    """The recorded time up to which the code was taken after the delivery; it never goes back."""

    def __init__(self) -> None:
        self._now: datetime | None = None
        self._known = False
        self.active = True

    def observe(self, event: Mapping[str, Any]) -> None:
        """Take the time of a consumed event; an event without a time leaves `now` unknown until the next."""
        stamp = event.get("timestamp")
        try:
            at = parse_instant(event.get("recorded_at") if stamp is None else stamp)
        except ValueError:
            self._known = False
            return
        self._known = True
        if self._now is None or at > self._now:
            self._now = at

    def now(self) -> datetime:
        """Give the time; RuntimeError outside the replay that delivered, or when history does not tell it."""
        if not self.active:
            raise RuntimeError("remaining() belongs to the replay that delivered the cancellation")
        if not self._known or self._now is None:
            raise RuntimeError("remaining() needs a recorded time, and the last consumed event has none")
        return self._now


@dataclass(frozen=True, slots=True)
class CancellationContext:
    """Who asked for the cancellation, why, and until when cleanup may last; never changes after acceptance.

    `lineage` goes from the root request to this run's. `remaining` counts from recorded time, never from a clock.
    """

    request_id: str
    root_request_id: str
    root_workflow_instance_id: str
    root_workflow_run_id: str
    parent_request_id: str | None
    reason: str | None
    requester: Mapping[str, str]
    source: str
    requested_at: datetime
    cleanup_deadline_at: datetime
    lineage: tuple[CancellationLineage, ...]
    _time: ReplayTime

    @property
    def deadline(self) -> datetime:
        """The cleanup deadline."""
        return self.cleanup_deadline_at

    def remaining(self) -> float:
        """Give the seconds of cleanup that are left at this place of the replay, at least 0."""
        return max(0.0, (self.cleanup_deadline_at - self._time.now()).total_seconds())


@dataclass(frozen=True, slots=True)
class Delivery:
    """A recorded delivery: the call at `sequence` raises WorkflowCancelled instead of having a result."""

    sequence: int
    span: int
    call_kind: str
    request_id: str | None
    position: int
    event_id: str | None
    operation_sequence: int | None = None
    operation_span: int = 1

    def interrupts(self, sequence: int) -> bool:
        """Tell whether the operation with this durable number is the one that was replaced."""
        if self.operation_sequence is not None:
            return self.operation_sequence <= sequence < self.operation_sequence + self.operation_span
        return self.sequence <= sequence < self.sequence + self.span


@dataclass(slots=True)
class CancellationRecord:
    """The request of this run, and its delivery once that is recorded."""

    request_id: str
    position: int
    cleanup_deadline_at: str
    body: Mapping[str, Any] | None
    delivery: Delivery | None = None

    def deliver(self, delivery: Delivery, payload: Mapping[str, Any]) -> None:
        """Take note of the delivery; HistoryError when it is not that of this request."""
        where = f"event {delivery.position}"
        if self.delivery is not None:
            raise HistoryError(f"{where} delivers the cancellation a second time", position=delivery.position)
        if delivery.request_id is not None and delivery.request_id != self.request_id:
            raise HistoryError(f"{where} delivers another cancellation request", position=delivery.position)
        snapshot = payload.get("cancellation")
        if snapshot is not None and not (
            isinstance(snapshot, Mapping) and self.body is not None and equal(snapshot, self.body)
        ):
            raise HistoryError(f"{where} changes the context of the cancellation", position=delivery.position)
        self.delivery = delivery

    def context(self, time: ReplayTime) -> CancellationContext | None:
        """Give what the code may see; None when history holds no context (cancellation.md §5)."""
        body = self.body
        if body is None:
            return None
        return CancellationContext(
            request_id=body["request_id"],
            root_request_id=body["root_request_id"],
            root_workflow_instance_id=body["root_workflow_instance_id"],
            root_workflow_run_id=body["root_workflow_run_id"],
            parent_request_id=body["parent_request_id"],
            reason=text(body.get("reason")),
            requester=MappingProxyType(dict(body["requester"])),
            source=text(body.get("source")) or "",
            requested_at=parse_instant(body["requested_at"]),
            cleanup_deadline_at=parse_instant(body["cleanup_deadline_at"]),
            lineage=tuple(
                CancellationLineage(entry["request_id"], entry["workflow_instance_id"], entry["workflow_run_id"])
                for entry in body["lineage"]
            ),
            _time=time,
        )


def read_request(
    position: int, event: Mapping[str, Any], payload: Mapping[str, Any], *, run_id: str
) -> CancellationRecord:
    """Read a CooperativeCancellationRequested event; HistoryError when it contradicts itself or the run."""
    request_id = _request_id(position, event, payload, run_id)
    if request_id is None:
        raise HistoryError(f"event {position} requests a cancellation without workflow_command_id", position=position)
    deadline = payload.get("cleanup_deadline_at")
    body = payload.get("cancellation")
    try:
        ends_at = parse_instant(deadline)
        context = None if body is None else read_context(body, run_id=str(payload.get("workflow_run_id")))
    except (ValueError, ProtocolBreach) as exc:
        raise HistoryError(f"event {position} requests an unusable cancellation: {exc}", position=position) from exc
    if context is not None and (context.request_id != request_id or context.cleanup_deadline_at != ends_at):
        raise HistoryError(f"event {position} and its cancellation context differ", position=position)
    return CancellationRecord(request_id, position, str(deadline), None if context is None else context.body)


def read_delivery(position: int, event: Mapping[str, Any], payload: Mapping[str, Any], *, run_id: str = "") -> Delivery:
    """Read a CooperativeCancellationDelivered event; HistoryError when it describes no call."""
    sequence, kind = payload.get("sequence"), payload.get("call_kind")
    span = payload.get("sequence_span", 1)
    operation, operation_span = payload.get("operation_sequence"), payload.get("operation_sequence_span", 1)
    if not is_number(sequence) or not isinstance(kind, str) or kind not in _CALL_KINDS:
        raise HistoryError(f"event {position}: a cancellation delivery without sequence and kind", position=position)
    numbers_fit = (
        is_number(span)
        and span <= MAX_SPAN
        and is_number(operation_span)
        and operation_span <= MAX_SPAN
        and sequence + span <= LARGEST
        and (kind == "parallel" or span == 1)
    )
    handle_fits = (
        is_number(operation) and operation + operation_span <= sequence
        if kind == "selection_handle" and numbers_fit
        else operation is None and operation_span == 1
    )
    if not numbers_fit or not handle_fits:
        raise HistoryError(f"event {position}: the range of a cancellation delivery is impossible", position=position)
    return Delivery(
        sequence=sequence,
        span=span,
        call_kind=kind,
        request_id=_request_id(position, event, payload, run_id),
        position=position,
        event_id=text(event.get("id")),
        operation_sequence=operation,
        operation_span=operation_span,
    )


def _request_id(position: int, event: Mapping[str, Any], payload: Mapping[str, Any], run_id: str) -> str | None:
    request_id = text(payload.get("workflow_command_id"))
    outer = event.get("workflow_command_id")
    if outer is not None and outer != request_id:
        raise HistoryError(f"event {position} names two cancellation requests", position=position)
    run = payload.get("workflow_run_id")
    if run_id and run is not None and run != run_id:
        raise HistoryError(f"event {position} is the cancellation of another run", position=position)
    return request_id
