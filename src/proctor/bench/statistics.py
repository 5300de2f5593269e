"""The few statistics the figures need: pure functions over samples."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(samples: Sequence[float], share: float) -> float:
    """Give the value below which `share` (0 to 1) of `samples` lies, interpolated between neighbours.

    Raises ValueError when there are no samples, when one is not finite, or when `share` is outside 0 to 1.
    """
    if not samples:
        raise ValueError("a quantile of no samples")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a quantile is between 0 and 1, not {share!r}")
    if not all(map(math.isfinite, samples)):
        raise ValueError("a sample that is not a finite number")
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(samples: Sequence[float]) -> float:
    """Give the middle value of `samples`. Raises ValueError when there are none."""
    return quantile(samples, 0.5)
