"""What both workers run: one workflow of sequential local activities that do nothing. A module for ``proctor worker``.

The workflow uses generators, so that the same code runs under the official SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from proctor import activity, workflow

WORKFLOW_TYPE = "bench.sequence"
ACTIVITY_TYPE = "bench.noop"


def noop(number: int) -> int:
    """Do nothing."""
    return number


def sequence(workflow_module: Any) -> type[Any]:
    """Give the workflow class, defined with the given `workflow` module."""

    @workflow_module.defn(name=WORKFLOW_TYPE)
    class Sequence:
        def run(self, ctx: Any, activities: int) -> Generator[Any, Any, int]:
            done = 0
            for number in range(activities):
                done += (yield ctx.local_activity(ACTIVITY_TYPE, [number])) == number
            return done

    return Sequence


own_noop: Callable[..., Any] = activity.defn(name=ACTIVITY_TYPE)(noop)
OwnSequence = sequence(workflow)
