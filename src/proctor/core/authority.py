"""How long this worker may act: all arithmetic that turns the server's instants into local ones.

The server speaks in wall time, a child is stopped by the local monotonic clock. Each receipt carries the
server's own time, so one exchange (request started, answer received, `server_time` in between) bounds both
clocks against each other: a server instant cannot come *before* `started + (instant - server_time)` and
cannot come *after* `received + (instant - server_time)`. The first conversion is used for everything that
ends authority (the whole round trip is charged to us, prepared-local.md §5), the second for claiming that a
deadline has passed.

Pure: no clock is read here; `now` is an argument, in seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

OPERATION_LIMIT_SECONDS = 5.0
"""One operation has at most this long in total, retries and transport together (prepared-local.md §2)."""


class Bound(StrEnum):
    """What ends authority. The first three are the attempt's own deadlines, the rest ends the claim
    itself.
    """

    SCHEDULE_TO_CLOSE = "schedule_to_close"
    HEARTBEAT = "heartbeat"
    START_TO_CLOSE = "start_to_close"
    ATTEMPT_LEASE = "attempt_lease"
    WORKFLOW_LEASE = "workflow_lease"
    CLEANUP = "cleanup"


DEADLINE_BOUNDS = (Bound.SCHEDULE_TO_CLOSE, Bound.HEARTBEAT, Bound.START_TO_CLOSE)
"""The attempt's deadlines, in the order in which the server lets one win over another (prepared-local.md
§2.6).
"""

_CLAIM_BOUNDS = (Bound.ATTEMPT_LEASE, Bound.WORKFLOW_LEASE, Bound.CLEANUP)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One answered request on the local clock, and the server's time somewhere inside it.

    `started` is when the first try of the request started, `received` when its answer was read.
    """

    started: float
    received: float
    server_time: datetime

    def __post_init__(self) -> None:
        if self.received < self.started:
            raise ValueError(f"an answer cannot arrive ({self.received}) before its request ({self.started})")

    def earliest(self, instant: datetime) -> float:
        """Give the earliest local instant at which the server's clock may show `instant`."""
        return self.started + (instant - self.server_time).total_seconds()

    def latest(self, instant: datetime) -> float:
        """Give the local instant by which the server's clock certainly shows `instant`."""
        return self.received + (instant - self.server_time).total_seconds()


@dataclass(frozen=True, slots=True)
class AttemptDeadlines:
    """The three deadlines of one attempt as the server states them; None when the call has no such
    timeout.
    """

    start_to_close: datetime | None = None
    schedule_to_close: datetime | None = None
    heartbeat: datetime | None = None


@dataclass(frozen=True, slots=True)
class Leases:
    """What the claim hangs on: the attempt's lease, the hosting task's lease, and the cleanup deadline if
    any.

    A prepare receipt names only one lease; it is both (prepared-local.md §2.3).
    """

    attempt: datetime
    workflow: datetime | None = None
    cleanup: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Window:
    """One bound on the local clock: it is reached somewhere between `earliest` and `latest`."""

    bound: Bound
    earliest: float
    latest: float


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority that one validated receipt gives, on the local clock."""

    windows: tuple[_Window, ...]

    @property
    def until(self) -> float:
        """Give the instant at which the child must be gone: the minimum over every bound."""
        return min(window.earliest for window in self.windows)

    @property
    def claim_until(self) -> float:
        """Give the instant until which we may publish.

        The leases and the cleanup deadline decide; a passed deadline of the attempt does not take the claim
        away, it only turns the outcome into a timeout (prepared-local.md §2.6).
        """
        return min(window.earliest for window in self.windows if window.bound in _CLAIM_BOUNDS)

    @property
    def binding(self) -> Bound:
        """Name the bound that ends authority first; of equal ones the server's order of precedence
        decides.
        """
        return min(self.windows, key=lambda window: (window.earliest, list(Bound).index(window.bound))).bound

    def operation_budget(self, now: float) -> float:
        """Give the seconds that one attempt operation may take from `now`; 0 when authority is spent."""
        return max(0.0, min(OPERATION_LIMIT_SECONDS, self.until - now))

    def publication_budget(self, now: float) -> float:
        """Give the seconds that publishing the outcome may take from `now`; 0 when the claim may be gone."""
        return max(0.0, min(OPERATION_LIMIT_SECONDS, self.claim_until - now))

    def earliest(self, bound: Bound) -> float | None:
        """Give the conservative instant of `bound`, None when there is no such bound."""
        return next((window.earliest for window in self.windows if window.bound is bound), None)

    def certainly_passed_at(self, bound: Bound) -> float | None:
        """Give the instant from which `bound` has certainly passed on the server, None when there is none."""
        return next((window.latest for window in self.windows if window.bound is bound), None)

    def due_deadline(self, now: float) -> Bound | None:
        """Name the attempt's deadline that may have passed at `now`, the server's precedence first."""
        for bound in DEADLINE_BOUNDS:
            instant = self.earliest(bound)
            if instant is not None and instant <= now:
                return bound
        return None


def authority_of(exchange: Exchange, *, leases: Leases, deadlines: AttemptDeadlines) -> Authority:
    """Convert what one receipt states into local instants (prepared-local.md §5)."""
    stated = (
        (Bound.SCHEDULE_TO_CLOSE, deadlines.schedule_to_close),
        (Bound.HEARTBEAT, deadlines.heartbeat),
        (Bound.START_TO_CLOSE, deadlines.start_to_close),
        (Bound.ATTEMPT_LEASE, leases.attempt),
        (Bound.WORKFLOW_LEASE, leases.workflow),
        (Bound.CLEANUP, leases.cleanup),
    )
    return Authority(
        tuple(
            _Window(bound, exchange.earliest(instant), exchange.latest(instant))
            for bound, instant in stated
            if instant is not None
        )
    )
