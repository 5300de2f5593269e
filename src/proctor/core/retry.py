"""Retry policies as values: what is allowed, the wire form, and the delay before the next attempt.

`RetryPolicy` is the wire form itself with the strict rules of local activities (prepared-local.md §2.3, commands.md
§3.3); `ActivityRetryPolicy` computes that form from an exponential rule (replay.md §7). Whether the instant of a retry
has come is the server's business: no clock is read here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_LOCAL_ATTEMPTS: Final = 100
_WIRE_KEYS: Final = frozenset({"max_attempts", "backoff_seconds", "non_retryable_error_types"})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often an activity is tried, and how many whole seconds lie between the attempts.

    `max_attempts` (1..100, the first attempt included, default 1), `backoff_seconds` (at most ``max_attempts - 1``
    integers >= 0; a missing entry is no delay) and `non_retryable_error_types` (Python class names, trimmed and without
    repetition) are checked at once: TypeError for a wrong type, ValueError for a wrong value.
    """

    max_attempts: int = 1
    backoff_seconds: Sequence[int] = ()
    non_retryable_error_types: Sequence[str] = ()

    def __post_init__(self) -> None:
        attempts = _whole("max_attempts", self.max_attempts, minimum=1)
        if attempts > MAX_LOCAL_ATTEMPTS:
            raise ValueError(f"max_attempts is at most {MAX_LOCAL_ATTEMPTS}, not {attempts}")
        gaps = tuple(
            _whole("backoff_seconds", gap, minimum=0) for gap in _items("backoff_seconds", self.backoff_seconds)
        )
        if len(gaps) > attempts - 1:
            raise ValueError(
                f"backoff_seconds has {len(gaps)} entries, but {attempts} attempts have only {attempts - 1} gaps"
            )
        names = _items("non_retryable_error_types", self.non_retryable_error_types)
        object.__setattr__(self, "backoff_seconds", gaps)
        object.__setattr__(self, "non_retryable_error_types", tuple(dict.fromkeys(map(_class_name, names))))

    @classmethod
    def from_wire(cls, policy: Mapping[str, Any]) -> RetryPolicy:
        """Read the wire form; every key is optional, an unknown one is a ValueError."""
        unknown = sorted(str(key) for key in policy if key not in _WIRE_KEYS)
        if unknown:
            raise ValueError(f"a retry policy has no {', '.join(unknown)}; it has {', '.join(sorted(_WIRE_KEYS))}")
        return cls(**policy)

    def to_wire(self) -> dict[str, Any]:
        """Give the wire form, always with all three keys."""
        return {
            "max_attempts": self.max_attempts,
            "backoff_seconds": list(self.backoff_seconds),
            "non_retryable_error_types": list(self.non_retryable_error_types),
        }

    def delay_after(self, attempt: int, *, error_type: str | None = None, non_retryable: bool = False) -> int | None:
        """Give the seconds to wait after failed attempt number `attempt` (from 1), or None when it was the last.

        `error_type` is the Python class name of the failure, `non_retryable` what the failure says of itself.
        """
        if non_retryable or attempt >= self.max_attempts or error_type in tuple(self.non_retryable_error_types):
            return None
        gaps = tuple(self.backoff_seconds)
        return gaps[attempt - 1] if attempt <= len(gaps) else 0


@dataclass(frozen=True, slots=True)
class ActivityRetryPolicy:
    """An exponential retry rule with the official name and defaults (replay.md §7).

    Gap i is ``initial_interval_seconds * backoff_coefficient ** i``, capped by `maximum_interval_seconds` and rounded
    up to whole seconds; explicit `backoff_seconds` replace the rule. Values are checked by `to_wire`, not before.
    """

    max_attempts: int = 3
    initial_interval_seconds: float = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval_seconds: float | None = None
    non_retryable_error_types: Sequence[str] = ()
    backoff_seconds: Sequence[float] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Give ``{max_attempts, backoff_seconds, non_retryable_error_types}``; ValueError for a value out of range."""
        _whole("max_attempts", self.max_attempts, minimum=1)
        limits = (
            ("initial_interval_seconds", self.initial_interval_seconds, 0),
            ("backoff_coefficient", self.backoff_coefficient, 1),
            ("maximum_interval_seconds", self.maximum_interval_seconds or 0, 0),
        )
        for name, value, minimum in limits:
            if not (math.isfinite(value) and value >= minimum):
                raise ValueError(f"{name} is at least {minimum}, not {value!r}")
        return {
            "max_attempts": self.max_attempts,
            "backoff_seconds": self._gaps(),
            "non_retryable_error_types": list(self.non_retryable_error_types),
        }

    def _gaps(self) -> list[int]:
        if self.backoff_seconds is not None:
            return [max(0, int(gap)) for gap in self.backoff_seconds]
        cap = math.inf if self.maximum_interval_seconds is None else self.maximum_interval_seconds
        gaps = [min(self._interval(index), cap) for index in range(self.max_attempts - 1)]
        if gaps and math.isinf(max(gaps)):
            raise ValueError("the delays grow without bound: give maximum_interval_seconds or fewer attempts")
        return [math.ceil(gap) for gap in gaps]

    def _interval(self, index: int) -> float:
        try:
            return self.initial_interval_seconds * self.backoff_coefficient**index
        except OverflowError:
            return math.inf


def _whole(name: str, value: object, *, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} takes whole numbers, not {value!r}")
    if value < minimum:
        raise ValueError(f"{name} is at least {minimum}, not {value}")
    return value


def _items(name: str, value: object) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} takes a list, not {type(value).__qualname__}")
    return value


def _class_name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"non_retryable_error_types takes class names, not {value!r}")
    if not value.strip():
        raise ValueError("non_retryable_error_types holds a blank name")
    return value.strip()
