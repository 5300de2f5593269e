"""A local activity that ordinary workers run inside the workflow task: its attempts, as one command (commands.md §3).

Everything is bounded here, and what does not fit is dropped and counted: the newest heartbeats stay. Pure: instants
come in as arguments.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal

from proctor.core.attempt import MAX_MESSAGE_BYTES, MAX_TYPE_BYTES, bounded_text
from proctor.core.authority import Bound
from proctor.core.retry import RetryPolicy

MAX_HEARTBEATS: Final = 1000
"""Heartbeats of all attempts of one command together."""

MAX_HEARTBEAT_BYTES: Final = 512 * 1024
"""JSON bytes of all heartbeat details of one command together; a request body takes 2 MiB."""

_MAX_RETRIED_MESSAGE_BYTES: Final = 1024
_TIMED_OUT: Final = "LocalActivityTimedOut"

OutcomeName = Literal["completed", "failed", "timed_out", "cancelled"]


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How one attempt ended. `result` is an envelope; the other texts belong to any outcome but ``completed``."""

    outcome: OutcomeName
    duration_ms: int
    result: Mapping[str, Any] | None = None
    message: str = ""
    exception_type: str = ""
    non_retryable: bool = False
    timeout: Bound | None = None


def timed_out(bound: Bound, duration_ms: int) -> AttemptEnd:
    """Give the end of an attempt that was stopped at one of its deadlines."""
    return AttemptEnd("timed_out", duration_ms, None, f"the {bound} deadline passed", _TIMED_OUT, timeout=bound)


@dataclass(slots=True)
class _Attempt:
    end: AttemptEnd | None = None
    beats: list[dict[str, Any]] = field(default_factory=list)
    retry_reason: str | None = None
    backoff_seconds: int = 0


class Report:
    """The report of one call while its attempts run. `dropped` counts the heartbeats that were left out."""

    def __init__(self, descriptor: Mapping[str, Any], *, task_id: str) -> None:
        self._descriptor = descriptor
        self._task_id = task_id
        self.policy = RetryPolicy.from_wire(descriptor.get("retry_policy") or {})
        self.dropped = 0
        self._attempts: list[_Attempt] = []
        self._kept: deque[tuple[_Attempt, dict[str, Any], int]] = deque()
        self._bytes = 0

    def begin(self) -> tuple[int, str]:
        """Begin the next attempt; gives its number, from 1, and its id."""
        self._attempts.append(_Attempt())
        number = len(self._attempts)
        return number, self._attempt_id(number)

    def beat(self, elapsed: float, details: Mapping[str, Any]) -> None:
        """Note a heartbeat `elapsed` seconds after the start of the running attempt."""
        attempt = self._attempts[-1]
        beat: dict[str, Any] = {"elapsed_ms": max(0, int(elapsed * 1000))}
        size = 0
        if details:
            beat["details"] = dict(details)
            size = len(json.dumps(beat["details"]))
        if attempt.beats:
            beat["elapsed_ms"] = max(beat["elapsed_ms"], attempt.beats[-1]["elapsed_ms"])
        attempt.beats.append(beat)
        self._kept.append((attempt, beat, size))
        self._bytes += size
        while len(self._kept) > MAX_HEARTBEATS or self._bytes > MAX_HEARTBEAT_BYTES:
            owner, oldest, its_size = self._kept.popleft()
            owner.beats.remove(oldest)
            self._bytes -= its_size
            self.dropped += 1

    def end(self, end: AttemptEnd, *, elapsed_total: float) -> int | None:
        """End the running attempt; gives the seconds until the next one, or None when it was the last.

        `elapsed_total` are the seconds since the first attempt began: a retry that could only begin after the total
        time is skipped, and the failure that happened stands.
        """
        attempt = self._attempts[-1]
        attempt.end = end
        if end.outcome not in ("failed", "timed_out") or end.timeout is Bound.SCHEDULE_TO_CLOSE:
            return None
        delay = self.policy.delay_after(
            len(self._attempts), error_type=end.exception_type, non_retryable=end.non_retryable
        )
        total = self._descriptor.get("schedule_to_close_timeout")
        if delay is None or (total is not None and elapsed_total + delay >= total):
            return None
        attempt.retry_reason = "timeout" if end.outcome == "timed_out" else "failure"
        attempt.backoff_seconds = delay
        return delay

    @property
    def last(self) -> AttemptEnd:
        """How the last attempt, and with it the call, ended."""
        end = self._attempts[-1].end
        assert end is not None
        return end

    def command(self) -> dict[str, Any]:
        """Give the ``record_local_activity`` command of the ended call."""
        last = self.last
        wanted = ("activity_type", "arguments", "start_to_close_timeout", "schedule_to_close_timeout",
                  "heartbeat_timeout", "retry_policy")  # fmt: skip
        command: dict[str, Any] = {
            "type": "record_local_activity",
            "execution_mode": "local",
            **{key: self._descriptor[key] for key in wanted if key in self._descriptor},
            **_ending(last, self.policy, MAX_MESSAGE_BYTES),
            "attempts": [self._attempt(number, one) for number, one in enumerate(self._attempts, start=1)],
        }
        if last.outcome == "completed":
            command["result"] = last.result
        return command

    def _attempt_id(self, number: int) -> str:
        arguments = self._descriptor["arguments"]
        blob = str(arguments.get("blob", "")) if isinstance(arguments, Mapping) else str(arguments)
        parts = (self._task_id, str(self._descriptor["activity_type"]), str(number), blob)
        return sha256("\0".join(parts).encode()).hexdigest()

    def _attempt(self, number: int, attempt: _Attempt) -> dict[str, Any]:
        assert attempt.end is not None
        told: dict[str, Any] = {
            "attempt_number": number,
            "attempt_id": self._attempt_id(number),
            "duration_ms": attempt.end.duration_ms,
            "heartbeats": list(attempt.beats),
        }
        if attempt.retry_reason is None:
            return {**told, **_ending(attempt.end, self.policy, MAX_MESSAGE_BYTES)}
        ending = _ending(attempt.end, self.policy, _MAX_RETRIED_MESSAGE_BYTES)
        return {
            **told, **ending, "retry_reason": attempt.retry_reason, "backoff_seconds": attempt.backoff_seconds
        }  # fmt: skip


def _ending(end: AttemptEnd, policy: RetryPolicy, limit: int) -> dict[str, Any]:
    if end.outcome == "completed":
        return {"outcome": "completed"}
    name = bounded_text(end.exception_type.strip(), MAX_TYPE_BYTES) or "Exception"
    told: dict[str, Any] = {
        "outcome": end.outcome,
        "message": bounded_text(end.message.strip(), limit) or f"local activity failed with {name}",
        "exception_type": name,
        "non_retryable": end.non_retryable or name in tuple(policy.non_retryable_error_types),
    }
    if end.timeout is not None:
        told["timeout_kind"] = str(end.timeout)
    return told
