"""What running an attempt needs from a supervisor, in the words of the core: one child, and its reins. Pure.

`proctor.supervising` implements it over `proctor_supervisor`; tests put a scripted one in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from proctor.core.attempt import ChildEnd, StopCause


@dataclass(frozen=True, slots=True)
class Limits:
    """The instants (trio clock) at which the supervisor stops the child by itself; None when there is no
    such limit.

    `heartbeat_timeout` is the longest silence of the handler in seconds.
    """

    attempt: float | None
    total: float | None
    authority: float
    heartbeat_timeout: int | None


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt for a child. `payload` is the argument list as codec bytes, `context` what
    `activity.info()` tells.
    """

    activity_type: str
    attempt_id: str
    payload: bytes
    context: bytes
    limits: Limits
    max_result_bytes: int


class Reins(Protocol):
    """How a running attempt is stopped and how long it may live; both calls are synchronous and never
    block.
    """

    def request_stop(self, cause: StopCause, detail: str) -> None:
        """Ask the supervisor to stop the child; the first request decides the cause."""
        ...

    def extend_authority(self, until: float) -> None:
        """Move the instant at which the supervisor stops the child without being asked."""
        ...


class Children(Protocol):
    """Where attempts run."""

    def reins(self) -> Reins:
        """Make the reins of one attempt that is about to start."""
        ...

    async def run(self, job: Job, reins: Any, on_heartbeat: Callable[[bytes], None]) -> ChildEnd:
        """Run one attempt to its proven end, or to the proof that there is none; it raises for neither.

        The caller shields this call: a child is stopped through its reins only, so that its end is always
        known.
        """
        ...
