"""Cancellation as the server states it: the context, the task's observation, the delivery
(prepared-local.md §4, worker.md §2.7).

Only context v1 is read; v2 belongs to cancellation scopes, which are not authored here (cancellation.md §11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from proctor.core.instants import parse_instant
from proctor.core.wire.fields import Fields, shown

_CONTEXT_SCHEMA = "durable-workflow.cancellation-context/v1"
_SCOPE_KEYS = ("scope_origin", "scope_authority_deadline_at")
_MAX_LINEAGE = 1000


@dataclass(frozen=True, slots=True)
class CancellationContext:
    """A validated cancellation context; `body` is what history must repeat word for word."""

    request_id: str
    cleanup_deadline_at: datetime
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CancellationObservation:
    """What a task or a claim renewal shows of a pending cancellation request."""

    request_id: str
    requested_at: datetime
    cleanup_deadline_at: datetime
    delivered: bool
    refresh_token: str

    def same_request(self, other: CancellationObservation) -> bool:
        """Tell whether both show one and the same request; its id and its instants never change."""
        return (self.request_id, self.requested_at, self.cleanup_deadline_at) == (
            other.request_id,
            other.requested_at,
            other.cleanup_deadline_at,
        )


def read_context(body: object, *, run_id: str) -> CancellationContext:
    """Validate the `cancellation_request` of a stop order (prepared-local.md §3.15 and §4)."""
    fields = Fields(body, what="control (cancellation_request)", section="prepared-local §4")
    fields.exactly("schema", _CONTEXT_SCHEMA, "schema")
    if any(key in fields.body for key in _SCOPE_KEYS):
        fields.breach("schema", "is a v1 context with scope fields")
    request_id = fields.text("request_id", "identity")
    root = {
        "request_id": fields.text("root_request_id", "identity"),
        "workflow_instance_id": fields.text("root_workflow_instance_id", "identity"),
        "workflow_run_id": fields.text("root_workflow_run_id", "identity"),
    }
    _requester(fields)
    lineage = _lineage(fields)
    if {key: lineage[0][key] for key in root} != root:
        fields.breach("lineage", "does not start at its root request")
    if lineage[-1]["request_id"] != request_id or lineage[-1]["workflow_run_id"] != run_id:
        fields.breach("lineage", "does not end at this run's request")
    parent = lineage[-2]["request_id"] if len(lineage) > 1 else None
    fields.exactly("parent_request_id", parent, "lineage")
    requested_at = fields.instant("requested_at", "deadline")
    deadline = fields.instant("cleanup_deadline_at", "deadline")
    if deadline <= requested_at:
        fields.breach("deadline", "has a cleanup deadline that is not after the request")
    return CancellationContext(request_id, deadline, fields.body)


def _requester(fields: Fields) -> None:
    requester = fields.present("requester", "requester")
    if (
        not isinstance(requester, Mapping)
        or not requester
        or not set(requester) <= {"type", "id", "label"}
        or not all(isinstance(value, str) and value for value in requester.values())
    ):
        fields.breach("requester", f"has requester {shown(requester)}")


def _lineage(fields: Fields) -> list[Mapping[str, str]]:
    lineage = fields.present("lineage", "lineage")
    if not isinstance(lineage, list) or not 0 < len(lineage) <= _MAX_LINEAGE:
        fields.breach("lineage", f"has lineage {shown(lineage)}")
    for entry in lineage:
        if not isinstance(entry, Mapping) or not all(
            isinstance(entry.get(key), str) and entry[key]
            for key in ("request_id", "workflow_instance_id", "workflow_run_id")
        ):
            fields.breach("lineage", f"has a lineage entry {shown(entry)}")
    for key in ("request_id", "workflow_run_id"):
        if len({entry[key] for entry in lineage}) != len(lineage):
            fields.breach("lineage", f"repeats a {key} in its lineage")
    return lineage


def read_observation(body: object) -> CancellationObservation:
    """Validate the `cancellation_request` of a polled task or a claim renewal (worker.md §2.7)."""
    fields = Fields(body, what="task (cancellation_request)", section="worker §2.7")
    requested_at = fields.instant("requested_at", "observation")
    deadline = fields.instant("cleanup_deadline_at", "observation")
    if deadline <= requested_at:
        fields.breach("observation", "has a cleanup deadline that is not after the request")
    delivered_at = None if fields.body.get("delivered_at") is None else fields.instant("delivered_at", "observation")
    return CancellationObservation(
        request_id=fields.text("request_id", "observation"),
        requested_at=requested_at,
        cleanup_deadline_at=deadline,
        delivered=delivered_at is not None,
        refresh_token=fields.text("history_refresh_page_token", "observation"),
    )


@dataclass(frozen=True, slots=True)
class DeliveryBoundary:
    """The authored call at which a cancellation is delivered; the operation belongs to a ``selection_handle`` only."""

    sequence: int
    call_kind: str = "local_activity"
    sequence_span: int = 1
    operation_sequence: int | None = None
    operation_sequence_span: int | None = None

    def operation(self) -> dict[str, int]:
        """Give the operation fields of the request; none without an operation."""
        if self.operation_sequence is None:
            return {}
        return {
            "operation_sequence": self.operation_sequence,
            "operation_sequence_span": self.operation_sequence_span or 1,
        }


_WAITS = {
    "activity": ("cancellation_waiting_for_activity",),
    "local_activity": ("cancellation_waiting_for_activity",),
    "child": ("cancellation_waiting_for_child",),
    "parallel": ("cancellation_waiting_for_activity", "cancellation_waiting_for_child"),
    "selection_handle": ("cancellation_waiting_for_activity", "cancellation_waiting_for_child"),
}
"""What a delivery may wait for, by the kind of its call; all other kinds wait for nothing (cancellation.md §4)."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A validated delivery answer; `claim_released` means the server waits first, for what `reason` says."""

    delivered: bool
    claim_released: bool
    reason: str | None = None


def read_delivery(body: object, *, task_id: str, run_id: str, request_id: str, boundary: DeliveryBoundary) -> Delivery:
    """Validate a deliver-cancellation answer (worker.md §2.7)."""
    fields = Fields(body, what="deliver-cancellation", section="worker §2.7")
    fields.exactly("task_id", task_id, "delivery")
    fields.exactly("workflow_run_id", run_id, "delivery")
    if not fields.boolean("delivered", "delivery"):
        reason = fields.text("reason", "pending")
        if reason not in _WAITS.get(boundary.call_kind, ()):
            fields.breach("pending", f"makes a call of kind {boundary.call_kind} wait for {shown(reason)}")
        fields.exactly("claim_released", True, "pending")
        for key in ("sequence", "call_kind", "sequence_span", "operation_sequence", "operation_sequence_span"):
            if fields.body.get(key) is not None:
                fields.breach("pending", f"has {key} although nothing was delivered")
        return Delivery(delivered=False, claim_released=True, reason=reason)
    fields.exactly("reason", None, "delivery")
    fields.exactly("request_id", request_id, "delivery")
    fields.exactly("sequence", boundary.sequence, "delivery")
    fields.exactly("call_kind", boundary.call_kind, "delivery")
    fields.exactly("sequence_span", boundary.sequence_span, "delivery")
    operation, span = (fields.body.get(key) for key in ("operation_sequence", "operation_sequence_span"))
    if operation != boundary.operation_sequence:
        fields.breach("delivery", f"has operation_sequence {shown(operation)}")
    # Without an operation its span is the default 1, or absent in older answers.
    allowed = (None, 1) if boundary.operation_sequence is None else (boundary.operation_sequence_span or 1,)
    if isinstance(span, bool) or span not in allowed:
        fields.breach("delivery", f"has operation_sequence_span {shown(span)}")
    return Delivery(delivered=True, claim_released=False)


def check_request_event(
    history: Sequence[Mapping[str, Any]],
    *,
    observation: CancellationObservation,
    context: CancellationContext | None,
) -> None:
    """Require that history holds the request we observed, with the context of the stop order
    (prepared-local.md §4).

    A history without contexts is legal (cancellation.md §5); then only the ids and the deadline are compared.
    """
    fields = Fields({}, what="history", section="prepared-local §4")
    payload = _only_payload(history, "CooperativeCancellationRequested", fields)
    if payload.get("workflow_command_id") != observation.request_id:
        fields.breach("history", "records another cancellation request than the one observed")
    try:
        deadline = parse_instant(payload.get("cleanup_deadline_at"))
    except ValueError:
        fields.breach("history", "records no cleanup deadline")
    if deadline != observation.cleanup_deadline_at:
        fields.breach("history", "records another cleanup deadline than the one observed")
    recorded = payload.get("cancellation")
    if context is not None and recorded is not None and recorded != context.body:
        fields.breach("history", "records another cancellation context than the stop order carried")


def check_delivery_event(history: Sequence[Mapping[str, Any]], *, request_id: str, boundary: DeliveryBoundary) -> None:
    """Require that refreshed history holds the delivery that the server just confirmed (cancellation.md
    §4).
    """
    fields = Fields({}, what="history", section="worker §2.7")
    payload = _only_payload(history, "CooperativeCancellationDelivered", fields)
    span = payload.get("sequence_span", 1)
    found = (payload.get("workflow_command_id"), payload.get("sequence"), payload.get("call_kind"), span)
    if found != (request_id, boundary.sequence, boundary.call_kind, boundary.sequence_span):
        fields.breach("delivery", f"records a delivery at {shown(found)}")


def _only_payload(history: Sequence[Mapping[str, Any]], kind: str, fields: Fields) -> Mapping[str, Any]:
    found = [event for event in history if (event.get("event_type") or event.get("type")) == kind]
    payload = found[0].get("payload") if len(found) == 1 else None
    if not isinstance(payload, Mapping):
        fields.breach("history", f"holds {len(found)} {kind} events with a payload instead of one")
    return payload
