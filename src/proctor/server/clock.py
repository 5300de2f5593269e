"""The one clock of the server: everything that asks for the time or waits for an instant goes through it.

`SystemClock` starts from the wall clock and then follows the monotonic one, so a wall clock that is set while the
server runs moves no lease and no deadline; one that was set back while no server ran does not either, because the time
goes on from what the database has seen. Tests put a clock here that they move by hand.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

import trio


class Clock(Protocol):
    """What the server needs of time. `now` is called from the writer thread too."""

    def now(self) -> datetime:
        """Give the present instant, aware and UTC; never earlier than an answer given before."""
        ...

    async def sleep_until(self, instant: datetime) -> None:
        """Return once `now()` has reached `instant`."""
        ...


class SystemClock:
    """Wall time at creation, or `not_before` where that is later, advanced by the monotonic clock."""

    def __init__(self, not_before: datetime | None = None) -> None:
        wall = datetime.now(UTC)
        self._wall = wall if not_before is None else max(wall, not_before)
        self._monotonic = time.monotonic()

    def now(self) -> datetime:
        """Give the present instant."""
        return self._wall + timedelta(seconds=time.monotonic() - self._monotonic)

    async def sleep_until(self, instant: datetime) -> None:
        """Sleep until `instant`, rounding up so that `now()` has really reached it."""
        await trio.sleep(max(0.0, (instant - self.now()).total_seconds()))
        # Seconds as a float may round down by less than a microsecond.
        if self.now() < instant:
            await trio.sleep(1e-6)
