"""What workflow code can catch, and how an exception that leaves it becomes the ``fail_workflow`` command.

The classes are public as `proctor.workflow.ActivityFailed` and `proctor.workflow.WorkflowCancelled`; their
``__module__`` says so because class paths are written into histories and must survive a move of this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proctor.errors import ProctorError

_EXCEPTION_KEYS: Final = (
    "type",
    "message",
    "code",
    "details",
    "details_payload_codec",
    "non_retryable",
    "diagnostics",
    "runtime_diagnostics",
)
_MESSAGE_BYTES: Final = 62 * 1024  # what a failure report may hold (payloads.md §9)
_TRUNCATED: Final = " [truncated by the worker]"
_DEFAULT_CATEGORIES: Final = {"ActivityTimedOut": "timeout", "ActivityCancelled": "cancelled"}


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

    def __init__(self, message: str = "workflow cancelled", *, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


def activity_failure(
    event_type: str, payload: Mapping[str, Any], *, activity_type: str | None, sequence: int | None
) -> ActivityFailed:
    """Build the exception of a recorded ActivityFailed, ActivityTimedOut or ActivityCancelled."""
    exception = payload.get("exception")
    exception = exception if isinstance(exception, Mapping) else {}
    candidates = (payload.get("message"), exception.get("message"), payload.get("closed_reason"))
    message = next((text for text in candidates if isinstance(text, str) and text), "activity failed")
    kept = {key: exception[key] for key in _EXCEPTION_KEYS if key in exception}
    snapshot = payload.get("activity")
    return ActivityFailed(
        message,
        activity_type=activity_type,
        step_sequence=sequence,
        activity_execution_id=_text(payload.get("activity_execution_id")),
        activity_attempt_id=_text(payload.get("activity_attempt_id")),
        failure_id=_text(payload.get("failure_id")),
        failure_category=_text(payload.get("failure_category")) or _DEFAULT_CATEGORIES.get(event_type),
        exception_type=_text(payload.get("exception_type")) or _text(exception.get("type")),
        exception_class=_text(payload.get("exception_class")) or _text(exception.get("class")),
        non_retryable=payload.get("non_retryable") is True or exception.get("non_retryable") is True,
        code=payload.get("code", exception.get("code")),
        exception_payload=kept or None,
        activity=snapshot if isinstance(snapshot, Mapping) else None,
    )


def fail_workflow(exc: BaseException) -> dict[str, Any]:
    """Give the ``fail_workflow`` command for an exception that left the workflow code (commands.md §2)."""
    message = _message(exc)
    command: dict[str, Any] = {
        "type": "fail_workflow",
        "message": message,
        "exception_type": type(exc).__name__,
        "exception_class": f"{type(exc).__module__}.{type(exc).__qualname__}",
    }
    origin = _activity_origin(exc)
    if origin is None:
        if getattr(exc, "non_retryable", None) is True:
            command["non_retryable"] = True
        return command
    command["exception_type"] = origin.exception_type or type(origin).__name__
    command["exception_class"] = origin.exception_class or f"{type(origin).__module__}.{type(origin).__qualname__}"
    details = {"type": command["exception_type"], "class": command["exception_class"], "message": message}
    if origin.activity_type is not None:
        details["activity_type"] = origin.activity_type
    if origin.activity_attempt_id is not None:
        details["activity_attempt_id"] = origin.activity_attempt_id
    command["exception"] = details
    if origin is exc and origin.step_sequence and origin.activity_execution_id:
        command["failed_step_sequence"] = origin.step_sequence
        command["failed_activity_execution_id"] = origin.activity_execution_id
    return command


def _activity_origin(exc: BaseException) -> ActivityFailed | None:
    seen: set[int] = set()
    cause: BaseException | None = exc
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, ActivityFailed):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__
    return None


def _message(exc: BaseException) -> str:
    try:
        text = str(exc).strip()
    except Exception:  # noqa: BLE001  # a broken __str__ of user code must not hide the failure itself
        text = ""
    # A lone surrogate has no place in JSON, and the report must get through.
    encoded = (text or type(exc).__name__).encode("utf-8", "backslashreplace")
    if len(encoded) > _MESSAGE_BYTES:
        encoded = encoded[: _MESSAGE_BYTES - len(_TRUNCATED)]
        return encoded.decode("utf-8", "ignore") + _TRUNCATED
    return encoded.decode("utf-8")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
