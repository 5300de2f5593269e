"""What workflow files import: the definition decorators, the context type, the policies and the exceptions to catch.

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
from typing import Any, Protocol, TypeVar, cast

from proctor.core.replay.authoring.commands import ContinueAsNew
from proctor.core.replay.authoring.context import WorkflowContext
from proctor.core.replay.authoring.handlers import find_handlers, mark
from proctor.core.replay.authoring.options import CancellationPolicy, ParentClosePolicy
from proctor.core.replay.authoring.saga import Saga
from proctor.core.replay.authoring.selection import DurableOperationHandle, SelectionResult
from proctor.core.replay.authoring.service import NexusOperationResult
from proctor.core.replay.authoring.streams import MessageStreamMessage, WorkflowStreamAppendItem
from proctor.core.replay.decision import WorkflowDefinition
from proctor.core.replay.failures import (
    ActivityFailed,
    ChildWorkflowCancelled,
    ChildWorkflowFailed,
    ChildWorkflowTerminated,
    DurableOperationCancelled,
    NexusOperationFailed,
    SagaCompensationFailed,
    WorkflowCancelled,
)
from proctor.core.replay.interaction import UpdateRejected
from proctor.core.replay.recorded.cancelling import CancellationContext
from proctor.core.retry import ActivityRetryPolicy, RetryPolicy
from proctor.errors import UsageError

ChildWorkflowRetryPolicy = ActivityRetryPolicy
"""The retry rule of child workflows is that of activities (replay.md §7)."""

__all__ = [
    "ActivityFailed",
    "ActivityRetryPolicy",
    "CancellationContext",
    "CancellationPolicy",
    "ChildWorkflowCancelled",
    "ChildWorkflowFailed",
    "ChildWorkflowRetryPolicy",
    "ChildWorkflowTerminated",
    "ContinueAsNew",
    "DurableOperationCancelled",
    "DurableOperationHandle",
    "MessageStreamMessage",
    "NexusOperationFailed",
    "NexusOperationResult",
    "ParentClosePolicy",
    "RetryPolicy",
    "Saga",
    "SagaCompensationFailed",
    "SelectionResult",
    "UpdateRejected",
    "WorkflowCancelled",
    "WorkflowContext",
    "WorkflowDefinition",
    "WorkflowStreamAppendItem",
    "definition_of",
    "defn",
    "query",
    "signal",
    "update",
    "update_validator",
]

_C = TypeVar("_C", bound=type[Any])
_F = TypeVar("_F", bound=Callable[..., Any])
_R = TypeVar("_R", covariant=True)
_ATTRIBUTE = "__proctor_workflow__"


def defn(*, name: str) -> Callable[[_C], _C]:
    """Mark a class as the workflow `name`; ``async def run(self, ctx, ...)`` is its entry.

    `run` may also be a generator (``yield`` before each ctx call) or a plain function. Raises UsageError for a blank
    name, a class without such a `run`, or handlers that cannot be used.
    """
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f'a workflow needs a name: @workflow.defn(name="..."), not {name!r}')

    def mark_class(cls: _C) -> _C:
        if not inspect.isclass(cls):
            raise UsageError(f"@workflow.defn marks a class, not {cls!r}")
        run = getattr(cls, "run", None)
        if not callable(run):
            raise UsageError(f"workflow class {cls.__qualname__} has no method `run(self, ctx, ...)`")
        if inspect.isasyncgenfunction(run):
            raise UsageError(
                f"{cls.__qualname__}.run mixes `async def` and `yield`: await the ctx calls, or write `def run`"
            )
        setattr(cls, _ATTRIBUTE, WorkflowDefinition(name.strip(), cls, find_handlers(cls)))
        return cls

    return mark_class


def signal(name: str) -> Callable[[_F], _F]:
    """Mark a method as the handler of signal `name`: a plain function that changes `self`; its value is ignored."""
    return lambda method: mark("signal", name, method)


def query(name: str) -> Callable[[_F], _F]:
    """Mark a method as the handler of query `name`: it reads `self` and gives a value, and changes nothing."""
    return lambda method: mark("query", name, method)


class UpdateMethod(Protocol[_R]):
    """A method marked by `update`, as type checkers see it."""

    def __call__(self, *arguments: Any, **named: Any) -> _R:
        """Call the method itself."""

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[..., _R]:
        """Bind the method to its workflow."""

    def validator(self, method: _F) -> _F:
        """Mark `method` as the validator of this update."""


def update(name: str) -> Callable[[Callable[..., _R]], UpdateMethod[_R]]:
    """Mark a method as the handler of update `name`: it changes `self` and gives the update's result.

    ``@method.validator`` marks its validator, like `update_validator`.
    """

    def mark_method(method: Callable[..., _R]) -> UpdateMethod[_R]:
        marked: Any = mark("update", name, method)
        marked.validator = update_validator(name)
        return cast(UpdateMethod[_R], marked)

    return mark_method


def update_validator(name: str) -> Callable[[_F], _F]:
    """Mark a method as the validator of update `name`: raising (or returning False) refuses the update."""
    return lambda method: mark("validator", name, method)


def definition_of(cls: type[Any]) -> WorkflowDefinition:
    """Give the definition that `defn` attached to this very class; UsageError when it has none."""
    found = vars(cls).get(_ATTRIBUTE) if inspect.isclass(cls) else None
    if not isinstance(found, WorkflowDefinition):
        name = getattr(cls, "__qualname__", repr(cls))
        raise UsageError(f'{name} is no workflow: put @workflow.defn(name="...") above the class')
    return found
