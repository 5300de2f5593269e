"""Probe of our own replay: the seconds of one whole replay, of a history and of one twice as long, in turn."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from proctor import workflow
from proctor.bench.replay import histories
from proctor.core import codec
from proctor.core.replay import Commands, ReplayTask, replay


def growth(*, shape: str, size: int, calls: int) -> dict[str, list[float]]:
    """Give the series ``small`` (`size` events) and ``large`` (twice as many)."""
    small, large = replayer(shape, size), replayer(shape, 2 * size)
    found: dict[str, list[float]] = {"small": [], "large": []}
    small()
    for _ in range(calls):
        found["small"].append(seconds_of(small))
        found["large"].append(seconds_of(large))
    return found


def replayer(shape: str, size: int) -> Callable[[], None]:
    """Give a function that replays a history of `size` events; it raises when the run does not complete."""
    history, steps = histories.build(shape, size)
    definition = workflow.definition_of(histories.define(workflow, shape))
    task = ReplayTask("bench", "run-1", "bench", codec.CODEC, codec.envelope([steps]), history)

    def run() -> None:
        _require_complete(replay(definition, task))

    return run


def seconds_of(call: Callable[[], None]) -> float:
    """Time one call, without the garbage of the ones before it."""
    gc.collect()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _require_complete(decision: Any) -> None:
    if not isinstance(decision, Commands) or [command["type"] for command in decision.commands] != [
        "complete_workflow"
    ]:
        raise RuntimeError(f"the replay came to {type(decision).__name__}, not to the end of the run")
