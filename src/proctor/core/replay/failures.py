"""What workflow code can catch, built from the events that record it.

The classes are public in `proctor.workflow`; their ``__module__`` says so because class paths are written into
histories and must survive a move of this file. What becomes of an exception that leaves the code is `reporting`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from proctor.core.replay.recorded.steps import ChildStep, Step, activity_type_of, is_number, text
from proctor.errors import ProctorError

if TYPE_CHECKING:
    from proctor.core.replay.recorded.cancelling import CancellationContext

_EXCEPTION_KEYS: Final = (
    "type",
    "message",
    "code",
    "details",
    "details_payload_codec",
    "non_retryable",
)
_DIAGNOSTICS: Final = ("diagnostics", "runtime_diagnostics")


class ActivityFailed(ProctorError):
    """An activity ended without a result; also used for a timeout and a cancellation (replay.md §4).

    A timeout has ``failure_category == "timeout"``. `exception_type` is the class name the handler raised;
    `step_sequence` is the durable command sequence. What history does not hold is None.
    """

    __module__ = "proctor.workflow"

    def __init__(  # the official attribute set
        self,
        message: str,
        *,
        activity_type: str | None = None,
        step_sequence: int | None = None,
        activity_execution_id: str | None = None,
        activity_attempt_id: str | None = None,
        failure_id: str | None = None,
        failure_category: str | None = None,
        exception_type: str | None = None,
        exception_class: str | None = None,
        non_retryable: bool = False,
        code: Any = None,
        exception_payload: Mapping[str, Any] | None = None,
        activity: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.activity_type = activity_type
        self.step_sequence = step_sequence
        self.activity_execution_id = activity_execution_id
        self.activity_attempt_id = activity_attempt_id
        self.failure_id = failure_id
        self.failure_category = failure_category
        self.exception_type = exception_type
        self.exception_class = exception_class
        self.non_retryable = non_retryable
        self.code = code
        self.exception_payload = exception_payload
        self.activity = activity


class WorkflowCancelled(BaseException):
    """The run was asked to stop: raised at the call where the cancellation was delivered (replay.md §10).

    A BaseException, so that ``except Exception`` does not swallow it.
    """

    __module__ = "proctor.workflow"

    def __init__(
        self,
        message: str = "workflow cancellation was requested",
        *,
        request_id: str | None = None,
        context: CancellationContext | None = None,
    ) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.context = context


class ChildWorkflowFailed(ProctorError):
    """A child workflow ended without a result; `exception_class` is what the child recorded (replay.md §4)."""

    __module__ = "proctor.workflow"
    kind = "child_workflow"

    def __init__(
        self,
        message: str,
        exception_class: str | None = None,
        *,
        child_workflow_run_id: str | None = None,
        child_workflow_type: str | None = None,
    ) -> None:
        super().__init__(message)
        self.exception_class = exception_class
        self.failure_kind = self.failure_category = self.kind
        self.child_workflow_run_id = child_workflow_run_id
        self.child_workflow_type = child_workflow_type


class ChildWorkflowCancelled(ChildWorkflowFailed):
    """The child was cancelled, by itself or because its parent closed."""

    __module__ = "proctor.workflow"
    kind = "cancelled"


class ChildWorkflowTerminated(ChildWorkflowFailed):
    """The child was terminated."""

    __module__ = "proctor.workflow"
    kind = "terminated"


class NexusOperationFailed(ProctorError):
    """A service operation ended with a failure of the service; `body` is what the server recorded of it."""

    __module__ = "proctor.workflow"

    def __init__(
        self,
        message: str,
        *,
        service_call_id: str | None = None,
        endpoint_name: str | None = None,
        service_name: str | None = None,
        operation_name: str | None = None,
        status: str | None = None,
        outcome: str | None = None,
        reason: str | None = None,
        service_error_type: str | None = None,
        caller_observed_error_type: str | None = None,
        typed_error_message: str | None = None,
        body: object | None = None,
    ) -> None:
        super().__init__(message)
        self.service_call_id = service_call_id
        self.endpoint_name = endpoint_name
        self.service_name = service_name
        self.operation_name = operation_name
        self.status = status
        self.outcome = outcome
        self.reason = reason
        self.service_error_type = service_error_type
        self.caller_observed_error_type = caller_observed_error_type
        self.typed_error_message = typed_error_message
        self.body = body


class DurableOperationCancelled(ProctorError):
    """A member of a selection was cancelled by the code and then awaited."""

    __module__ = "proctor.workflow"

    def __init__(
        self,
        selection_group_id: str,
        member_key: int | str,
        member_index: int,
        operation_kind: str,
        operation_identity: str,
    ) -> None:
        super().__init__(f"the selected {operation_kind} {operation_identity} was cancelled")
        self.selection_group_id = selection_group_id
        self.member_key = member_key
        self.member_index = member_index
        self.operation_kind = operation_kind
        self.operation_identity = operation_identity


class SagaCompensationFailed(ProctorError):
    """A compensation failed after the failure it was to compensate; both are kept."""

    __module__ = "proctor.workflow"

    def __init__(
        self,
        initiating_failure: BaseException,
        compensation_failure: BaseException,
        *,
        compensation_activity_type: str,
        compensation_registration_order: int,
    ) -> None:
        super().__init__(
            f"compensation {compensation_activity_type!r} failed ({compensation_failure}) "
            f"after {type(initiating_failure).__name__}: {initiating_failure}"
        )
        self.initiating_failure = initiating_failure
        self.compensation_failure = compensation_failure
        self.compensation_activity_type = compensation_activity_type
        self.compensation_registration_order = compensation_registration_order


def activity_failure(payload: Mapping[str, Any]) -> ActivityFailed:
    """Build the exception of a recorded ActivityFailed, ActivityTimedOut or ActivityCancelled.

    What this one event does not say is not looked for in others: every worker must see the same.
    """
    exception = payload.get("exception")
    exception = exception if isinstance(exception, Mapping) else {}
    says = (payload.get("message"), exception.get("message"), payload.get("closed_reason"))
    message = next((words for words in says if isinstance(words, str) and words), "activity failed")
    kept = {key: exception[key] for key in _EXCEPTION_KEYS if key in exception}
    kept |= {key: dict(told) for key in _DIAGNOSTICS if isinstance(told := exception.get(key), Mapping)}
    snapshot, sequence = payload.get("activity"), payload.get("sequence")
    return ActivityFailed(
        message,
        activity_type=activity_type_of(payload),
        step_sequence=sequence if is_number(sequence) else None,
        activity_execution_id=text(payload.get("activity_execution_id")),
        activity_attempt_id=text(payload.get("activity_attempt_id")),
        failure_id=text(payload.get("failure_id")),
        failure_category=text(payload.get("failure_category")),
        exception_type=text(payload.get("exception_type")) or text(exception.get("type")),
        exception_class=text(payload.get("exception_class")) or text(exception.get("class")),
        non_retryable=payload.get("non_retryable") is True,
        code=payload.get("code"),
        exception_payload=kept or None,
        activity=snapshot if isinstance(snapshot, Mapping) else None,
    )


_CHILD_FAILURES: Final = {
    "ChildRunFailed": (ChildWorkflowFailed, "child workflow failed"),
    "ChildRunCancelled": (ChildWorkflowCancelled, "child workflow was cancelled"),
    "ChildRunTerminated": (ChildWorkflowTerminated, "child workflow was terminated"),
}


def child_failure(step: ChildStep) -> ChildWorkflowFailed:
    """Build the exception of a recorded ChildRunFailed, ChildRunCancelled or ChildRunTerminated."""
    payload = step.end
    exception = payload.get("exception")
    exception = exception if isinstance(exception, Mapping) else {}
    kind, default = _CHILD_FAILURES[step.end_type or "ChildRunFailed"]
    return kind(
        text(payload.get("message")) or text(exception.get("message")) or default,
        text(payload.get("exception_class"))
        or text(exception.get("class"))
        or text(payload.get("exception_type"))
        or text(exception.get("type")),
        child_workflow_run_id=text(payload.get("child_workflow_run_id")),
        child_workflow_type=text(payload.get("child_workflow_type")),
    )


def recorded_failure(step: Step) -> ActivityFailed | ChildWorkflowFailed | None:
    """Give the exception that the recorded end of an activity or child is for the code; None for a result."""
    end_type = step.end_type
    if end_type is None or end_type in ("ActivityCompleted", "ChildRunCompleted"):
        return None
    if isinstance(step, ChildStep):
        return child_failure(step)
    if end_type.startswith("Activity"):
        return activity_failure(step.end)
    return None
