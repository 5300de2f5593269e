"""The one place where Trio's clock meets the kernel's: Trio's instants carry a random offset of this run."""

from __future__ import annotations

import time

import trio


def to_monotonic(instant: float) -> float:
    """Give the CLOCK_MONOTONIC instant of a `trio.current_time` instant, both in seconds."""
    return instant - trio.current_time() + time.monotonic()


def maybe_to_monotonic(instant: float | None) -> float | None:
    """The same, passing None through."""
    return None if instant is None else to_monotonic(instant)
