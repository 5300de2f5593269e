"""Running the whole suite: the probes of the plan, and the report that follows from them."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import trio

from proctor.bench import environment, running
from proctor.bench.figures import find
from proctor.bench.report import Report
from proctor.bench.supervisor import plan

_SEEDS = 2**31


async def run(*, rounds: int | None, quick: bool, peers: bool, seed: int | None, show: Callable[[str], None]) -> Report:
    """Measure and give the report. `rounds` None: the default, `seed` None: a new one; `show` is told what runs."""
    rounds = rounds if rounds is not None else plan.QUICK_ROUNDS if quick else plan.DEFAULT_ROUNDS
    seed = seed if seed is not None else secrets.randbelow(_SEEDS)
    show(f"seed {seed}")
    place = environment.describe(plan.DISTRIBUTIONS)
    begun = trio.current_time()
    chosen = plan.probes(plan.QUICK if quick else plan.FULL, peers=peers)
    taken = await running.take(chosen, rounds=rounds, seed=seed, show=show)
    return Report(
        suite="supervisor",
        rounds=rounds,
        quick=quick,
        seed=seed,
        seconds=trio.current_time() - begun,
        environment=place,
        findings=[find(figure, taken.readings) for figure in plan.figures(peers=peers)],
        troubles=taken.troubles,
        left_behind=taken.left_behind,
    )
