"""What the suite measures, against what, and what should come of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proctor.bench.figures import Bound, Figure, Source, Unit
from proctor.bench.running import Probe

DISTRIBUTIONS = ("proctor", "durable-workflow", "anycorn", "httpx2", "trio")
DEFAULT_ROUNDS = 3
QUICK_ROUNDS = 1

_HERE = "proctor.bench.server"
_PATIENCE = 900.0
_FASTER = 20.0  # how many times more activities per second than the official worker
_SLOWER = 1.5  # the most that a full file may cost, against an empty one
_PARKED_BYTES = 50e6
_FLAT = 1.1  # how far from level the memory of a server may be that has seen all runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    runs: int
    official_runs: int
    activities: int
    filled: int
    calls: int
    polls: int


FULL = Sizes(runs=20, official_runs=5, activities=10, filled=10_000, calls=200, polls=200)
QUICK = Sizes(runs=2, official_runs=1, activities=2, filled=20, calls=5, polls=10)


def probes(sizes: Sizes) -> list[Probe]:
    """Give the probes of one round."""
    return [
        Probe(
            name="activities",
            target=f"{_HERE}.activities:paces",
            parameters={
                "runs": sizes.runs,
                "official_runs": sizes.official_runs,
                "activities": sizes.activities,
            },
            patience=_PATIENCE,
        ),
        Probe(
            name="filled",
            target=f"{_HERE}.filled:latencies",
            parameters={"runs": sizes.filled, "calls": sizes.calls},
            patience=_PATIENCE,
        ),
        Probe(name="parked", target=f"{_HERE}.parked:memory", parameters={"polls": sizes.polls}),
    ]


def figures(sizes: Sizes) -> Sequence[Figure]:
    """Give the figures in the order of the report."""
    official = Source("activities", "official")
    many = f"{sizes.filled:,} runs"
    return [
        Figure(
            key="fresh_activities",
            title="local activities per second of a run, a process for each",
            unit=Unit.PER_SECOND,
            measured=Source("activities", "fresh"),
            reference=official,
            against="official worker",
            bound=Bound(">=", _FASTER),
        ),
        Figure(
            key="reuse_activities",
            title="local activities per second of a run, one warm child",
            unit=Unit.PER_SECOND,
            measured=Source("activities", "reuse"),
            reference=official,
            against="official worker",
        ),
        Figure(
            key="poll",
            title=f"poll with {many} in the file",
            unit=Unit.SECONDS,
            measured=Source("filled", "poll_filled"),
            reference=Source("filled", "poll_empty"),
            against="empty file",
            bound=Bound("<=", _SLOWER),
        ),
        Figure(
            key="describe",
            title=f"describe with {many} in the file",
            unit=Unit.SECONDS,
            measured=Source("filled", "describe_filled"),
            reference=Source("filled", "describe_empty"),
            against="empty file",
            bound=Bound("<=", _SLOWER),
        ),
        Figure(
            key="memory",
            title=f"server's memory after {many}",
            unit=Unit.BYTES,
            measured=Source("filled", "memory_filled"),
            reference=Source("filled", "memory_warm"),
            against="after the first of them",
            bound=Bound("<=", _FLAT),
        ),
        Figure(
            key="parked",
            title=f"server's memory for {sizes.polls} parked polls, above idle",
            unit=Unit.BYTES,
            measured=Source("parked", "above_idle"),
            bound=Bound("<", _PARKED_BYTES, of="measured"),
        ),
    ]
