"""How an exception that leaves workflow code becomes the ``fail_workflow`` command (commands.md §2)."""

from __future__ import annotations

from typing import Any, Final

from proctor.core.replay.failures import ActivityFailed, SagaCompensationFailed

_MESSAGE_BYTES: Final = 62 * 1024  # what a failure report may hold (payloads.md §9)
_TRUNCATED: Final = " [truncated by the worker]"


def fail_workflow(exc: BaseException, *, prefix: str = "") -> dict[str, Any]:
    """Give the ``fail_workflow`` command for an exception that left the workflow code.

    `prefix` says where it was raised, when that is not the code of `run` itself.
    """
    message = message_of(exc, prefix=prefix)
    command: dict[str, Any] = {
        "type": "fail_workflow",
        "message": message,
        "exception_type": type(exc).__name__,
        "exception_class": f"{type(exc).__module__}.{type(exc).__qualname__}",
    }
    if isinstance(exc, SagaCompensationFailed):
        command["exception"] = _saga(exc, command)
        return command
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


def _saga(exc: SagaCompensationFailed, command: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": command["exception_type"],
        "class": command["exception_class"],
        "message": command["message"],
        "initiating_failure": _described(exc.initiating_failure),
        "compensation_failure": _described(exc.compensation_failure)
        | {
            "activity_type": exc.compensation_activity_type,
            "registration_order": exc.compensation_registration_order,
        },
    }


def _described(exc: BaseException) -> dict[str, Any]:
    return {
        "type": type(exc).__name__,
        "class": f"{type(exc).__module__}.{type(exc).__qualname__}",
        "message": message_of(exc),
    }


def _activity_origin(exc: BaseException) -> ActivityFailed | None:
    seen: set[int] = set()
    cause: BaseException | None = exc
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, ActivityFailed):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__
    return None


def message_of(exc: BaseException, *, prefix: str = "") -> str:
    """Give a text for an exception: never empty, valid Unicode, and within the bound of a failure report."""
    try:
        text = str(exc).strip()
    except Exception:  # noqa: BLE001  # a broken __str__ of user code must not hide the failure itself
        text = ""
    # A lone surrogate has no place in JSON, and the report must get through.
    encoded = (prefix + (text or type(exc).__name__)).encode("utf-8", "backslashreplace")
    if len(encoded) > _MESSAGE_BYTES:
        encoded = encoded[: _MESSAGE_BYTES - len(_TRUNCATED)]
        return encoded.decode("utf-8", "ignore") + _TRUNCATED
    return encoded.decode("utf-8")
