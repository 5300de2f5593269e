"""The words for why and how an attempt is stopped. Known to owner, supervisor process and child alike.

Kept apart from `outcome` so that the last two load next to nothing: every module they have costs each fork.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class StopReason(enum.StrEnum):
    """Why an attempt was stopped."""

    ATTEMPT_TIMEOUT = "attempt_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    CANCELLED = "cancelled"
    AUTHORITY_LOST = "authority_lost"
    MEMORY = "memory"
    SHUTDOWN = "shutdown"
    OWNER_DEATH = "owner_death"

    @property
    def is_deadline(self) -> bool:
        """Whether a result that arrives after such a stop began is too late by definition."""
        return self in _DEADLINES

    @property
    def is_immediate(self) -> bool:
        """Whether the child is killed at once, without notice: somebody else may own the work already."""
        return self in (StopReason.AUTHORITY_LOST, StopReason.OWNER_DEATH)


_DEADLINES = frozenset(
    {
        StopReason.ATTEMPT_TIMEOUT,
        StopReason.TOTAL_TIMEOUT,
        StopReason.HEARTBEAT_TIMEOUT,
        StopReason.AUTHORITY_LOST,
        StopReason.OWNER_DEATH,
    }
)


class Step(enum.StrEnum):
    """A rung of the stop ladder, in its order."""

    NOTICE = "notice"
    RAISE = "raise"
    KILL = "kill"


class LadderStep(NamedTuple):
    """A step that was taken. `at` is its CLOCK_MONOTONIC instant in seconds."""

    step: Step
    at: float
