"""Which attempt must end at which instant, and why. Pure; instants are CLOCK_MONOTONIC seconds.

Owns the order in which deadlines win when several have passed. The supervisor process asks it, so that the deadlines
hold even when the owner is blocked, frozen or gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from proctor_supervisor.outcome import StopReason


@dataclass(frozen=True, slots=True)
class Watch:
    """The deadlines of one attempt; None means no such deadline. `heartbeat_timeout` is in seconds."""

    started_at: float
    attempt_at: float | None = None
    total_at: float | None = None
    authority_at: float | None = None
    heartbeat_timeout: float | None = None

    def first_due(self, last_beat: float, now: float) -> tuple[float, StopReason] | None:
        """Give the instant of the earliest deadline and its reason, or None when there is none.

        `last_beat` is the instant of the newest heartbeat, or 0. It comes from the child, so it is not believed when
        it lies in the future. Of equal or passed deadlines the gravest wins: authority, total, heartbeat, attempt.
        """
        candidates: list[tuple[float, StopReason]] = []
        if self.authority_at is not None:
            candidates.append((self.authority_at, StopReason.AUTHORITY_LOST))
        if self.total_at is not None:
            candidates.append((self.total_at, StopReason.TOTAL_TIMEOUT))
        if self.heartbeat_timeout is not None:
            since = max(self.started_at, min(last_beat, now))
            candidates.append((since + self.heartbeat_timeout, StopReason.HEARTBEAT_TIMEOUT))
        if self.attempt_at is not None:
            candidates.append((self.attempt_at, StopReason.ATTEMPT_TIMEOUT))
        passed = [candidate for candidate in candidates if candidate[0] <= now]
        if passed:
            return passed[0]
        return min(candidates, key=lambda candidate: candidate[0], default=None)
