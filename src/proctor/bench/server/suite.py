"""Running the whole suite: the probes of the plan, and the report that follows from them."""

from __future__ import annotations

from collections.abc import Callable

import trio

from proctor.bench import environment, running
from proctor.bench.figures import find
from proctor.bench.report import Report
from proctor.bench.server import plan


async def run(*, rounds: int | None, quick: bool, show: Callable[[str], None]) -> Report:
    """Measure and give the report. `rounds` None means the default; `show` is told what runs."""
    rounds = rounds if rounds is not None else plan.QUICK_ROUNDS if quick else plan.DEFAULT_ROUNDS
    sizes = plan.QUICK if quick else plan.FULL
    place = environment.describe(plan.DISTRIBUTIONS)
    begun = trio.current_time()
    taken = await running.take(plan.probes(sizes), rounds=rounds, seed=0, show=show)
    return Report(
        suite="server",
        rounds=rounds,
        quick=quick,
        seed=0,
        seconds=trio.current_time() - begun,
        environment=place,
        findings=[find(figure, taken.readings) for figure in plan.figures(sizes)],
        troubles=taken.troubles,
        left_behind=taken.left_behind,
    )
