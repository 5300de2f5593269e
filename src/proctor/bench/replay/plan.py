"""What the suite measures, against what, and what should come of it. Pure.

The cost of a replay grows with its history and no faster: that is held by a ratio within one run, as is the
comparison with the official replayer. Absolute seconds are shown for the reader's own machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from proctor.bench.figures import Bound, Figure, Source, Unit
from proctor.bench.replay.histories import SHAPES
from proctor.bench.running import Probe

DISTRIBUTIONS = ("proctor", "durable-workflow")
SIZE = 5_000
QUICK_SIZE = 500
CALLS = 5
DEFAULT_ROUNDS = 5
QUICK_ROUNDS = 1

_HERE = "proctor.bench.replay"
_DOUBLING = 2.3  # the most that twice as many events may cost
_FASTER = 2.0  # how many times faster than the official replayer


def probes(*, size: int) -> list[Probe]:
    """Give the probes of one round: each shape at `size` and twice that, ours alone and beside the official one."""
    found = []
    for shape in SHAPES:
        found.append(
            Probe(
                name=f"{shape}_growth",
                target=f"{_HERE}.own:growth",
                parameters={"shape": shape, "size": size, "calls": CALLS},
            )
        )
        found.append(
            Probe(
                name=f"{shape}_official",
                target=f"{_HERE}.official:compare",
                parameters={"shape": shape, "size": 2 * size, "calls": CALLS},
                needs="durable_workflow",
            )
        )
    return found


def figures(*, size: int) -> Sequence[Figure]:
    """Give the figures in the order of the report."""
    found = []
    for shape in SHAPES:
        named = shape.replace("_", " ")
        found += [
            Figure(
                key=f"{shape}_doubling",
                title=f"{2 * size} events of {named}, against half of them",
                unit=Unit.SECONDS,
                measured=Source(f"{shape}_growth", "large"),
                reference=Source(f"{shape}_growth", "small"),
                against=f"{size} events",
                bound=Bound("<=", _DOUBLING),
            ),
            Figure(
                key=f"{shape}_against_official",
                title=f"{2 * size} events of {named}, against the official replayer",
                unit=Unit.SECONDS,
                measured=Source(f"{shape}_official", "own"),
                reference=Source(f"{shape}_official", "official"),
                against="official replayer",
                speedup=True,
                bound=Bound(">=", _FASTER),
            ),
        ]
    return found
