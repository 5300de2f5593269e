"""Probe of the official replayer beside ours: the same history and the same workflow code, in turn."""

from __future__ import annotations

import importlib
from typing import Any

from proctor.bench.replay import histories
from proctor.bench.replay.own import replayer, seconds_of


def compare(*, shape: str, size: int, calls: int) -> dict[str, list[float]]:
    """Give the series ``own`` and ``official``."""
    official: Any = importlib.import_module("durable_workflow.workflow")
    history, steps = histories.build(shape, size)
    cls = histories.define(official, shape)
    own = replayer(shape, size)

    def theirs() -> None:
        outcome = official.replay(cls, history, [steps], run_id="run-1", payload_codec="avro")
        if [type(command).__name__ for command in outcome.commands] != ["CompleteWorkflow"]:
            raise RuntimeError("the official replay did not come to the end of the run")

    found: dict[str, list[float]] = {"own": [], "official": []}
    own()
    theirs()
    for _ in range(calls):
        found["own"].append(seconds_of(own))
        found["official"].append(seconds_of(theirs))
    return found
