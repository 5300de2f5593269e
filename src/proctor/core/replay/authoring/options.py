"""Checking what workflow code hands to a ctx call: names, whole seconds, retry policies, policies by name.

Every refusal is a TypeError or ValueError that names the option, raised at the call itself, where a traceback shows
the line to change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

from proctor.core.retry import ActivityRetryPolicy, RetryPolicy

_P = TypeVar("_P", bound=StrEnum)


class CancellationPolicy(StrEnum):
    """What a cancelled run does about a running activity or child (cancellation.md §8)."""

    TRY_CANCEL = "try_cancel"
    WAIT_CANCELLATION_COMPLETED = "wait_cancellation_completed"
    ABANDON = "abandon"


class ParentClosePolicy(StrEnum):
    """What becomes of an open child when its parent closes (cancellation.md §8)."""

    ABANDON = "abandon"
    REQUEST_CANCEL = "request_cancel"
    REQUEST_CANCELLATION = "request_cancellation"
    TERMINATE = "terminate"


def name(what: str, value: object) -> str:
    """Give a trimmed name."""
    if not isinstance(value, str):
        raise TypeError(f"the {what} is a text, not {type(value).__qualname__}")
    if not value.strip():
        raise ValueError(f"the {what} is blank")
    return value.strip()


def optional_name(what: str, value: object) -> str | None:
    """Give a trimmed name, or None when there is none."""
    return None if value is None else name(what, value)


def arguments(what: str, values: object) -> list[Any]:
    """Take the positional arguments of a call as they are now."""
    if values is None:
        return []
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise TypeError(f"{what} arguments are a list, not {type(values).__qualname__}")
    return list(values)


def seconds(option: str, value: object) -> int | None:
    """Give whole seconds of at least one, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{option} is a whole number of seconds, not {value!r}")
    if value < 1:
        raise ValueError(f"{option} is at least 1 second, not {value}")
    return value


def rounded_seconds(option: str, value: object) -> int:
    """Round a duration up to whole seconds; what is below zero counts as zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{option} is a number of seconds, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{option} is a finite number of seconds, not {value!r}")
    return max(0, math.ceil(value))


def at_most(option: str, value: int | None, limit_name: str, limit: int | None) -> None:
    """Require the order of two timeouts."""
    if value is not None and limit is not None and value > limit:
        raise ValueError(f"{option} is at most {limit_name}")


def policy(kind: type[_P], value: object) -> _P | None:
    """Read a policy by name; one of another enum is not taken for it."""
    if value is None:
        return None
    if not isinstance(value, str) or (isinstance(value, StrEnum) and not isinstance(value, kind)):
        raise ValueError(  # noqa: TRY004  # any wrong policy is a wrong value
            f"{value!r} is no {kind.__name__}; there are {', '.join(kind)}"
        )
    return kind(value)


def local_retry(value: RetryPolicy | Mapping[str, Any] | None) -> RetryPolicy | None:
    """Read the retry policy of a local activity, which has no exponential form."""
    if isinstance(value, Mapping):
        return RetryPolicy.from_wire(value)
    if value is not None and not isinstance(value, RetryPolicy):
        raise TypeError(
            f"the retry_policy of a local activity is a RetryPolicy or a mapping, not {type(value).__qualname__}"
        )
    return value


def retry(value: ActivityRetryPolicy | RetryPolicy | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Give the wire form of a retry policy; a mapping is sent as it is (replay.md §7)."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (ActivityRetryPolicy, RetryPolicy)):
        return value.to_wire()
    raise TypeError(f"a retry_policy is an ActivityRetryPolicy or a mapping, not {type(value).__qualname__}")


_SESSION: Final[dict[str, Any]] = {
    "session_id": None,
    "queue": None,
    "requirements": [],
    "lease_seconds": 120,
    "ttl_seconds": 1800,
    "max_concurrent_activities": 1,
    "create_if_missing": True,
    "allow_reacquire_after_failure": True,
}
_SERVICE: Final = frozenset(
    {
        "caller_namespace",
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
        "payload_codec",
    }
)


def session(value: object) -> dict[str, Any] | None:
    """Give the wire form of a worker session: a mapping, or an object with `to_wire` (sessions.md)."""
    if value is None:
        return None
    to_wire = getattr(value, "to_wire", None)
    given = to_wire() if callable(to_wire) else value
    if not isinstance(given, Mapping):
        raise TypeError(f"worker_session is a WorkerSessionOptions or a mapping, not {type(value).__qualname__}")
    unknown = sorted(str(key) for key in given if key not in _SESSION)
    if unknown:
        raise ValueError(f"a worker session has no {', '.join(unknown)}; it has {', '.join(_SESSION)}")
    wire = {key: given.get(key, default) for key, default in _SESSION.items()}
    name("session_id of a worker session", wire["session_id"])
    for key in ("lease_seconds", "ttl_seconds", "max_concurrent_activities"):
        seconds(key, wire[key])
    return {key: value for key, value in wire.items() if value is not None}


def service(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the optional fields of a service operation by name."""
    unknown = sorted(set(given) - _SERVICE)
    if unknown:
        raise TypeError(f"a service operation has no option {', '.join(unknown)}")
    return {key: value for key, value in given.items() if value is not None}


def versions(low: object, high: object) -> None:
    """Check the range of a version request (replay.md §5)."""
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, int):
            raise TypeError(f"versions are whole numbers, not {bound!r}")
    if low > high:  # type: ignore[operator]  # both are int here
        raise ValueError(f"min_supported {low} is above max_supported {high}")
