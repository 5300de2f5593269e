"""The handle by which others steer an attempt while `run` awaits its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor_supervisor.errors import TaskRefused
from proctor_supervisor.options import require_instant
from proctor_supervisor.reasons import StopReason

if TYPE_CHECKING:
    from proctor_supervisor.owner.orders import Orders


class AttemptControl:
    """Steers one attempt; make one and pass it to `Supervisor.run`, which refuses one that steers another attempt.

    Both methods return at once and may be called at any time: before the child runs they are kept and applied first,
    after it ended they do nothing. The attributes `pid` and `started_at` (Trio's clock) are None until it runs.
    """

    __slots__ = ("_is_taken", "_orders", "authority_at", "pid", "started_at", "stop_requested")

    def __init__(self) -> None:
        self.pid: int | None = None
        self.started_at: float | None = None
        self.stop_requested: tuple[StopReason, str] | None = None
        self.authority_at: float | None = None
        self._orders: Orders | None = None
        self._is_taken = False

    def request_stop(self, reason: StopReason, detail: str = "") -> None:
        """Ask for the attempt to be stopped; the first reason is kept, an immediate one may still hasten it.

        Of `detail` the first thousand characters are kept. Raises ValueError for a reason that is none.
        """
        reason, detail = StopReason(reason), str(detail)
        if self.stop_requested is None or reason.is_immediate:
            self.stop_requested = (reason, detail)
            if self._orders is not None:
                self._orders.stop(reason, detail)

    def extend_authority(self, until: float) -> None:
        """Move the instant to which the right to run is known; `until` is absolute on Trio's clock.

        Raises ValueError for anything but a number.
        """
        require_instant("until", until)
        self.authority_at = until
        if self._orders is not None:
            self._orders.extend(until)

    def take(self) -> None:
        """Belong to one call of `run` until `give_back`. For the supervisor only. Raises TaskRefused."""
        if self._is_taken:
            raise TaskRefused("this AttemptControl steers another attempt that is still running; make one for each")
        self._is_taken = True

    def give_back(self) -> None:
        """The reverse of `take`. For the supervisor only."""
        self._is_taken = False

    @property
    def stop_budget(self) -> float:
        """Seconds within which a stop of the attempt must be over; 0 while there is none. For the supervisor only."""
        return self._orders.stop_budget if self._orders is not None else 0.0

    def bind(self, orders: Orders) -> None:
        """Connect to a child that is about to be given the task. For the supervisor only."""
        self._orders, self.pid, self.started_at = orders, orders.pid, orders.now
        if self.stop_requested is not None:
            orders.stop(*self.stop_requested)

    def release(self) -> None:
        """Disconnect from a child that is gone, or was given back. For the supervisor only."""
        self._orders = None
