"""Service operations (Nexus) of workflow code: the call, its idempotency key, its result and its failure.

The names are the official ones. A service operation is one durable step and never a member of a group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from proctor.core import codec
from proctor.core.replay.authoring.commands import Command
from proctor.core.replay.failures import NexusOperationFailed
from proctor.core.replay.recorded.steps import Step, text

_CALLER: Final = "sdk-python"
_FAILED_STATUSES: Final = frozenset({"failed", "cancelled", "canceled", "timed_out", "timeout"})
_FAILED_OUTCOMES: Final = _FAILED_STATUSES | {
    "handler_failed",
    "dispatch_failed",
    "handler_unavailable",
    "worker_unavailable",
}
_ERRORS: Final = ("service_error_type", "caller_observed_error_type", "typed_error_message")
_SENT: Final = (
    "caller_namespace",
    "wait_for",
    "wait_timeout_seconds",
    "target_workflow_instance_id",
    "target_workflow_run_id",
    "connection",
    "queue",
    "business_key",
    "labels",
    "memo",
    "search_attributes",
    "duplicate_start_policy",
)


@dataclass(frozen=True, slots=True, eq=False)
class ServiceOperation(Command["NexusOperationResult"]):
    """Call an operation of another service; `options` are the optional wire fields by name."""

    endpoint_name: str
    service_name: str
    operation_name: str
    arguments: list[Any]
    idempotency_key: str
    mode: str | None
    wait_for: str | None
    target_namespace: str | None
    metadata: Mapping[str, Any]
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return f"service operation {self.endpoint_name}/{self.service_name}/{self.operation_name}"

    def to_wire(self, request_payload: str) -> dict[str, Any]:
        """Give the ``start_service_operation`` command."""
        wire: dict[str, Any] = {
            "type": "start_service_operation",
            "endpoint_name": self.endpoint_name,
            "service_name": self.service_name,
            "operation_name": self.operation_name,
            "payload_codec": codec.CODEC,
            "request_payload": request_payload,
            "metadata": {"caller_sdk_language": _CALLER, **self.metadata},
            "idempotency_key": self.idempotency_key,
        }
        optional = {"namespace": self.target_namespace, "mode_override": self.mode, "wait_for": self.wait_for}
        optional |= {key: self.options.get(key) for key in _SENT if key != "wait_for"}
        return wire | {key: value for key, value in optional.items() if value is not None}


@dataclass(frozen=True, slots=True)
class NexusOperationResult:
    """What a service operation gave back; `body` is everything the server recorded of it."""

    service_call_id: str
    endpoint_name: str
    service_name: str
    operation_name: str
    accepted: bool = True
    status: str | None = None
    outcome: str | None = None
    reason: str | None = None
    message: str | None = None
    service_error_type: str | None = None
    caller_observed_error_type: str | None = None
    typed_error_message: str | None = None
    result: Any = None
    target_namespace: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_failure(self) -> bool:
        """Tell whether the operation ended without the result that was asked for."""
        outcome = (self.outcome or "").lower()
        return (
            not self.accepted
            or (self.status or "").lower() in _FAILED_STATUSES
            or outcome in _FAILED_OUTCOMES
            or outcome.startswith("rejected")
            or any(getattr(self, name) is not None for name in _ERRORS)
        )

    def to_failure(self) -> NexusOperationFailed:
        """Give the exception of a failed operation."""
        says = (self.typed_error_message, self.message, self.reason, self.outcome, self.status)
        return NexusOperationFailed(
            next((word for word in says if word), "the service operation failed"),
            service_call_id=self.service_call_id or None,
            endpoint_name=self.endpoint_name,
            service_name=self.service_name,
            operation_name=self.operation_name,
            status=self.status,
            outcome=self.outcome,
            reason=self.reason,
            service_error_type=self.service_error_type,
            caller_observed_error_type=self.caller_observed_error_type,
            typed_error_message=self.typed_error_message,
            body=self.body,
        )


def result_of(command: ServiceOperation, step: Step) -> NexusOperationResult:
    """Read the recorded answer of a service operation; PayloadError when its payload is unreadable."""
    payload = step.end
    snapshot = payload.get("service_call")
    body: dict[str, Any] = dict(snapshot) if isinstance(snapshot, Mapping) else dict(payload)
    response = payload.get("response_payload")
    response = body.get("result_envelope") if response is None else response
    result = body.get("result")
    if response is not None:
        result = codec.decode_value(response, payload.get("payload_codec", codec.CODEC))
    return NexusOperationResult(
        service_call_id=text(body.get("service_call_id")) or text(body.get("id")) or "",
        endpoint_name=command.endpoint_name,
        service_name=command.service_name,
        operation_name=text(body.get("operation_name")) or command.operation_name,
        accepted=body.get("accepted", True) is not False,
        status=text(body.get("status")),
        outcome=text(body.get("outcome")),
        reason=text(body.get("reason")) or text(body.get("outcome_reason")),
        message=text(body.get("message")) or text(payload.get("message")) or text(body.get("failure_message")),
        service_error_type=text(body.get("service_error_type")),
        caller_observed_error_type=text(body.get("caller_observed_error_type")) or text(payload.get("exception_type")),
        typed_error_message=text(body.get("typed_error_message")),
        result=result,
        target_namespace=command.target_namespace,
        body=body,
    )


def idempotency_key(
    *,
    workflow_id: str,
    run_id: str,
    ordinal: int,
    names: tuple[str, str, str],
    arguments: list[Any],
    target: str | None,
) -> str:
    """Derive the key that makes one authored call the same call in every replay and on every worker."""
    endpoint, service, operation = names
    source: dict[str, Any] = {
        "schema": "durable-workflow.v2.sdk-python.nexus-idempotency-key",
        "workflow_id": workflow_id,
        "run_id": run_id,
        "ordinal": ordinal,
        "endpoint_name": endpoint,
        "service_name": service,
        "operation_name": operation,
        "arguments": arguments,
    }
    if target is not None:
        source["target_namespace"] = target
    canonical = json.dumps(source, sort_keys=True, separators=(",", ":"), default=str)
    return f"dw-py-nexus-{sha256(canonical.encode()).hexdigest()}"
