"""Which attempt must end at which instant, and why. Pure; instants are CLOCK_MONOTONIC seconds.

Owns the order in which deadlines win when several have passed. The supervisor process asks it, so that the deadlines
hold even when the owner is blocked, frozen or gone.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from proctor_supervisor.reasons import StopReason


class Watch(NamedTuple):
    """The deadlines of one attempt; infinity means no such deadline. `heartbeat_timeout` is in seconds."""

    started_at: float
    attempt_at: float = inf
    total_at: float = inf
    authority_at: float = inf
    heartbeat_timeout: float = inf

    def first_due(self, last_beat: float, now: float) -> tuple[float, StopReason] | None:
        """Give the instant of the earliest deadline and its reason, or None when there is none.

        `last_beat` is the instant of the newest heartbeat, or 0. It comes from the child, so it is not believed when
        it lies in the future. Of equal or passed deadlines the gravest wins: authority, total, heartbeat, attempt.
        """
        silent_at = inf
        if self.heartbeat_timeout != inf:
            silent_at = max(self.started_at, min(last_beat, now)) + self.heartbeat_timeout
        candidates = (
            (self.authority_at, StopReason.AUTHORITY_LOST),
            (self.total_at, StopReason.TOTAL_TIMEOUT),
            (silent_at, StopReason.HEARTBEAT_TIMEOUT),
            (self.attempt_at, StopReason.ATTEMPT_TIMEOUT),
        )
        for candidate in candidates:
            if candidate[0] <= now:
                return candidate
        earliest = min(candidates, key=lambda candidate: candidate[0])
        return None if earliest[0] == inf else earliest
