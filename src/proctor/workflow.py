"""What workflow files import: the definition decorator, the context type, the policies and the exceptions to catch.

    @workflow.defn(name="scan")
    class Scan:
        async def run(self, ctx: workflow.WorkflowContext, path: str) -> dict[str, int]:
            return await ctx.local_activity("crunch", [path], start_to_close_timeout=30)

A workflow is code that is run again from its start whenever its run goes on, so it must do the same every time: take
time and randomness from `ctx`, and do everything else in activities. Nothing here loads Trio or does I/O; what the
calls mean is decided in `proctor.core.replay`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from proctor.core.replay.commands import CancellationPolicy
from proctor.core.replay.context import WorkflowContext
from proctor.core.replay.decision import WorkflowDefinition
from proctor.core.replay.failures import ActivityFailed, WorkflowCancelled
from proctor.core.retry import ActivityRetryPolicy, RetryPolicy
from proctor.errors import UsageError

__all__ = [
    "ActivityFailed",
    "ActivityRetryPolicy",
    "CancellationPolicy",
    "RetryPolicy",
    "WorkflowCancelled",
    "WorkflowContext",
    "WorkflowDefinition",
    "definition_of",
    "defn",
]

_C = TypeVar("_C", bound=type[Any])
_ATTRIBUTE = "__proctor_workflow__"


def defn(*, name: str) -> Callable[[_C], _C]:
    """Mark a class as the workflow `name`; ``async def run(self, ctx, ...)`` is its entry.

    `run` may also be a generator (``yield`` before each ctx call) or a plain function. Raises UsageError for a blank
    name or a class without such a `run`.
    """
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f'a workflow needs a name: @workflow.defn(name="..."), not {name!r}')

    def mark(cls: _C) -> _C:
        if not inspect.isclass(cls):
            raise UsageError(f"@workflow.defn marks a class, not {cls!r}")
        run = getattr(cls, "run", None)
        if not callable(run):
            raise UsageError(f"workflow class {cls.__qualname__} has no method `run(self, ctx, ...)`")
        if inspect.isasyncgenfunction(run):
            raise UsageError(
                f"{cls.__qualname__}.run mixes `async def` and `yield`: await the ctx calls, or write `def run`"
            )
        setattr(cls, _ATTRIBUTE, WorkflowDefinition(name.strip(), cls))
        return cls

    return mark


def definition_of(cls: type[Any]) -> WorkflowDefinition:
    """Give the definition that `defn` attached to this very class; UsageError when it has none."""
    found = vars(cls).get(_ATTRIBUTE) if inspect.isclass(cls) else None
    if not isinstance(found, WorkflowDefinition):
        name = getattr(cls, "__qualname__", repr(cls))
        raise UsageError(f'{name} is no workflow: put @workflow.defn(name="...") above the class')
    return found
