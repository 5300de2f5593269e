"""What a figure is, and how it follows from what the probes measured. Pure.

Owns the arithmetic between samples and verdict: a value per round, the median over the rounds, and the ratio, which is
formed within each round before its median is taken, so that a slow minute of the machine hits both sides of it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from proctor.bench.statistics import median, quantile

Reading = Mapping[str, Sequence[float]]
"""What one run of a probe gave: the samples of each of its series, in seconds, bytes or counts per second."""

Rounds = Sequence[Reading | None]
"""A probe's readings, round by round; None where it was not run or broke."""


class Unit(enum.StrEnum):
    """What a value counts."""

    SECONDS = "seconds"
    PER_SECOND = "per_second"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from: a series of a probe, and the quantile of its samples."""

    probe: str
    series: str
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Bound:
    """What a figure should reach. `of` says whether the ratio is bounded or the measured value itself."""

    relation: Literal["<=", "<", ">="]
    limit: float
    of: Literal["ratio", "measured"] = "ratio"

    def holds(self, value: float) -> bool:
        """Whether `value` reaches it."""
        match self.relation:
            case "<=":
                return value <= self.limit
            case "<":
                return value < self.limit
            case ">=":
                return value >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the report.

    Attributes:
        key: its name in JSON.
        title: what it says to a reader.
        unit: what measured value and reference count.
        measured: where its value comes from.
        reference: what it is held against, in the same unit; None for an absolute figure.
        against: the reference in words.
        speedup: form the ratio as reference / measured ("times faster") instead of measured / reference.
        bound: what it should reach; None when it is only shown.
        pooled: take the quantile of all rounds' samples together, for series too short for one of their own.
    """

    key: str
    title: str
    unit: Unit
    measured: Source
    reference: Source | None = None
    against: str = ""
    speedup: bool = False
    bound: Bound | None = None
    pooled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A figure with its values, in base units; None where there is nothing to tell.

    `ratio_range` holds the lowest and the highest ratio of a single round; `samples` counts what `measured` rests on.
    """

    figure: Figure
    measured: float | None = None
    reference: float | None = None
    ratio: float | None = None
    ratio_range: tuple[float, float] | None = None
    met: bool | None = None
    rounds: int = 0
    samples: int = 0


def find(figure: Figure, readings: Mapping[str, Rounds]) -> Finding:
    """Give the finding of `figure` from `readings`, by probe name; a probe that is missing leaves its values None."""
    ours = _series(figure.measured, readings)
    theirs = _series(figure.reference, readings) if figure.reference is not None else []
    measured = _value(figure, figure.measured, ours)
    reference = _value(figure, figure.reference, theirs) if figure.reference is not None else None
    ratios = _ratios(figure, ours, theirs)
    ratio = median(ratios) if ratios else None
    bounded = None if figure.bound is None else (ratio if figure.bound.of == "ratio" else measured)
    present = [samples for samples in ours if samples is not None]
    return Finding(
        figure=figure,
        measured=measured,
        reference=reference,
        ratio=ratio,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
        met=None if figure.bound is None or bounded is None else figure.bound.holds(bounded),
        rounds=len(present),
        samples=sum(map(len, present)),
    )


def _series(source: Source, readings: Mapping[str, Rounds]) -> list[Sequence[float] | None]:
    """Give the samples of each round; None for a round without any."""
    return [
        (reading.get(source.series) or None) if reading is not None else None
        for reading in readings.get(source.probe, ())
    ]


def _value(figure: Figure, source: Source, rounds: Sequence[Sequence[float] | None]) -> float | None:
    present = [samples for samples in rounds if samples is not None]
    if not present:
        return None
    if figure.pooled:
        return quantile([sample for samples in present for sample in samples], source.share)
    return median([quantile(samples, source.share) for samples in present])


def _ratios(
    figure: Figure, ours: Sequence[Sequence[float] | None], theirs: Sequence[Sequence[float] | None]
) -> list[float]:
    """Form the ratio of each round in which both sides were measured."""
    found = []
    for mine, other in zip(ours, theirs, strict=False):
        if mine is None or other is None or figure.reference is None:
            continue
        value, against = quantile(mine, figure.measured.share), quantile(other, figure.reference.share)
        above, below = (against, value) if figure.speedup else (value, against)
        if below > 0:
            found.append(above / below)
    return found
