"""What a worker tells its owner while it works: plain JSON-able dicts, delivered synchronously.

Nothing secret goes in: ids, names, durations, proofs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Emit = Callable[[dict[str, Any]], None]


def silent(event: dict[str, Any]) -> None:
    """Drop an event; used when nobody listens."""


@dataclass(slots=True)
class AttemptReport:
    """The `attempt_ended` event of one attempt while it is being written; abandoned until something better
    is known.
    """

    activity: str
    attempt: int
    attempt_id: str
    workflow_id: str
    run_id: str
    outcome: str = "abandoned"
    timeout_kind: str | None = None
    reason: str | None = None
    published: bool = False
    duration_ms: int = 0
    heartbeats: int = 0
    heartbeats_dropped: int = 0
    stop: dict[str, Any] | None = field(default=None)

    def as_event(self) -> dict[str, Any]:
        """Give the finished event."""
        return {
            "event": "attempt_ended",
            "activity": self.activity,
            "attempt": self.attempt,
            "attempt_id": self.attempt_id,
            "workflow_id": self.workflow_id,
            "run_id": self.run_id,
            "outcome": self.outcome,
            "timeout_kind": self.timeout_kind,
            "reason": self.reason,
            "published": self.published,
            "duration_ms": self.duration_ms,
            "heartbeats": self.heartbeats,
            "heartbeats_dropped": self.heartbeats_dropped,
            "stop": self.stop,
        }
