"""What a worker tells its owner while it works: plain JSON-able dicts, delivered synchronously.

Nothing secret goes in: ids, names, durations, proofs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proctor.core.attempt import ChildEnd, WasStopped

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

    def take_in(self, end: ChildEnd, *, dropped: int = 0) -> None:
        """Note how the child ended, and how many more heartbeats were dropped on this side of it."""
        self.duration_ms, self.heartbeats = end.facts.duration_ms, end.facts.heartbeats
        self.heartbeats_dropped = end.facts.heartbeats_dropped + dropped
        if isinstance(end, WasStopped):
            self.stop, self.reason = dict(end.proof), str(end.cause)

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
