"""The one place where Trio's clock meets the kernel's: Trio's instants carry a random offset of this run."""

from __future__ import annotations

import time
from math import inf

import trio


def to_monotonic(instant: float) -> float:
    """Give the CLOCK_MONOTONIC instant of a `trio.current_time` instant, both in seconds."""
    return instant - trio.current_time() + time.monotonic()


def monotonic_or_never(instant: float | None) -> float:
    """The same; None becomes infinity."""
    return inf if instant is None else to_monotonic(instant)
